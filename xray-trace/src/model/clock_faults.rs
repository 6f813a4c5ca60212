//! Finds times at which the counter did not keep time, from pairs of anchors, which tie it to
//! `CLOCK_MONOTONIC`.
//!
//! A counter that is set back (the restored snapshot of a virtual machine, a processor that loses
//! it during sleep, sockets that disagree) or that changes its rate makes durations wrong. The
//! anchors of a trace show this, so that no other record of it is needed.

use super::clock_anchor::ClockAnchor;

/// Anchors nearer to each other than this, in nanoseconds, are not judged: processes and processors
/// take them at slightly different moments.
const NEAR_NS: u64 = 1_000_000;
/// The rate between two anchors may differ from the usual one by one part in `TOLERANCE`, and by
/// [`SLACK_NS`], because reading the clocks can be interrupted.
const TOLERANCE: u64 = 20;
const SLACK_NS: u64 = 5_000_000;

/// A fault of the counter between two anchors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockFault {
    /// The time of the first anchor, on `CLOCK_MONOTONIC` in nanoseconds.
    pub from_ns: u64,
    /// The time of the second one.
    pub to_ns: u64,
    /// The kind of the fault.
    pub kind: ClockFaultKind,
}

/// The kind of a counter's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockFaultKind {
    /// The counter showed less at the second anchor than at the first.
    Backwards,
    /// The counter ran faster or slower than at other times, or jumped forwards.
    Rate,
    /// The counter ran on with the wall clock while `CLOCK_MONOTONIC` stood still: the machine was
    /// suspended.
    Suspended,
}

/// The faults that the anchors show, in order of time; at most one for each anchor.
pub(super) fn find(anchors: &[ClockAnchor]) -> Vec<ClockFault> {
    let mut anchors = anchors.to_vec();
    anchors.sort_by_key(|anchor| (anchor.monotonic_ns, anchor.ticks));
    anchors.dedup_by(|next, kept| next.monotonic_ns - kept.monotonic_ns < NEAR_NS);
    let pairs = || anchors.iter().zip(anchors.iter().skip(1));
    // Ticks per second of the median pair. With two pairs it is unknown which of them is right.
    let mut rates: Vec<u128> = pairs()
        .filter(|(from, to)| to.ticks > from.ticks)
        .map(|(from, to)| rate(from, to))
        .collect();
    rates.sort_unstable();
    let usual = rates
        .get(rates.len() / 2)
        .copied()
        .filter(|_| rates.len() > 2);
    pairs()
        .filter_map(|(from, to)| {
            let kind = judge(from, to, usual)?;
            Some(ClockFault {
                from_ns: from.monotonic_ns,
                to_ns: to.monotonic_ns,
                kind,
            })
        })
        .collect()
}

/// Judges two anchors, the earlier one first. `usual` is the rate in ticks per second, if known.
fn judge(from: &ClockAnchor, to: &ClockAnchor, usual: Option<u128>) -> Option<ClockFaultKind> {
    if to.ticks < from.ticks {
        return Some(ClockFaultKind::Backwards);
    }
    let usual = usual.filter(|usual| *usual > 0)?;
    let passed = u128::from(to.monotonic_ns - from.monotonic_ns);
    let counted = u128::from(to.ticks.0 - from.ticks.0) * 1_000_000_000 / usual;
    let is_right = |passed: u128| {
        let allowed = (passed / u128::from(TOLERANCE)).max(u128::from(SLACK_NS));
        counted.abs_diff(passed) <= allowed
    };
    if is_right(passed) {
        return None;
    }
    // Two clocks that agree are right: `CLOCK_MONOTONIC` does not count while a machine sleeps.
    let by_wall = to.wall_ns.checked_sub(from.wall_ns).map(u128::from);
    Some(match by_wall.filter(|by_wall| *by_wall > passed) {
        Some(by_wall) if is_right(by_wall) => ClockFaultKind::Suspended,
        _ => ClockFaultKind::Rate,
    })
}

fn rate(from: &ClockAnchor, to: &ClockAnchor) -> u128 {
    let passed = u128::from(to.monotonic_ns - from.monotonic_ns).max(1);
    u128::from(to.ticks.0 - from.ticks.0) * 1_000_000_000 / passed
}

