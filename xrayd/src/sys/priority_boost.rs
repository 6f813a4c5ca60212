//! Which thread the scheduler prefers.

use std::{io, marker::PhantomData};

use nix::libc;

/// The highest priority of threads that share processors, see setpriority(2).
const HIGHEST: i32 = -20;

/// While it lives, the calling thread goes before others that want its processor, if it may: that takes CAP_SYS_NICE, or a limit of
/// RLIMIT_NICE that allows it (`LimitNICE=` of systemd).
#[derive(Debug)]
pub(crate) struct PriorityBoost {
    /// The nice value that it had; `None` if nothing was changed.
    before: Option<i32>,
    /// It is about the thread that made it.
    _thread: PhantomData<*const ()>,
}

// === impl PriorityBoost ===

impl PriorityBoost {
    /// As of now.
    pub(crate) fn begin() -> Self {
        let before = nice().filter(|_| set_nice(HIGHEST).is_ok());
        Self {
            before,
            _thread: PhantomData,
        }
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        // Nobody needs a right to go behind others.
        if let Some(before) = self.before
            && let Err(error) = set_nice(before)
        {
            tracing::warn!(%error, before, "a thread keeps the priority that it had for a moment");
        }
    }
}

/// The nice value of this thread, -20 to 19.
fn nice() -> Option<i32> {
    // SAFETY: getpriority(2) reads no memory of ours. 0 is the calling thread.
    let answer = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    // The call itself answers 1 to 40, so that no answer is like an error.
    let answer = i32::try_from(answer).ok().filter(|answer| *answer > 0)?;
    Some(20 - answer)
}

/// Sets that of this thread alone.
fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority(2) reads no memory of ours. 0 is the calling thread: in Linux, priorities are of threads.
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
        // A thread of its own, since it keeps what is tried last.
        let thread = std::thread::spawn(|| {
            let before = nice();
            let priority_boost = PriorityBoost::begin();
            let allowed = priority_boost.before.is_some();
            let meanwhile = nice();
            drop(priority_boost);
            // What is allowed is asked once more, by the call itself.
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
    fn it_ends_with_its_guard() {
        let thread = std::thread::spawn(|| {
            // Nobody may not.
            let _ = set_nice(5);
            drop(PriorityBoost::begin());
            nice()
        });
        assert_eq!(thread.join().ok(), Some(Some(5)));
    }
}
