//! The clock of an imported trace, made from the rate of its counter.

use crate::model::{ClockAnchor, Ticks};

/// The time between the two anchors of a clock made from a frequency, about an hour. The rate is
/// the same beyond.
const CLOCK_SECONDS: u64 = 1 << 12;

/// A clock with this rate that begins at 0, as `llvm-xray` has it.
pub(super) fn anchors(frequency: u64, wall: Option<(u64, u64)>) -> [ClockAnchor; 2] {
    let at = |ticks: u64| {
        let ns = |ticks: u64| {
            let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let wall_ns = wall.map_or(0, |(then, wall_ns)| {
            wall_ns
                .saturating_add(ns(ticks.saturating_sub(then)))
                .saturating_sub(ns(then.saturating_sub(ticks)))
        });
        ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: ns(ticks),
            wall_ns,
        }
    };
    let first = wall.map_or(0, |(then, _)| then);
    // Whole seconds make the rate exact.
    let first = first - first % frequency;
    [
        at(first),
        at(first.saturating_add(frequency.saturating_mul(CLOCK_SECONDS))),
    ]
}
