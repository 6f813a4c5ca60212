//! System calls that a stopped thread makes for its tracer, each checked before the kernel makes
//! it.
//!
//! ```text
//!   our registers ─► runs ─► entry of a call ─► ours? ─ yes ─► filters off ─► exit ─► filters on
//!                                                 └─ no ──► the call is skipped, the borrow fails
//! ```
//!
//! Between our registers and the entry, the thread executes the bytes that stand at the instruction
//! by then. Another thread may have written them, and then the thread executes code of the program.
//! So its seccomp filters are suspended only between entry and exit, where it executes nothing. The
//! kernel runs the filters after the stop at the entry (since 4.8), and only a tracer changes the
//! arguments in the registers.

use std::{
    io,
    time::{Duration, Instant},
};

use nix::{libc, sys::ptrace};

use super::{
    Gate, Hold, Registers, Result, Seccomp, Stopped, TraceError,
    requests::{Request, failed, set_signal_mask, traced},
};
use crate::{pid::Tid, sys::wait::Stop};

/// include/uapi/linux/ptrace.h, Linux 5.3.
const PTRACE_GET_SYSCALL_INFO: Request = 0x420e;
const ENTRY: u8 = 1;
/// include/uapi/linux/audit.h. A 32-bit call has the same registers and another meaning.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Longest time to the entry of the call. The thread executes one instruction, once it has a
/// processor.
const ENTRY_PATIENCE: Duration = Duration::from_secs(3);
/// Longest time in the call. Mappings may be populated (`mlockall`), and another thread may hold
/// their lock.
const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// `struct ptrace_syscall_info`: the fields of all stops, and the fields of the entry of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CallInfo {
    kind: u8,
    pad: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    number: u64,
    arguments: [u64; 6],
}

// === impl Stopped ===

impl Stopped {
    /// Makes the thread ready to be borrowed: system calls stop it, and all signals are blocked
    /// until release, except those that cannot be. The registers are set before the signal mask and
    /// restored after it. So a thread whose tracer dies gets its mask back.
    pub(crate) fn prepare(&mut self, seccomp: Seccomp, gate: Gate) -> Result<()> {
        self.set_options(Seccomp::Kept)?;
        self.seccomp = seccomp;
        self.borrowed = self.registers;
        // The interrupted call is not restarted on the way (P10).
        self.borrowed.orig_rax = u64::MAX;
        // Trap flag and direction flag are cleared (P13).
        self.borrowed.eflags &= !0x500;
        if let Some(stack) = gate.stack {
            self.borrowed.rsp = stack;
            self.borrowed.rip = gate.instruction + 2;
            self.registers_changed = true;
            self.set(self.borrowed)?;
        }
        self.mask_changed = true;
        set_signal_mask(self.tid, u64::MAX)
    }

