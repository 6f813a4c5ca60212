//! The states of ptrace as types.
//!
//! ```text
//!   (running) ── seize ──► Seized ── ask ──► Halting ── wait ──► Stopped ── release ──► (running)
//!                             │                  │                  │
//!                             │                  │                  └── drop: put back, released
//!                             │                  └── drop: waited for and released
//!                             └── drop: ours until this OS thread ends
//! ```
//!
//! A tracer is a thread: the tokens are not `Send`, and all calls for one target come from one OS
//! thread.
//!
//! A stop interrupts the call that the thread sleeps in. [`Stopped`] is made in one place, which
//! sees to that call at once (`restart.rs`). A [`Halting`] that is dropped becomes a [`Stopped`]
//! first. So no thread is released with a call that fails because of us.

mod call;
mod error;
mod requests;
mod restart;
#[cfg(test)]
mod tests;

use std::{
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use nix::{libc, sys::ptrace};

use self::error::Result;
pub(crate) use self::error::TraceError;
use self::requests::{
    Request, failed, interrupt, regset, resume, set_signal_mask, signal_mask, stopped,
};
use super::wait::{Stop, Waited, sleeps_uninterruptibly, wait_until};
use crate::pid::Tid;

/// Offset of `rseq_cs` in `struct rseq`, see rseq(2). It holds the address of the descriptor of the
/// current restartable sequence.
const RSEQ_CS_OFFSET: u64 = 8;
/// Register set of the processor's extended state, as XSAVE writes it: include/uapi/linux/elf.h.
const NT_X86_XSTATE: usize = 0x202;
/// Register set of the shadow stack pointer. The kernel refuses it for threads without a shadow
/// stack.
const NT_X86_SHSTK: usize = 0x204;
/// More than the extended state of any processor: with AMX it takes 11 KiB.
const XSTATE_MOST: usize = 1 << 14;
/// include/uapi/linux/ptrace.h
const PTRACE_GET_RSEQ_CONFIGURATION: Request = 0x420f;
/// include/uapi/linux/ptrace.h, Linux 6.4.
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: Request = 0x4211;

/// Longest wait for the stop of a thread that did not reach its stop in time.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for a thread that was asked to stop and is to be released. The thread may have to
/// wait for a processor.
const LET_GO_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks whether the thread can stop at all.
const LET_GO_LOOK: Duration = Duration::from_millis(5);

/// The handling of a borrowed thread's seccomp filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seccomp {
    /// The filters stay in force.
    Kept,
    /// The filters are off while the kernel makes a call of ours. This needs CAP_SYS_ADMIN and a
    /// tracer without filters.
    Suspended,
}

/// Restartable sequences of a thread (rseq(2)), as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sequences {
    /// The kernel does not report them: it is older than 5.13.
    Untold,
    /// The thread uses none.
    Unused,
    /// Address of the field that points to the descriptor of the current sequence.
    At(u64),
}

/// The place at which a borrowed thread makes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    /// A `syscall` instruction in the target. If there is a `stack`, a `ret` follows it.
    pub(crate) instruction: u64,
    /// The stack pointer while the thread is borrowed. On its top stands an address at which the
    /// thread restores itself when its tracer dies. `None`: the thread's own stack pointer.
    pub(crate) stack: Option<u64>,
}

/// The general registers.
pub(crate) type Registers = libc::user_regs_struct;

/// A traced thread that runs.
#[derive(Debug)]
#[must_use]
pub(crate) struct Seized {
    tid: Tid,
    not_send: PhantomData<*const ()>,
}

/// A traced thread that was asked to stop. When it is dropped, the thread is waited for and
/// released: a thread that reaches the stop later would return from its call with an error. A
/// thread that sleeps uninterruptibly has no call that fails, and is not waited for.
#[derive(Debug)]
#[must_use]
pub(crate) struct Halting {
    tid: Tid,
    since: Instant,
    /// True if the thread has stopped or ended, so that there is nothing to wait for.
    settled: bool,
    not_send: PhantomData<*const ()>,
}

