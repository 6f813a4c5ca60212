//! The threads of a process, as `/proc` shows them.

use std::{
    fs::{self, File},
    io, iter,
    os::unix::fs::MetadataExt as _,
};

use nix::libc;

use super::proc_file;
use crate::pid::{Pid, Tid};

/// The activity of a thread, as the kernel reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// The thread sleeps interruptibly.
    Sleeping,
    /// The thread runs or is stopped: it can be stopped.
    Stoppable,
    /// The thread sleeps uninterruptibly.
    Uninterruptible,
    /// The thread has ended.
    #[default]
    Dead,
}

/// The contents of `/proc/<pid>/task/<tid>/status`. Fields that an old kernel does not have are
/// `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ThreadStatus {
    /// The activity of the thread.
    pub(crate) state: ThreadState,
    /// The thread's tracer.
    pub(crate) tracer: Option<u32>,
    /// The parent of its process.
    pub(crate) parent: Option<u32>,
    /// 1 for strict seccomp, 2 for filters.
    pub(crate) seccomp: Option<u32>,
    /// Number of its filters.
    pub(crate) filters: Option<u32>,
    /// Effective capabilities, a bit each.
    pub(crate) capabilities: u64,
    /// Permitted capabilities, which the thread can make effective.
    pub(crate) permitted: u64,
    /// Its real, effective and saved user.
    pub(crate) users: Option<[u32; 3]>,
    /// Its real, effective and saved group.
    pub(crate) groups: Option<[u32; 3]>,
    /// True if no program that the thread executes gets more rights.
    pub(crate) no_new_privs: bool,
    /// Its id in the innermost pid namespace, which its own C library uses.
    pub(crate) inner_id: Option<u32>,
    /// How many times it gave up its processor, or lost it.
    pub(crate) switches: u64,
}

/// The start time of a thread, in clock ticks since the boot: field 22 of its `stat`. The kernel
/// reuses thread ids. An id and a start time together name one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StartTime(u64);

/// The threads of a process at one moment.
#[derive(Debug)]
pub(crate) struct Threads;

/// The directory of a process's threads, open to be asked for their number.
#[derive(Debug)]
pub(crate) struct ThreadCount(File);

// === impl ThreadCount ===

impl ThreadCount {
    /// # Errors
    /// The process is gone, or no descriptor is left.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/task")).map(Self)
    }

    /// The number of threads; `None` if the process is gone.
    pub(crate) fn get(&self) -> Option<u64> {
        // The directory has a link for each thread, `.` and the one from above.
        self.0.metadata().ok()?.nlink().checked_sub(2)
    }
}

// === impl Threads ===

impl Threads {
    /// Ids of all threads, the leader first. Empty if the process is gone.
    pub(crate) fn of(pid: Pid) -> Vec<Tid> {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter_map(|tid| Tid::try_from(tid).ok())
            .collect()
    }

    /// A thread that has not ended. It is the leader, unless the leader has exited before the
    /// others (P3).
    pub(crate) fn live(pid: Pid) -> Option<Tid> {
        let leader = pid.leader();
        let others = iter::once_with(|| Self::of(pid)).flatten();
        // A thread that calls `exec` ends the leader, and then takes its number. So the leader is
        // looked at again if no other thread lives. In between, /proc may show no living thread for
        // milliseconds. Only a pidfd distinguishes such a process from one that has ended.
        iter::once(leader)
            .chain(others)
            .chain(iter::once(leader))
            .find(|tid| !Self::is_ending(pid, *tid))
    }

    /// The directory in `/proc` with the memory and the files of the process. It is the process's
    /// own, or another thread's when the leader has ended before the others (P3).
    pub(crate) fn proc_dir(pid: Pid) -> String {
        let leader = pid.leader();
        match Self::state(pid, leader) {
            ThreadState::Dead => format!("/proc/{}", Self::live(pid).unwrap_or(leader)),
            ThreadState::Sleeping | ThreadState::Stoppable | ThreadState::Uninterruptible => {
                format!("/proc/{pid}")
            }
        }
    }

    /// The activity of a thread; `Dead` if the thread does not exist.
    pub(crate) fn state(pid: Pid, tid: Tid) -> ThreadState {
        state_of(Self::state_letter(pid, tid))
    }

    /// The activity of a thread as the kernel's letter: `R` for a thread that runs or waits for a
    /// processor. `None` if the thread does not exist.
    pub(crate) fn state_letter(pid: Pid, tid: Tid) -> Option<u8> {
        let stat = proc_file::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        letter_in(&stat)
    }

