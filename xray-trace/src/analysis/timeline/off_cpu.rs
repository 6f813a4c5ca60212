//! Collects the times for which a thread had no processor within its calls, and keeps the longest
//! of them. `lanes` decides which calls count.

use super::thread_timeline::{OffCpuSpan, OffCpuTimes};
use crate::model::ThreadRuns;

// === impl OffCpuTimes ===

impl OffCpuTimes {
    /// Adds the times between two moments, which come after all earlier ones. Adds nothing if
    /// `until_ns` is not after `from_ns`. Keeps about `most` of the longest.
    pub(super) fn add(&mut self, runs: &ThreadRuns, (from_ns, until_ns): (u64, u64), most: usize) {
        for run in runs.off_runs(from_ns, until_ns) {
            let span = OffCpuSpan {
                start_ns: run.from_ns,
                end_ns: run.until_ns,
                state: run.state,
            };
            if span.len_ns() < self.kept_from_ns {
                self.left_out += 1;
                continue;
            }
            self.spans.push(span);
            if self.spans.len() > most.saturating_mul(2).max(64) {
                self.cut(most);
            }
        }
    }

    /// Keeps at most `most` of the longest times. Of times of the same length all are kept, or
    /// none.
    pub(super) fn cut(&mut self, most: usize) {
        let Some(others) = self.spans.len().checked_sub(most) else {
            return;
        };
        let Some(longest_too_many) = others.checked_sub(1) else {
            return;
        };
        let mut lengths: Vec<_> = self.spans.iter().map(OffCpuSpan::len_ns).collect();
        let (_, too_many, _) = lengths.select_nth_unstable(longest_too_many);
        let from_ns = too_many.saturating_add(1);
        let before = self.spans.len();
        self.spans.retain(|span| span.len_ns() >= from_ns);
        self.kept_from_ns = from_ns;
        let left_out = before.saturating_sub(self.spans.len());
        self.left_out += left_out as u64;
    }
}

// === impl OffCpuSpan ===

impl OffCpuSpan {
    /// The length of the time, in nanoseconds.
    #[must_use]
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