/// A traced thread that stands still. `release` and `drop` restore its registers and its signal
/// mask, whatever was done with it. The registers are those it had, with its interrupted system
/// call set to restart.
#[derive(Debug)]
#[must_use]
pub(crate) struct Stopped {
    tid: Tid,
    since: Instant,
    registers: Registers,
    mask: u64,
    mask_changed: bool,
    registers_changed: bool,
    /// Its registers while it is borrowed.
    borrowed: Registers,
    /// The handling of its filters during a call of ours. Set by `prepare`.
    seccomp: Seccomp,
    /// True if a call of ours took too long. Then no further call is tried.
    is_late: bool,
    /// A signal that arrived while it was borrowed. The next resumption delivers it.
    signal: i32,
    hold: Hold,
    not_send: PhantomData<*const ()>,
}

/// Our hold on a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The thread stands still.
    Held,
    /// The thread went on, and could not be stopped again.
    Lost,
    /// The thread was released.
    Released,
}

// === impl Seized ===

impl Seized {
    /// Becomes the tracer of `tid`, without a stop.
    pub(crate) fn seize(tid: Tid) -> Result<Self> {
        ptrace::seize(tid.as_nix(), ptrace::Options::empty())
            .map_err(|errno| failed(tid, "PTRACE_SEIZE", errno))?;
        Ok(Self {
            tid,
            not_send: PhantomData,
        })
    }

    /// Stops the thread. Signals that arrive first are delivered to it.
    ///
    /// If the thread does not stop in time, it stays traced until this OS thread ends, and then
    /// runs on undisturbed. So a caller tries a thread that may not stop on an OS thread that ends.
    pub(crate) fn interrupt(self, patience: Duration) -> Result<Stopped> {
        self.ask_to_stop()?.wait(patience)
    }

    /// Asks the thread to stop, and does not wait for it.
    pub(crate) fn ask_to_stop(self) -> Result<Halting> {
        let (tid, since) = (self.tid, Instant::now());
        interrupt(tid)?;
        Ok(Halting {
            tid,
            since,
            settled: false,
            not_send: PhantomData,
        })
    }
}

// === impl Halting ===

impl Halting {
    /// The thread's id.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// Waits for the stop, as [`Seized::interrupt`].
    pub(crate) fn wait(mut self, patience: Duration) -> Result<Stopped> {
        self.come(patience)
    }

    fn come(&mut self, patience: Duration) -> Result<Stopped> {
        let (tid, since) = (self.tid, self.since);
        loop {
            let waited = wait_until(tid, since, patience);
            self.settled = !matches!(waited, Waited::Not);
            let signal = match stopped(tid, waited, patience)? {
                Stop::Interrupted => break,
                Stop::Signal(signal) => signal,
                Stop::SystemCall | Stop::Other => 0,
            };
            // The kernel forgets a requested stop when another stop comes first (ptrace_stop() in
            // kernel/signal.c: "any trap clears pending STOP trap"). With signals of POSIX timers
            // that happens about twice in a thousand stops; with signals of kill(2) it was never
            // seen. The likely reason: dequeue_signal() releases the lock to arm the timer again,
            // after the thread has looked for a stop.
            interrupt(tid)?;
            resume(tid, libc::PTRACE_CONT, signal)?;
            self.settled = false;
        }
        Stopped::adopt(tid, since)
    }
}

