//! ptrace, its states as types.
//!
//! ```text
//!   (running) ── seize ──► Seized ── ask ──► Halting ── wait ──► Stopped ── release ──► (running)
//!                             │                  │                  │
//!                             └── drop: ours until this OS thread ends   └── drop: restored and released, logged
//! ```
//!
//! A tracer is a thread: the tokens are not `Send`, and all calls for one target come from one OS thread.

use std::{
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use nix::{errno::Errno, libc, sys::ptrace};

use super::wait::{Stop, Waited, wait_step, wait_until};
use crate::pid::Tid;

/// A restartable sequence of the thread's, see rseq(2): where its descriptor's address stands.
const RSEQ_CS_OFFSET: u64 = 8;
/// include/uapi/linux/elf.h: the processor's extended state, as XSAVE writes it.
const NT_X86_XSTATE: usize = 0x202;
/// The shadow stack pointer; refused for threads without one.
const NT_X86_SHSTK: usize = 0x204;
/// More than any processor's: AMX comes to 11 KiB.
const XSTATE_MOST: usize = 1 << 14;
/// include/uapi/linux/ptrace.h
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// What happens to a borrowed thread's seccomp filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seccomp {
    /// They stay.
    Kept,
    /// They are off while it is traced by us. Needs CAP_SYS_ADMIN and a tracer without filters.
    Suspended,
}

/// Where a borrowed thread makes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    /// A `syscall` instruction in the target, with a `ret` behind it if there is a `stack`.
    pub(crate) instruction: u64,
    /// The stack pointer while it is borrowed: on its top an address where the thread restores itself when its tracer dies. `None`: its own stack.
    pub(crate) stack: Option<u64>,
}

/// The general registers.
pub(crate) type Registers = libc::user_regs_struct;