    /// Lets the prepared thread execute one system call at `instruction`, the address of a
    /// `syscall` instruction in the target. Returns the raw result: a value from -4095 to -1 is an
    /// error number.
    ///
    /// The thread goes from the call's entry to its exit. A single step would also work, but its
    /// trap is a forced signal: the kernel would reset the program's action for SIGTRAP (P14).
    ///
    /// # Errors
    /// Includes: the thread did something else than this call, or did not stop again in time. If it
    /// did not reach the entry of this call, it made no call.
    pub(crate) fn system_call(
        &mut self,
        instruction: u64,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<i64> {
        self.check_held()?;
        if self.is_late {
            return Err(TraceError::Timeout(self.tid, ENTRY_PATIENCE));
        }
        let mut registers = self.borrowed;
        registers.rip = instruction;
        registers.rax = number.cast_unsigned();
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = arguments;
        self.registers_changed = true;
        self.set(registers)?;
        let wanted = CallInfo {
            kind: ENTRY,
            pad: [0; 3],
            arch: AUDIT_ARCH_X86_64,
            instruction_pointer: instruction + 2,
            stack_pointer: registers.rsp,
            number: number.cast_unsigned(),
            arguments,
        };
        let entered = self
            .run_to_own_call(ENTRY_PATIENCE)
            .and_then(|()| self.check_entry(&wanted));
        if let Err(error) = entered {
            if let Err(error) = self.skip_call() {
                tracing::debug!(
                    tid = self.tid.as_raw(),
                    %error,
                    "cannot skip a system call of the target's own"
                );
            }
            return Err(error);
        }
        self.run_without_filters(CALL_PATIENCE)?;
        let now = self.read_registers()?;
        if now.rip != instruction + 2 || now.orig_rax != number.cast_unsigned() {
            return Err(self.strayed(format!("the thread continued at {:#x}", now.rip)));
        }
        Ok(now.rax.cast_signed())
    }

    fn check_entry(&self, wanted: &CallInfo) -> Result<()> {
        let found = CallInfo::of(self.tid)?;
        if found == *wanted {
            return Ok(());
        }
        Err(self.strayed(format!(
            "the thread made call {:#x} of architecture {:#x} at {:#x} instead of call {:#x} at \
             {:#x}",
            found.number,
            found.arch,
            found.instruction_pointer,
            wanted.number,
            wanted.instruction_pointer
        )))
    }

    /// Runs to the next entry or exit of a system call. SIGSTOP cannot be blocked and is passed on;
    /// the kernel takes up its group stop again when the thread is released (P5). Every other
    /// signal is a fault of the instruction and not the program's own: it is dropped.
    fn run_to_own_call(&mut self, patience: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.run(libc::PTRACE_SYSCALL, since, patience)? {
                Stop::SystemCall => return Ok(()),
                Stop::Signal(libc::SIGSTOP) => self.signal = libc::SIGSTOP,
                Stop::Signal(signal) => {
                    return Err(self.strayed(format!("the thread received signal {signal}")));
                }
                Stop::Interrupted | Stop::Other => {}
            }
            let in_time = self.check_time(since, patience);
            self.is_late |= in_time.is_err();
            in_time?;
        }
    }

    /// If the thread stands at the entry of a call, makes it return without the call. Its filters
    /// could end the program for that, so they are suspended.
    fn skip_call(&mut self) -> Result<()> {
        self.check_held()?;
        if CallInfo::of(self.tid)?.kind != ENTRY {
            return Ok(());
        }
        let mut registers: Registers = self.read_registers()?;
        registers.orig_rax = u64::MAX;
        self.set(registers)?;
        self.run_without_filters(ENTRY_PATIENCE)
    }

    /// Runs from the entry of a call to its exit. Filters that are to be suspended are off on the
    /// way.
    fn run_without_filters(&mut self, patience: Duration) -> Result<()> {
        if self.seccomp == Seccomp::Kept {
            return self.run_to_own_call(patience);
        }
        self.set_options(self.seccomp)?;
        let returned = self.run_to_own_call(patience);
        if self.hold == Hold::Held {
            self.set_options(Seccomp::Kept)?;
        }
        returned
    }

    fn set_options(&self, seccomp: Seccomp) -> Result<()> {
        let mut options = ptrace::Options::PTRACE_O_TRACESYSGOOD;
        if seccomp == Seccomp::Suspended {
            options |= ptrace::Options::from_bits_retain(libc::PTRACE_O_SUSPEND_SECCOMP);
        }
        ptrace::setoptions(self.tid.as_nix(), options)
            .map_err(|errno| failed(self.tid, "PTRACE_SETOPTIONS", errno))
    }

    fn strayed(&self, found: String) -> TraceError {
        TraceError::Failed {
            what: "a system call",
            tid: self.tid,
            source: io::Error::other(format!(
                "{found}; the text of the process has changed meanwhile"
            )),
        }
    }
}

// === impl CallInfo ===

impl CallInfo {
    fn of(tid: Tid) -> Result<Self> {
        let mut found = Self::default();
        let length = size_of::<Self>();
        // SAFETY: the request writes at most `length` bytes to its last argument, a live local of
        // that size without invalid values; the kernel refuses if the thread is not a stopped
        // tracee of ours.
        let result = unsafe {
            libc::ptrace(
                PTRACE_GET_SYSCALL_INFO,
                tid.as_raw(),
                length,
                (&raw mut found).cast::<libc::c_void>(),
            )
        };
        traced(tid, "PTRACE_GET_SYSCALL_INFO", result).map(|()| found)
    }
}
