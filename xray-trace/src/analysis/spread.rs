//! The approximate spread of the durations of calls: the bars of a small picture. Exact figures are
//! in `distribution`.

use std::collections::BTreeMap;

use super::Filter;
use crate::model::{DurationScale, FunctionId, Profile};

/// Bars are the ranges of this scale. Their bounds are also bounds of buckets in `histogram`, and
/// of ranges in a profile.
type Scale = DurationScale<2>;

/// The number of calls of each approximate duration, for a picture some bars wide. It has fewer
/// ranges than the distributions that it is made from, and no figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spread {
    bars: BTreeMap<u16, u64>,
}

/// The spread of the durations of each function of a profile.
#[must_use]
pub fn profile_spreads(profile: &Profile, filter: &Filter) -> BTreeMap<FunctionId, Spread> {
    let mut spreads = BTreeMap::<_, Spread>::new();
    for (at, stack) in profile.stacks().iter().enumerate() {
        let wanted = filter.wants_thread(stack.thread) && filter.wants_function(stack.function);
        if let Some(times) = profile.times(at).filter(|_| wanted) {
            let spread = spreads.entry(stack.function).or_default();
            let durations = times.durations.iter();
            durations.for_each(|(duration, count)| spread.add(*duration, *count));
        }
    }
    spreads
}

// === impl Spread ===

impl Spread {
    pub(super) fn of(durations: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut spread = Self::default();
        durations.for_each(|(duration, count)| spread.add(duration, count));
        spread
    }

    fn add(&mut self, duration: u64, count: u64) {
        let bar = self.bars.entry(bar(duration)).or_default();
        *bar = bar.saturating_add(count);
    }

    /// All bars with calls, and the number of calls, the shortest durations first. Bar `n` has the
    /// duration `n` for `n` below 4. Other bars begin at `(4 + n % 4) * 2^(n / 4 - 1)`, and end
    /// where the next one begins.
    pub fn bars(&self) -> impl ExactSizeIterator<Item = (u16, u64)> {
        self.bars.iter().map(|(bar, count)| (*bar, *count))
    }
}

fn bar(duration: u64) -> u16 {
    u16::try_from(Scale::range(duration)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_order_and_begin_where_they_say() {
        let lowest = |bar: u64| match bar {
            0..4 => bar,
            _ => (4 + bar % 4) << (bar / 4 - 1),
        };
        for at in 0..=u64::from(bar(u64::MAX)) {
            assert_eq!(u64::from(bar(lowest(at))), at);
            let before = lowest(at).checked_sub(1).map(bar);
            assert_eq!(before.map(u64::from), at.checked_sub(1));
        }
    }
}
