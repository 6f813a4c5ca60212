//! The process that connected to the socket, and the rights that it has by itself.
//!
//! `SO_PEERCRED` has the user and the group at the moment of the connect. Nothing else is as
//! certain: `/proc` shows the process at a later moment, when it may have executed a set-user-id
//! program with the descriptor open. So data from there only takes rights away. A process that is
//! not in the daemon's namespaces, that is confined, or that cannot be looked at gets no rights.

use std::{
    io::{self, ErrorKind},
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::Duration,
};

use nix::{libc, unistd::geteuid};
use procfs::process::Process;
use tokio::net::UnixStream;

use super::connection::Client;
use crate::{
    Pid,
    sys::{PidFd, peer_groups, security_label},
    target::{
        Caller, Confinement, MOST_CALLER_THREADS, OwnProcess, Rights, SYS_PTRACE, ThreadState,
        ThreadStatus, Threads, namespace_at,
    },
};

/// The most looks at a process that cannot be seen, and the time between two.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The kernel's data about the process at the other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    uid: u32,
    group: u32,
    /// The supplementary groups.
    groups: Vec<u32>,
    /// `None` for a process in a pid namespace that is not visible here.
    pid: Option<Pid>,
    /// `None` if the process has ended.
    held: Option<PidFd>,
    label: Option<Vec<u8>>,
    /// As many descriptors as the look at the process opens at a time. Without them, a look while
    /// other connections take all descriptors would find a process that cannot be seen.
    room: Vec<OwnedFd>,
}

/// The sandbox that confines a process, as an error.
type Sandbox = Result<(), Confinement>;

// === impl Peer ===

