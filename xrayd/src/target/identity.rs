//! A process: its pid, held by a pidfd and identified by its start time, so that a reused pid is
//! noticed (P18).

use std::{fs, io, io::Read as _, sync::Mutex, thread, time::Duration};

use nix::libc;
use procfs::process::Process;

use crate::{
    lock::lock,
    pid::{Pid, Tid},
    refusal::{Reason, Refusal, Result},
    sys::PidFd,
    target::{Caller, Maps, ThreadState, ThreadStatus, Threads, errand::Errand, memory_owner},
};

/// Threads whose activity is read.
const ERRANDS: usize = 64;

/// Looks for a living thread, and the pause between two looks.
const LOOKS: u32 = 1000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A process that exists, held by its pidfd.
#[derive(Debug)]
pub(crate) struct Target {
    pid: Pid,
    pidfd: PidFd,
    start_time: u64,
    uid: u32,
    required_owner: Option<u32>,
    caller: Option<Caller>,
    /// The thread for which the process could not be halted.
    stuck: Mutex<Option<StuckThread>>,
}

/// A thread that sleeps uninterruptibly, and so does not stop.
#[derive(Debug)]
struct StuckThread {
    tid: Tid,
    /// Its [`ThreadStatus::switches`]. They grow once it runs.
    switches: u64,
}

/// [`ThreadStatus::switches`] of a thread that sleeps uninterruptibly. `None` for other threads.
fn sleep_of(pid: Pid, tid: Tid) -> Option<u64> {
    let status = ThreadStatus::read(pid, tid)?;
    (status.state == ThreadState::Uninterruptible).then_some(status.switches)
}

// === impl Target ===

impl Target {
    /// Opens the process `pid`.
    ///
    /// # Errors
    /// There is no such process, it is a zombie or a kernel thread, or it is hidden from us.
    pub(crate) fn open(pid: Pid) -> Result<Self> {
        let pidfd = PidFd::open(pid).map_err(|error| match error.raw_os_error() {
            // A thread id that is not a process id gives EINVAL before Linux 6.9, and ENOENT after.
            Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => no_such_process(pid),
            _ => Refusal::from_io(pid, "open a pidfd", &error),
        })?;
        let process = Process::new(pid.as_raw()).map_err(|_| no_such_process(pid))?;
        let status = process.status().map_err(|_| no_such_process(pid))?;
        let stat = process.stat().map_err(|_| no_such_process(pid))?;
        if pidfd.has_exited() {
            let what = format!(
                "process {pid} ({}) has ended and waits for its parent {}",
                status.name, status.ppid
            );
            return Err(Refusal::new(Reason::Zombie, what));
        }
        // Kernel threads have no memory. A leader that has exited shows none either, but its
        // process has live threads.
        if status.vmsize.is_none() && is_kernel_thread(stat.flags) {
            let what = format!("process {pid} ({}) is a kernel thread", status.name);
            return Err(Refusal::new(Reason::KernelThread, what));
        }
        // The effective user decides, as for ptrace: a set-user-id program belongs to the user it
        // runs as.
        Ok(Self {
            pid,
            pidfd,
            start_time: stat.starttime,
            uid: status.euid,
            required_owner: None,
            caller: None,
            stuck: Mutex::default(),
        })
    }

    /// The same process, to be traced only while the kernel gives its memory to `owner`, and while
    /// `caller` may trace it.
    pub(crate) fn require(self, owner: Option<u32>, caller: Option<Caller>) -> Self {
        Self {
            required_owner: owner,
            caller,
            ..self
        }
    }

