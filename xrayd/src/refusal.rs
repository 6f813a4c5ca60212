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
    /// The daemon keeps no state.
    NoState,
    /// A policy cannot be applied or removed.
    Policy,
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
    pub const ALL: [Self; 31] = [
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
        Self::NoState,
        Self::Policy,
        Self::OtherVersion,
        Self::ThreadId,
        Self::StopTimeout,
        Self::MemoryWrite,
        Self::Io,
        Self::Launch,
    ];

    /// True if a process that is refused for this reason is gone, runs another program, or has
    /// nothing of xrayd in it. So there is nothing in it to go on with or to undo.
    pub const fn leaves_nothing(self) -> bool {
        matches!(
            self,
            Self::NoSuchProcess
                | Self::Zombie
                | Self::TargetExited
                | Self::PidReused
                | Self::NotAttached
        )
    }

    /// True if a process that was refused for this reason is refused for it again, as long as it
    /// runs the same program.
    pub(crate) const fn is_lasting(self) -> bool {
        match self {
            Self::Permission
            | Self::Not64Bit
            | Self::Tsc
            | Self::SeccompStrict
            | Self::SeccompFilter
            | Self::AlreadyPatched
            | Self::KernelThread
            | Self::OtherVersion
            | Self::MemoryWrite => true,
            Self::NoSuchProcess
            | Self::NoSleds
            | Self::ForeignTracer
            | Self::Zombie
            | Self::Followed
            | Self::PidReused
            | Self::Busy
            | Self::TooMany
            | Self::Quota
            // Other processes end and make room.
            | Self::Limit
            | Self::TargetExited
            | Self::NotAttached
            | Self::Mode
            | Self::SessionFailed
            | Self::Selection
            | Self::NoMemory
            | Self::NoState
            | Self::Policy
            | Self::ThreadId
            | Self::StopTimeout
            | Self::Io
            | Self::Launch => false,
        }
    }

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
            Self::NoState => "no-state",
            Self::Policy => "policy",
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
                "No process in xrayd's pid namespace has this pid. The process may have ended, or \
                 the pid may come from inside a container. `xrayctl ps` lists the processes that \
                 can be traced."
            }
            Self::Permission => {
                "The kernel forbids xrayd to read or write this process (ptrace access), or it \
                 would forbid it to you: the daemon serves each caller only the processes that the \
                 kernel lets that caller trace. Check the user and group ids of the process, its \
                 capabilities (CapPrm in /proc/PID/status), and /proc/sys/kernel/yama/ptrace_scope \
                 (1: only descendants, 2: only root, 3: none). Only root can trace a process that \
                 has made itself undumpable. The daemon serves no caller in another user or pid \
                 namespace, under a seccomp filter that the daemon is not under, under a security \
                 module's confinement, or with no_new_privs. Use `sudo xrayctl record PID`, or \
                 start xrayctl outside the sandbox."
            }
            Self::NoSleds => {
                "No module of the process has an xray_instr_map section that xrayd can use. If a \
                 section exists, the message says why xrayd cannot use it. Otherwise build the \
                 program with `clang -fxray-instrument` (small functions need \
                 -fxray-instruction-threshold=1) or `rustc -Z instrument-xray`."
            }
            Self::Not64Bit => {
                "The process runs 32-bit (or x32) code. xrayd traces x86-64 processes only."
            }
            Self::Tsc => {
                "A thread of the process may not read the time stamp counter (prctl(PR_SET_TSC, \
                 PR_TSC_SIGSEGV)). Each event reads the counter, so the first event would end the \
                 process by SIGSEGV. Nothing was changed. Let the program leave the counter \
                 readable. xrayd checks only the thread that it borrows for the attach. A thread \
                 inherits the setting from the thread that creates it."
            }
            Self::SeccompStrict => {
                "A thread is in seccomp's strict mode, where any system call but read, write, exit \
                 and sigreturn kills it. xrayd would have to map memory in the process, so it \
                 cannot trace the process."
            }
            Self::SeccompFilter => {
                "Every thread of the process is under a seccomp filter that xrayd cannot suspend. \
                 To attach, xrayd lets one thread make a few system calls, and a filter may kill \
                 the program for them. So xrayd does not try. Suspending a filter needs \
                 CAP_SYS_ADMIN and a tracer under no filter: use `sudo xrayctl record PID` outside \
                 any container, or the system daemon with the unit as shipped (not confined.conf). \
                 Inside one container xrayd needs neither if tracer and program are under the \
                 container's own filter and no other. Such a common filter may have refused a \
                 call. It has to allow mmap, madvise, prctl, memfd_create and ftruncate, and for a \
                 process with locked memory munlock and mprotect. Nothing was changed."
            }
            Self::ForeignTracer => {
                "A debugger or strace is attached to the process. The kernel allows one tracer at \
                 a time. Detach it, attach with xrayd, and attach the debugger again. xrayd has to \
                 be the process's tracer only for moments, usually less than a millisecond. While \
                 a debugger is attached, xrayd refuses operations that stop the process."
            }
            Self::AlreadyPatched => {
                "LLVM's XRay runtime inside the process has patched sleds (patch_premain or \
                 __xray_patch). Two tracers cannot share a sled. Restart the program without \
                 XRAY_OPTIONS=patch_premain=true and without calls of __xray_patch. __xray_unpatch \
                 is not enough, because the runtime leaves bytes of its own in the sleds."
            }
            Self::KernelThread => "This is a thread of the kernel. It has no user memory to trace.",
            Self::Zombie => {
                "The process has ended, and its parent has not collected it yet. There is nothing \
                 left to trace."
            }
            Self::PidReused => {
                "The pid now belongs to another process than the one that was listed. List the \
                 processes again."
            }
            Self::Busy => {
                "xrayd cannot carry out the request at the moment; the message gives the cause. \
                 Another attach or detach of the process is under way: wait for it to end, and try \
                 again. Another xrayd traces the process, and two cannot share one: use that \
                 daemon (`xrayctl --socket`), or wait until it detaches. The process runs in the \
                 memory of another traced process, as a vforked child does until it executes its \
                 program: try again after that. Or the memory or the files of the process do not \
                 answer, as on a dead network file system. Then a detach does not end, a snapshot \
                 lacks processes, or functions cannot be selected by source file. Try again when \
                 the file system answers."
            }
            Self::TooMany => {
                "Your user has reached the daemon's limit on connections, calls and streams under \
                 way, or the daemon's limit on snapshots is reached, for your user or for all \
                 users together. The process itself is not the cause. Wait for one of them to end, \
                 or end it, and try again. A `record` or `snapshot` that still runs counts."
            }
            Self::Quota => {
                "The daemon limits the resources that sessions take: for each user, and for all \
                 users together. The message names the quota, how much of it is in use, and the \
                 option of xrayd that sets it. Nothing was changed. Detach from processes that you \
                 need not trace any more, follow fewer processes, or use smaller rings \
                 (--ring-size, --max-threads). An administrator can start xrayd with a larger \
                 --quota. The quotas do not apply to root, nor to detaching and switching off."
            }
            Self::TargetExited => {
                "The process ended while xrayd worked on it, or before. The daemon retains the \
                 recorded events, up to the last one, until `xrayctl detach`, or until processes \
                 that end later need the room (`xrayd --retain-exited`). `xrayctl snapshot` writes \
                 them."
            }
            Self::Followed => {
                "The process is traced already, because xrayd followed it from another process. \
                 The first process of the group decides what is followed, for all processes that \
                 come from it: `xrayctl attach ROOT --follow WHAT`. `xrayctl status` shows ROOT. \
                 To trace the process by itself, use `xrayctl detach PID`, then attach again."
            }
            Self::NotAttached => {
                "The daemon is not attached to this process. Use `xrayctl attach PID` first, or \
                 use `xrayctl record PID`."
            }
            Self::Mode => {
                "The request does not fit the mode or the filter of the session. The daemon keeps \
                 counts of calls only in mode count, and sums of calls by stack only in mode \
                 profile: `xrayctl mode count` or `xrayctl mode profile` begins them. In any mode \
                 but count, `xrayctl profile PID --duration TIME` makes sums for a limited time. A \
                 budget or a duty cycle does not go with mode count, because counts would not be \
                 exact. A budget does not go with a filter that leaves out calls in the program, \
                 because the cost of these calls is not known: use `xrayctl budget --clear` or \
                 `xrayctl filter --clear`."
            }
            Self::SessionFailed => {
                "xrayd does not read this process's events any more. The message and the daemon's \
                 log give the cause. xrayd has switched all functions off, unless the message says \
                 otherwise. It retains the events recorded before: `xrayctl snapshot` writes them. \
                 `xrayctl detach PID` ends the session. Then you can attach again. If the message \
                 names a bug in xrayd, please report it. Otherwise another xrayd has taken the \
                 process over, a privileged process has cut the memory of the rings, the system \
                 had no memory for them, or the memory of the process does not answer."
            }
            Self::Selection => {
                "xrayd cannot use a selection or a filter of the request: a selection is missing \
                 or empty, a regular expression, glob or id is invalid, a kernel tracepoint is \
                 unknown, or a value of the filter is out of its range. The message names it."
            }
            Self::Limit => {
                "A value of the request is missing, does not fit the others, or is out of its \
                 range, or a fixed limit of xrayd is reached. The message names the value or the \
                 limit."
            }
            Self::NoMemory => {
                "The process could not map the memory that tracing needs (its address space limit, \
                 its limit on locked memory, the machine's overcommit policy), or there is no free \
                 address range within 2 GiB of a module: try a smaller --ring-size or \
                 --max-threads. Or its control group has no room for the rings, or for the pages \
                 of text that would become private: use smaller rings, select fewer functions, or \
                 raise the group's limit."
            }
            Self::NoState => {
                "The daemon has no folder for its state (`xrayd --state-dir`), or could not use it \
                 when it started. So no later daemon would know its sessions, and it refuses to \
                 restart. Start it with a folder that belongs to its user and that no other user \
                 can write to. If it could not use its folder, its log names the reason."
            }
            Self::Policy => {
                "A policy that is applied needs an end: `xrayctl policy apply FILE --for 24h`, or \
                 `expires` in its text. Only a policy that was applied can be removed with \
                 `xrayctl policy remove`. A policy in a file ends when the file is gone and the \
                 daemon has read its folder again (`xrayctl policy reload`). `xrayctl policy list` \
                 shows all policies."
            }
            Self::OtherVersion => {
                "The process carries trampolines of xrayd that another program has changed, or \
                 memory of several versions of xrayd that does not fit together. xrayd cannot \
                 replace trampolines while the process lives, because a thread may be running in \
                 them. Restart the process. Trampolines of another version that nothing has changed \
                 are no reason to refuse: xrayd puts its own beside them."
            }
            Self::ThreadId => {
                "xrayd finds a thread's ring by the thread id that the C library keeps in each \
                 thread's control block. It did not find the id there. This happens in processes \
                 without a thread library. Please report the C library and its version."
            }
            Self::StopTimeout => {
                "xrayd could not stop a thread of the process, or all threads, within the time \
                 limit. All threads may wait uninterruptibly in the kernel (a vfork parent, a dead \
                 network file system), the process may start threads faster than xrayd stops them, \
                 or every thread may stand where it cannot be borrowed. Or a thread did not make \
                 its calls in time: the process is frozen (cgroup.freeze), or changes its own \
                 text. Nothing was changed. Try again."
            }
            Self::MemoryWrite => {
                "The kernel refused to write to the process's code through /proc/PID/mem. From \
                 Linux 6.12 on, the boot parameter proc_mem.force_override=never forbids it. Boot \
                 with proc_mem.force_override=always or =ptrace. With =ptrace, xrayd has to be the \
                 tracer of a thread while it writes. That fails while a debugger traces the \
                 thread, and after the thread that xrayd attached through has ended."
            }
            Self::Io => {
                "A system call or a step of xrayd failed unexpectedly. The message names the step \
                 and the error. If it names a bug in xrayd, please report it."
            }
            Self::Launch => {
                "The program could not be started under xrayd: it does not exist, is not \
                 executable, or ended before its first instruction."
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
