//! Distributions of durations: exact while there are few durations, within 1 % when there are many.
//!
//! The counts of thousands of distributions do not fit into a processor's cache. So durations are
//! buffered for each distribution, and counted many at a time.

use std::num::NonZeroU32;

use super::distribution::{Distribution, DurationSums, RANKS, number_of_rank, numbered};
use crate::model::DurationScale;

/// The most durations of a distribution that are stored exactly.
const EXACT: usize = 256;

/// The size of the buffer of a distribution that has had more.
const ASIDE: usize = 64;

/// Buckets are the ranges of this scale. The width of a bucket is at most 1/64 of its values, and
/// its middle represents it. So the error of a duration is less than 0.8 %.
type Scale = DurationScale<6>;
const BUCKETS: usize = Scale::PER_POWER;

/// Powers of two with buckets. The lowest one has the durations below the first power of two that
/// has 64 buckets.
const POWERS: usize = Scale::RANGES / BUCKETS;

/// The number of a distribution, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(NonZeroU32);

/// Many distributions of durations, in nanoseconds.
///
/// A trace has every single duration, so few durations stay exact here, and many have four times
/// the precision of [`Durations`](crate::model::Durations), which live in the daemon and in files.
/// Those are sparse and stand by themselves. Here thousands of distributions share their memory.
#[derive(Debug, Default)]
pub(super) struct Histograms {
    /// The durations of each distribution that are not counted yet: all of them if it has no
    /// counts.
    waiting: Vec<Waiting>,
    /// The sums of the counted durations of each distribution.
    counted: Vec<Counted>,
    /// The index + 1 in `counts` of the buckets, for each distribution with counts and each power
    /// of two; 0 for none.
    powers: Vec<[u32; POWERS]>,
    /// The buckets of all powers of two that occur, as counts modulo 256. A power of two fills one
    /// line of a processor's cache.
    counts: Vec<Line>,
    /// The number of times 256 in the counts of the same buckets.
    carried: Vec<Option<Box<[u64; BUCKETS]>>>,
}

/// Buffered durations.
#[derive(Debug, Default)]
struct Waiting {
    /// The number of durations.
    len: usize,
    /// The durations, with free space behind them.
    durations: Box<[u64]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// The index + 1 in `powers`; 0 if no duration was counted.
    powers: u32,
    sums: DurationSums,
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([u8; BUCKETS]);

// === impl Slot ===

impl Slot {
    /// The slot of the distribution that was created after `index` others; `None` if there are too
    /// many.
    #[inline]
    pub(super) fn new(index: usize) -> Option<Self> {
        let number = u32::try_from(index).ok()?.checked_add(1)?;
        NonZeroU32::new(number).map(Self)
    }

    /// The number of distributions that were created before.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

// === impl Histograms ===

impl Histograms {
    /// Creates an empty distribution; `None` if there are too many.
    pub(super) fn create(&mut self) -> Option<Slot> {
        let slot = Slot::new(self.waiting.len())?;
        self.waiting.push(Waiting::default());
        self.counted.push(Counted::default());
        Some(slot)
    }

    #[inline]
    pub(super) fn add(&mut self, slot: Slot, duration: u64) {
        let Waiting { len, durations } = &mut self.waiting[slot.index()];
        match durations.get_mut(*len) {
            Some(place) => {
                *place = duration;
                *len += 1;
            }
            None => self.add_to_full(slot, duration),
        }
    }

    /// Adds a duration to a full buffer.
    #[cold]
    #[inline(never)]
    fn add_to_full(&mut self, slot: Slot, duration: u64) {
        let Waiting { len, durations } = &mut self.waiting[slot.index()];
        if self.counted[slot.index()].powers == 0 && *len < EXACT {
            let mut longer = vec![0; (*len * 2).clamp(4, EXACT)];
            longer[..*len].copy_from_slice(&durations[..*len]);
            *durations = longer.into();
        } else {
            self.count(slot);
        }
        let Waiting { len, durations } = &mut self.waiting[slot.index()];
        durations[*len] = duration;
        *len += 1;
    }

    /// Merges a distribution of `others` into one of its own.
    pub(super) fn merge(&mut self, slot: Slot, others: &Self, other: Slot) {
        let index = other.index();
        if others.counted[index].powers > 0 {
            let powers = self.buckets(slot);
            for (power, bucket, count) in others.counts_of(other) {
                self.add_times(powers, (power, bucket), count);
            }
            let sums = &mut self.counted[slot.index()].sums;
            sums.merge(&others.counted[index].sums);
        }
        for duration in others.waiting[index].durations() {
            self.add(slot, *duration);
        }
    }

    /// The number of durations in a distribution.
    pub(super) fn finished(&self, slot: Slot) -> u64 {
        self.counted[slot.index()].sums.finished + self.waiting[slot.index()].len as u64
    }