/// Why a ptrace operation did not work out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The thread has ended.
    #[error("thread {0} has ended")]
    Gone(Tid),
    /// It did not stop in time.
    #[error("thread {0} did not stop within {1:?}")]
    Timeout(Tid, Duration),
    /// The kernel said no.
    #[error("{what} on thread {tid}")]
    Failed {
        /// The operation.
        what: &'static str,
        /// The thread.
        tid: Tid,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, TraceError>;

/// A thread that we trace and that runs.
#[derive(Debug)]
#[must_use]
pub(crate) struct Seized {
    tid: Tid,
    not_send: PhantomData<*const ()>,
}

/// A thread that we trace and that was asked to stop.
#[derive(Debug)]
#[must_use]
pub(crate) struct Halting {
    tid: Tid,
    since: Instant,
    not_send: PhantomData<*const ()>,
}

/// A thread that we trace and that stands still. Whatever was done with it, `release` puts back the registers and the signal mask that it
/// shall go on with.
#[derive(Debug)]
#[must_use]
pub(crate) struct Stopped {
    tid: Tid,
    since: Instant,
    registers: Registers,
    mask: u64,
    mask_changed: bool,
    registers_changed: bool,
    /// What it has while it is borrowed.
    borrowed: Registers,
    /// A signal that came while it was borrowed; it gets it with the next resumption.
    signal: i32,
    released: bool,
    not_send: PhantomData<*const ()>,
}

// === impl Seized ===

impl Seized {
    /// Becomes the tracer of `tid`. It is not stopped.
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
    /// If the thread does not stop in time it stays ours until this OS thread ends, and then runs on as if nothing had
    /// happened: whoever tries a thread that may not stop does so on an OS thread that ends.
    pub(crate) fn interrupt(self, patience: Duration) -> Result<Stopped> {
        self.ask_to_stop()?.wait(patience)
    }

    /// Asks the thread to stop, and does not wait for it.
    pub(crate) fn ask_to_stop(self) -> Result<Halting> {
        let (tid, since) = (self.tid, Instant::now());
        ptrace::interrupt(tid.as_nix()).map_err(|errno| failed(tid, "PTRACE_INTERRUPT", errno))?;
        Ok(Halting {
            tid,
            since,
            not_send: PhantomData,
        })
    }
}

// === impl Halting ===

impl Halting {
    /// Which thread.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// Waits for it, as [`Seized::interrupt`].
    pub(crate) fn wait(self, patience: Duration) -> Result<Stopped> {
        let Self { tid, since, .. } = self;
        loop {
            match stopped(tid, wait_until(tid, since, patience), patience)? {
                Stop::Interrupted => break,
                Stop::Signal(signal) => resume(tid, libc::PTRACE_CONT, signal)?,
                Stop::SystemCall | Stop::Other => resume(tid, libc::PTRACE_CONT, 0)?,
            }
        }
        Stopped::adopt(tid, since)
    }
}

// === impl Stopped ===

impl Stopped {
    /// A thread that is already stopped under this tracer, since `since`.
    pub(crate) fn adopt(tid: Tid, since: Instant) -> Result<Self> {
        let registers =
            ptrace::getregs(tid.as_nix()).map_err(|errno| failed(tid, "PTRACE_GETREGS", errno))?;
        let mask = signal_mask(tid)?;
        Ok(Self {
            tid,
            since,
            registers,
            mask,
            mask_changed: false,
            registers_changed: false,
            borrowed: registers,
            signal: 0,
            released: false,
            not_send: PhantomData,
        })
    }

    /// Which thread.
    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// The registers that it will have when it goes on.
    pub(crate) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// The signals that it holds back itself, a bit each from signal 1 on.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Changes the registers that it will have when it goes on.
    pub(crate) fn resume_with(&mut self, registers: Registers) {
        self.registers = registers;
        self.registers_changed = true;
    }

    /// Where the address of the descriptor stands of the restartable sequence that it may be in; `None` if it uses none or
    /// the kernel (before 5.13) does not say.
    pub(crate) fn rseq_descriptor(&self) -> Option<u64> {
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
        // SAFETY: the request writes at most `length` bytes to `place`, a live local of that size; the kernel refuses if
        // the thread is not a stopped tracee of ours.
        let result = unsafe {
            libc::ptrace(
                PTRACE_GET_RSEQ_CONFIGURATION,
                self.tid.as_raw(),
                length,
                place,
            )
        };
        (result > 0 && found.pointer != 0).then(|| found.pointer.wrapping_add(RSEQ_CS_OFFSET))
    }

    /// Its extended state: x87, vectors and what else the kernel shows of it.
    pub(crate) fn extended_state(&self) -> Result<Vec<u8>> {
        let mut state = vec![0; XSTATE_MOST];
        let length = regset(self.tid, NT_X86_XSTATE, &mut state)?;
        state.truncate(length);
        Ok(state)
    }

    /// True if the processor checks its return addresses.
    pub(crate) fn has_shadow_stack(&self) -> bool {
        regset(self.tid, NT_X86_SHSTK, &mut [0; 8]).is_ok()
    }

    /// Makes ready to borrow the thread: system calls stop it, and every signal is held back that can be, until
    /// release. The registers come first and go last: with them a thread whose tracer dies gets its mask back.
    pub(crate) fn prepare(&mut self, seccomp: Seccomp, gate: Gate) -> Result<()> {
        let mut options = ptrace::Options::PTRACE_O_TRACESYSGOOD;
        if seccomp == Seccomp::Suspended {
            options |= ptrace::Options::from_bits_retain(libc::PTRACE_O_SUSPEND_SECCOMP);
        }
        ptrace::setoptions(self.tid.as_nix(), options)
            .map_err(|errno| failed(self.tid, "PTRACE_SETOPTIONS", errno))?;
        self.borrowed = self.registers;
        // No restart of the interrupted call on the way (P10).
        self.borrowed.orig_rax = u64::MAX;
        // Trap and direction flag clear (P13).
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

    /// Lets the prepared thread execute one system call at `instruction` (the address of a `syscall` instruction in it)
    /// and returns the raw result: a value from -4095 to -1 is an error number.
    ///
    /// It goes from the call's entry to its exit. A single step would do as well, but its trap is a forced signal: the
    /// kernel would reset what the program does at SIGTRAP (P14).
    pub(crate) fn system_call(
        &mut self,
        instruction: u64,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<i64> {
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
        self.run_to_system_call()?;
        self.run_to_system_call()?;
        let now = ptrace::getregs(self.tid.as_nix())
            .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
        if now.rip != instruction + 2 || now.orig_rax.cast_signed() != number {
            return Err(TraceError::Failed {
                what: "making a system call",
                tid: self.tid,
                source: io::Error::other(format!("it went to {:#x}", now.rip)),
            });
        }
        Ok(now.rax.cast_signed())
    }

    /// Goes on to the next entry or exit of a system call. A signal that cannot be held back (SIGSTOP) is passed on; the
    /// group stop that it makes is taken up again by the kernel when the thread is let go (P5).
    fn run_to_system_call(&mut self) -> Result<()> {
        loop {
            resume(
                self.tid,
                libc::PTRACE_SYSCALL,
                std::mem::take(&mut self.signal),
            )?;
            match stopped(self.tid, wait_step(self.tid), Duration::MAX)? {
                Stop::SystemCall => return Ok(()),
                Stop::Signal(signal) => self.signal = signal,
                Stop::Interrupted | Stop::Other => {}
            }
        }
    }

    /// Runs to the breakpoint at `address`, whose first byte the caller has replaced with `int3`, and stands there.
    pub(crate) fn run_to_breakpoint(&mut self, address: u64, patience: Duration) -> Result<()> {
        let since = Instant::now();
        loop {
            resume(
                self.tid,
                libc::PTRACE_CONT,
                std::mem::take(&mut self.signal),
            )?;
            let stop = stopped(self.tid, wait_until(self.tid, since, patience), patience)?;
            let Stop::Signal(signal) = stop else { continue };
            let mut now = ptrace::getregs(self.tid.as_nix())
                .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
            if signal == libc::SIGTRAP && now.rip == address + 1 {
                now.rip = address;
                self.resume_with(now);
                return Ok(());
            }
            self.signal = signal;
        }
    }

    /// Runs until system call `number` has returned, through at most `most` others.
    pub(crate) fn run_past_system_call(&mut self, number: i64, most: usize) -> Result<()> {
        ptrace::setoptions(self.tid.as_nix(), ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .map_err(|errno| failed(self.tid, "PTRACE_SETOPTIONS", errno))?;
        let mut entered = false;
        for _ in 0..2 * most {
            self.run_to_system_call()?;
            self.reread()?;
            let is_it = self.registers.orig_rax.cast_signed() == number;
            if entered && is_it {
                return Ok(());
            }
            entered = is_it;
        }
        let source = io::Error::other(format!("it never made system call {number}"));
        Err(TraceError::Failed {
            what: "running to a system call",
            tid: self.tid,
            source,
        })
    }

    /// Executes one instruction of the thread's own.
    pub(crate) fn step(&mut self) -> Result<()> {
        loop {
            resume(
                self.tid,
                libc::PTRACE_SINGLESTEP,
                std::mem::take(&mut self.signal),
            )?;
            match stopped(self.tid, wait_step(self.tid), Duration::MAX)? {
                Stop::Signal(libc::SIGTRAP) => return self.reread(),
                Stop::Signal(signal) => self.signal = signal,
                Stop::SystemCall | Stop::Interrupted | Stop::Other => {}
            }
        }
    }

    fn reread(&mut self) -> Result<()> {
        self.registers = ptrace::getregs(self.tid.as_nix())
            .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
        Ok(())
    }

    /// Puts registers and signal mask back and lets the thread go. Returns how long it stood still.
    pub(crate) fn release(mut self) -> Result<Duration> {
        self.restore()?;
        resume(
            self.tid,
            libc::PTRACE_DETACH,
            std::mem::take(&mut self.signal),
        )?;
        self.released = true;
        Ok(self.since.elapsed())
    }

    /// Puts registers and signal mask back; the thread stays where it is.
    pub(crate) fn restore(&mut self) -> Result<()> {
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
        if self.released {
            return;
        }
        let signal = std::mem::take(&mut self.signal);
        let undone = self
            .restore()
            .and_then(|()| resume(self.tid, libc::PTRACE_DETACH, signal));
        match undone {
            Ok(()) | Err(TraceError::Gone(_)) => {}
            Err(error) => {
                tracing::error!(tid = self.tid.as_raw(), %error, "could not let a stopped thread go");
            }
        }
    }
}

fn failed(tid: Tid, what: &'static str, errno: Errno) -> TraceError {
    match errno {
        Errno::ESRCH => TraceError::Gone(tid),
        errno => TraceError::Failed {
            what,
            tid,
            source: errno.into(),
        },
    }
}

fn stopped(tid: Tid, waited: Waited, patience: Duration) -> Result<Stop> {
    match waited {
        Waited::Stopped(stop) => Ok(stop),
        Waited::Gone => Err(TraceError::Gone(tid)),
        Waited::Not => Err(TraceError::Timeout(tid, patience)),
        Waited::Failed(source) => Err(TraceError::Failed {
            what: "waitpid",
            tid,
            source,
        }),
    }
}

/// Lets a stopped thread go on in one of ptrace's ways, with a signal or 0.
fn resume(tid: Tid, request: libc::c_uint, signal: i32) -> Result<()> {
    // SAFETY: the requests used here take a signal number and touch none of our memory; the kernel refuses if `tid` is
    // not a stopped tracee of ours.
    let result = unsafe { libc::ptrace(request, tid.as_raw(), 0usize, i64::from(signal)) };
    let what = match request {
        libc::PTRACE_CONT => "PTRACE_CONT",
        libc::PTRACE_SYSCALL => "PTRACE_SYSCALL",
        libc::PTRACE_SINGLESTEP => "PTRACE_SINGLESTEP",
        _ => "PTRACE_DETACH",
    };
    check(tid, what, result)
}

/// Reads a register set; returns how much of `into` it fills.
fn regset(tid: Tid, kind: usize, into: &mut [u8]) -> Result<usize> {
    let mut place = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: PTRACE_GETREGSET writes at most `iov_len` bytes to `iov_base`, which is `into`, mutably borrowed and of that
    // size, and updates `place`, a live local; the kernel refuses if `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET,
            tid.as_raw(),
            kind,
            (&raw mut place).cast::<libc::c_void>(),
        )
    };
    check(tid, "PTRACE_GETREGSET", result).map(|()| place.iov_len.min(into.len()))
}

fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes 8 bytes (its third argument) to `mask`, a live local of that size; the kernel refuses if
    // `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGMASK,
            tid.as_raw(),
            8usize,
            (&raw mut mask).cast::<libc::c_void>(),
        )
    };
    check(tid, "PTRACE_GETSIGMASK", result).map(|()| mask)
}

fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    // SAFETY: PTRACE_SETSIGMASK reads 8 bytes (its third argument) from `mask`, a live local of that size; the kernel refuses if
    // `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_SETSIGMASK,
            tid.as_raw(),
            8usize,
            (&raw const mask).cast::<libc::c_void>(),
        )
    };
    check(tid, "PTRACE_SETSIGMASK", result)
}

fn check(tid: Tid, what: &'static str, result: libc::c_long) -> Result<()> {
    if result < 0 {
        Err(failed(tid, what, Errno::last()))
    } else {
        Ok(())
    }
}
