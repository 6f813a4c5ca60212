//! Requests of ptrace(2), and the errors of all requests.

use std::time::Duration;

use nix::{errno::Errno, libc, sys::ptrace};

use super::error::{Result, TraceError};
use crate::{
    pid::Tid,
    sys::wait::{Stop, Waited},
};

/// The type of ptrace's requests. The C libraries declare it differently.
#[cfg(target_env = "musl")]
pub(super) type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
pub(super) type Request = libc::c_uint;

/// As in linux/ptrace.h. For musl, libc has them with another type than ptrace's requests.
const PTRACE_GETSIGMASK: Request = 0x420a;
const PTRACE_SETSIGMASK: Request = 0x420b;

pub(super) fn failed(tid: Tid, what: &'static str, errno: Errno) -> TraceError {
    match errno {
        Errno::ESRCH => TraceError::Gone(tid),
        errno => TraceError::Failed {
            what,
            tid,
            source: errno.into(),
        },
    }
}

pub(super) fn stopped(tid: Tid, waited: Waited, patience: Duration) -> Result<Stop> {
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

/// Asks a thread to stop. A stopped thread stops again once it is resumed.
pub(super) fn interrupt(tid: Tid) -> Result<()> {
    ptrace::interrupt(tid.as_nix()).map_err(|errno| failed(tid, "PTRACE_INTERRUPT", errno))
}

/// Resumes a stopped thread with one of ptrace's requests, and with a signal or 0.
pub(super) fn resume(tid: Tid, request: Request, signal: i32) -> Result<()> {
    // SAFETY: the requests used here take a signal number and touch none of our memory; the kernel
    // refuses if `tid` is not a stopped tracee of ours.
    let result = unsafe { libc::ptrace(request, tid.as_raw(), 0usize, i64::from(signal)) };
    let what = match request {
        libc::PTRACE_CONT => "PTRACE_CONT",
        libc::PTRACE_SYSCALL => "PTRACE_SYSCALL",
        libc::PTRACE_SINGLESTEP => "PTRACE_SINGLESTEP",
        _ => "PTRACE_DETACH",
    };
    traced(tid, what, result)
}

/// Reads a register set. Returns the number of bytes that it fills of `into`.
pub(super) fn regset(tid: Tid, kind: usize, into: &mut [u8]) -> Result<usize> {
    let mut place = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: PTRACE_GETREGSET writes at most `iov_len` bytes to `iov_base`, which is `into`,
    // mutably borrowed and of that size, and updates `place`, a live local; the kernel refuses if
    // `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET,
            tid.as_raw(),
            kind,
            (&raw mut place).cast::<libc::c_void>(),
        )
    };
    traced(tid, "PTRACE_GETREGSET", result).map(|()| place.iov_len.min(into.len()))
}

pub(super) fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes 8 bytes (its third argument) to `mask`, a live local of that
    // size; the kernel refuses if `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            PTRACE_GETSIGMASK,
            tid.as_raw(),
            8usize,
            (&raw mut mask).cast::<libc::c_void>(),
        )
    };
    traced(tid, "PTRACE_GETSIGMASK", result).map(|()| mask)
}

pub(super) fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    // SAFETY: PTRACE_SETSIGMASK reads 8 bytes (its third argument) from `mask`, a live local of
    // that size; the kernel refuses if `tid` is not a stopped tracee of ours.
    let result = unsafe {
        libc::ptrace(
            PTRACE_SETSIGMASK,
            tid.as_raw(),
            8usize,
            (&raw const mask).cast::<libc::c_void>(),
        )
    };
    traced(tid, "PTRACE_SETSIGMASK", result)
}

pub(super) fn traced(tid: Tid, what: &'static str, result: libc::c_long) -> Result<()> {
    if result < 0 {
        Err(failed(tid, what, Errno::last()))
    } else {
        Ok(())
    }
}