    /// The start time of a thread; `None` if it has ended.
    pub(crate) fn start_time(pid: Pid, tid: Tid) -> Option<StartTime> {
        let stat = proc_file::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        match state_in(&stat) {
            ThreadState::Dead => None,
            ThreadState::Sleeping | ThreadState::Stoppable | ThreadState::Uninterruptible => {
                number_in(&stat, 22).map(StartTime)
            }
        }
    }

    /// True if this process is there. `start_time` is field 22 of its `stat` file.
    pub(crate) fn is_process(pid: Pid, start_time: u64) -> bool {
        let stat = proc_file::read(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| number_in(&stat, 22) == Some(start_time))
    }

    /// True if a thread is ending or gone. Its memory may be gone already, whatever its state is.
    pub(crate) fn is_ending(pid: Pid, tid: Tid) -> bool {
        proc_file::read(format!("/proc/{pid}/task/{tid}/stat"))
            .ok()
            .and_then(|stat| number_in(&stat, 9))
            .is_none_or(|flags| flags & PF_EXITING != 0)
    }

    /// Name of a thread. Bytes that are not UTF-8 are replaced. Empty if the thread is gone.
    pub(crate) fn name(pid: Pid, tid: Tid) -> String {
        proc_file::read(format!("/proc/{pid}/task/{tid}/comm"))
            .map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
            .unwrap_or_default()
    }

    /// True if a thread has, or can take, the capability that a process needs to open its own
    /// `map_files`. Then it can change the length also of anonymous shared memory. Threads that may
    /// do anything (CAP_SYS_ADMIN) do not count: they need no such trick.
    pub(crate) fn can_open_map_files(pid: Pid) -> bool {
        const SYS_ADMIN: u64 = 1 << 21;
        const CHECKPOINT_RESTORE: u64 = 1 << 40;
        let opens = |status: ThreadStatus| {
            status.permitted & (SYS_ADMIN | CHECKPOINT_RESTORE) == CHECKPOINT_RESTORE
        };
        Self::of(pid)
            .into_iter()
            .any(|tid| ThreadStatus::read(pid, tid).is_some_and(opens))
    }

    /// Id of a thread in the innermost pid namespace; `None` if the thread is gone.
    pub(crate) fn inner_id(pid: Pid, tid: Tid) -> Option<u32> {
        ThreadStatus::read(pid, tid)?.inner_id
    }
}

fn state_of(letter: Option<u8>) -> ThreadState {
    match letter {
        None | Some(b'Z' | b'X' | b'x') => ThreadState::Dead,
        Some(b'D') => ThreadState::Uninterruptible,
        Some(b'S') => ThreadState::Sleeping,
        Some(_) => ThreadState::Stoppable,
    }
}

/// PF_EXITING, include/linux/sched.h. The kernel sets it before a thread gives its memory back, and
/// never clears it.
const PF_EXITING: u64 = 4;

/// The part of a `stat` behind the name. The name is the second field, stands in parentheses, and
/// may hold any bytes.
fn behind_name(stat: &[u8]) -> Option<&[u8]> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 1..)
}

/// The state in a `stat`, the third field.
fn state_in(stat: &[u8]) -> ThreadState {
    state_of(letter_in(stat))
}

fn letter_in(stat: &[u8]) -> Option<u8> {
    behind_name(stat)?.get(1).copied()
}

/// The field of a `stat` with this number, from 4 on, counted as in proc_pid_stat(5).
fn number_in(stat: &[u8], field: usize) -> Option<u64> {
    let rest = std::str::from_utf8(behind_name(stat)?).ok()?;
    let behind = field.checked_sub(3)?;
    rest.split_ascii_whitespace().nth(behind)?.parse().ok()
}

// === impl ThreadStatus ===

impl ThreadStatus {
    /// The status of one thread; `None` if the thread is gone.
    pub(crate) fn read(pid: Pid, tid: Tid) -> Option<Self> {
        Self::try_read(pid, tid).ok().flatten()
    }

