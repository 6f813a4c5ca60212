//! The processor time of threads, exact to the nanosecond where the kernel allows it.
//!
//! `/proc` updates the processor time of other processes at the scheduler's tick, which is
//! milliseconds long. A perf event of a thread has the exact time at any moment.

use std::{fs::File, io::Read as _, time::Duration};

use super::cpu_time;
use crate::{pid::Pid, sys::open_task_clock};

/// Limit on threads that have a clock.
pub(crate) const MOST_CLOCKS: usize = 16;

/// The clocks of some threads of a process.
#[derive(Debug)]
pub(crate) struct RunClocks {
    /// Empty if the kernel forbids perf events.
    clocks: Vec<File>,
    pid: Pid,
}

// === impl RunClocks ===

impl RunClocks {
    /// Clocks of these threads. If one of the threads cannot have a clock, the clock of the
    /// process.
    pub(crate) fn of(pid: Pid, tids: &[u32]) -> Self {
        let clocks: Option<Vec<File>> = tids
            .iter()
            .map(|tid| open_task_clock(i32::try_from(*tid).ok()?).ok())
            .collect();
        Self {
            clocks: clocks.unwrap_or_default(),
            pid,
        }
    }

    /// True if the clocks are those of threads, not of the process.
    pub(crate) fn are_of_threads(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// Processor time of the clocks, in nanoseconds. `None` if the process has ended.
    pub(crate) fn read(&self) -> Option<f64> {
        let mut sum = Duration::ZERO;
        for mut clock in &self.clocks {
            let mut bytes = [0; 8];
            clock.read_exact(&mut bytes).ok()?;
            sum += Duration::from_nanos(u64::from_ne_bytes(bytes));
        }
        if self.clocks.is_empty() {
            sum = cpu_time::of_process(self.pid)?;
        }
        Some(sum.as_secs_f64() * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd;

    use super::*;

    /// Either kind of clock advances.
    #[test]
    fn a_working_thread_runs() {
        let pid = Pid::try_from(std::process::id()).unwrap();
        let tid = u32::try_from(unistd::gettid().as_raw()).unwrap();
        for tids in [&[tid][..], &[]] {
            let clocks = RunClocks::of(pid, tids);
            let before = clocks.read().unwrap();
            let mut sum = 0_u64;
            while clocks.read().unwrap() < before + 2e7 {
                sum = std::hint::black_box(sum + 1);
            }
        }
    }
}