    /// Checks the condition of [`Self::require`]. A process can become another user's at any time,
    /// by executing a set-user-id program. Its memory, once open, stays the old program's, and a
    /// thread that stands still does not `exec`.
    ///
    /// # Errors
    /// The process is another user's now, has more rights than the caller, or has ended.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if let Some(caller) = self.caller {
            let rule = caller.check_again(self.pid).ok_or_else(|| self.exited())?;
            rule.map_err(|denial| denial.refusal(self.pid))?;
        }
        let Some(required) = self.required_owner else {
            return Ok(());
        };
        let owner = memory_owner(self.pid).ok_or_else(|| self.exited())?;
        if owner == required {
            return Ok(());
        }
        let message = format!(
            "process {} belongs to user {owner} now; user {required} may not trace it",
            self.pid
        );
        Err(Refusal::new(Reason::Permission, message))
    }

    /// Notes that a thread did not stop. While it sleeps on, the process cannot be halted.
    pub(crate) fn note_stuck(&self, tid: Tid) {
        let stuck = sleep_of(self.pid, tid).map(|switches| StuckThread { tid, switches });
        *lock(&self.stuck) = stuck;
    }

    /// The thread that did not stop, if it has slept uninterruptibly ever since.
    pub(crate) fn stuck_thread(&self) -> Option<Tid> {
        let mut stuck = lock(&self.stuck);
        let still = |thread: &StuckThread| sleep_of(self.pid, thread.tid) == Some(thread.switches);
        *stuck = stuck.take().filter(still);
        stuck.as_ref().map(|thread| thread.tid)
    }

    /// Its id.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Field 22 of `/proc/<pid>/stat`.
    pub(crate) fn start_time(&self) -> u64 {
        self.start_time
    }

    /// The effective user.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Its descriptor.
    pub(crate) fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    /// True if the process has ended.
    pub(crate) fn has_exited(&self) -> bool {
        self.pidfd.has_exited()
    }

    /// Its maps, as they are now.
    ///
    /// # Errors
    /// The process has ended, or its maps cannot be read.
    pub(crate) fn maps(&self) -> Result<Maps> {
        Maps::read(self.pid, self.live_thread()?)
            .map_err(|error| Refusal::from_io(self.pid, "read its maps", &error))
    }

    /// A thread whose `/proc` files can be read. A process that has not ended may show none, while
    /// one of its threads becomes the leader by an `exec`, or all of them are about to end. Then
    /// the look is repeated for up to 1 s.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn live_thread(&self) -> Result<Tid> {
        for _ in 0..LOOKS {
            let tid = Threads::live(self.pid);
            if self.has_exited() {
                break;
            }
            if let Some(tid) = tid {
                return Ok(tid);
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        Err(self.exited())
    }

    /// Threads that can be stopped, the best ones to borrow first. Threads without a seccomp filter
    /// come first, since a filter would judge the calls that they are borrowed for. Among them,
    /// threads that sleep in a system call come first, ordered by the call: they stop at once and
    /// are in the middle of nothing else. Only the first [`ERRANDS`] calls are read, since a
    /// process may have thousands of threads.
    pub(crate) fn stoppable_threads(&self) -> Vec<Tid> {
        let mut threads: Vec<_> = Threads::of(self.pid)
            .into_iter()
            .filter_map(|tid| {
                let status = ThreadStatus::read(self.pid, tid)?;
                let errand = match status.state {
                    ThreadState::Sleeping => Errand::Receiving,
                    ThreadState::Stoppable => Errand::Running,
                    ThreadState::Uninterruptible | ThreadState::Dead => return None,
                };
                Some((status.seccomp.unwrap_or(0) != 0, errand, tid))
            })
            .collect();
        // The sort is stable: among equals the leader stays first.
        threads.sort_by_key(|&(filtered, errand, _)| (filtered, errand));
        for (_, errand, tid) in threads.iter_mut().take(ERRANDS) {
            if *errand == Errand::Receiving {
                *errand = Errand::of(self.pid, *tid);
            }
        }
        threads.sort_by_key(|&(filtered, errand, _)| (filtered, errand));
        threads.into_iter().map(|(_, _, tid)| tid).collect()
    }

    /// True if `tid` is a thread of this process now.
    pub(crate) fn has_thread(&self, tid: Tid) -> bool {
        fs::exists(format!("/proc/{}/task/{tid}", self.pid)).unwrap_or(false)
    }

    /// The command line, arguments joined by blanks, or the name in brackets if there is no command
    /// line.
    pub(crate) fn command(&self) -> String {
        command_of(self.pid)
    }

    /// The refusal for a process that ended.
    pub(crate) fn exited(&self) -> Refusal {
        Refusal::new(
            Reason::TargetExited,
            format!("process {} has ended", self.pid),
        )
    }
}

/// The most bytes of a command line that are read.
const LONGEST_COMMAND: u64 = 64 << 10;

/// The command line of a process, or its begin. Bytes that are not UTF-8 are replaced.
pub(crate) fn command_of(pid: Pid) -> String {
    let read = |file: &str| -> io::Result<Vec<u8>> {
        // A process may have any part of its memory taken for its command line.
        let mut bytes = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/{file}"))?;
        file.take(LONGEST_COMMAND).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let line = read("cmdline").unwrap_or_default();
    let joined: Vec<u8> = line
        .trim_ascii_end()
        .iter()
        .map(|&byte| if byte == 0 { b' ' } else { byte })
        .collect();
    let joined = String::from_utf8_lossy(joined.trim_ascii()).into_owned();
    if joined.is_empty() {
        let name = read("comm").unwrap_or_default();
        return format!("[{}]", String::from_utf8_lossy(name.trim_ascii_end()));
    }
    joined
}

/// PF_KTHREAD, include/linux/sched.h.
fn is_kernel_thread(flags: u32) -> bool {
    flags & 0x0020_0000 != 0
}

fn no_such_process(pid: Pid) -> Refusal {
    Refusal::new(Reason::NoSuchProcess, format!("there is no process {pid}"))
}
