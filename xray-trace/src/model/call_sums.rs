//! Sums of calls: their number, their time, and a mergeable distribution of their durations. Stacks
//! are in `profile`.

use super::duration_scale::DurationScale;

/// The ranges of durations. Files have their numbers, see `docs/trace-format.md`.
type Scale = DurationScale<4>;
/// The number of ranges of durations.
pub(crate) const MOST_RANGES: usize = Scale::RANGES;

/// The sums of the calls of one function with the same callers. Times are ticks of the trace's
/// clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallSums {
    /// Calls that have ended, and calls that were left.
    pub calls: u64,
    /// Calls among them without an exit. Their self time counts up to the moment when they were
    /// certainly open; no other time of them counts.
    pub unfinished: u64,
    /// The time in the function, without its traced callees. It includes calls that have not ended
    /// yet.
    pub self_ticks: u64,
    /// The sum of the durations of calls with an exit.
    pub total_ticks: u64,
    /// The shortest of these; 0 without any.
    pub min_ticks: u64,
    /// The longest of these; 0 without any.
    pub max_ticks: u64,
    /// The durations of these.
    pub durations: Durations,
}

/// A distribution of durations. The width of a range is at most 1/16 of its durations, so that its
/// middle is off by at most 1/32. Durations below 32 ticks are exact. Distributions can be merged.
///
/// The daemon has one for each stack of each thread, and writes them to files. So they are in
/// ticks, and as coarse as memory requires. Distributions of a trace, which has each single
/// duration, are finer: [`Distribution`](crate::analysis::Distribution).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durations {
    /// The first range in `counts`.
    first: usize,
    counts: Vec<u64>,
}

// === impl CallSums ===

impl CallSums {
    /// Adds a finished call of this duration.
    #[inline]
    pub fn finish(&mut self, duration: u64) {
        self.min_ticks = match self.finished() {
            0 => duration,
            _ => self.min_ticks.min(duration),
        };
        self.max_ticks = self.max_ticks.max(duration);
        self.calls += 1;
        self.total_ticks = self.total_ticks.saturating_add(duration);
        self.durations.add(duration, 1);
    }

    /// The number of calls with an exit.
    #[inline]
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.calls.saturating_sub(self.unfinished)
    }

    /// Adds other calls.
    pub fn add(&mut self, other: &Self) {
        let Self {
            calls,
            unfinished,
            self_ticks,
            total_ticks,
            min_ticks,
            max_ticks,
            ref durations,
        } = *other;
        self.min_ticks = match (self.finished(), other.finished()) {
            (_, 0) => self.min_ticks,
            (0, _) => min_ticks,
            _ => self.min_ticks.min(min_ticks),
        };
        self.max_ticks = self.max_ticks.max(max_ticks);
        self.calls = self.calls.saturating_add(calls);
        self.unfinished = self.unfinished.saturating_add(unfinished);
        self.self_ticks = self.self_ticks.saturating_add(self_ticks);
        self.total_ticks = self.total_ticks.saturating_add(total_ticks);
        for (range, count) in durations.ranges() {
            self.durations.add_to(range, count);
        }
    }
}

// === impl CallSums: differences ===

impl CallSums {
    /// The calls that came after `earlier`, which are earlier sums of the same calls. The shortest
    /// and the longest call are exact if one of them came after `earlier` and is the shortest or
    /// longest of all; otherwise each is off by 1/16 at most.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let durations = self.durations.since(&earlier.durations);
        let mut ranges = durations.ranges().map(|(range, _)| range);
        let first = ranges.next();
        let last = ranges.last().or(first);
        let is_new = |own: u64, earlier_own: u64| earlier.finished() == 0 || own != earlier_own;
        let min_ticks = match first {
            None => 0,
            Some(_) if is_new(self.min_ticks, earlier.min_ticks) => self.min_ticks,
            Some(range) => Scale::shortest(range).max(self.min_ticks),
        };
        let max_ticks = match last {
            None => 0,
            Some(_) if is_new(self.max_ticks, earlier.max_ticks) => self.max_ticks,
            Some(range) => {
                let longest = Scale::shortest(range).saturating_add(Scale::width(range) - 1);
                longest.min(self.max_ticks)
            }
        };
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            unfinished: self.unfinished.saturating_sub(earlier.unfinished),
            self_ticks: self.self_ticks.saturating_sub(earlier.self_ticks),
            total_ticks: self.total_ticks.saturating_sub(earlier.total_ticks),
            min_ticks,
            max_ticks: max_ticks.max(min_ticks),
            durations,
        }
    }
}

// === impl Durations ===

impl Durations {
    /// Adds this duration `times` times.
    #[inline]
    pub fn add(&mut self, duration: u64, times: u64) {
        self.add_to(Scale::range(duration), times);
    }

