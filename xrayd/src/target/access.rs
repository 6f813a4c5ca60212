//! The right to trace: the kernel's rule for ptrace, applied to a caller instead of the daemon.
//!
//! The daemon has rights that its callers do not have, so the kernel's answer to the daemon is not
//! the answer to the caller. This file repeats the rule: kernel/ptrace.c `__ptrace_may_access` with
//! the real credentials, security/commoncap.c `cap_ptrace_access_check` and
//! security/yama/yama_lsm.c `yama_ptrace_access_check`, as in Linux 6.18. It reads nothing;
//! `credentials.rs` and `rpc/peer.rs` do.
//!
//! | question | the kernel | here |
//! |---|---|---|
//! | user and group | the caller's real ids are all ids of the target, or CAP_SYS_PTRACE there | the same, also of every other thread |
//! | capabilities | the target's are among the caller's, in one namespace, or CAP_SYS_PTRACE | the same; a user other than root counts as having none |
//! | dumpable | yes, or CAP_SYS_PTRACE | the same |
//! | Yama 1 | a descendant, a declared tracer (PR_SET_PTRACER), or CAP_SYS_PTRACE | the same; a declaration cannot be seen |
//! | Yama 2 | CAP_SYS_PTRACE | the same |
//! | Yama 3 | no | the same |
//!
//! CAP_SYS_PTRACE is held by root with that capability, and by the owner of the user namespace that
//! the target is in. The rule refuses where it cannot see what the kernel sees.

use std::fmt;

use nix::unistd::geteuid;

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal},
};

/// CAP_SYS_PTRACE, include/uapi/linux/capability.h.
pub(crate) const SYS_PTRACE: u64 = 1 << 19;

/// A client of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its process, for the log; 0 if it is unknown.
    pub pid: u32,
    standing: Standing,
}

/// The rights of a caller. Fixed when it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// This process itself. The kernel judges its actions. Other users' processes are not shown.
    InProcess,
    /// Another process, in the same namespaces.
    Peer(Rights),
    /// A process without any right here.
    Denied(Confinement),
    /// Another process, to which a rule of access gives rights to processes of this user. The rule
    /// was compared with the process before.
    ActingFor { user: u32 },
}

/// Rights of another process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Its group.
    pub(crate) group: u32,
    /// Permitted capabilities, as far as they count: a user other than root has none.
    pub(crate) permitted: u64,
    /// Effective capabilities, in the same way.
    pub(crate) effective: u64,
    /// Field 22 of its `/proc/PID/stat`.
    pub(crate) start_time: u64,
}

/// The reason why a caller has no rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Confinement {
    #[error("the caller's process has ended, or the daemon cannot read its status")]
    Unseen,
    #[error("the caller's process has more than {MOST_CALLER_THREADS} threads")]
    Threads,
    #[error("the user or group ids of the caller's process have changed since it connected")]
    Ids,
    #[error("the caller's user or group has no id in the daemon's user namespace")]
    Unmapped,
    #[error("the caller is in another user namespace than the daemon")]
    UserNamespace,
    #[error("the caller is in another pid namespace than the daemon")]
    PidNamespace,
    #[error("a security module confines the caller (AppArmor, SELinux, Smack)")]
    SecurityModule,
    #[error("the caller is under a seccomp filter that the daemon is not under")]
    Seccomp,
    #[error("the caller runs with no_new_privs, as processes under Landlock and seccomp do")]
    NoNewPrivileges,
}

/// Most threads of a caller that are looked at. A caller with more threads has no rights.
pub(crate) const MOST_CALLER_THREADS: usize = 512;

/// The credentials of a process for the kernel's rule: those of all its threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The effective user of its first thread.
    pub(crate) user: u32,
    /// The user and the group of all threads, if real, effective and saved ids are equal. `None` if
    /// they differ.
    pub(crate) ids: Option<(u32, u32)>,
    /// Permitted capabilities that any thread has.
    pub(crate) permitted: u64,
    /// The namespace in which its ids and capabilities count.
    pub(crate) namespace: Namespace,
    /// True if the kernel lets processes of the same user into its memory.
    pub(crate) dumpable: bool,
}

