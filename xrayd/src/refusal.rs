//! Refusals: a stable id, a line for people, and a paragraph for `xrayctl explain`.
//!
//! Exit codes and gRPC status codes are assigned elsewhere.

use std::fmt;

/// The situations in which the engine refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No process has this pid.
    NoSuchProcess,
    /// The kernel or xrayd forbids the caller to trace this process.
    Permission,
    /// No module of the process has an XRay instrumentation map.
    NoSleds,
    /// A 32-bit (or x32) process.
    Not64Bit,
    /// Reading the time stamp counter is forbidden in the process.
    Tsc,
    /// A thread is under strict seccomp.
    SeccompStrict,
    /// A seccomp filter is in the way, and xrayd cannot suspend it.
    SeccompFilter,
    /// Another tracer is attached.
    ForeignTracer,
    /// LLVM's own runtime in the process has patched its sleds.
    AlreadyPatched,
    /// A kernel thread.
    KernelThread,
    /// The process has ended and waits for its parent.
    Zombie,
    /// The pid now names another process.
    PidReused,
    /// Another attach or detach of this process is under way, or another xrayd traces it.
    Busy,
    /// The caller's user has reached the limit on requests under way.
    TooMany,
    /// The caller's user, or all users together, have reached a quota of the daemon.
    Quota,
    /// The process ended during the operation.
    TargetExited,
    /// The process was followed from another one, and the policy is set there.
    Followed,
    /// The process is not attached.
    NotAttached,
    /// The mode of the session does not keep the requested data.
    Mode,
    /// xrayd itself failed in the session. The user has to detach from the process.
    SessionFailed,
    /// An invalid selection.
    Selection,
    /// A value out of range.
    Limit,
    /// No memory could be mapped, or none within reach of a module.
    NoMemory,
    /// Memory of another version of xrayd is in the process.
    OtherVersion,
    /// The place of the thread id in the thread library's memory was not found.
    ThreadId,
    /// No thread could be stopped in time.
    StopTimeout,
    /// The kernel forbids writing to the process's code.
    MemoryWrite,
    /// A system call failed unexpectedly.
    Io,
    /// The program could not be started.
    Launch,
}

/// A refusal and its details.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The situation.
    pub reason: Reason,
    /// One line: the cause, the place, and a remedy if it is short.
    pub message: String,
}

/// The result of an operation of the engine.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

