//! For how long threads run while something is tried: to the nanosecond, where the kernel says so.
//!
//! What the kernel tells of other processes' processor time it tells by the tick of its scheduler,
//! which is as long as a try. A perf event of a thread tells it at any moment.

use std::{fs::File, io::Read as _, time::Duration};

use xray_trace::model::Ticks;

use super::measure::float;
use crate::{pid::Pid, sys::open_task_clock, sys::ticks_now, target::cpu_time};

/// Threads that have a clock at most.
pub(super) const MOST_CLOCKS: usize = 16;

/// The clocks of the threads that work.
#[derive(Debug)]
pub(super) struct RunClocks {
    /// Empty where that is forbidden.
    clocks: Vec<File>,
    pid: Pid,
}

/// All of them at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RunReading {
    at: Ticks,
    /// For how long the threads have run, in nanoseconds.
    ran_ns: f64,
}

// === impl RunClocks ===

impl RunClocks {
    /// Clocks of these threads of a process, or, if not each can have one, the process's own.
    pub(super) fn of(pid: Pid, tids: &[u32]) -> Self {
        let clocks: Option<Vec<File>> = tids
            .iter()
            .map(|tid| open_task_clock(i32::try_from(*tid).ok()?).ok())
            .collect();
        Self {
            clocks: clocks.unwrap_or_default(),
            pid,
        }
    }

    /// Whether they are those of threads alone.
    pub(super) fn are_of_threads(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// `None` if the process has ended.
    pub(super) fn read(&self) -> Option<RunReading> {
        let at = ticks_now();
        if self.clocks.is_empty() {
            let ran = cpu_time::of_process(self.pid)?;
            let ran_ns = ran.as_secs_f64() * 1e9;
            return Some(RunReading { at, ran_ns });
        }
        let mut sum = Duration::ZERO;
        for mut clock in &self.clocks {
            let mut bytes = [0; 8];
            clock.read_exact(&mut bytes).ok()?;
            sum += Duration::from_nanos(u64::from_ne_bytes(bytes));
        }
        Some(RunReading {
            at,
            ran_ns: sum.as_secs_f64() * 1e9,
        })
    }
}

// === impl RunReading ===

impl RunReading {
    /// For how long the threads had run at a moment between this and a later reading.
    pub(super) fn at(self, later: Self, at: Ticks) -> f64 {
        let whole = float(later.at.0.saturating_sub(self.at.0)).max(1.0);
        let passed = float(at.0.saturating_sub(self.at.0)).min(whole);
        self.ran_ns + (later.ran_ns - self.ran_ns) * passed / whole
    }

    /// For how long they had run.
    pub(super) fn ran_ns(self) -> f64 {
        self.ran_ns
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd;

    use super::*;

    fn reading(at: u64, ran_ns: f64) -> RunReading {
        RunReading {
            at: Ticks(at),
            ran_ns,
        }
    }

    #[test]
    fn a_moment_between_two_readings_has_its_part_of_the_time() {
        let (first, later) = (reading(100, 5.0), reading(200, 15.0));
        for (at, expected) in [(50, 5.0), (100, 5.0), (125, 7.5), (200, 15.0), (300, 15.0)] {
            assert!((first.at(later, Ticks(at)) - expected).abs() < 1e-9, "{at}");
        }
        // Taken at once.
        assert!((first.at(first, Ticks(100)) - 5.0).abs() < 1e-9);
    }

    /// Whichever clock it is.
    #[test]
    fn who_works_runs() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let tid = u32::try_from(unistd::gettid().as_raw()).unwrap();
        for tids in [&[tid][..], &[]] {
            let clocks = RunClocks::of(pid, tids);
            let before = clocks.read().unwrap();
            let mut sum = 0_u64;
            while clocks.read().unwrap().ran_ns() < before.ran_ns() + 2e7 {
                sum = std::hint::black_box(sum + 1);
            }
        }
    }
}