/// A user namespace, as seen from the daemon's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// The daemon's own namespace.
    Own,
    /// A namespace within it. `owner` made the outermost of the namespaces between the two.
    Below { owner: u32 },
    /// Another namespace, or one that cannot be read.
    Elsewhere,
}

/// `kernel.yama.ptrace_scope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yama {
    /// 0, or no Yama.
    Off,
    /// 1.
    Descendants,
    /// 2.
    Privileged,
    /// 3, and any unknown value.
    Nobody,
}

/// The reason why a caller may not trace a process. The text follows "process N".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("may not be traced by this caller: {0}")]
    Caller(Confinement),
    #[error("belongs to user {owner}; user {uid} may not trace it, only its owner and root may")]
    User { owner: u32, uid: u32 },
    #[error("has several user or group ids, as a set-user-id program has; only root may trace it")]
    Ids,
    #[error("runs with group {group}; a caller with group {own} may not trace it, only root may")]
    Group { group: u32, own: u32 },
    #[error(
        "has capabilities (CapPrm {0:#x}) that the caller does not have; only root may trace it"
    )]
    Capabilities(u64),
    #[error("is in a user namespace that user {uid} does not own; only root may trace it")]
    Namespace { uid: u32 },
    #[error("denies its own user access to its memory (PR_SET_DUMPABLE); only root may trace it")]
    Undumpable,
    #[error("is about to end, or the daemon cannot read its credentials")]
    Unreadable,
    #[error("may be traced {0} here")]
    Yama(Yama),
}

// === impl Confinement ===

impl Confinement {
    /// True if a sandbox confines the process, and it is otherwise the one that it seems to be, in
    /// the daemon's namespaces.
    pub(crate) fn is_sandbox(self) -> bool {
        matches!(self, Self::Seccomp | Self::NoNewPrivileges)
    }
}

// === impl Caller ===

impl Caller {
    /// This process itself.
    pub fn this_process() -> Self {
        Self::in_process(geteuid().as_raw(), std::process::id())
    }

    /// A part of this process that acts for a user. It is shown that user's processes, and the
    /// kernel judges the rest.
    pub fn in_process(uid: u32, pid: u32) -> Self {
        Self {
            uid,
            pid,
            standing: Standing::InProcess,
        }
    }

    /// A process of a user, without capabilities unless it is root, for the answer to a question.
    pub(crate) fn of_user(uid: u32, group: Option<&u32>) -> Self {
        let capabilities = if uid == 0 { u64::MAX } else { 0 };
        let rights = Rights {
            group: group.copied().unwrap_or(uid),
            permitted: capabilities,
            effective: capabilities,
            start_time: 0,
        };
        Self::peer(uid, 0, Ok(rights))
    }

    /// Another process.
    pub(crate) fn peer(uid: u32, pid: u32, rights: Result<Rights, Confinement>) -> Self {
        let standing = match rights {
            Ok(rights) => Standing::Peer(rights),
            Err(why) => Standing::Denied(why),
        };
        Self { uid, pid, standing }
    }

    /// The reason why the caller has no rights, if it has none.
    pub(crate) fn confinement(&self) -> Option<Confinement> {
        match self.standing {
            Standing::Denied(why) => Some(why),
            Standing::InProcess | Standing::Peer(_) | Standing::ActingFor { .. } => None,
        }
    }

    /// The same caller, to whom a rule of access gives rights to processes of `user`.
    pub(crate) fn acting_for(self, user: u32) -> Self {
        Self {
            standing: Standing::ActingFor { user },
            ..self
        }
    }

