//! ptrace, its states as types.
//!
//! ```text
//!   (running) ── seize ──► Seized ── interrupt ──► Stopped ── release ──► (running)
//!                             │                       │
//!                             └── drop: released      └── drop: restored and released, logged
//! ```
//!
//! A tracer is a thread: the tokens are not `Send`, and all calls for one target come from one OS thread.

use std::{
    io,
    marker::PhantomData,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};

use crate::pid::Tid;

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

/// A thread that we trace and that stands still. Its registers and signal mask are as it had them, unless `set_…` was
/// called; `release` puts them back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Stopped {
    tid: Tid,
    since: Instant,
    registers: Registers,
    mask: u64,
    mask_changed: bool,
    registers_changed: bool,
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
    /// If the thread does not stop in time it stays ours until this OS thread ends, and then runs on as if nothing had happened.
    pub(crate) fn interrupt(self, patience: Duration) -> Result<Stopped> {
        let tid = self.tid;
        let since = Instant::now();
        ptrace::interrupt(tid.as_nix()).map_err(|errno| failed(tid, "PTRACE_INTERRUPT", errno))?;
        loop {
            match wait(tid, since, patience)? {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_STOP) => break,
                WaitStatus::Stopped(_, signal) => {
                    ptrace::cont(tid.as_nix(), signal)
                        .map_err(|errno| failed(tid, "PTRACE_CONT", errno))?;
                }
                _ => {}
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

    /// Changes the registers that it will have when it goes on.
    pub(crate) fn resume_with(&mut self, registers: Registers) {
        self.registers = registers;
        self.registers_changed = true;
    }

    /// Holds back every signal that can be held back, until release.
    pub(crate) fn block_signals(&mut self) -> Result<()> {
        self.mask_changed = true;
        set_signal_mask(self.tid, u64::MAX)
    }

    /// Switches the thread's seccomp filters off while it is traced by us. Needs CAP_SYS_ADMIN and a tracer without filters.
    pub(crate) fn suspend_seccomp(&mut self) -> Result<()> {
        let option = ptrace::Options::from_bits_retain(libc::PTRACE_O_SUSPEND_SECCOMP);
        ptrace::setoptions(self.tid.as_nix(), option)
            .map_err(|errno| failed(self.tid, "PTRACE_O_SUSPEND_SECCOMP", errno))
    }

    /// Lets the thread execute one system call at `instruction` (the address of a `syscall` instruction in it) and
    /// returns the raw result: a value from -4095 to -1 is an error number.
    pub(crate) fn system_call(
        &mut self,
        instruction: u64,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<i64> {
        let mut registers = self.registers;
        registers.rip = instruction;
        registers.rax = number.cast_unsigned();
        // No restart of the interrupted call on the way (P10).
        registers.orig_rax = u64::MAX;
        [
            registers.rdi,
            registers.rsi,
            registers.rdx,
            registers.r10,
            registers.r8,
            registers.r9,
        ] = arguments;
        // Trap and direction flag clear (P13).
        registers.eflags &= !0x500;
        self.registers_changed = true;
        self.set(registers)?;
        loop {
            ptrace::step(self.tid.as_nix(), None)
                .map_err(|errno| failed(self.tid, "PTRACE_SINGLESTEP", errno))?;
            match wait_step(self.tid)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                    let now = ptrace::getregs(self.tid.as_nix())
                        .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
                    if now.rip == instruction + 2 {
                        return Ok(now.rax.cast_signed());
                    }
                    return Err(TraceError::Failed {
                        what: "stepping over a system call",
                        tid: self.tid,
                        source: io::Error::other(format!("it went to {:#x}", now.rip)),
                    });
                }
                // A group stop (SIGSTOP) that arrives now: step on; the kernel stops the thread again when it is let go (P5).
                _ => continue,
            }
        }
    }

    /// Runs to the breakpoint at `address`, whose first byte the caller has replaced with `int3`, and stands there.
    pub(crate) fn run_to_breakpoint(&mut self, address: u64, patience: Duration) -> Result<()> {
        ptrace::cont(self.tid.as_nix(), None)
            .map_err(|errno| failed(self.tid, "PTRACE_CONT", errno))?;
        loop {
            match wait(self.tid, Instant::now(), patience)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                    let mut now = ptrace::getregs(self.tid.as_nix())
                        .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
                    if now.rip == address + 1 {
                        now.rip = address;
                        self.resume_with(now);
                        return Ok(());
                    }
                    ptrace::cont(self.tid.as_nix(), Some(Signal::SIGTRAP))
                        .map_err(|errno| failed(self.tid, "PTRACE_CONT", errno))?;
                }
                WaitStatus::Stopped(_, signal) => {
                    ptrace::cont(self.tid.as_nix(), Some(signal))
                        .map_err(|errno| failed(self.tid, "PTRACE_CONT", errno))?;
                }
                _ => {
                    ptrace::cont(self.tid.as_nix(), None)
                        .map_err(|errno| failed(self.tid, "PTRACE_CONT", errno))?;
                }
            }
        }
    }

    /// Runs until system call `number` has returned, through at most `most` others.
    pub(crate) fn run_past_system_call(
        &mut self,
        number: i64,
        most: usize,
        patience: Duration,
    ) -> Result<()> {
        ptrace::setoptions(self.tid.as_nix(), ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .map_err(|errno| failed(self.tid, "PTRACE_SETOPTIONS", errno))?;
        let mut entered = false;
        for _ in 0..2 * most {
            ptrace::syscall(self.tid.as_nix(), None)
                .map_err(|errno| failed(self.tid, "PTRACE_SYSCALL", errno))?;
            if !matches!(
                wait(self.tid, Instant::now(), patience)?,
                WaitStatus::PtraceSyscall(_)
            ) {
                continue;
            }
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
    pub(crate) fn step(&mut self, patience: Duration) -> Result<()> {
        ptrace::step(self.tid.as_nix(), None)
            .map_err(|errno| failed(self.tid, "PTRACE_SINGLESTEP", errno))?;
        wait(self.tid, Instant::now(), patience)?;
        self.reread()
    }

    fn reread(&mut self) -> Result<()> {
        self.registers = ptrace::getregs(self.tid.as_nix())
            .map_err(|errno| failed(self.tid, "PTRACE_GETREGS", errno))?;
        Ok(())
    }

    /// Puts registers and signal mask back and lets the thread go. Returns how long it stood still.
    pub(crate) fn release(mut self) -> Result<Duration> {
        self.restore()?;
        ptrace::detach(self.tid.as_nix(), None)
            .map_err(|errno| failed(self.tid, "PTRACE_DETACH", errno))?;
        self.released = true;
        Ok(self.since.elapsed())
    }

    fn restore(&mut self) -> Result<()> {
        if self.registers_changed {
            self.set(self.registers)?;
            self.registers_changed = false;
        }
        if self.mask_changed {
            set_signal_mask(self.tid, self.mask)?;
            self.mask_changed = false;
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
        let undone = self.restore().and_then(|()| {
            ptrace::detach(self.tid.as_nix(), None)
                .map_err(|errno| failed(self.tid, "PTRACE_DETACH", errno))
        });
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

/// Waits until `tid` stops. Polls: a wait without limit would hang on a thread that sleeps uninterruptibly (P6). It
/// sleeps between looks, since the thread may need this processor to come to its stop.
fn wait(tid: Tid, since: Instant, patience: Duration) -> Result<WaitStatus> {
    loop {
        if let Some(status) = wait_once(tid, WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)? {
            return Ok(status);
        }
        let waited = since.elapsed();
        if waited > patience {
            return Err(TraceError::Timeout(tid, patience));
        }
        if waited < Duration::from_micros(50) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(
                (waited / 8).clamp(Duration::from_micros(10), Duration::from_millis(1)),
            );
        }
    }
}

/// Waits for a thread that executes one instruction or one memory call: it stops again by itself, or dies.
fn wait_step(tid: Tid) -> Result<WaitStatus> {
    loop {
        if let Some(status) = wait_once(tid, WaitPidFlag::__WALL)? {
            return Ok(status);
        }
    }
}

fn wait_once(tid: Tid, flags: WaitPidFlag) -> Result<Option<WaitStatus>> {
    match waitpid(tid.as_nix(), Some(flags)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(None),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
            Err(TraceError::Gone(tid))
        }
        Ok(status) => Ok(Some(status)),
        Err(errno) => Err(failed(tid, "waitpid", errno)),
    }
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