// === impl Reason ===

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 29] = [
        Self::NoSuchProcess,
        Self::Permission,
        Self::NoSleds,
        Self::Not64Bit,
        Self::Tsc,
        Self::SeccompStrict,
        Self::SeccompFilter,
        Self::ForeignTracer,
        Self::AlreadyPatched,
        Self::KernelThread,
        Self::Zombie,
        Self::PidReused,
        Self::Busy,
        Self::TooMany,
        Self::Quota,
        Self::TargetExited,
        Self::Followed,
        Self::NotAttached,
        Self::Mode,
        Self::SessionFailed,
        Self::Selection,
        Self::Limit,
        Self::NoMemory,
        Self::OtherVersion,
        Self::ThreadId,
        Self::StopTimeout,
        Self::MemoryWrite,
        Self::Io,
        Self::Launch,
    ];

    /// The stable id.
    pub const fn id(self) -> &'static str {
        match self {
            Self::NoSuchProcess => "no-such-process",
            Self::Permission => "permission",
            Self::NoSleds => "no-sleds",
            Self::Not64Bit => "not-64-bit",
            Self::Tsc => "tsc",
            Self::SeccompStrict => "seccomp-strict",
            Self::SeccompFilter => "seccomp-filter",
            Self::ForeignTracer => "foreign-tracer",
            Self::AlreadyPatched => "already-patched",
            Self::KernelThread => "kernel-thread",
            Self::Zombie => "zombie",
            Self::PidReused => "pid-reused",
            Self::Busy => "busy",
            Self::TooMany => "too-many",
            Self::Quota => "quota",
            Self::TargetExited => "target-exited",
            Self::Followed => "followed",
            Self::NotAttached => "not-attached",
            Self::Mode => "mode",
            Self::SessionFailed => "session-failed",
            Self::Selection => "selection",
            Self::Limit => "limit",
            Self::NoMemory => "no-memory",
            Self::OtherVersion => "other-version",
            Self::ThreadId => "thread-id",
            Self::StopTimeout => "stop-timeout",
            Self::MemoryWrite => "memory-write",
            Self::Io => "io",
            Self::Launch => "launch",
        }
    }

    /// The reason with this id.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.id() == id)
    }

    /// The meaning of the reason, and the remedies.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::NoSuchProcess => {
                "There is no process with this pid in the daemon's pid namespace. It may have ended, or the \
                 number may come from inside a container. `xrayctl ps` lists what can be traced."
            }
            Self::Permission => {
                "The kernel forbids reading or writing this process (ptrace access), or it would forbid it to you: \
                 the daemon serves each caller only the processes that the kernel lets that caller trace. Look at the \
                 process's user and group ids, at its capabilities (CapPrm in /proc/PID/status), at \
                 /proc/sys/kernel/yama/ptrace_scope (1: only descendants, 2: only root, 3: none), and at whether it made \
                 itself undumpable. The daemon serves no caller in another user or pid namespace, under a seccomp \
                 filter, a security module's confinement, or no_new_privs. Use `sudo xrayctl record PID`, or start \
                 xrayctl outside of the sandbox."
            }
            Self::NoSleds => {
                "No module of the process has an xray_instr_map section. Build the program with \
                 `clang -fxray-instrument` (small functions need -fxray-instruction-threshold=1) or \
                 `rustc -Z instrument-xray`."
            }
            Self::Not64Bit => {
                "The process runs 32-bit (or x32) code. xrayd traces x86-64 processes only."
            }
            Self::Tsc => {
                "A thread of the process has forbidden itself to read the time stamp counter \
                 (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)): each event reads it, and the first one would end the process by \
                 SIGSEGV. Nothing was changed. Have the program leave the counter readable. Only the thread that \
                 attaching borrows can be asked; threads inherit the setting from the one that made them."
            }
            Self::SeccompStrict => {
                "A thread is in seccomp's strict mode, where any system call but read, write, exit and sigreturn \
                 kills it; xrayd would have to map memory in the process. It cannot be traced."
            }
            Self::SeccompFilter => {
                "Every thread of the process is under a seccomp filter, and xrayd cannot suspend it. Attaching has one \
                 thread make a few system calls, for which a filter may kill the program; so it is not tried. Suspending needs \
                 CAP_SYS_ADMIN and a tracer under no filter: `sudo xrayctl record PID` outside any container, or the \
                 system daemon by the unit as shipped (not confined.conf). Within one container it works without, if \
                 tracer and program are under the container's own filter and no other. A filter that both are under may \
                 have refused a call; then it has to allow mmap, madvise, memfd_create and ftruncate. Nothing was changed."
            }
            Self::ForeignTracer => {
                "A debugger or strace is attached to the process; the kernel allows one tracer. End it, attach with \
                 xrayd, and attach the debugger again: xrayd needs the tracer's seat for less than a millisecond."
            }
            Self::AlreadyPatched => {
                "LLVM's XRay runtime inside the process has patched sleds (patch_premain or __xray_patch). Two \
                 tracers cannot share a sled. Start the program without XRAY_OPTIONS=patch_premain=true, or have it \
                 call __xray_unpatch and restart it."
            }
            Self::KernelThread => "This is a thread of the kernel; it has no user memory to trace.",
            Self::Zombie => {
                "The process has ended; its parent has not collected it yet. There is nothing left to trace."
            }
            Self::PidReused => {
                "The pid now belongs to another process than the one that was listed. List again."
            }
            Self::Busy => {
                "Another attach or detach of this process is under way, or another xrayd traces it: two cannot share a \
                 process. Or it runs in the memory of another process that is traced, as a vforked child does until it executes \
                 its program. Wait for it to end and try again, or talk to that daemon (`xrayctl --socket`)."
            }
            Self::TooMany => {
                "Your user has as many connections, calls or streams under way at this daemon as one user may have. \
                 The process is not concerned. Wait for one to end (a `record` or a `snapshot` that still runs counts), or \
                 end it, and try again."
            }
            Self::Quota => {
                "The daemon bounds what sessions take of it: for each user, and for all users together. The message \
                 names the quota, how much of it is in use, and the option of xrayd that sets it. Nothing was changed. \
                 Detach from processes that need not be traced any more, follow fewer, or use smaller rings (--ring-size, \
                 --max-threads); or have the administrator start xrayd with a larger --quota. Root is \
                 never refused for this, and neither is a detach or switching off."
            }
            Self::TargetExited => {
                "The process ended while xrayd worked on it, or has ended since. What was recorded up to its last \
                 event is retained until `xrayctl detach`, or until newer ones need its room (`xrayd --retain-exited`); \
                 `xrayctl snapshot` writes it."
            }
            Self::Followed => {
                "The process is traced already, because it was followed from another one: what is followed is said there, \
                 once for all that come from it, `xrayctl attach ROOT --follow WHAT`; `xrayctl status` tells the root. To \
                 have it by itself, `xrayctl detach PID`, then attach again."
            }
            Self::NotAttached => {
                "The daemon is not attached to this process. `xrayctl attach PID` first, or use `xrayctl record PID`."
            }
            Self::Mode => {
                "What is asked for is not kept in this mode: sums of calls since the mode was set are kept in mode profile alone. `xrayctl mode profile` \
                 has them kept from then on; `xrayctl profile PID --duration TIME` has them made for a while, in any mode."
            }
            Self::SessionFailed => {
                "xrayd does not read this process's events any more; the message and the daemon's log say why. Every \
                 function was switched off, and what was recorded before is retained: `xrayctl snapshot` writes it. \
                 `xrayctl detach PID` ends the session; then the process can be attached to again. If the message names a bug \
                 in xrayd, please report it. Else a privileged process has cut the memory of the rings, or the system had \
                 no memory for them."
            }
            Self::Selection => {
                "A selector cannot be understood: an invalid regular expression, glob or id. The message says which."
            }
            Self::Limit => "A value is out of its range; the message gives the range.",
            Self::NoMemory => {
                "The process could not map the memory that tracing needs (its address space limit, the machine's \
                 overcommit policy), or there is no free address range within 2 GiB of a module: try a smaller \
                 --ring-size or --max-threads. Or its control group has no room for the pages of text that would \
                 become private: select fewer functions, or raise the group's limit."
            }
            Self::OtherVersion => {
                "The process carries trampolines of another version of xrayd, or ones that somebody changed. \
                 They cannot be replaced while it lives, because a thread may stand in them. Restart the process, or \
                 use the xrayd version that attached first."
            }
            Self::ThreadId => {
                "xrayd finds a thread's ring by the thread id that the C library keeps in each thread's control \
                 block, and could not find it there. That happens in processes without a thread library. Report \
                 the C library and its version."
            }
            Self::StopTimeout => {
                "No thread of the process could be stopped within the time limit: all of them wait \
                 uninterruptibly in the kernel (a vfork parent, a dead network file system). Or a thread did not make \
                 its calls in time: the process is frozen (cgroup.freeze), or changes its own text. Nothing was changed. Try again."
            }
            Self::MemoryWrite => {
                "The kernel refused to write to the process's code through /proc/PID/mem. From Linux 6.12 on, the boot \
                 parameter proc_mem.force_override=never forbids it; boot with proc_mem.force_override=always."
            }
            Self::Io => "A system call failed that should not; the message says which and how.",
            Self::Launch => {
                "The program could not be started under xrayd: it does not exist, is not executable, or ended before \
                 its first instruction."
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

// === impl Refusal ===

impl Refusal {
    /// A refusal.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// The refusal for a failed system call on process `pid`. The error number decides the reason
    /// where it can.
    pub(crate) fn from_io(pid: crate::Pid, what: &str, error: &std::io::Error) -> Self {
        let reason = match error.raw_os_error() {
            Some(nix::libc::ESRCH) => Reason::TargetExited,
            Some(nix::libc::ENOENT) => Reason::NoSuchProcess,
            Some(nix::libc::EPERM | nix::libc::EACCES) => Reason::Permission,
            _ => Reason::Io,
        };
        Self::new(reason, format!("process {pid}: cannot {what}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_lead_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_id(reason.id()), Some(reason));
            assert!(reason.explain().ends_with('.'), "{reason}");
        }
    }
}
