//! Distributions of durations: exact while they are few, within 1 % when they are many.
//!
//! The counts of thousands of distributions do not fit a processor's cache. So durations are put aside and counted many at a
//! time: then the processor waits for many of them at once, and not for one after the other.

use std::collections::BTreeMap;

/// As many durations are kept as they are.
const EXACT: usize = 256;

/// Buckets per power of two, as a number of bits. A bucket is at most 1/64 as wide as its values are great, and stands for
/// its middle: so a duration is off by less than 0.8 %.
const BUCKET_BITS: u32 = 6;
const BUCKETS: usize = 1 << BUCKET_BITS;

/// Powers of two with buckets: the lowest has all durations that have a bucket of their own.
const POWERS: usize = (u64::BITS - BUCKET_BITS + 1) as usize;

/// How many durations are put aside at most.
const ASIDE: usize = 1024;

/// The number of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// Many distributions of durations, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Histograms {
    slots: Vec<Durations>,
    /// Of distributions with buckets: per power of two, where its buckets begin in `counts`, + 1; 0 if it has none.
    powers: Vec<[u32; POWERS]>,
    /// The buckets of all powers of two that occur.
    counts: Vec<[u32; BUCKETS]>,
    /// What was taken out of full buckets, by their place in `counts`.
    carried: BTreeMap<(u32, u8), u64>,
    /// What is to be counted yet.
    aside: Vec<(Slot, u64)>,
    /// Room for the places that these belong to.
    places: Vec<(u32, u8)>,
}

/// The durations of one distribution.
#[derive(Debug)]
enum Durations {
    /// All of them.
    Exact(Vec<u64>),
    /// How many in each bucket: an index of `powers`.
    Buckets(usize),
}

// === impl Histograms ===

impl Histograms {
    /// A distribution of nothing yet; `None` if there are too many of them.
    pub(super) fn create(&mut self) -> Option<Slot> {
        let slot = Slot(u32::try_from(self.slots.len()).ok()?);
        self.slots.push(Durations::Exact(Vec::new()));
        Some(slot)
    }

    #[inline]
    pub(super) fn add(&mut self, slot: Slot, duration: u64) {
        self.aside.push((slot, duration));
        if self.aside.len() >= ASIDE {
            self.count();
        }
    }

    /// Takes all durations of a distribution of `others` into one of its own. Nothing may be put aside in `others`.
    pub(super) fn merge(&mut self, slot: Slot, others: &Self, other: Slot) {
        match &others.slots[other.0 as usize] {
            Durations::Exact(durations) => {
                durations.iter().for_each(|ns| self.add(slot, *ns));
            }
            Durations::Buckets(powers) => {
                self.count();
                let own = self.buckets(slot);
                for (power, begin) in others.powers[*powers].iter().enumerate() {
                    let Some(begin) = begin.checked_sub(1) else {
                        continue;
                    };
                    let Some(to) = self.begin(own, power) else {
                        continue;
                    };
                    for (bucket, count) in (0..).zip(&others.counts[begin as usize]) {
                        add_to(&mut self.counts, &mut self.carried, (to, bucket), *count);
                        if let Some(carried) = others.carried.get(&(begin, bucket)) {
                            *self.carried.entry((to, bucket)).or_default() += carried;
                        }
                    }
                }
            }
        }
    }

    /// The durations with these ranks, where a rank is a count of thousandths: of `n` durations in order of size, the one
    /// with the number `n * rank / 1000`, rounded down, from 0. `None` if there are no durations.
    pub(super) fn ranks<const N: usize>(
        &mut self,
        slot: Slot,
        ranks: [u16; N],
    ) -> Option<[u64; N]> {
        self.count();
        let number = |len: u64, rank: u16| {
            let last = len.saturating_sub(1);
            let at = u128::from(len) * u128::from(rank) / 1000;
            u64::try_from(at).unwrap_or(last).min(last)
        };
        match &mut self.slots[slot.0 as usize] {
            Durations::Exact(durations) => {
                durations.sort_unstable();
                let at = |rank| {
                    let at = usize::try_from(number(durations.len() as u64, rank)).ok()?;
                    durations.get(at).copied()
                };
                (!durations.is_empty()).then(|| ranks.map(|rank| at(rank).unwrap_or_default()))
            }
            Durations::Buckets(powers) => {
                let powers = *powers;
                let total = self.counts_of(powers).map(|(_, count)| count).sum();
                Some(ranks.map(|rank| self.number(powers, number(total, rank))))
            }
        }
    }

