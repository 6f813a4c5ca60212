//! Raises the priority of a thread for a time.

use std::{cell::Cell, io, marker::PhantomData};

use nix::libc;

/// The highest priority of threads that share processors, see setpriority(2).
const HIGHEST: i32 = -20;
/// The priority of threads that are preferred for a long time.
const PREFERRED: i32 = -10;

/// While it lives, the scheduler prefers the calling thread to others on its processor. That takes
/// CAP_SYS_NICE, or an RLIMIT_NICE that allows it (`LimitNICE=` of systemd). Without the right,
/// nothing changes.
#[derive(Debug)]
pub(crate) struct PriorityBoost {
    /// The nice value before the boost; `None` if nothing was changed.
    before: Option<i32>,
    /// It belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

// === impl PriorityBoost ===

impl PriorityBoost {
    /// Starts the boost, with the highest priority.
    pub(crate) fn begin() -> Self {
        Self::begin_at(HIGHEST)
    }

    fn begin_at(value: i32) -> Self {
        // A thread that is preferred more already stays so.
        let before = nice().filter(|before| *before > value && set_nice(value).is_ok());
        Self {
            before,
            _thread: PhantomData,
        }
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        // Lowering a priority needs no right.
        if let Some(before) = self.before
            && let Err(error) = set_nice(before)
        {
            tracing::warn!(%error, before, "cannot lower a thread's priority to its former value");
        }
    }
}

thread_local! {
    /// The boost of this thread that [`prefer_thread`] began.
    static BOOST: Cell<Option<PriorityBoost>> = const { Cell::new(None) };
}

/// Has the scheduler prefer the calling thread from now on, or not any more. The first call after a
/// change makes the system calls, and the others do nothing.
pub(crate) fn prefer_thread(is_preferred: bool) {
    BOOST.with(|boost| {
        let before = boost.take();
        boost.set(match is_preferred {
            true => before.or_else(|| Some(PriorityBoost::begin_at(PREFERRED))),
            false => None,
        });
    });
}

/// The nice value of the calling thread, -20 to 19.
fn nice() -> Option<i32> {
    // SAFETY: getpriority(2) reads no memory of ours. 0 is the calling thread.
    let answer = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    // The system call returns 1 to 40, so no result looks like an error.
    let answer = i32::try_from(answer).ok().filter(|answer| *answer > 0)?;
    Some(20 - answer)
}

/// Sets the nice value of the calling thread alone.
fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority(2) reads no memory of ours. 0 is the calling thread: Linux keeps a
    // priority for each thread.
    let result = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, nice) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_preferred_for_a_while() {
        // On a thread of its own, which keeps the last value that is set.
        let thread = std::thread::spawn(|| {
            let before = nice();
            let priority_boost = PriorityBoost::begin();
            let allowed = priority_boost.before.is_some();
            let meanwhile = nice();
            drop(priority_boost);
            // The call itself shows what is allowed.
            let expected = match set_nice(HIGHEST) {
                Ok(()) => Some(HIGHEST),
                Err(_) => before,
            };
            assert_eq!(meanwhile, expected);
            assert_eq!(allowed, nice() == Some(HIGHEST));
            before
        });
        assert_eq!(thread.join().ok(), Some(nice()));
    }

    #[test]
    fn a_thread_is_preferred_until_it_is_not() {
        let thread = std::thread::spawn(|| {
            let before = nice();
            prefer_thread(true);
            prefer_thread(true);
            let meanwhile = nice();
            prefer_thread(false);
            let after = nice();
            prefer_thread(false);
            let expected = match set_nice(PREFERRED) {
                Ok(()) => Some(PREFERRED),
                Err(_) => before,
            };
            assert_eq!((meanwhile, after), (expected, before));
        });
        assert!(thread.join().is_ok());
    }

    #[test]
    fn it_ends_with_its_guard() {
        let thread = std::thread::spawn(|| {
            // Every thread may lower its priority.
            let _ = set_nice(5);
            drop(PriorityBoost::begin());
            nice()
        });
        assert_eq!(thread.join().ok(), Some(Some(5)));
    }
}