    /// The user whose processes a rule of access gives the caller rights to.
    pub(crate) fn acts_for(&self) -> Option<u32> {
        match self.standing {
            Standing::ActingFor { user } => Some(user),
            Standing::InProcess | Standing::Peer(_) | Standing::Denied(_) => None,
        }
    }

    /// The rights of another process. `None` for this process, and for a caller without any right.
    pub(crate) fn rights(&self) -> Option<Rights> {
        match self.standing {
            Standing::Peer(rights) => Some(rights),
            Standing::InProcess | Standing::Denied(_) | Standing::ActingFor { .. } => None,
        }
    }

    /// The user whose quotas the caller's requests are charged to; `None` for root with rights of
    /// its own, who has none.
    pub fn payer(&self) -> Option<u32> {
        let is_free = match self.standing {
            Standing::InProcess | Standing::Peer(_) => self.uid == 0,
            Standing::Denied(_) | Standing::ActingFor { .. } => false,
        };
        (!is_free).then_some(self.uid)
    }

    /// Start time of the caller's process, if it is another process.
    pub(crate) fn start_time(&self) -> Option<u64> {
        match &self.standing {
            Standing::Peer(rights) => Some(rights.start_time),
            Standing::InProcess | Standing::Denied(_) | Standing::ActingFor { .. } => None,
        }
    }

    /// True for root with CAP_SYS_PTRACE: the rule admits it to every process, except for Yama.
    pub(crate) fn is_privileged(&self) -> bool {
        match &self.standing {
            Standing::InProcess => self.uid == 0,
            Standing::Peer(rights) => self.uid == 0 && rights.effective & SYS_PTRACE != 0,
            Standing::Denied(_) | Standing::ActingFor { .. } => false,
        }
    }

    /// Applies the rule. `is_descendant` returns whether the process descends from the caller.
    pub(crate) fn may_trace(
        &self,
        target: &Credentials,
        yama: Yama,
        is_descendant: impl FnOnce() -> bool,
    ) -> Result<(), Denial> {
        let uid = self.uid;
        let other_user = Denial::User {
            owner: target.user,
            uid,
        };
        let rights = match &self.standing {
            Standing::Denied(why) => return Err(Denial::Caller(*why)),
            Standing::Peer(rights) => rights,
            Standing::ActingFor { user } if target.user != *user => return Err(other_user),
            // A process that only acts for the user for now, and has other rights.
            Standing::ActingFor { user } => {
                let is_one = target.ids.is_some_and(|(its, _)| its == *user);
                return is_one.then_some(()).ok_or(Denial::Ids);
            }
            Standing::InProcess if uid == 0 => return Ok(()),
            Standing::InProcess if target.user != uid => return Err(other_user),
            Standing::InProcess if !target.dumpable => return Err(Denial::Undumpable),
            Standing::InProcess => return Ok(()),
        };
        if yama == Yama::Nobody {
            return Err(Denial::Yama(yama));
        }
        if self.is_privileged() {
            return Ok(());
        }
        // Sessions belong to users, so this also applies in namespaces that the caller owns.
        if target.user != uid {
            return Err(other_user);
        }
        // The owner has every capability in it (cap_capable).
        let owns_namespace = target.namespace == Namespace::Below { owner: uid };
        if !owns_namespace {
            match target.ids {
                None => return Err(Denial::Ids),
                Some((user, _)) if user != uid => return Err(other_user),
                Some((_, group)) if group != rights.group => {
                    let own = rights.group;
                    return Err(Denial::Group { group, own });
                }
                Some(_) => {}
            }
            if target.namespace != Namespace::Own {
                return Err(Denial::Namespace { uid });
            }
            if target.permitted & !rights.permitted != 0 {
                return Err(Denial::Capabilities(target.permitted));
            }
        }
        if !target.dumpable {
            return Err(Denial::Undumpable);
        }
        let allowed = match yama {
            Yama::Off => true,
            Yama::Descendants => owns_namespace || is_descendant(),
            Yama::Privileged => owns_namespace,
            Yama::Nobody => false,
        };
        allowed.then_some(()).ok_or(Denial::Yama(yama))
    }
}

