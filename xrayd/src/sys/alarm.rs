//! Interrupts a system call that blocks, at a time limit.
//!
//! A timer of the thread sends it a signal whose handler does nothing, so the call returns with
//! `EINTR`. The signal may come just before the call, so the timer repeats it.

use std::{io, ptr, sync::OnceLock, time::Duration};

use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};

/// A signal that programs ignore unless they read urgent data from sockets, and xrayd does not.
const SIGNAL: Signal = Signal::SIGURG;
/// The time after which the signal comes again.
const AGAIN: Duration = Duration::from_millis(5);

thread_local! {
    /// The timer of this thread. `None`: the system has no timer for it.
    static ALARM: Option<Alarm> = Alarm::new().ok();
}

/// A timer that interrupts the thread which made it.
#[derive(Debug)]
struct Alarm(libc::timer_t);

/// Runs `call`, whose system calls return with `EINTR` once `limit` has passed, and then again and
/// again. `None` if the system has no timer for this thread: then `call` did not run.
pub(super) fn interrupted_after<T>(limit: Duration, call: impl FnOnce() -> T) -> Option<T> {
    ALARM.with(|alarm| {
        let alarm = alarm.as_ref()?;
        // A time of zero would stop the timer.
        alarm.set(limit.max(Duration::from_nanos(1)), AGAIN).ok()?;
        let done = call();
        // A timer that was set before can be set again.
        let _ = alarm.set(Duration::ZERO, Duration::ZERO);
        Some(done)
    })
}

/// Has the signal interrupt calls in place of being ignored.
fn handle_signal() -> io::Result<()> {
    static HANDLED: OnceLock<bool> = OnceLock::new();
    let handled = HANDLED.get_or_init(|| {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: all zeroes are a valid value of this C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // SAFETY: `action` is a live local, and its handler does nothing, so it may interrupt any
        // code. There are no flags: without SA_RESTART a call returns with EINTR.
        let result =
            unsafe { libc::sigaction(SIGNAL as libc::c_int, &raw const action, ptr::null_mut()) };
        result == 0
    });
    match handled {
        true => Ok(()),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

// === impl Alarm ===

impl Alarm {
    fn new() -> io::Result<Self> {
        handle_signal()?;
        // A thread inherits the signals that it blocks, also from the program that started this
        // one.
        SigSet::from(SIGNAL).thread_unblock()?;
        // SAFETY: all zeroes are a valid value of this C struct.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL as libc::c_int;
        event.sigev_notify_thread_id = nix::unistd::gettid().as_raw();
        let mut timer = ptr::null_mut();
        // SAFETY: both pointers are to live locals; the kernel writes the id of the new timer.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        match result {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends the signal after `first`, and then after each `again`. A `first` of zero ends it.
    fn set(&self, first: Duration, again: Duration) -> io::Result<()> {
        let time = |duration: Duration| libc::timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        };
        let times = libc::itimerspec {
            it_interval: time(again),
            it_value: time(first),
        };
        // SAFETY: the timer lives as long as this value, and `times` is a live local.
        let result = unsafe { libc::timer_settime(self.0, 0, &raw const times, ptr::null_mut()) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: this value made the timer, and nothing uses it afterwards.
        let result = unsafe { libc::timer_delete(self.0) };
        debug_assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_call_that_blocks_is_interrupted_at_its_limit() {
        for limit in [0, 1, 30] {
            let limit = Duration::from_millis(limit);
            let since = Instant::now();
            let result = interrupted_after(limit, || {
                // SAFETY: without descriptors, poll(2) uses no pointer.
                let result = unsafe { libc::poll(ptr::null_mut(), 0, 60_000) };
                (result, io::Error::last_os_error().kind())
            });
            assert_eq!(result, Some((-1, io::ErrorKind::Interrupted)));
            assert!(since.elapsed() >= limit);
        }
    }

    #[test]
    fn a_thread_that_inherits_the_blocked_signal_is_interrupted() {
        SigSet::from(SIGNAL).thread_block().unwrap();
        let result = interrupted_after(Duration::from_millis(1), || {
            // SAFETY: without descriptors, poll(2) uses no pointer.
            unsafe { libc::poll(ptr::null_mut(), 0, 60_000) }
        });
        assert_eq!(result, Some(-1));
    }

    #[test]
    fn no_signal_comes_after_the_call() {
        for _ in 0..1000 {
            assert_eq!(interrupted_after(Duration::from_micros(1), || 7), Some(7));
            // SAFETY: as above.
            let result = unsafe { libc::poll(ptr::null_mut(), 0, 0) };
            assert_eq!(result, 0);
        }
    }
}