#[cfg(test)]
mod tests {
    use super::{super::clock_anchor::Ticks, ClockFaultKind::*, *};

    const MS: u64 = 1_000_000;

    /// Checks the faults of anchors at these milliseconds and ticks: the millisecond at which each
    /// begins, and its kind.
    fn check(anchors: &[(u64, u64)], expected: &[(u64, ClockFaultKind)]) {
        let anchors: Vec<ClockAnchor> = anchors
            .iter()
            .map(|&(ms, ticks)| ClockAnchor {
                ticks: Ticks(ticks),
                monotonic_ns: ms * MS,
                wall_ns: 0,
            })
            .collect();
        let found = find(&anchors);
        let found: Vec<_> = found
            .iter()
            .map(|fault| (fault.from_ns / MS, fault.kind))
            .collect();
        assert_eq!(found, expected, "{anchors:?}");
    }

    #[test]
    fn pairs_of_anchors_are_judged() {
        check(&[], &[]);
        check(&[(5, 9)], &[]);
        check(&[(0, 0), (1000, 3000), (2000, 6000), (3000, 9000)], &[]);
        // In any order, and by processors that read it at slightly different moments.
        check(&[(2000, 6000), (1000, 3000), (0, 0), (0, 5)], &[]);
        // The counter is set back.
        check(
            &[(0, 9000), (1000, 12_000), (2000, 100)],
            &[(1000, Backwards)],
        );
        check(&[(0, 9000), (1000, 10)], &[(0, Backwards)]);
        // A jump forwards, and a time at half the rate.
        let jump = [
            (0, 0),
            (1000, 3000),
            (2000, 6000),
            (3000, 90_000),
            (4000, 93_000),
        ];
        check(&jump, &[(2000, Rate)]);
        let slow = [
            (0, 0),
            (1000, 3000),
            (2000, 4500),
            (3000, 7500),
            (4000, 10_500),
        ];
        check(&slow, &[(1000, Rate)]);
        // The counter stood still while the monotonic clock went on.
        let still = [
            (0, 0),
            (1000, 3000),
            (2000, 3000),
            (3000, 6000),
            (4000, 9000),
        ];
        check(&still, &[(1000, Rate)]);
        // With two rates it is unknown which of them is right; and a late reading is no fault.
        check(&[(0, 0), (1000, 3000), (2000, 9000)], &[]);
        check(&[(0, 0), (10, 30), (20, 72), (30, 90), (40, 120)], &[]);
    }

    /// If the counter goes on while the machine sleeps, the wall clock has advanced as much. If the
    /// counter restarts, or the wall clock is set, they do not agree.
    #[test]
    fn a_suspended_machine_is_no_fault_of_the_counter() {
        for (ticks, wall_ms, expected) in [
            (1_096_000, 32_000, Some(Suspended)),
            (1_096_000, 2_000, Some(Rate)),
            (1_096_000, 90_000, Some(Rate)),
            (100, 32_000, Some(Backwards)),
            (1_003_000, 32_000, None),
        ] {
            let anchor = |ms, ticks, wall_ms| ClockAnchor {
                ticks: Ticks(ticks),
                monotonic_ns: ms * MS,
                wall_ns: wall_ms * MS,
            };
            let later = |ms: u64| anchor(1000 + ms, ticks + 3 * ms, wall_ms + ms);
            let anchors = [
                anchor(0, 1_000_000, 0),
                anchor(1000, 1_003_000, 1000),
                later(1000),
                later(2000),
                later(3000),
            ];
            let found = find(&anchors).first().map(|fault| fault.kind);
            assert_eq!(found, expected, "{anchors:?}");
        }
    }

    #[test]
    fn extreme_anchors_do_no_harm() {
        let far = u64::MAX / MS;
        check(&[(0, u64::MAX), (far, 0)], &[(0, Backwards)]);
        check(&[(0, 0), (far, u64::MAX)], &[]);
        check(
            &[
                (0, 0),
                (1, u64::MAX / 2),
                (2, u64::MAX - 1),
                (far, u64::MAX),
            ],
            &[(2, Rate)],
        );
    }
}
