//! Waits for a traced thread, and decodes its stops.
//!
//! The status is decoded here because nix does not accept real-time signals: a stop by such a
//! signal would come back as an error, and the program would lose the signal.

use std::{
    fs, io,
    time::{Duration, Instant},
};

use nix::libc;

use super::alarm::interrupted_after;
use crate::pid::Tid;

/// The reason why a traced thread stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// `PTRACE_EVENT_STOP`: the thread was interrupted, or its process is stopped.
    Interrupted,
    /// At the entry or the exit of a system call (with `PTRACE_O_TRACESYSGOOD`).
    SystemCall,
    /// A signal is about to be delivered. The caller passes it on when it resumes the thread.
    Signal(i32),
    /// Any other stop. It needs no action.
    Other,
}

/// The outcome of a wait.
#[derive(Debug)]
pub(super) enum Waited {
    /// The thread stands still.
    Stopped(Stop),
    /// The thread has ended.
    Gone,
    /// The thread did not stop in time.
    Not,
    /// The call failed.
    Failed(io::Error),
}

/// Time for which a wait keeps its processor. A thread on another processor usually stops within
/// that, and sleeping and waking would take longer.
const SPIN: Duration = Duration::from_micros(20);
/// Time between two looks where the system has no timer.
const POLL: Duration = Duration::from_millis(1);

/// Waits until `patience` has passed since `since`. A wait without limit would hang on a thread
/// that sleeps uninterruptibly (P6).
///
/// It sleeps after a moment, since the thread may need this processor to reach its stop. The stop
/// wakes it. Giving up the processor and looking again would be faster if nothing else wanted to
/// run. On a busy machine other programs get the processor then, for milliseconds.
pub(super) fn wait_until(tid: Tid, since: Instant, patience: Duration) -> Waited {
    let begun = Instant::now();
    loop {
        match once(tid, libc::__WALL | libc::WNOHANG) {
            Waited::Not => {}
            waited => return waited,
        }
        if begun.elapsed() > SPIN {
            break;
        }
        std::hint::spin_loop();
    }
    let left = patience.saturating_sub(since.elapsed());
    let wait = |flags| {
        loop {
            match once(tid, libc::__WALL | flags) {
                Waited::Not if since.elapsed() <= patience => {}
                waited => return waited,
            }
            if flags != 0 {
                std::thread::sleep(POLL);
            }
        }
    };
    interrupted_after(left, || wait(0)).unwrap_or_else(|| wait(libc::WNOHANG))
}

/// True if the thread sleeps uninterruptibly in the kernel, or is gone.
pub(super) fn sleeps_uninterruptibly(tid: Tid) -> bool {
    let stat = fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything; the state follows the last closing one.
    let state = stat
        .iter()
        .rposition(|&byte| byte == b')')
        .and_then(|end| stat.get(end + 2));
    matches!(state, None | Some(b'D'))
}

fn once(tid: Tid, flags: i32) -> Waited {
    let mut status = 0;
    // SAFETY: waitpid writes one int to `status`, a live local.
    let result = unsafe { libc::waitpid(tid.as_raw(), &raw mut status, flags) };
    match result {
        0 => Waited::Not,
        id if id == tid.as_raw() => decode(status),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Waited::Not,
            error if error.raw_os_error() == Some(libc::ECHILD) => Waited::Gone,
            error => Waited::Failed(error),
        },
    }
}

/// Decodes a status as in wait(2) and ptrace(2): low byte 0x7f for a stop, then the signal, then
/// the event.
const fn decode(status: i32) -> Waited {
    if status & 0xff != 0x7f {
        return Waited::Gone;
    }
    let (signal, event) = ((status >> 8) & 0xff, status >> 16);
    Waited::Stopped(match (event, signal) {
        (libc::PTRACE_EVENT_STOP, _) => Stop::Interrupted,
        (0, signal) if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        (0, signal) => Stop::Signal(signal),
        _ => Stop::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_distinguished_also_by_real_time_signals() {
        let rows = [
            (0x0000_137f, Stop::Signal(libc::SIGSTOP)),
            (0x0000_227f, Stop::Signal(34)),
            (0x0000_407f, Stop::Signal(64)),
            (0x0000_857f, Stop::SystemCall),
            (0x0080_057f, Stop::Interrupted),
            (0x0080_137f, Stop::Interrupted),
            (0x0004_057f, Stop::Other),
        ];
        for (status, stop) in rows {
            assert!(
                matches!(decode(status), Waited::Stopped(found) if found == stop),
                "{status:#x}"
            );
        }
        for status in [0, 0x0100, 9, 0x8b] {
            assert!(matches!(decode(status), Waited::Gone), "{status:#x}");
        }
    }
}