impl Peer {
    /// The peer of a connection. Reads nothing of the process.
    ///
    /// # Errors
    /// The kernel does not report the peer's credentials, or the daemon is out of descriptors.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.and_then(|pid| Pid::try_from(pid).ok());
        let held = match PidFd::of_peer(&stream.as_fd()) {
            // Kernels before 6.5. If the peer ends and its pid is given to another process before
            // this line, the other process is taken for the peer.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                pid.and_then(|pid| PidFd::open(pid).ok())
            }
            Err(error) if is_out_of_descriptors(&error) => return Err(error),
            held => held.ok(),
        };
        let room = || stream.as_fd().try_clone_to_owned();
        Ok(Self {
            uid: credentials.uid(),
            group: credentials.gid(),
            groups: peer_groups(&stream.as_fd())?,
            pid,
            held,
            label: security_label(&stream.as_fd())?,
            room: vec![room()?, room()?],
        })
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// The pid for the log. 0 if the process has none here.
    pub(super) fn pid(&self) -> u32 {
        self.pid.map_or(0, Pid::as_u32)
    }

    /// A caller without rights, for the audit record.
    pub(super) fn without_rights(&self) -> Caller {
        Caller::peer(self.uid, self.pid(), Err(Confinement::Unseen))
    }

    /// Looks at the process. May take milliseconds. A process that cannot be seen is looked at
    /// again: the daemon may be out of descriptors for a moment.
    pub(super) fn look(mut self) -> Client {
        self.room.clear();
        let mut rights = self.rights();
        for _ in 1..LOOKS {
            let may_be_seen = self.held.as_ref().is_some_and(|held| !held.has_exited());
            if !matches!(rights, Err(Confinement::Unseen)) || !may_be_seen {
                break;
            }
            thread::sleep(BETWEEN_LOOKS);
            rights = self.rights();
        }
        let caller = Caller::peer(self.uid, self.pid(), rights);
        // A group without an id here could be any.
        if let Some((_, unmapped)) = OwnProcess::get().unmapped {
            self.groups.retain(|group| *group != unmapped);
        }
        self.groups.push(self.group);
        Client::new(caller, self.groups)
    }

    fn rights(&self) -> Result<Rights, Confinement> {
        let own = OwnProcess::get();
        let (Some(pid), Some(held)) = (self.pid, &self.held) else {
            return Err(Confinement::Unseen);
        };
        if let Some((user, group)) = own.unmapped
            && (self.uid == user || self.group == group)
        {
            return Err(Confinement::Unmapped);
        }
        self.check_namespaces(pid)?;
        if self.label.as_deref().is_some_and(confines) {
            return Err(Confinement::SecurityModule);
        }
        let ((permitted, effective), sandbox) = self.check_threads(pid)?;
        let stat = Process::new(pid.as_raw()).and_then(|process| process.stat());
        let start_time = stat.map_err(|_| Confinement::Unseen)?.starttime;
        // Checked last: the data above is of this process only if it has not exited.
        if held.has_exited() {
            return Err(Confinement::Unseen);
        }
        sandbox?;
        Ok(Rights {
            group: self.group,
            permitted,
            effective,
            start_time,
        })
    }

    fn check_namespaces(&self, pid: Pid) -> Result<(), Confinement> {
        let own = OwnProcess::get();
        for (name, its_own, other) in [
            ("user", own.user_namespace, Confinement::UserNamespace),
            ("pid", own.pid_namespace, Confinement::PidNamespace),
        ] {
            match namespace_at(&format!("/proc/{pid}/ns/{name}")) {
                Ok(id) if its_own == Some(id) => {}
                Ok(_) => return Err(other),
                // The daemon of a user may not look at root's processes. Its socket is closed to
                // root within a user namespace.
                Err(error)
                    if error.kind() == ErrorKind::PermissionDenied
                        && self.uid == 0
                        && !geteuid().is_root() => {}
                Err(_) => return Err(Confinement::Unseen),
            }
        }
        Ok(())
    }

    /// The permitted and effective capabilities that all threads have in common, and whether a
    /// sandbox confines one of them. It is unknown which thread connected.
    fn check_threads(&self, pid: Pid) -> Result<((u64, u64), Sandbox), Confinement> {
        let own = &OwnProcess::get().status;
        let threads = Threads::of(pid);
        if threads.len() > MOST_CALLER_THREADS {
            return Err(Confinement::Threads);
        }
        let (mut permitted, mut effective) = (u64::MAX, u64::MAX);
        let mut seen = false;
        // Rules of access may admit a caller in a sandbox, so everything else is checked as well.
        let mut sandbox = Ok(());
        for tid in threads {
            let status = ThreadStatus::try_read(pid, tid).map_err(|_| Confinement::Unseen)?;
            let Some(status) = status.filter(|status| status.state != ThreadState::Dead) else {
                continue;
            };
            seen = true;
            permitted &= status.permitted;
            effective &= status.capabilities;
            match check_status(self.uid, self.group, &status, own) {
                Err(why) if !why.is_sandbox() => return Err(why),
                checked => sandbox = sandbox.and(checked),
            }
            match std::fs::read(format!("/proc/{pid}/task/{tid}/attr/current")) {
                Ok(label) if confines(&label) => return Err(Confinement::SecurityModule),
                // EINVAL: no security module labels processes.
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINVAL | libc::ENOENT | libc::ESRCH) => {}
                    _ => return Err(Confinement::Unseen),
                },
            }
        }
        let capabilities = match seen {
            true if self.uid == 0 => (permitted, effective),
            true => (0, 0),
            false => return Err(Confinement::Unseen),
        };
        Ok((capabilities, sandbox))
    }
}

/// True if a further descriptor cannot be had now.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Compares one thread of the peer with this process.
fn check_status(
    uid: u32,
    group: u32,
    status: &ThreadStatus,
    own: &ThreadStatus,
) -> Result<(), Confinement> {
    // The kernel's rule uses the real ids.
    let is_one = |ids: Option<[u32; 3]>, id: u32| {
        ids.is_some_and(|[real, effective, _]| real == id && effective == id)
    };
    if !is_one(status.users, uid) || !is_one(status.groups, group) {
        return Err(Confinement::Ids);
    }
    let filters = |status: &ThreadStatus| (status.seccomp.unwrap_or(0), status.filters);
    // Filters are inherited and never removed. A process with as many filters as this process has
    // the same ones.
    let same = filters(status) == filters(own) && own.filters.is_some();
    if status.seccomp.unwrap_or(0) != 0 && !same {
        return Err(Confinement::Seccomp);
    }
    // A Landlock domain is visible nowhere. Without this flag only CAP_SYS_ADMIN can create one.
    let is_privileged = uid == 0 && status.capabilities & SYS_PTRACE != 0;
    if status.no_new_privs && !is_privileged {
        return Err(Confinement::NoNewPrivileges);
    }
    Ok(())
}

