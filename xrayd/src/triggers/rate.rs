//! How many calls there were within a second, hundredth by hundredth.
//!
//! ```text
//!  counts   │ 3 │ 0 │ 7 │ … 97 more … │ 2 │  the newest hundredth with a call, and 99 before it
//!                                       newest
//! ```
//!
//! Threads are read one after the other, so a call can be counted that is older than the one before
//! it: it goes into its own hundredth.

use xray_trace::model::Ticks;

/// Parts of a second.
const PARTS: usize = 100;

/// The calls of one process.
#[derive(Debug)]
pub(crate) struct Rate {
    /// Ticks of a part.
    part: u64,
    at_least: u64,
    counts: [u64; PARTS],
    /// The number of the newest part.
    newest: u64,
    sum: u64,
    /// The rate was reached, and it has not been less since.
    reached: bool,
}

// === impl Rate ===

impl Rate {
    /// So many within a second of `frequency` ticks.
    pub(crate) fn new(at_least: u64, frequency: u64) -> Self {
        Self {
            part: (frequency / PARTS as u64).max(1),
            at_least: at_least.max(1),
            counts: [0; PARTS],
            newest: 0,
            sum: 0,
            reached: false,
        }
    }

    /// A call begins: says how many there were if that is as many as wanted, and was not before.
    pub(crate) fn count(&mut self, Ticks(at): Ticks) -> Option<u64> {
        let part = at / self.part;
        if part > self.newest {
            self.go_on_to(part);
        }
        if part + PARTS as u64 <= self.newest {
            return None;
        }
        self.counts[index(part)] += 1;
        self.sum += 1;
        if self.sum < self.at_least || self.reached {
            return None;
        }
        self.reached = true;
        Some(self.sum)
    }

    fn go_on_to(&mut self, part: u64) {
        let passed = (part - self.newest).min(PARTS as u64);
        for old in part - passed + 1..=part {
            self.sum -= std::mem::take(&mut self.counts[index(old)]);
        }
        self.newest = part;
        if self.sum < self.at_least {
            self.reached = false;
        }
    }
}

fn index(part: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "less than PARTS")]
    let index = (part % PARTS as u64) as usize;
    index
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A second is 10,000 ticks.
    fn rate(at_least: u64) -> Rate {
        Rate::new(at_least, 10_000)
    }

    #[test]
    fn a_rate_is_reached_once_and_again_after_it_was_less() {
        let mut rate = rate(10);
        let mut reached = |from: u64, calls: u64, apart: u64| -> Vec<u64> {
            let times = (0..calls).map(|call| from + call * apart);
            times
                .filter(|at| rate.count(Ticks(*at)).is_some())
                .collect()
        };
        // Nine in a second, for many seconds.
        assert_eq!(reached(0, 100, 1120), [0_u64; 0]);
        // Many more: once.
        assert_eq!(reached(200_000, 1000, 100).len(), 1);
        // Still as many: not again.
        assert_eq!(reached(300_000, 1000, 100), [0_u64; 0]);
        assert_eq!(reached(500_000, 5, 1), [0_u64; 0]);
        assert_eq!(reached(500_010, 10, 1), [500_014]);
    }

    #[test]
    fn a_second_is_a_hundred_parts() {
        // The first call is in the window as long as its hundredth is among the last hundred.
        for (second, expected) in [(9_899, true), (9_900, true), (9_999, true), (10_000, false)] {
            let mut rate = rate(2);
            assert_eq!(rate.count(Ticks(1_000_000)), None);
            let reached = rate.count(Ticks(1_000_000 + second)).is_some();
            assert_eq!(reached, expected, "{second}");
        }
    }

    #[test]
    fn calls_that_are_read_late_count_where_they_belong() {
        let mut rate = rate(3);
        assert_eq!(rate.count(Ticks(1_020_000)), None);
        // More than a second older.
        assert_eq!(rate.count(Ticks(1_000_000)), None);
        assert_eq!(rate.count(Ticks(1_015_000)), None);
        assert_eq!(rate.count(Ticks(1_011_000)), Some(3));
    }

    proptest! {
        /// In order, it is what one counts by hand.
        #[test]
        fn it_counts_what_lies_in_the_window(
            gaps in prop::collection::vec(0_u64..3_000, 1..200),
            at_least in 1_u64..20,
        ) {
            let mut rate = rate(at_least);
            let (mut times, mut now, mut high) = (Vec::new(), 50_000, false);
            for gap in gaps {
                now += gap;
                let in_window = |times: &[u64]| {
                    times.iter().filter(|at| *at / 100 + 100 > now / 100).count() as u64
                };
                high &= in_window(&times) >= at_least;
                times.push(now);
                let count = in_window(&times);
                let expected = (count >= at_least && !high).then_some(count);
                high |= expected.is_some();
                prop_assert_eq!(rate.count(Ticks(now)), expected);
            }
        }
    }
}