    /// Counts what was put aside.
    pub(super) fn count(&mut self) {
        let mut aside = std::mem::take(&mut self.aside);
        let mut places = std::mem::take(&mut self.places);
        for (slot, duration) in &aside {
            let powers = match &mut self.slots[slot.0 as usize] {
                Durations::Exact(durations) if durations.len() < EXACT => {
                    durations.push(*duration);
                    continue;
                }
                Durations::Exact(_) => self.buckets(*slot),
                Durations::Buckets(powers) => *powers,
            };
            let (power, bucket) = place(*duration);
            places.extend(self.begin(powers, power).map(|begin| (begin, bucket)));
        }
        for place in &places {
            add_to(&mut self.counts, &mut self.carried, *place, 1);
        }
        aside.clear();
        places.clear();
        (self.aside, self.places) = (aside, places);
    }

    /// The buckets of a distribution, made of the durations that were kept so far if need be.
    #[cold]
    fn buckets(&mut self, slot: Slot) -> usize {
        let durations = match &mut self.slots[slot.0 as usize] {
            Durations::Buckets(powers) => return *powers,
            Durations::Exact(durations) => std::mem::take(durations),
        };
        let powers = self.powers.len();
        self.powers.push([0; POWERS]);
        self.slots[slot.0 as usize] = Durations::Buckets(powers);
        for duration in durations {
            let (power, bucket) = place(duration);
            if let Some(begin) = self.begin(powers, power) {
                add_to(&mut self.counts, &mut self.carried, (begin, bucket), 1);
            }
        }
        powers
    }

    /// Where the buckets of a power of two begin. `None` if there is no room for more, which takes a terabyte.
    #[inline]
    fn begin(&mut self, powers: usize, power: usize) -> Option<u32> {
        let begin = &mut self.powers[powers][power];
        if *begin == 0 {
            self.counts.push([0; BUCKETS]);
            *begin = u32::try_from(self.counts.len()).ok()?;
        }
        Some(*begin - 1)
    }

    /// Every bucket that is not empty: the duration it stands for and its count, in order of size.
    fn counts_of(&self, powers: usize) -> impl Iterator<Item = (u64, u64)> {
        let powers = self.powers[powers].iter().enumerate();
        powers
            .filter_map(|(power, begin)| Some((power, begin.checked_sub(1)?)))
            .flat_map(move |(power, begin)| {
                let counts = (0..).zip(&self.counts[begin as usize]);
                counts.map(move |(bucket, count)| {
                    let carried = self.carried.get(&(begin, bucket)).unwrap_or(&0);
                    (middle(power, bucket), u64::from(*count) + carried)
                })
            })
            .filter(|(_, count)| *count > 0)
    }

    /// The duration with that number in order of size.
    fn number(&self, powers: usize, wanted: u64) -> u64 {
        let mut before = 0;
        let mut counts = self.counts_of(powers);
        let found = counts.find(|(_, count)| {
            before += count;
            before > wanted
        });
        found.map_or(0, |(duration, _)| duration)
    }
}

#[inline]
fn add_to(
    counts: &mut [[u32; BUCKETS]],
    carried: &mut BTreeMap<(u32, u8), u64>,
    place: (u32, u8),
    times: u32,
) {
    let count = &mut counts[place.0 as usize][usize::from(place.1) % BUCKETS];
    match count.checked_add(times) {
        Some(sum) => *count = sum,
        None => {
            *carried.entry(place).or_default() += u64::from(*count);
            *count = times;
        }
    }
}

/// Which power of two a duration belongs to, and which bucket of it. Small durations have buckets of their own.
#[inline]
fn place(duration: u64) -> (usize, u8) {
    let power = (u64::BITS - (duration >> BUCKET_BITS).leading_zeros()) as usize;
    let low_bits = duration >> power.saturating_sub(1);
    (
        power,
        low_bits.to_le_bytes()[0] & (BUCKETS as u64 - 1).to_le_bytes()[0],
    )
}

/// The duration in the middle of a bucket.
fn middle(power: usize, bucket: u8) -> u64 {
    if power == 0 {
        return bucket.into();
    }
    let shift = power - 1;
    let low = (BUCKETS as u64 | u64::from(bucket)) << shift;
    low + ((1 << shift) >> 1)
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
                let (mut rest, _) = of(durations(cut..len));
                rest.count();
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
        let full = || {
            let (mut histograms, slot) = of([5; 7].into_iter());
            histograms.count();
            let powers = histograms.buckets(slot);
            let (power, bucket) = place(10);
            let place = (histograms.begin(powers, power).unwrap(), bucket);
            for times in [u32::MAX, 7] {
                add_to(
                    &mut histograms.counts,
                    &mut histograms.carried,
                    place,
                    times,
                );
            }
            (histograms, slot, powers)
        };
        let (mut once, slot, powers) = full();
        let mut twice = full().0;
        twice.merge(slot, &once, slot);
        for (histograms, times) in [(&mut once, 1), (&mut twice, 2)] {
            assert_eq!(histograms.ranks(slot, [0, 500]), Some([5, 10]));
            let counts: Vec<_> = histograms.counts_of(powers).collect();
            let tens = times * (u64::from(u32::MAX) + 7);
            assert_eq!(counts, [(5, 7 * times), (10, tens)]);
        }
    }
}
