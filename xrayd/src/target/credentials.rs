//! Reads the credentials of a process, which the rule of `access.rs` needs, from `/proc`.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    sync::OnceLock,
    time::Duration,
};

use nix::{libc, sys::stat::fstat};
use procfs::process::Process;

use super::{
    ThreadState, ThreadStatus, Threads,
    access::{Caller, Credentials, Denial, Namespace, SYS_PTRACE, Yama},
    memory_owner,
};
use crate::{
    pid::{Pid, Tid},
    sys::{PidFd, owner_of_namespace, parent_of_namespace},
};

/// Deepest nesting of user namespaces: kernel/user_namespace.c.
const DEEPEST_NAMESPACE: usize = 33;
/// Most ancestors of a process that are looked at.
const MOST_ANCESTORS: usize = 4096;

/// Number of looks at a process that is about to end, and the pause between them.
const ENDING_LOOKS: usize = 50;
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Device and inode of a namespace.
pub(crate) type NamespaceId = (u64, u64);

/// Properties of this process. None of them changes while it runs.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    /// Its user namespace. `None` if it cannot be read; then every other namespace is foreign.
    pub(crate) user_namespace: Option<NamespaceId>,
    /// Its pid namespace.
    pub(crate) pid_namespace: Option<NamespaceId>,
    /// Its status.
    pub(crate) status: ThreadStatus,
    /// The user and the group that stand for all ids without a number here; `None` if every id has
    /// a number.
    pub(crate) unmapped: Option<(u32, u32)>,
}

// === impl OwnProcess ===

impl OwnProcess {
    /// The properties, which are read once.
    pub(crate) fn get() -> &'static Self {
        static OWN: OnceLock<OwnProcess> = OnceLock::new();
        OWN.get_or_init(|| Self {
            user_namespace: namespace_at("/proc/self/ns/user").ok(),
            pid_namespace: namespace_at("/proc/self/ns/pid").ok(),
            status: ThreadStatus::own().unwrap_or_default(),
            unmapped: unmapped_ids(),
        })
    }

    /// True if the kernel refuses this process less than its user.
    fn overrides_ptrace(&self) -> bool {
        self.status.capabilities & SYS_PTRACE != 0
    }
}

/// Device and inode of the namespace that a link below `/proc` leads to.
pub(crate) fn namespace_at(link: &str) -> io::Result<NamespaceId> {
    let found = fs::metadata(link)?;
    Ok((found.dev(), found.ino()))
}

/// In the initial user namespace every id has a number.
fn unmapped_ids() -> Option<(u32, u32)> {
    let is_full = |file: &str| {
        let map = fs::read_to_string(file).unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    };
    if is_full("/proc/self/uid_map") && is_full("/proc/self/gid_map") {
        return None;
    }
    // kernel/sys.c: DEFAULT_OVERFLOWUID.
    let overflow = |file: &str| {
        let id = fs::read_to_string(file).ok();
        id.and_then(|id| id.trim().parse().ok()).unwrap_or(65_534)
    };
    Some((
        overflow("/proc/sys/kernel/overflowuid"),
        overflow("/proc/sys/kernel/overflowgid"),
    ))
}

// === impl Credentials ===

impl Credentials {
    /// The credentials of all threads. `None` if the process is ending, has ended, or cannot be
    /// read.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Self::among(pid, &Threads::of(pid))
    }

    /// The credentials of one thread that has not ended. The rights of a process grow only by
    /// `exec`, which leaves one thread. So this is enough for a process whose threads were all
    /// looked at before.
    pub(crate) fn by_one_thread(pid: Pid) -> Option<Self> {
        Self::among(pid, &[Threads::live(pid)?])
    }

    fn among(pid: Pid, threads: &[Tid]) -> Option<Self> {
        // The memory is first: if a program is executed meanwhile, the ids are the new ones.
        let memory = memory_owner(pid)?;
        let namespace = Namespace::of(pid, Threads::live(pid)?);
        let statuses = threads.iter().map(|&tid| ThreadStatus::try_read(pid, tid));
        // Threads that are gone do not count. A thread that cannot be read may have any rights.
        let statuses: Vec<Option<ThreadStatus>> = statuses.collect::<io::Result<_>>().ok()?;
        let mut living = statuses
            .into_iter()
            .flatten()
            .filter(|status| status.state != ThreadState::Dead);
        let first = living.next()?;
        let user = first.users?[1];
        let mut all = Self {
            user,
            ids: first.ids(),
            permitted: first.permitted,
            namespace,
            // The memory of root's process is root's, dumpable or not. So such a process counts as
            // undumpable, unless the daemon lacks CAP_SYS_PTRACE: then the kernel itself refuses.
            dumpable: memory == user && (user != 0 || !OwnProcess::get().overrides_ptrace()),
        };
        for status in living {
            all.permitted |= status.permitted;
            if status.ids() != all.ids {
                all.ids = None;
            }
        }
        Some(all)
    }
}

impl ThreadStatus {
    /// The user and the group, if the three ids of each kind are equal.
    fn ids(&self) -> Option<(u32, u32)> {
        let one = |ids: [u32; 3]| (ids == [ids[0]; 3]).then_some(ids[0]);
        Some((one(self.users?)?, one(self.groups?)?))
    }
}