// === impl Denial ===

impl Denial {
    /// The refusal for process `pid`.
    pub(crate) fn refusal(self, pid: Pid) -> Refusal {
        Refusal::new(Reason::Permission, format!("process {pid} {self}"))
    }
}

// === impl Yama ===

impl Yama {
    /// Parses the text of `/proc/sys/kernel/yama/ptrace_scope`.
    pub(crate) fn parse(scope: &str) -> Self {
        match scope.trim() {
            "0" => Self::Off,
            "1" => Self::Descendants,
            "2" => Self::Privileged,
            _ => Self::Nobody,
        }
    }
}

impl fmt::Display for Yama {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "by its owner",
            Self::Descendants => {
                "only by its ancestors and by root (kernel.yama.ptrace_scope is 1)"
            }
            Self::Privileged => "only by root (kernel.yama.ptrace_scope is 2)",
            Self::Nobody => "by no process (kernel.yama.ptrace_scope is 3)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;
    const GROUP: u32 = 100;
    const BIND: u64 = 1 << 10;

    fn peer(uid: u32, capabilities: u64) -> Caller {
        let rights = Rights {
            group: if uid == 0 { 0 } else { GROUP },
            permitted: capabilities,
            effective: capabilities,
            start_time: 1,
        };
        Caller::peer(uid, 7, Ok(rights))
    }

    fn of(user: u32, group: u32) -> Credentials {
        Credentials {
            user,
            ids: Some((user, group)),
            permitted: 0,
            namespace: Namespace::Own,
            dumpable: true,
        }
    }

    fn without_yama(caller: Caller, target: Credentials) -> Result<(), Denial> {
        caller.may_trace(&target, Yama::Off, || false)
    }

    #[test]
    fn a_user_traces_what_is_the_users_in_every_respect() {
        let own = of(USER, GROUP);
        let other = |owner| Denial::User { owner, uid: USER };
        let group = Denial::Group {
            group: 7,
            own: GROUP,
        };
        let namespace = Denial::Namespace { uid: USER };
        let in_namespace = |namespace| Credentials { namespace, ..own };
        let rows = [
            ("its own", own, Ok(())),
            ("another user's", of(1001, GROUP), Err(other(1001))),
            ("root's", of(0, 0), Err(other(0))),
            ("another group's", of(USER, 7), Err(group)),
            (
                "ids differ",
                Credentials { ids: None, ..own },
                Err(Denial::Ids),
            ),
            (
                "ids differ, as another",
                Credentials {
                    ids: None,
                    user: 0,
                    ..own
                },
                Err(other(0)),
            ),
            (
                "a capability",
                Credentials {
                    permitted: BIND,
                    ..own
                },
                Err(Denial::Capabilities(BIND)),
            ),
            (
                "undumpable",
                Credentials {
                    dumpable: false,
                    ..own
                },
                Err(Denial::Undumpable),
            ),
            (
                "its own namespace",
                in_namespace(Namespace::Below { owner: USER }),
                Ok(()),
            ),
            (
                "another's namespace",
                in_namespace(Namespace::Below { owner: 0 }),
                Err(namespace),
            ),
            (
                "an unknown namespace",
                in_namespace(Namespace::Elsewhere),
                Err(namespace),
            ),
            (
                "all capabilities in its own namespace",
                Credentials {
                    permitted: u64::MAX,
                    ..in_namespace(Namespace::Below { owner: USER })
                },
                Ok(()),
            ),
            (
                "ids differ in its own namespace",
                Credentials {
                    ids: None,
                    ..in_namespace(Namespace::Below { owner: USER })
                },
                Ok(()),
            ),
            (
                "undumpable in its own namespace",
                Credentials {
                    dumpable: false,
                    ..in_namespace(Namespace::Below { owner: USER })
                },
                Err(Denial::Undumpable),
            ),
        ];
        for (what, target, expected) in rows {
            assert_eq!(without_yama(peer(USER, 0), target), expected, "{what}");
            // Root may trace all of them.
            assert_eq!(without_yama(peer(0, u64::MAX), target), Ok(()), "{what}");
        }
    }

