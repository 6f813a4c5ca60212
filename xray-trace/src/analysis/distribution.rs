//! The distribution of the durations of many calls, in seven figures. `histogram` computes it; this
//! file only has the result.

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
