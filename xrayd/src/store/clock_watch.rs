//! Checks the anchors of a session as they are taken: whether the counter keeps time. It reports
//! faults, and corrects no times.

use std::collections::VecDeque;

use xray_trace::model::{Clock, ClockAnchor, ClockFault};

/// The number of anchors that are compared: enough to know the usual rate.
const MOST_ANCHORS: usize = 16;
/// The number of faults that are kept. The newest push out the oldest.
const MOST_FAULTS: usize = 16;

/// The newest anchors, and the faults that they have shown so far.
#[derive(Debug, Default)]
pub(super) struct ClockWatch {
    anchors: VecDeque<ClockAnchor>,
    faults: VecDeque<ClockFault>,
}

// === impl ClockWatch ===

impl ClockWatch {
    /// Takes the next anchor. Returns the faults that are new with it.
    pub(crate) fn meet(&mut self, anchor: ClockAnchor) -> Vec<ClockFault> {
        if self.anchors.len() == MOST_ANCHORS {
            self.anchors.pop_front();
        }
        self.anchors.push_back(anchor);
        let clock = Clock::new(self.anchors.iter().copied().collect());
        // An anchor is the earlier one of its pair in one fault at most.
        let known = |fault: &ClockFault| self.faults.iter().any(|its| its.from_ns == fault.from_ns);
        let mut news = clock.faults().to_vec();
        news.retain(|fault| !known(fault));
        self.faults.extend(&news);
        let over = self.faults.len().saturating_sub(MOST_FAULTS);
        self.faults.drain(..over);
        news
    }

    /// The newest faults, in the order in which they were found.
    pub(crate) fn faults(&self) -> Vec<ClockFault> {
        self.faults.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::model::{ClockFaultKind, Ticks};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn anchor(second: u64, ticks: u64) -> ClockAnchor {
        ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: second * SECOND,
            wall_ns: second * SECOND,
        }
    }

    /// The counter is put back after an hour, and runs at half speed for a second later.
    #[test]
    fn each_fault_is_found_once_when_its_anchors_come() {
        let mut watch = ClockWatch::default();
        let mut found = Vec::new();
        for second in 0..7200 {
            let ticks = match second {
                0..3600 => second * 3 * SECOND,
                3600..7000 => (second - 3600) * 3 * SECOND,
                _ => (second - 3600) * 3 * SECOND - 3 * SECOND / 2,
            };
            for fault in watch.meet(anchor(second, ticks)) {
                found.push((second, fault.from_ns / SECOND, fault.kind));
            }
        }
        let expected = [
            (3600, 3599, ClockFaultKind::Backwards),
            (7000, 6999, ClockFaultKind::Rate),
        ];
        assert_eq!(found, expected);
        let kept = watch.faults();
        let kept: Vec<_> = kept.iter().map(|fault| fault.from_ns / SECOND).collect();
        assert_eq!(kept, [3599, 6999]);
    }

    #[test]
    fn a_counter_that_always_fails_takes_bounded_memory() {
        let mut watch = ClockWatch::default();
        let mut found = 0;
        for second in 0..1000 {
            let ticks = 3 * SECOND * (second + 2 - second % 2 * 2);
            found += watch.meet(anchor(second, ticks)).len();
        }
        assert!(found > 100, "{found}");
        assert_eq!(watch.faults().len(), MOST_FAULTS);
    }
}
