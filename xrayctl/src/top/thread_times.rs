//! The processor time of the threads of a process, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// The most threads that are looked at, because each takes a read of a file.
const MOST_THREADS: usize = 4096;

/// The processor time of threads at a moment, in nanoseconds, by thread id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ThreadTimes(HashMap<u32, u64>);

// === impl ThreadTimes ===

impl ThreadTimes {
    /// The times of the threads of a process; of none if `/proc` does not show them.
    pub(crate) fn of(pid: u32) -> Self {
        let folder = format!("/proc/{pid}/task");
        let Ok(threads) = fs::read_dir(&folder) else {
            return Self::default();
        };
        let tids = threads.flatten().filter_map(|thread| {
            let name = thread.file_name();
            name.to_str()?.parse::<u32>().ok()
        });
        let times = tids.take(MOST_THREADS).filter_map(|tid| {
            let line = fs::read_to_string(format!("{folder}/{tid}/schedstat")).ok()?;
            Some((tid, line.split_whitespace().next()?.parse().ok()?))
        });
        Self(times.collect())
    }

    /// The time that a thread has had since `before`. A thread that was not there has its whole
    /// time. `None` if the thread has ended, or was not looked at.
    pub(crate) fn since(&self, before: &Self, tid: u32) -> Option<u64> {
        let is_whole = before.0.len() < MOST_THREADS;
        let earlier = match before.0.get(&tid) {
            Some(earlier) => *earlier,
            None if is_whole && !before.0.is_empty() => 0,
            None => return None,
        };
        self.0.get(&tid)?.checked_sub(earlier)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_thread_that_works_has_processor_time() {
        let (pid, tid) = (std::process::id(), nix::unistd::gettid().as_raw());
        let tid = u32::try_from(tid).unwrap();
        let before = ThreadTimes::of(pid);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let now = ThreadTimes::of(pid);
            if now.since(&before, tid).is_some_and(|ns| ns >= 20_000_000) {
                break;
            }
            assert!(Instant::now() < deadline, "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_new_thread_counts_from_its_begin_and_an_ended_one_is_unknown() {
        let times = |times: &[(u32, u64)]| ThreadTimes(times.iter().copied().collect());
        let before = times(&[(1, 100), (2, 50)]);
        let now = times(&[(1, 130), (3, 7)]);
        assert_eq!(now.since(&before, 1), Some(30));
        assert_eq!(now.since(&before, 2), None, "it has ended");
        assert_eq!(now.since(&before, 3), Some(7));
        assert_eq!(before.since(&now, 1), None, "another thread has the id");
        assert_eq!(now.since(&ThreadTimes::default(), 1), None);
        assert_eq!(ThreadTimes::of(u32::MAX), ThreadTimes::default());
    }
}
