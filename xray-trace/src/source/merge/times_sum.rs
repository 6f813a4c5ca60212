//! The sum of the durations of a stack's calls in several profiles.

use crate::model::Times;

/// The number of durations from which on equal ones are added up.
const MANY: usize = 64;

/// A sum of [`Times`].
#[derive(Debug, Default)]
pub(super) struct TimesSum {
    /// The number of calls with an exit.
    finished: u64,
    /// Everything but the durations.
    times: Times,
    /// Durations with their counts, in any order. A duration can occur several times.
    durations: Vec<(u64, u64)>,
    /// The number of different durations when they were last added up.
    different: usize,
}

// === impl TimesSum ===

impl TimesSum {
    /// Adds the times of a stack with this number of calls.
    pub(super) fn add(&mut self, other: &Times, calls: u64) {
        let Times {
            unfinished,
            sum_ns,
            min_ns,
            max_ns,
            durations,
        } = other;
        let finished = calls.saturating_sub(*unfinished);
        let times = &mut self.times;
        times.unfinished = times.unfinished.saturating_add(*unfinished);
        times.sum_ns = times.sum_ns.saturating_add(*sum_ns);
        times.min_ns = match (self.finished, finished) {
            (_, 0) => times.min_ns,
            (0, _) => *min_ns,
            _ => times.min_ns.min(*min_ns),
        };
        times.max_ns = times.max_ns.max(*max_ns);
        self.finished = self.finished.saturating_add(finished);
        self.durations.extend_from_slice(durations);
        // Each time the list has at least doubled, so that all sorting together takes little more
        // than the last one.
        if self.durations.len() >= MANY.max(self.different.saturating_mul(2)) {
            self.add_up();
        }
    }

    /// The sum.
    pub(super) fn finish(mut self) -> Times {
        self.add_up();
        Times {
            durations: self.durations.into(),
            ..self.times
        }
    }

    /// Sorts the durations, and adds up the counts of equal ones.
    fn add_up(&mut self) {
        self.durations.sort_unstable_by_key(|(ns, _)| *ns);
        self.durations.dedup_by(|(ns, count), (kept, sum)| {
            let same = ns == kept;
            if same {
                *sum = sum.saturating_add(*count);
            }
            same
        });
        self.different = self.durations.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(durations: &[(u64, u64)], unfinished: u64) -> (Times, u64) {
        let finished: u64 = durations.iter().map(|(_, count)| count).sum();
        let times = Times {
            unfinished,
            sum_ns: durations.iter().map(|(ns, count)| ns * count).sum(),
            min_ns: durations.first().map_or(0, |(ns, _)| *ns),
            max_ns: durations.last().map_or(0, |(ns, _)| *ns),
            durations: durations.into(),
        };
        (times, finished + unfinished)
    }

    #[test]
    fn equal_durations_of_any_number_of_profiles_are_added_up() {
        let mut sum = TimesSum::default();
        for (times, calls) in [
            times(&[], 3),
            times(&[(5, 2), (9, 1)], 0),
            times(&[(4, 1), (9, 7), (12, 1)], 1),
        ] {
            sum.add(&times, calls);
        }
        let (expected, _) = times(&[(4, 1), (5, 2), (9, 8), (12, 1)], 4);
        assert_eq!(sum.finish(), expected);

        let mut sum = TimesSum::default();
        let many: Vec<_> = (1..50).map(|ns| (ns, ns)).collect();
        for _ in 0..1000 {
            let (times, calls) = times(&many, 0);
            sum.add(&times, calls);
            assert!(sum.durations.len() < 2 * MANY + many.len());
        }
        let all: Vec<_> = (1..50).map(|ns| (ns, 1000 * ns)).collect();
        assert_eq!(sum.finish(), times(&all, 0).0);
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut sum = TimesSum::default();
        let most = Times {
            unfinished: u64::MAX,
            sum_ns: u64::MAX,
            min_ns: u64::MAX,
            max_ns: u64::MAX,
            durations: [(u64::MAX, u64::MAX)].into(),
        };
        sum.add(&most, 1);
        sum.add(&most, u64::MAX);
        let Times { durations, .. } = sum.finish();
        assert_eq!(*durations, [(u64::MAX, u64::MAX)]);
    }
}