// === impl Namespace ===

impl Namespace {
    fn of(pid: Pid, tid: Tid) -> Self {
        let own = OwnProcess::get().user_namespace;
        let link = format!("/proc/{pid}/task/{tid}/ns/user");
        match namespace_at(&link) {
            Ok(id) if own == Some(id) => Self::Own,
            // The kernel reports the owner. The look by path and the open may show different
            // namespaces, but both are the process's own.
            Ok(_) => Self::around(&link).unwrap_or(Self::Elsewhere),
            Err(_) => Self::Elsewhere,
        }
    }

    /// Goes outwards until the parent namespace is the daemon's.
    fn around(link: &str) -> io::Result<Self> {
        let own = OwnProcess::get().user_namespace;
        let mut namespace = OwnedFd::from(File::open(link)?);
        for _ in 0..DEEPEST_NAMESPACE {
            let parent = parent_of_namespace(&namespace)?;
            let found = fstat(&parent)?;
            if own == Some((found.st_dev, found.st_ino)) {
                let owner = owner_of_namespace(&namespace)?;
                return Ok(Self::Below { owner });
            }
            namespace = parent;
        }
        Ok(Self::Elsewhere)
    }
}

// === impl Yama ===

impl Yama {
    /// The current setting.
    pub(crate) fn now() -> Self {
        match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
            Ok(scope) => Self::parse(&scope),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Off,
            Err(_) => Self::Nobody,
        }
    }
}

// === impl Caller ===

impl Caller {
    /// The rule, for a process as it is now. A process that has ended passes: the next step detects
    /// its end.
    pub(crate) fn check(&self, pid: Pid) -> Result<(), Denial> {
        let yama = self.yama();
        if self.is_privileged() && yama != Yama::Nobody {
            return Ok(());
        }
        for _ in 0..ENDING_LOOKS {
            if let Some(target) = Credentials::of(pid) {
                return self.may_trace(&target, yama, || self.is_ancestor_of(pid));
            }
            if has_ended(pid) {
                return Ok(());
            }
            // Its memory is gone, and it is not a zombie yet.
            std::thread::sleep(ENDING_PAUSE);
        }
        Err(Denial::Unreadable)
    }

    /// The same without Yama, for a process that has just passed [`Self::check`] and of which a
    /// thread stands still. It detects that another program was executed. `None` if the process has
    /// ended.
    pub(crate) fn check_again(&self, pid: Pid) -> Option<Result<(), Denial>> {
        if self.is_privileged() {
            return Some(Ok(()));
        }
        let target = Credentials::by_one_thread(pid)?;
        Some(self.may_trace(&target, Yama::Off, || false))
    }

    /// Yama's setting for the caller. For this process itself, the kernel asks Yama.
    pub(crate) fn yama(&self) -> Yama {
        match self.start_time() {
            Some(_) => Yama::now(),
            None => Yama::Off,
        }
    }

    /// True if a process descends from the caller's process, which must still exist.
    fn is_ancestor_of(&self, pid: Pid) -> bool {
        let own = Pid::try_from(self.pid).ok().filter(|&own| {
            let stat = Process::new(own.as_raw()).and_then(|process| process.stat());
            stat.is_ok_and(|stat| Some(stat.starttime) == self.start_time())
        });
        let Some(own) = own else {
            return false;
        };
        let parent = |of: &Pid| {
            let status = ThreadStatus::read(*of, of.leader())?;
            Pid::try_from(status.parent?).ok()
        };
        std::iter::successors(Some(pid), parent)
            .take(MOST_ANCESTORS)
            .any(|ancestor| ancestor == own)
    }
}

/// True if a process has certainly ended, also as a zombie.
fn has_ended(pid: Pid) -> bool {
    match PidFd::open(pid) {
        Ok(held) => held.has_exited(),
        Err(error) => error.raw_os_error() == Some(libc::ESRCH),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::target::access::Rights;

    #[test]
    fn this_process_is_its_own_users() {
        let own = Credentials::of(Pid::this()).unwrap();
        assert_eq!(own.user, nix::unistd::geteuid().as_raw());
        assert_eq!(own.namespace, Namespace::Own);
        let group = nix::unistd::getegid().as_raw();
        assert_eq!(own.ids, Some((own.user, group)));
        assert_eq!(own.permitted, ThreadStatus::own().unwrap().permitted);
        assert_eq!(
            Credentials::by_one_thread(Pid::this()).unwrap().ids,
            own.ids
        );
    }

    #[test]
    fn a_process_comes_from_its_ancestors_alone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let stat = Process::myself().unwrap().stat().unwrap();
        let caller = |start_time| {
            let rights = Rights {
                group: 0,
                permitted: 0,
                effective: 0,
                start_time,
            };
            Caller::peer(0, std::process::id(), Ok(rights))
        };
        assert!(caller(stat.starttime).is_ancestor_of(pid));
        assert!(caller(stat.starttime).is_ancestor_of(Pid::this()));
        // An earlier process had the number.
        assert!(!caller(stat.starttime + 1).is_ancestor_of(pid));
        let parent = Pid::try_from(u32::try_from(stat.ppid).unwrap()).unwrap();
        assert!(!caller(stat.starttime).is_ancestor_of(parent));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Credentials::of(pid), None);
    }
}