/// True if a security module may confine a process with this label. The policy cannot be read, so
/// every label counts except those that AppArmor and SELinux's reference policy use for unconfined
/// processes.
fn confines(label: &[u8]) -> bool {
    let label = label.split(|&byte| byte == 0).next().unwrap_or_default();
    let label = label.trim_ascii();
    let mut fields = label.split(|&byte| byte == b':');
    // SELinux without a policy labels every process "kernel".
    let is_free = label.is_empty()
        || label == b"kernel"
        || label == b"unconfined"
        || label.ends_with(b" (unconfined)")
        || fields.nth(2) == Some(b"unconfined_t");
    !is_free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_confine_unless_they_say_that_they_do_not() {
        for (label, expected) in [
            (&b""[..], false),
            (b"unconfined\n", false),
            (b"unconfined\0", false),
            (b"vscode (unconfined)\n", false),
            (b"docker-default (enforce)\n", true),
            (b"firefox (complain)", true),
            (b"unconfined//&snap.x (mixed)", true),
            (
                b"unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0",
                false,
            ),
            (b"system_u:system_r:httpd_t:s0", true),
            (b"system_u:system_r:httpd_t:unconfined_t", true),
            (b"kernel\0", false),
            (b"_", true),
        ] {
            let shown = String::from_utf8_lossy(label);
            assert_eq!(confines(label), expected, "{shown}");
        }
    }

    #[test]
    fn a_thread_that_is_confined_or_somebody_else_takes_everything_away() {
        let own = ThreadStatus {
            seccomp: Some(0),
            filters: Some(0),
            ..ThreadStatus::default()
        };
        let plain = ThreadStatus {
            users: Some([1000; 3]),
            groups: Some([100; 3]),
            ..own.clone()
        };
        fn check(status: &ThreadStatus, own: &ThreadStatus) -> Result<(), Confinement> {
            check_status(1000, 100, status, own)
        }
        assert_eq!(check(&plain, &own), Ok(()));
        let saved = ThreadStatus {
            users: Some([1000, 1000, 0]),
            ..plain.clone()
        };
        assert_eq!(check(&saved, &own), Ok(()));
        for (change, expected) in [
            (
                ThreadStatus {
                    users: Some([0, 1000, 0]),
                    ..plain.clone()
                },
                Confinement::Ids,
            ),
            (
                ThreadStatus {
                    users: Some([0; 3]),
                    ..plain.clone()
                },
                Confinement::Ids,
            ),
            (
                ThreadStatus {
                    users: None,
                    ..plain.clone()
                },
                Confinement::Ids,
            ),
            (
                ThreadStatus {
                    groups: Some([100, 101, 100]),
                    ..plain.clone()
                },
                Confinement::Ids,
            ),
            (
                ThreadStatus {
                    seccomp: Some(2),
                    filters: Some(1),
                    ..plain.clone()
                },
                Confinement::Seccomp,
            ),
            (
                ThreadStatus {
                    no_new_privs: true,
                    ..plain.clone()
                },
                Confinement::NoNewPrivileges,
            ),
        ] {
            assert_eq!(check(&change, &own), Err(expected), "{change:?}");
        }
        // In a common container, both processes are under its filter.
        let filtered = |filters| ThreadStatus {
            seccomp: Some(2),
            filters,
            ..plain.clone()
        };
        assert_eq!(check(&filtered(Some(1)), &filtered(Some(1))), Ok(()));
        for (its, own) in [(Some(2), Some(1)), (None, None)] {
            let refused = check(&filtered(its), &filtered(own));
            assert_eq!(refused, Err(Confinement::Seccomp));
        }
    }

    #[test]
    fn root_with_the_capability_may_have_given_up_new_privileges() {
        let own = ThreadStatus::default();
        let root = |capabilities| ThreadStatus {
            users: Some([0; 3]),
            groups: Some([0; 3]),
            no_new_privs: true,
            capabilities,
            ..ThreadStatus::default()
        };
        assert_eq!(check_status(0, 0, &root(SYS_PTRACE), &own), Ok(()));
        let refused = check_status(0, 0, &root(0), &own);
        assert_eq!(refused, Err(Confinement::NoNewPrivileges));
    }

    #[tokio::test]
    async fn a_process_that_connects_to_itself_has_its_own_rights() {
        let (one, _other) = UnixStream::pair().unwrap();
        let Client { caller, groups } = Peer::of(&one).unwrap().look();
        assert!(groups.contains(&nix::unistd::getegid().as_raw()));
        assert_eq!(caller.uid, geteuid().as_raw());
        assert_eq!(caller.pid, std::process::id());
        assert_eq!(caller.confinement(), None);
    }
}