    /// The sum of the durations in a distribution.
    pub(super) fn sum_ns(&self, slot: Slot) -> u64 {
        let durations = self.waiting[slot.index()].durations().iter();
        durations.fold(self.counted[slot.index()].sums.sum_ns, |sum, duration| {
            sum.saturating_add(*duration)
        })
    }

    /// All durations of a distribution with their counts, in no order. The error of a duration is
    /// less than 0.8 %.
    pub(super) fn durations(&self, slot: Slot) -> impl Iterator<Item = (u64, u64)> {
        let waiting = self.waiting[slot.index()].durations().iter();
        let counted = self.counts_of(slot);
        counted
            .map(|(power, bucket, count)| (middle(power, bucket), count))
            .chain(waiting.map(|duration| (*duration, 1)))
    }

    /// The figures of a distribution; `None` if it has no durations.
    pub(super) fn distribution(&mut self, slot: Slot) -> Option<Distribution> {
        let mut all = self.counted[slot.index()].sums;
        let durations = self.waiting[slot.index()].durations().iter();
        durations.for_each(|duration| all.add(*duration));
        all.distribution(self.ranks(slot, RANKS)?)
    }

    /// The durations with these ranks, in thousandths. `None` if there are no durations.
    fn ranks<const N: usize>(&mut self, slot: Slot, ranks: [u16; N]) -> Option<[u64; N]> {
        if self.counted[slot.index()].powers > 0 {
            self.count(slot);
            let total = self.counts_of(slot).map(|(_, _, count)| count).sum();
            return Some(ranks.map(|rank| self.number(slot, number_of_rank(total, rank))));
        }
        let Waiting { len, durations } = &mut self.waiting[slot.index()];
        let durations = &mut durations[..*len];
        durations.sort_unstable();
        let at = |rank| {
            let at = usize::try_from(number_of_rank(durations.len() as u64, rank)).ok()?;
            durations.get(at).copied()
        };
        (!durations.is_empty()).then(|| ranks.map(|rank| at(rank).unwrap_or_default()))
    }

    /// Counts the buffered durations of a distribution.
    fn count(&mut self, slot: Slot) {
        let powers = self.buckets(slot);
        let Waiting { len, durations } = std::mem::take(&mut self.waiting[slot.index()]);
        let mut sums = self.counted[slot.index()].sums;
        for duration in &durations[..len] {
            sums.add(*duration);
            let (power, bucket) = place(*duration);
            let Some(line) = self.line(powers, power) else {
                continue;
            };
            let (line, bucket) = (line as usize, usize::from(bucket) % BUCKETS);
            let count = &mut self.counts[line].0[bucket];
            *count = count.wrapping_add(1);
            if *count == 0 {
                self.carry(line, bucket, 256);
            }
        }
        self.counted[slot.index()].sums = sums;
        self.waiting[slot.index()].durations = if durations.len() == ASIDE {
            durations
        } else {
            [0; ASIDE].into()
        };
    }

    /// The index of a distribution in `powers`, created if necessary.
    fn buckets(&mut self, slot: Slot) -> usize {
        let counted = &mut self.counted[slot.index()];
        if counted.powers == 0 {
            self.powers.push([0; POWERS]);
            // There are at most as many of them as slots.
            counted.powers = u32::try_from(self.powers.len()).unwrap_or(u32::MAX);
        }
        counted.powers as usize - 1
    }

    /// Adds `times` to a count.
    fn add_times(&mut self, powers: usize, (power, bucket): (usize, u8), times: u64) {
        let Some(line) = self.line(powers, power) else {
            return;
        };
        let (line, bucket) = (line as usize, usize::from(bucket) % BUCKETS);
        let count = &mut self.counts[line].0[bucket];
        let sum = times.saturating_add(u64::from(*count));
        let [low, ..] = sum.to_le_bytes();
        *count = low;
        if sum > 255 {
            self.carry(line, bucket, sum - u64::from(low));
        }
    }

    #[cold]
    fn carry(&mut self, line: usize, bucket: usize, times: u64) {
        let carried = self.carried[line].get_or_insert_with(|| Box::new([0; BUCKETS]));
        carried[bucket] = carried[bucket].saturating_add(times);
    }

    /// The line of the buckets of a power of two. `None` if there is no room for more lines, which
    /// would take 256 GiB.
    #[inline]
    fn line(&mut self, powers: usize, power: usize) -> Option<u32> {
        match self.powers[powers][power].checked_sub(1) {
            Some(line) => Some(line),
            None => self.new_line(powers, power),
        }
    }

    #[cold]
    fn new_line(&mut self, powers: usize, power: usize) -> Option<u32> {
        let line = u32::try_from(self.counts.len()).ok()?;
        self.powers[powers][power] = line.checked_add(1)?;
        self.counts.push(Line([0; BUCKETS]));
        self.carried.push(None);
        Some(line)
    }

