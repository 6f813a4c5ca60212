//! The durations of a function's calls, counted in ranges that never change. The calls come from
//! the sums that `meter` gets.

use xray_trace::model::CallSums;

/// The upper bounds of the ranges, in nanoseconds, and in seconds as metrics write them. The last
/// range has no bound.
const BOUNDS: [(u64, &str); 22] = [
    (1_000, "1e-06"),
    (2_500, "2.5e-06"),
    (5_000, "5e-06"),
    (10_000, "1e-05"),
    (25_000, "2.5e-05"),
    (50_000, "5e-05"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (250_000_000, "0.25"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1.0"),
    (2_500_000_000, "2.5"),
    (5_000_000_000, "5.0"),
    (10_000_000_000, "10.0"),
];

/// The calls of a function. No number in it ever goes down.
///
/// The ranges are not those of [`xray_trace::model::Durations`], which the counts come from.
/// Servers of metrics add histograms of many processes up. So bounds are few, decimal, and always
/// the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Latencies {
    /// The number of calls, by range.
    counts: [u64; BOUNDS.len() + 1],
    /// Calls whose exit was seen: the sum of `counts`.
    finished: u64,
    /// The sum of their durations.
    sum_ns: u64,
    /// Calls that ended without an exit. They are counted nowhere else.
    unfinished: u64,
}

// === impl Latencies ===

impl Latencies {
    /// Adds calls; `ns` converts ticks to nanoseconds. A duration near a bound may be counted on
    /// its other side, since sums keep durations to 1/32 only.
    pub(crate) fn add(&mut self, calls: &CallSums, ns: impl Fn(u64) -> u64) {
        for (ticks, count) in calls.durations.middles() {
            let duration = ns(ticks);
            let range = BOUNDS.partition_point(|(bound, _)| *bound < duration);
            self.counts[range] = self.counts[range].saturating_add(count);
            self.finished = self.finished.saturating_add(count);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns(calls.total_ticks));
        self.unfinished = self.unfinished.saturating_add(calls.unfinished);
    }

    /// For each bound, as metrics write it, the number of calls that did not take longer.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = BOUNDS.iter().zip(self.counts);
        counts.scan(0_u64, |sum, ((_, bound), count)| {
            *sum = sum.saturating_add(count);
            Some((*bound, *sum))
        })
    }

    /// Calls whose exit was seen.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// The sum of their durations.
    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Calls that ended without an exit.
    pub(crate) fn unfinished(&self) -> u64 {
        self.unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_in_order_and_written_as_they_are() {
        assert!(BOUNDS.is_sorted());
        for (ns, text) in BOUNDS {
            let seconds: f64 = text.parse().unwrap();
            assert_eq!(format!("{:.0}", seconds * 1e9), ns.to_string());
        }
    }

    #[test]
    fn each_call_is_in_the_range_of_its_duration() {
        // (duration, number of the bounds below it)
        for (duration, below) in [
            (0, 0),
            (990, 0),
            (1_100, 1),
            (2_400, 1),
            (1_100_000, 10),
            (9_000_000_000, 21),
            (11_000_000_000, 22),
            (1 << 62, 22),
        ] {
            let mut calls = CallSums::default();
            calls.finish(duration);
            calls.finish(duration);
            let mut latencies = Latencies::default();
            latencies.add(&calls, |ticks| ticks);
            let counts: Vec<u64> = latencies.cumulative().map(|(_, count)| count).collect();
            let expected = (0..BOUNDS.len()).map(|range| if range < below { 0 } else { 2 });
            assert!(counts.into_iter().eq(expected), "{duration}: {latencies:?}");
            assert_eq!(latencies.finished(), 2);
            assert_eq!(latencies.sum_ns(), 2 * duration);
        }
    }

    #[test]
    fn ticks_become_nanoseconds_and_calls_without_an_exit_are_counted_apart() {
        let mut calls = CallSums::default();
        calls.finish(1_000_000);
        calls.calls += 3;
        calls.unfinished += 3;
        let mut latencies = Latencies::default();
        for _ in 0..2 {
            latencies.add(&calls, |ticks| ticks / 2);
        }
        assert_eq!(latencies.sum_ns(), 1_000_000);
        assert_eq!((latencies.finished(), latencies.unfinished()), (2, 6));
        let at_half_a_millisecond = latencies.cumulative().find(|(bound, _)| *bound == "0.0005");
        // The middle of the range is a little less than a million.
        assert_eq!(at_half_a_millisecond, Some(("0.0005", 2)));
    }

    #[test]
    fn a_saturated_count_stays_as_it_is() {
        let mut calls = CallSums::default();
        calls.durations.add(5, u64::MAX);
        calls.total_ticks = u64::MAX;
        let mut latencies = Latencies::default();
        for _ in 0..2 {
            latencies.add(&calls, |ticks| ticks);
        }
        assert_eq!(latencies.finished(), u64::MAX);
        assert_eq!(latencies.sum_ns(), u64::MAX);
        assert!(latencies.cumulative().all(|(_, count)| count == u64::MAX));
    }
}
