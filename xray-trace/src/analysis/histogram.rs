//! The distribution of durations: exact while they are few, within 1 % when they are many.

use std::collections::BTreeMap;

/// As many durations are kept as they are.
const EXACT: usize = 1024;

/// Buckets per power of two, as a number of bits. A bucket is at most 1/128 as wide as its values are great, and
/// stands for its middle: so a duration is off by at most 0.4 %.
const BUCKET_BITS: u32 = 7;

/// Durations in nanoseconds.
#[derive(Debug, Clone)]
pub(super) enum Histogram {
    /// All of them.
    Exact(Vec<u64>),
    /// How many in each bucket.
    Buckets {
        /// Per power of two that occurs, its buckets.
        counts: BTreeMap<u32, Box<[u64; 1 << BUCKET_BITS]>>,
        /// The sum of all counts.
        total: u64,
    },
}

// === impl Histogram ===

impl Default for Histogram {
    fn default() -> Self {
        Self::Exact(Vec::new())
    }
}

impl Histogram {
    pub(super) fn add(&mut self, duration: u64) {
        match self {
            Self::Exact(durations) if durations.len() < EXACT => durations.push(duration),
            Self::Exact(durations) => {
                let durations = std::mem::take(durations);
                *self = Self::Buckets {
                    counts: BTreeMap::new(),
                    total: 0,
                };
                durations
                    .into_iter()
                    .chain([duration])
                    .for_each(|duration| self.add(duration));
            }
            Self::Buckets { counts, total } => {
                let (power, bucket) = place(duration);
                let buckets = counts
                    .entry(power)
                    .or_insert_with(|| Box::new([0; 1 << BUCKET_BITS]));
                buckets[bucket] += 1;
                *total += 1;
            }
        }
    }

    /// The durations with these ranks, where a rank is a count of hundredths: of `n` durations in order of size, the one
    /// with the number `n * rank / 100`, rounded down, from 0. `None` if there are no durations.
    pub(super) fn ranks<const N: usize>(&mut self, ranks: [u64; N]) -> Option<[u64; N]> {
        match self {
            Self::Exact(durations) => {
                durations.sort_unstable();
                let len = durations.len();
                let at = |rank: u64| {
                    let index = usize::try_from(rank).unwrap_or(100) * len / 100;
                    durations.get(index.min(len.saturating_sub(1))).copied()
                };
                let found = ranks.map(at);
                found
                    .iter()
                    .all(Option::is_some)
                    .then(|| found.map(Option::unwrap_or_default))
            }
            Self::Buckets { counts, total } => Some(ranks.map(|rank| {
                let wanted =
                    (u128::from(*total) * u128::from(rank) / 100).min(u128::from(*total) - 1);
                let mut before = 0;
                for (power, buckets) in counts.iter() {
                    for (bucket, count) in buckets.iter().enumerate() {
                        before += u128::from(*count);
                        if before > wanted {
                            return middle(*power, bucket);
                        }
                    }
                }
                0
            })),
        }
    }
}

/// The power of two below a duration, and which bucket of it. Small durations have buckets of their own.
fn place(duration: u64) -> (u32, usize) {
    let power = duration.checked_ilog2().unwrap_or(0).max(BUCKET_BITS);
    let low_bits = if duration >> BUCKET_BITS == 0 {
        return (0, usize::try_from(duration).unwrap_or(0));
    } else {
        duration >> (power - BUCKET_BITS)
    };
    (
        power,
        usize::try_from(low_bits & ((1 << BUCKET_BITS) - 1)).unwrap_or(0),
    )
}

/// The duration in the middle of a bucket.
fn middle(power: u32, bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if power == 0 {
        return bucket;
    }
    let shift = power - BUCKET_BITS;
    let low = ((1 << BUCKET_BITS) | bucket) << shift;
    low + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_durations_are_exact() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.ranks([50]), None);
        (1..=200)
            .rev()
            .for_each(|duration| histogram.add(duration * 1001));
        assert_eq!(
            histogram.ranks([0, 50, 99, 100]),
            Some([1001, 101_101, 199_199, 200_200])
        );
    }

    #[test]
    fn many_durations_are_within_one_percent() {
        for scale in [1, 3, 1_000, 123_456_789] {
            let mut histogram = Histogram::default();
            (0..10_000).for_each(|duration| histogram.add(duration * scale));
            let [median, p99] = histogram.ranks([50, 99]).unwrap();
            for (found, exact) in [(median, 5000 * scale), (p99, 9900 * scale)] {
                assert!(found.abs_diff(exact) * 200 <= exact, "{found} for {exact}");
            }
        }
    }

    #[test]
    fn every_duration_falls_near_the_middle_of_its_bucket() {
        for duration in (0..64)
            .flat_map(|bit| [1_u64 << bit, (1_u64 << bit) - 1])
            .chain([u64::MAX])
        {
            let (power, bucket) = place(duration);
            assert!(
                middle(power, bucket).abs_diff(duration) <= duration / 256 + 1,
                "{duration}"
            );
        }
    }
}