    /// All buckets of a distribution that are not empty, in order of size: power of two, number and
    /// count.
    fn counts_of(&self, slot: Slot) -> impl Iterator<Item = (usize, u8, u64)> {
        let powers = self.counted[slot.index()].powers.checked_sub(1);
        let powers = powers.map(|powers| self.powers[powers as usize].iter().enumerate());
        powers
            .into_iter()
            .flatten()
            .filter_map(|(power, line)| Some((power, line.checked_sub(1)? as usize)))
            .flat_map(move |(power, line)| {
                let carried = self.carried[line].as_deref();
                let counts = (0_u8..).zip(self.counts[line].0);
                counts.map(move |(bucket, count)| {
                    let carried = carried.map_or(0, |carried| carried[usize::from(bucket)]);
                    (power, bucket, carried.saturating_add(count.into()))
                })
            })
            .filter(|(_, _, count)| *count > 0)
    }

    /// The duration with this number in order of size.
    fn number(&self, slot: Slot, wanted: u64) -> u64 {
        let counts = self.counts_of(slot);
        let durations = counts.map(|(power, bucket, count)| (middle(power, bucket), count));
        numbered(durations, wanted).unwrap_or(0)
    }
}

// === impl Waiting ===

impl Waiting {
    fn durations(&self) -> &[u64] {
        &self.durations[..self.len]
    }
}

/// The power of two of a duration, and its bucket there. Small durations have buckets of their own.
#[inline]
fn place(duration: u64) -> (usize, u8) {
    let range = Scale::range(duration);
    let [bucket, ..] = (range % BUCKETS).to_le_bytes();
    (range / BUCKETS, bucket)
}

/// The duration in the middle of a bucket, rounded up.
fn middle(power: usize, bucket: u8) -> u64 {
    let range = power * BUCKETS + usize::from(bucket);
    Scale::shortest(range) + Scale::width(range) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: impl Iterator<Item = u64>) -> (Histograms, Slot) {
        let mut histograms = Histograms::default();
        let slot = histograms.create().unwrap();
        durations.for_each(|duration| histograms.add(slot, duration));
        (histograms, slot)
    }

    #[test]
    fn few_durations_are_exact() {
        let (mut none, slot) = of([].into_iter());
        assert_eq!(none.ranks(slot, [500]), None);
        let (mut few, slot) = of((1..=200).rev().map(|duration| duration * 1001));
        assert_eq!(
            few.ranks(slot, [0, 500, 990, 999, 1000]),
            Some([1001, 101_101, 199_199, 200_200, 200_200])
        );
    }

    #[test]
    fn many_durations_are_within_one_percent() {
        for scale in [1, 3, 1_000, 123_456_789] {
            let (mut many, slot) = of((0..10_000).map(|duration| duration * scale));
            let [median, p99] = many.ranks(slot, [500, 990]).unwrap();
            for (found, exact) in [(median, 5000 * scale), (p99, 9900 * scale)] {
                assert!(found.abs_diff(exact) * 128 <= exact, "{found} for {exact}");
            }
        }
    }

    #[test]
    fn every_duration_falls_near_the_middle_of_its_bucket() {
        for duration in (0..64)
            .flat_map(|bit| [1_u64 << bit, (1_u64 << bit) - 1])
            .chain([u64::MAX, 63, 64, 65, 127, 129, 8191, 1_000_000_007])
        {
            let (power, bucket) = place(duration);
            assert!(
                middle(power, bucket).abs_diff(duration) <= duration / 128,
                "{duration}"
            );
        }
    }

    #[test]
    fn merged_parts_are_as_the_whole() {
        for (len, step) in [(100, 7), (256, 3), (257, 3), (5000, 1001)] {
            for cut in [0, 1, len / 2, len] {
                let durations = |range: std::ops::Range<u64>| range.map(move |at| at * step);
                let (mut whole, slot) = of(durations(0..len));
                let (mut part, _) = of(durations(0..cut));
                let (rest, _) = of(durations(cut..len));
                part.merge(slot, &rest, slot);
                let ranks = [0, 1, 250, 500, 900, 999, 1000];
                assert_eq!(
                    part.ranks(slot, ranks),
                    whole.ranks(slot, ranks),
                    "{len} at {cut}"
                );
            }
        }
    }

    #[test]
    fn a_full_bucket_goes_on_counting() {
        let mut once = Histograms::default();
        let slot = once.create().unwrap();
        (0..700).for_each(|_| once.add(slot, 10));
        (0..7).for_each(|_| once.add(slot, 5));
        once.count(slot);
        let powers = once.buckets(slot);
        once.add_times(powers, place(10), 1 << 40);
        let (mut twice, _) = of([5; 257].into_iter());
        twice.merge(slot, &once, slot);
        twice.count(slot);
        for (histograms, fives) in [(&once, 7), (&twice, 264)] {
            let counts: Vec<_> = histograms.counts_of(slot).collect();
            assert_eq!(counts, [(0, 5, fives), (0, 10, (1 << 40) + 700)]);
        }
        assert_eq!(once.ranks(slot, [0, 500]), Some([5, 10]));
    }
}
