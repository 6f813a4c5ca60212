//! Which process: a pid, held by a pidfd and named by its start time, so that a reused pid is noticed (P18).

use std::{fs, io, thread, time::Duration};

use nix::libc;
use procfs::process::Process;

use crate::{
    pid::{Pid, Tid},
    refusal::{Reason, Refusal, Result},
    sys::PidFd,
    target::{Caller, ThreadState, ThreadStatus, Threads, errand::Errand, memory_owner},
};

/// Of how many threads it is asked what they are in.
const ERRANDS: usize = 64;

/// Looks for a living thread, and the time between them.
const LOOKS: u32 = 1000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A process that exists, held.
#[derive(Debug)]
pub(crate) struct Target {
    pid: Pid,
    pidfd: PidFd,
    start_time: u64,
    uid: u32,
    required_owner: Option<u32>,
    caller: Option<Caller>,
}

// === impl Target ===

impl Target {
    /// Holds `pid`.
    ///
    /// # Errors
    /// No such process, a zombie, a kernel thread, or one that hides itself from us.
    pub(crate) fn open(pid: Pid) -> Result<Self> {
        let pidfd = PidFd::open(pid).map_err(|error| match error.raw_os_error() {
            // A thread id that is not a process id gives EINVAL (before 6.9), ENOENT after.
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
        // Kernel threads have no memory; a leader that has exited shows none either, but its process has live threads.
        if status.vmsize.is_none() && is_kernel_thread(stat.flags) {
            let what = format!("process {pid} ({}) is a kernel thread", status.name);
            return Err(Refusal::new(Reason::KernelThread, what));
        }
        // The effective user decides, as for ptrace: a set-user-id program belongs to whom it runs as.
        Ok(Self {
            pid,
            pidfd,
            start_time: stat.starttime,
            uid: status.euid,
            required_owner: None,
            caller: None,
        })
    }

    /// The same, to be traced only while the kernel gives its memory to `owner`, and while `caller`
    /// may trace it.
    pub(crate) fn require(self, owner: Option<u32>, caller: Option<Caller>) -> Self {
        Self {
            required_owner: owner,
            caller,
            ..self
        }
    }

    /// Checks that. A process becomes another user's by executing a set-user-id program, at any time; its memory, once open, stays the
    /// old one's, and a thread that stands still does not `exec`.
    ///
    /// # Errors
    /// It is another user's now, has more rights than the caller, or has ended.
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

    /// True if it has ended.
    pub(crate) fn has_exited(&self) -> bool {
        self.pidfd.has_exited()
    }

    /// A thread whose `/proc` files can be read. While one of its threads becomes the leader by an
    /// `exec`, or all of them are on their way out, the process has not ended and may show none: it
    /// is looked at again for up to 1 s.
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

    /// Threads that can be stopped; first those under no seccomp filter, which would judge the
    /// calls that they are borrowed for, and among them those that sleep in a system call, since
    /// they stop at once and are in the middle of nothing else: by what they sleep in. Which is
    /// asked of the first of them only: a process may have thousands.
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
        // Stable: among equals the leader stays first.
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

    /// The command line, arguments joined by blanks, or the name in brackets where there is none.
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

/// The command line of a process, with what is not UTF-8 replaced.
pub(crate) fn command_of(pid: Pid) -> String {
    let read = |file: &str| -> io::Result<Vec<u8>> { fs::read(format!("/proc/{pid}/{file}")) };
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