    #[test]
    fn root_without_the_capability_is_a_user_with_the_capabilities_that_it_has() {
        let container = peer(0, BIND);
        assert_eq!(without_yama(container, of(0, 0)), Ok(()));
        let user = Denial::User {
            owner: USER,
            uid: 0,
        };
        assert_eq!(without_yama(container, of(USER, GROUP)), Err(user));
        let with = |permitted| Credentials {
            permitted,
            ..of(0, 0)
        };
        assert_eq!(without_yama(container, with(BIND)), Ok(()));
        let more = BIND | 1;
        assert_eq!(
            without_yama(container, with(more)),
            Err(Denial::Capabilities(more))
        );
    }

    #[test]
    fn yama_is_asked_as_well() {
        let own = of(USER, GROUP);
        let namespaced = Credentials {
            namespace: Namespace::Below { owner: USER },
            ..own
        };
        let (user, root) = (peer(USER, 0), peer(0, SYS_PTRACE));
        let rows = [
            (user, own, "0", false, true),
            (user, own, "1\n", false, false),
            (user, own, "1", true, true),
            (user, own, "2", true, false),
            (user, own, "3", true, false),
            (user, own, "", true, false),
            (user, namespaced, "1", false, true),
            (user, namespaced, "2", false, true),
            (user, namespaced, "3", false, false),
            (root, own, "1", false, true),
            (root, own, "2", false, true),
            (root, own, "3", false, false),
        ];
        for (caller, target, scope, descends, may) in rows {
            let answer = caller.may_trace(&target, Yama::parse(scope), || descends);
            assert_eq!(answer.is_ok(), may, "{} {scope:?} {descends}", caller.uid);
        }
    }

    #[test]
    fn a_caller_that_is_confined_gets_nothing() {
        for uid in [0, USER] {
            let caller = Caller::peer(uid, 7, Err(Confinement::UserNamespace));
            let denial = Denial::Caller(Confinement::UserNamespace);
            assert_eq!(without_yama(caller, of(uid, GROUP)), Err(denial));
            assert_eq!(caller.confinement(), Some(Confinement::UserNamespace));
            assert!(!caller.is_privileged());
        }
    }

    #[test]
    fn a_caller_that_acts_for_a_user_may_trace_that_users_processes_alone() {
        let caller = peer(USER, 0).acting_for(33);
        let service = Credentials {
            permitted: BIND,
            dumpable: false,
            ..of(33, 33)
        };
        assert_eq!(without_yama(caller, service), Ok(()));
        let for_now = Credentials {
            ids: None,
            ..of(33, 33)
        };
        assert_eq!(without_yama(caller, for_now), Err(Denial::Ids));
        for user in [0, USER] {
            let denied = Denial::User {
                owner: user,
                uid: USER,
            };
            assert_eq!(without_yama(caller, of(user, GROUP)), Err(denied));
        }
        assert!(!peer(0, u64::MAX).acting_for(33).is_privileged());
    }

    #[test]
    fn this_process_is_shown_its_users_processes_and_root_all() {
        let user = Caller::in_process(USER, 7);
        let own = of(USER, 7);
        let may = |caller: Caller, target| caller.may_trace(&target, Yama::Nobody, || false);
        assert_eq!(may(user, own), Ok(()));
        assert!(may(user, of(0, 0)).is_err());
        let undumpable = Credentials {
            dumpable: false,
            ..own
        };
        assert_eq!(may(user, undumpable), Err(Denial::Undumpable));
        assert_eq!(may(Caller::in_process(0, 7), undumpable), Ok(()));
    }
}