impl Drop for Halting {
    fn drop(&mut self) {
        let since = Instant::now();
        while !self.settled && since.elapsed() < LET_GO_PATIENCE {
            match self.come(self.since.elapsed() + LET_GO_LOOK) {
                Err(TraceError::Timeout(..)) if !sleeps_uninterruptibly(self.tid) => {}
                // Dropping a stopped thread sets its call to restart and releases it.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

// === impl Stopped ===

impl Stopped {
    /// A thread that has been stopped under this tracer since `since`. The call that it was in is
    /// set to restart at once, so that it does not fail if we die.
    pub(crate) fn adopt(tid: Tid, since: Instant) -> Result<Self> {
        let found =
            ptrace::getregs(tid.as_nix()).map_err(|errno| failed(tid, "PTRACE_GETREGS", errno))?;
        let restarting = restart::restarting(&found);
        let registers = restarting.unwrap_or(found);
        let mut thread = Self {
            tid,
            since,
            registers,
            mask: 0,
            mask_changed: false,
            registers_changed: restarting.is_some(),
            borrowed: registers,
            seccomp: Seccomp::Kept,
            is_late: false,
            signal: 0,
            hold: Hold::Held,
            not_send: PhantomData,
        };
        thread.restore()?;
        thread.mask = signal_mask(tid)?;
        Ok(thread)
    }

    /// The thread's id.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// The registers that the thread has after its release.
    pub(crate) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// The signals that the thread blocks, a bit each from signal 1 on. In a call with a mask of
    /// its own (`epoll_pwait`), the signals that it blocks after the call.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// The restartable sequence that the thread may be in.
    pub(crate) fn sequences(&self) -> Sequences {
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            pointer: u64,
            size: u32,
            signature: u32,
            flags: u32,
            pad: u32,
        }
        let mut found = Configuration::default();
        let length = size_of::<Configuration>();
        let place = (&raw mut found).cast::<libc::c_void>();
        // SAFETY: the request writes at most `length` bytes to `place`, a live local of that size;
        // the kernel refuses if the thread is not a stopped tracee of ours.
        let result = unsafe {
            libc::ptrace(
                PTRACE_GET_RSEQ_CONFIGURATION,
                self.tid.as_raw(),
                length,
                place,
            )
        };
        match found.pointer {
            _ if result <= 0 => Sequences::Untold,
            0 => Sequences::Unused,
            pointer => Sequences::At(pointer.wrapping_add(RSEQ_CS_OFFSET)),
        }
    }

    /// True if a signal answers its system calls (`PR_SET_SYSCALL_USER_DISPATCH`). Always false
    /// before Linux 6.4.
    pub(crate) fn dispatches_calls(&self) -> bool {
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            mode: u64,
            selector: u64,
            offset: u64,
            length: u64,
        }
        let mut found = Configuration::default();
        let length = size_of::<Configuration>();
        // SAFETY: the request writes `length` bytes to its last argument, a live local of that
        // size; the kernel refuses if the thread is not a stopped tracee of ours.
        let result = unsafe {
            libc::ptrace(
                PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
                self.tid.as_raw(),
                length,
                (&raw mut found).cast::<libc::c_void>(),
            )
        };
        result >= 0 && found.mode != 0
    }

    /// Its extended state: x87, vectors, and all other components that the kernel reports.
    pub(crate) fn extended_state(&self) -> Result<Vec<u8>> {
        let mut state = vec![0; XSTATE_MOST];
        let length = regset(self.tid, NT_X86_XSTATE, &mut state)?;
        state.truncate(length);
        Ok(state)
    }

    /// True if the processor checks the thread's return addresses.
    pub(crate) fn has_shadow_stack(&self) -> bool {
        regset(self.tid, NT_X86_SHSTK, &mut [0; 8]).is_ok()
    }

    /// Runs to the breakpoint at `address`, whose first byte the caller has replaced with `int3`,
    /// and stands there.
    pub(crate) fn run_to_breakpoint(&mut self, address: u64, patience: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            if let Stop::Signal(signal) = self.run(libc::PTRACE_CONT, since, patience)? {
                let mut now = self.read_registers()?;
                if signal == libc::SIGTRAP && now.rip == address + 1 {
                    now.rip = address;
                    self.registers = now;
                    self.registers_changed = true;
                    return Ok(());
                }
                self.signal = signal;
            }
            self.check_time(since, patience)?;
        }
    }

    /// Runs until system call `number` has returned, through at most `most` others.
    pub(crate) fn run_past_system_call(
        &mut self,
        number: i64,
        most: usize,
        patience: Duration,
    ) -> Result<()> {
        let since = Instant::now();
        ptrace::setoptions(self.tid.as_nix(), ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .map_err(|errno| failed(self.tid, "PTRACE_SETOPTIONS", errno))?;
        let (mut entered, mut stops) = (false, 0);
        while stops < 2 * most {
            self.check_time(since, patience)?;
            match self.run(libc::PTRACE_SYSCALL, since, patience)? {
                Stop::SystemCall => {}
                Stop::Signal(signal) => {
                    self.signal = signal;
                    continue;
                }
                Stop::Interrupted | Stop::Other => continue,
            }
            stops += 1;
            self.registers = self.read_registers()?;
            let is_it = self.registers.orig_rax.cast_signed() == number;
            if entered && is_it {
                return Ok(());
            }
            entered = is_it;
        }
        let source = io::Error::other(format!("the thread did not make system call {number}"));
        Err(TraceError::Failed {
            what: "the run to a system call",
            tid: self.tid,
            source,
        })
    }

    /// Executes one instruction of the thread.
    pub(crate) fn step(&mut self, patience: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.run(libc::PTRACE_SINGLESTEP, since, patience)? {
                Stop::Signal(libc::SIGTRAP) => {
                    self.registers = self.read_registers()?;
                    return Ok(());
                }
                Stop::Signal(signal) => self.signal = signal,
                Stop::SystemCall | Stop::Interrupted | Stop::Other => {}
            }
            self.check_time(since, patience)?;
        }
    }

    /// Resumes the thread with one of ptrace's requests, up to its next stop. If the stop does not
    /// come in time, the thread is stopped wherever it is. If that fails, the thread is lost.
    fn run(&mut self, request: Request, since: Instant, patience: Duration) -> Result<Stop> {
        self.check_held()?;
        resume(self.tid, request, std::mem::take(&mut self.signal))?;
        let mut waited = wait_until(self.tid, since, patience);
        if matches!(waited, Waited::Not) && ptrace::interrupt(self.tid.as_nix()).is_ok() {
            waited = wait_until(self.tid, Instant::now(), FETCH_PATIENCE);
        }
        if matches!(waited, Waited::Not) {
            self.hold = Hold::Lost;
            return Err(TraceError::Lost(self.tid));
        }
        stopped(self.tid, waited, patience)
    }

    fn check_held(&self) -> Result<()> {
        match self.hold {
            Hold::Held => Ok(()),
            Hold::Lost | Hold::Released => Err(TraceError::Lost(self.tid)),
        }
    }

    fn check_time(&self, since: Instant, patience: Duration) -> Result<()> {
        match since.elapsed() > patience {
            true => Err(TraceError::Timeout(self.tid, patience)),
            false => Ok(()),
        }
    }

    fn read_registers(&self) -> Result<Registers> {
        ptrace::getregs(self.tid.as_nix())
            .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))
    }

    /// Restores registers and signal mask and releases the thread. Returns the time that it stood
    /// still.
    pub(crate) fn release(mut self) -> Result<Duration> {
        self.restore()?;
        resume(
            self.tid,
            libc::PTRACE_DETACH,
            std::mem::take(&mut self.signal),
        )?;
        self.hold = Hold::Released;
        Ok(self.since.elapsed())
    }

    /// Restores registers and signal mask. The thread stays where it is.
    pub(crate) fn restore(&mut self) -> Result<()> {
        self.check_held()?;
        if self.mask_changed {
            set_signal_mask(self.tid, self.mask)?;
            self.mask_changed = false;
        }
        if self.registers_changed {
            self.set(self.registers)?;
            self.registers_changed = false;
        }
        Ok(())
    }

    fn set(&self, registers: Registers) -> Result<()> {
        ptrace::setregs(self.tid.as_nix(), registers)
            .map_err(|errno| failed(self.tid, "PTRACE_SETREGS", errno))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        match self.hold {
            Hold::Held => {}
            Hold::Released => return,
            Hold::Lost => {
                // The kernel releases the thread when this OS thread ends.
                tracing::error!(
                    tid = self.tid.as_raw(),
                    "a stopped thread has continued and does not stop again"
                );
                return;
            }
        }
        let signal = std::mem::take(&mut self.signal);
        let undone = self
            .restore()
            .and_then(|()| resume(self.tid, libc::PTRACE_DETACH, signal));
        match undone {
            Ok(()) | Err(TraceError::Gone(_)) => {}
            Err(error) => {
                tracing::error!(tid = self.tid.as_raw(), %error, "cannot release a stopped thread");
            }
        }
    }
}
