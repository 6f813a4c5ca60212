//! The distribution of the durations of many calls, in seven figures, and the rule by which counted
//! durations become figures. `histogram` counts the calls of a trace, and `profile` adds the counts
//! of a profile.

/// The durations of single calls, in nanoseconds. The minimum, the mean and the maximum are exact.
/// The other figures are exact up to 256 calls, and off by less than 1 % beyond. Each of them is
/// the duration at its rank, as in `llvm-xray account`: the median of `n` calls is number `n/2`
/// from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The shortest duration.
    pub min_ns: u64,
    /// The sum of the durations divided by the number of calls, rounded down.
    pub mean_ns: u64,
    /// The duration in the middle.
    pub median_ns: u64,
    /// 9 in 10 durations are shorter.
    pub p90_ns: u64,
    /// 99 in 100 durations are shorter.
    pub p99_ns: u64,
    /// 999 in 1000 durations are shorter.
    pub p999_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

/// The exact part of a distribution: the number and the sum of durations in nanoseconds, and the
/// shortest and the longest one.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationSums {
    pub(super) finished: u64,
    pub(super) sum_ns: u64,
    /// The greatest number without durations.
    pub(super) min_ns: u64,
    pub(super) max_ns: u64,
}

/// The ranks of the figures between minimum and maximum, in thousandths.
pub(super) const RANKS: [u16; 4] = [500, 900, 990, 999];

/// The number of the duration with a rank in thousandths, of `len` durations in order of length:
/// `len * rank / 1000`, rounded down, from 0.
pub(super) fn number_of_rank(len: u64, rank: u16) -> u64 {
    let last = len.saturating_sub(1);
    let at = u128::from(len) * u128::from(rank) / 1000;
    u64::try_from(at).unwrap_or(last).min(last)
}

/// The duration with this number, from 0, of durations with their counts in order of length. `None`
/// if there are fewer.
pub(super) fn numbered(
    durations: impl IntoIterator<Item = (u64, u64)>,
    number: u64,
) -> Option<u64> {
    let mut before = 0_u64;
    let found = durations.into_iter().find(|(_, count)| {
        before = before.saturating_add(*count);
        before > number
    });
    found.map(|(duration, _)| duration)
}

// === impl DurationSums ===

impl DurationSums {
    #[inline(always)]
    pub(super) fn add(&mut self, duration: u64) {
        self.finished += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration);
        self.min_ns = self.min_ns.min(duration);
        self.max_ns = self.max_ns.max(duration);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.finished = self.finished.saturating_add(other.finished);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The figures, from the durations with the ranks [`RANKS`]. These may be approximate, so each
    /// is raised to the minimum and lowered to the maximum. `None` without durations.
    pub(super) fn distribution(&self, at_ranks: [u64; RANKS.len()]) -> Option<Distribution> {
        let mean_ns = self.sum_ns.checked_div(self.finished)?;
        // The sums of a damaged profile may have a minimum above the maximum.
        let within = |ns: u64| ns.max(self.min_ns).min(self.max_ns);
        let [median_ns, p90_ns, p99_ns, p999_ns] = at_ranks.map(within);
        Some(Distribution {
            min_ns: self.min_ns,
            mean_ns,
            median_ns,
            p90_ns,
            p99_ns,
            p999_ns,
            max_ns: self.max_ns,
        })
    }
}

impl Default for DurationSums {
    fn default() -> Self {
        Self {
            finished: 0,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}