    #[inline]
    pub(crate) fn add_to(&mut self, range: usize, times: u64) {
        match self.counts.get_mut(range.wrapping_sub(self.first)) {
            Some(count) => *count = count.saturating_add(times),
            None => self.add_outside(range, times),
        }
    }

    /// The durations that are not in `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        let mut since = Self::default();
        for (range, count) in self.ranges() {
            let before = range.checked_sub(earlier.first);
            let before = before.and_then(|at| earlier.counts.get(at)).copied();
            since.add_to(range, count.saturating_sub(before.unwrap_or(0)));
        }
        since
    }

    #[cold]
    fn add_outside(&mut self, range: usize, times: u64) {
        if range >= MOST_RANGES || times == 0 {
            return;
        }
        if self.counts.is_empty() {
            self.first = range;
        }
        if range < self.first {
            let more = self.first - range;
            self.counts.splice(0..0, std::iter::repeat_n(0, more));
            self.first = range;
        }
        let at = range - self.first;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] = self.counts[at].saturating_add(times);
    }

    /// Every range with durations, as its number and its count, in order of length.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, u64)> {
        let counts = self.counts.iter().copied().enumerate();
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(at, count)| (self.first + at, count))
    }

    /// The middle of each range with durations, in ticks, and its count, in order of length.
    pub fn middles(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges().map(|(range, count)| (middle(range), count))
    }

    /// The memory that it takes on the heap, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }
}

/// The middle of a range, rounded down.
fn middle(range: usize) -> u64 {
    Scale::shortest(range) + (Scale::width(range) - 1) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_duration_has_a_range_and_short_ones_their_own() {
        for duration in 0..32 {
            assert_eq!(middle(Scale::range(duration)), duration);
        }
        assert_eq!(Scale::range(u64::MAX), MOST_RANGES - 1);
        let middles: Vec<u64> = (0..MOST_RANGES).map(middle).collect();
        assert!(middles.is_sorted());
        for (range, middle) in middles.into_iter().enumerate() {
            assert_eq!(Scale::range(middle), range);
        }
    }

    proptest! {
        #[test]
        fn a_middle_is_off_by_one_in_32_at_most(duration: u64, shift in 0_u32..64) {
            let duration = duration >> shift;
            let middle = middle(Scale::range(duration));
            prop_assert!(middle.abs_diff(duration) <= duration / 32, "{middle} for {duration}");
        }

        /// Sums up to one moment, and those since that moment, are the sums of all.
        #[test]
        fn sums_since_a_moment_are_those_of_the_later_calls(
            before in prop::collection::vec((any::<u64>(), 0_u32..64), 0..9),
            after in prop::collection::vec((any::<u64>(), 0_u32..64), 0..9),
        ) {
            let add = |sums: &mut CallSums, calls: &[(u64, u32)]| {
                calls.iter().for_each(|(duration, shift)| sums.finish(duration >> shift));
            };
            let (mut earlier, mut expected) = (CallSums::default(), CallSums::default());
            add(&mut earlier, &before);
            let mut all = earlier.clone();
            add(&mut all, &after);
            add(&mut expected, &after);
            // The sum of all durations may be cut, and then it has no difference.
            prop_assume!(all.total_ticks < u64::MAX);
            let since = all.since(&earlier);
            let ranges = |sums: &CallSums| sums.durations.ranges().collect::<Vec<_>>();
            prop_assert_eq!(ranges(&since), ranges(&expected));
            prop_assert_eq!(since.calls, expected.calls);
            prop_assert_eq!(since.total_ticks, expected.total_ticks);
            let near = |one: u64, other: u64| one.abs_diff(other) <= other.max(one) / 16;
            prop_assert!(near(since.min_ticks, expected.min_ticks), "{since:?} {expected:?}");
            prop_assert!(near(since.max_ticks, expected.max_ticks), "{since:?} {expected:?}");
        }

        /// The order of the calls and their division into parts do not matter.
        #[test]
        fn sums_of_parts_are_the_sum(
            parts in prop::collection::vec(prop::collection::vec((any::<u64>(), 0_u32..64), 0..9), 0..5),
        ) {
            let (mut whole, mut sum) = (CallSums::default(), CallSums::default());
            for part in parts {
                let mut sums = CallSums::default();
                for (duration, shift) in part {
                    sums.finish(duration >> shift);
                    whole.finish(duration >> shift);
                }
                sum.add(&sums);
            }
            let all = |sums: &CallSums| sums.durations.ranges().collect::<Vec<_>>();
            prop_assert_eq!(all(&whole), all(&sum));
            whole.durations = Durations::default();
            sum.durations = Durations::default();
            prop_assert_eq!(whole, sum);
        }
    }
}