    /// The same, for a caller that distinguishes a thread that is gone from one that cannot be
    /// read.
    ///
    /// # Errors
    /// The status cannot be read, for example while the daemon has no free descriptor.
    pub(crate) fn try_read(pid: Pid, tid: Tid) -> io::Result<Option<Self>> {
        match proc_file::read(format!("/proc/{pid}/task/{tid}/status")) {
            Ok(status) => Ok(Some(Self::parse(&status))),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ESRCH) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The status of the calling thread.
    pub(crate) fn own() -> Option<Self> {
        proc_file::read("/proc/thread-self/status")
            .ok()
            .map(|status| Self::parse(&status))
    }

    /// The kernel escapes line breaks in the name, the first line. So all other lines are the
    /// kernel's.
    fn parse(status: &[u8]) -> Self {
        let mut parsed = Self::default();
        for line in status.split(|&byte| byte == b'\n') {
            let Some((key, value)) = std::str::from_utf8(line)
                .ok()
                .and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            let value = value.trim();
            match key {
                "State" => parsed.state = state_of(value.bytes().next()),
                "TracerPid" => parsed.tracer = value.parse().ok().filter(|&tracer| tracer != 0),
                "PPid" => parsed.parent = value.parse().ok(),
                "Uid" => parsed.users = ids(value),
                "Gid" => parsed.groups = ids(value),
                "NoNewPrivs" => parsed.no_new_privs = value != "0",
                "Seccomp" => parsed.seccomp = value.parse().ok(),
                "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches" => {
                    let more = value.parse().unwrap_or(0);
                    parsed.switches = parsed.switches.saturating_add(more);
                }
                "Seccomp_filters" => parsed.filters = value.parse().ok(),
                "CapPrm" => parsed.permitted = u64::from_str_radix(value, 16).unwrap_or(0),
                "CapEff" => parsed.capabilities = u64::from_str_radix(value, 16).unwrap_or(0),
                "NSpid" => {
                    let innermost = value.split_ascii_whitespace().last();
                    parsed.inner_id = innermost.and_then(|id| id.parse().ok());
                }
                _ => {}
            }
        }
        parsed
    }
}

/// The first three of the four ids of a line.
fn ids(value: &str) -> Option<[u32; 3]> {
    let mut ids = value.split_ascii_whitespace().map(|id| id.parse().ok());
    Some([ids.next()??, ids.next()??, ids.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_whatever_the_thread_is_called() {
        let status = b"Name:\tState:\\nSeccomp: 1\xff\nState:\tS (sleeping)\nPPid:\t7\nTracerPid:\t0\n\
            Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\nNoNewPrivs:\t1\nNSpid:\t4711\t12\t3\nCapPrm:\t0000000000200000\nCapEff:\t000001ffffffffff\nSeccomp:\t2\nSeccomp_filters:\t5\n\
            voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\ngarbage\n";
        let expected = ThreadStatus {
            state: ThreadState::Sleeping,
            tracer: None,
            parent: Some(7),
            seccomp: Some(2),
            filters: Some(5),
            capabilities: 0x1ff_ffff_ffff,
            permitted: 1 << 21,
            users: Some([1, 2, 3]),
            groups: Some([5, 6, 7]),
            no_new_privs: true,
            inner_id: Some(3),
            switches: 42,
        };
        assert_eq!(ThreadStatus::parse(status), expected);
        assert_eq!(ThreadStatus::parse(b""), ThreadStatus::default());
    }

    #[test]
    fn numbers_are_found_whatever_the_thread_is_called() {
        let stat = b"7 () S 1 2 ) \xff) S 1 7 7 0 -1 4194564 99 0";
        assert_eq!(number_in(stat, 9), Some(0x40_0104));
        assert_eq!(number_in(b"7 (short) S 1 7 7 0 -1", 9), None);
        assert_eq!(number_in(b"", 9), None);
        assert!(!Threads::is_ending(Pid::this(), Pid::this().leader()));
    }

    #[test]
    fn a_thread_that_lives_has_a_start_time() {
        let (pid, leader) = (Pid::this(), Pid::this().leader());
        let stat = procfs::process::Process::myself().unwrap().stat().unwrap();
        assert_eq!(
            Threads::start_time(pid, leader),
            Some(StartTime(stat.starttime))
        );
        let nobody = Tid::try_from(0x3fff_ffff).unwrap();
        assert_eq!(Threads::start_time(pid, nobody), None);
    }

    #[test]
    fn this_thread_has_a_status() {
        let own = ThreadStatus::own().unwrap();
        assert_eq!(own.state, ThreadState::Stoppable);
        assert!(own.seccomp.is_some() && own.parent.is_some());
    }
}
