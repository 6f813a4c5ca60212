//! Conversion of the time stamp counter to nanoseconds. It reads no clock: a trace has the anchors.

use super::clock_anchor::{ClockAnchor, Ticks};
use super::clock_faults::{self, ClockFault};

/// The basis of the rate of a [`Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calibration {
    /// No anchor: a tick counts as a nanosecond, from 0 on.
    None,
    /// One anchor: it gives moments their place. The counter's rate is unknown, so a tick counts as
    /// a nanosecond.
    SingleAnchor,
    /// Two anchors or more: the rate is measured.
    Measured,
}

/// A conversion of the counter to nanoseconds. It is linear between neighbouring anchors. Beyond
/// the outer anchors it has the rate of the outermost pair. All arithmetic is on integers, and
/// results are rounded down, so order is never reversed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// Strictly increasing in ticks, never decreasing in monotonic time.
    anchors: Vec<ClockAnchor>,
    /// Anchors that contradict these. The conversion does not use them.
    contradicting: Vec<ClockAnchor>,
    /// The faults of the counter that all anchors together show.
    faults: Vec<ClockFault>,
}

/// A reader of a [`Clock`] for moments that are near each other, such as those of a thread. It
/// returns the same values as [`Clock::monotonic_ns`], usually without a division.
#[derive(Debug, Clone)]
pub struct ClockReader<'a> {
    clock: &'a Clock,
    stretch: Stretch,
}

/// A stretch of the clock with one rate: `passed` ticks after `from`, `passed * whole + (rest +
/// passed * fraction) / 2^64` nanoseconds have passed, rounded down.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    from: u64,
    /// The length in ticks, limited so that the result is exact and nothing overflows.
    len: u64,
    /// The time at `from`, rounded down.
    ns: u64,
    whole: u64,
    /// The rounding error of `ns`, in units of 2^-64, rounded up.
    rest: u64,
    /// The fraction of a tick's length above `whole`, in units of 2^-64, rounded up.
    fraction: u64,
}

// === impl Clock ===

impl Clock {
    /// Makes a clock of anchors in any order. Anchors that contradict earlier ones (the same tick
    /// again, or monotonic time that runs backwards) are not used for conversion.
    #[must_use]
    pub fn new(mut anchors: Vec<ClockAnchor>) -> Self {
        let faults = clock_faults::find(&anchors);
        anchors.sort_by_key(|anchor| (anchor.ticks, anchor.monotonic_ns));
        let mut latest: Option<ClockAnchor> = None;
        let mut contradicting = Vec::new();
        anchors.retain(|anchor| {
            let fits = latest.is_none_or(|latest| {
                anchor.ticks > latest.ticks && anchor.monotonic_ns >= latest.monotonic_ns
            });
            match fits {
                true => latest = Some(*anchor),
                false => contradicting.push(*anchor),
            }
            fits
        });
        Self {
            anchors,
            contradicting,
            faults,
        }
    }

    /// The basis of the clock's rate.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        match self.anchors.len() {
            0 => Calibration::None,
            1 => Calibration::SingleAnchor,
            _ => Calibration::Measured,
        }
    }

    /// The anchors in use, in order of time.
    #[must_use]
    pub fn anchors(&self) -> &[ClockAnchor] {
        &self.anchors
    }

    /// The other anchors. They show that the counter did not keep time.
    #[must_use]
    pub fn contradicting(&self) -> &[ClockAnchor] {
        &self.contradicting
    }

    /// The times at which the counter did not keep time, in order. Durations in and around them are
    /// wrong.
    #[must_use]
    pub fn faults(&self) -> &[ClockFault] {
        &self.faults
    }

    /// Ticks per second, measured from the first to the last anchor. `None` without two anchors.
    #[must_use]
    pub fn frequency(&self) -> Option<u64> {
        let (first, last) = (self.anchors.first()?, self.anchors.last()?);
        let ticks = last
            .ticks
            .0
            .checked_sub(first.ticks.0)
            .filter(|ticks| *ticks != 0)?;
        let ns = last
            .monotonic_ns
            .checked_sub(first.monotonic_ns)
            .filter(|ns| *ns != 0)?;
        let rounded = (u128::from(ticks) * 1_000_000_000 + u128::from(ns) / 2) / u128::from(ns);
        u64::try_from(rounded).ok()
    }

    /// `CLOCK_MONOTONIC` at this tick, in nanoseconds. Saturates at 0 and at the greatest number.
    #[must_use]
    pub fn monotonic_ns(&self, ticks: Ticks) -> u64 {
        self.convert(ticks, |anchor| anchor.monotonic_ns)
    }

    /// `CLOCK_REALTIME` at this tick, in nanoseconds since 1970-01-01 UTC. Saturates likewise. If
    /// the wall clock was set between two anchors, the step is spread evenly between them.
    #[must_use]
    pub fn wall_ns(&self, ticks: Ticks) -> u64 {
        self.convert(ticks, |anchor| anchor.wall_ns)
    }

    /// The first tick at which [`Self::monotonic_ns`] is this time or later. For a time that each
    /// tick has reached, some early tick. Saturates at 0 and at the greatest number.
    #[must_use]
    pub fn ticks_at(&self, monotonic_ns: u64) -> Ticks {
        let (from, to) = match self.anchors.as_slice() {
            [] => return Ticks(monotonic_ns),
            [only] => {
                let passed = i128::from(monotonic_ns) - i128::from(only.monotonic_ns);
                return Ticks(saturate(i128::from(only.ticks.0) + passed));
            }
            anchors => {
                let after = anchors.partition_point(|anchor| anchor.monotonic_ns < monotonic_ns);
                let to = after.clamp(1, anchors.len() - 1);
                (&anchors[to - 1], &anchors[to])
            }
        };
        let span = i128::from(to.ticks.0) - i128::from(from.ticks.0);
        let rise = i128::from(to.monotonic_ns) - i128::from(from.monotonic_ns);
        if rise == 0 {
            return from.ticks;
        }
        let passed = i128::from(monotonic_ns) - i128::from(from.monotonic_ns);
        // Rounded up.
        let passed_ticks = -(passed.saturating_mul(span).saturating_neg()).div_euclid(rise);
        Ticks(saturate(
            i128::from(from.ticks.0).saturating_add(passed_ticks),
        ))
    }

    fn convert(&self, ticks: Ticks, time: impl Fn(&ClockAnchor) -> u64) -> u64 {
        let (from, to) = match self.anchors.as_slice() {
            [] => return ticks.0,
            [only] => {
                let at = i128::from(time(only)) + i128::from(ticks.0) - i128::from(only.ticks.0);
                return saturate(at);
            }
            [first, second] => (first, second),
            anchors => {
                let after = anchors.partition_point(|anchor| anchor.ticks <= ticks);
                let to = after.clamp(1, anchors.len() - 1);
                (&anchors[to - 1], &anchors[to])
            }
        };
        let span = i128::from(to.ticks.0) - i128::from(from.ticks.0);
        let rise = i128::from(time(to)) - i128::from(time(from));
        let passed = i128::from(ticks.0) - i128::from(from.ticks.0);
        // Each factor is below 2^64 in magnitude, so the product exceeds i128 only if both are near
        // their limits. Such anchors are nonsense, and any result in range is as good as another.
        let passed_ns = passed.saturating_mul(rise).div_euclid(span);
        saturate(i128::from(time(from)).saturating_add(passed_ns))
    }
}

// === impl ClockReader ===

impl<'a> ClockReader<'a> {
    /// A reader without a stretch.
    #[must_use]
    pub fn new(clock: &'a Clock) -> Self {
        Self {
            clock,
            stretch: Stretch::default(),
        }
    }

    /// `CLOCK_MONOTONIC` at this tick, the same as [`Clock::monotonic_ns`].
    #[inline]
    pub fn monotonic_ns(&mut self, ticks: Ticks) -> u64 {
        match self.stretch.monotonic_ns(ticks.0) {
            Some(ns) => ns,
            None => self.elsewhere(ticks),
        }
    }

    #[cold]
    fn elsewhere(&mut self, ticks: Ticks) -> u64 {
        if let Some(stretch) = Stretch::at(self.clock, ticks) {
            self.stretch = stretch;
        }
        self.clock.monotonic_ns(ticks)
    }
}

// === impl Stretch ===

impl Stretch {
    /// The stretch that begins at `ticks`. `None` before the first anchor, and if a time or a rate
    /// is out of range. The stretch has length 0 if anchors are so far apart that they are
    /// nonsense.
    fn at(clock: &Clock, ticks: Ticks) -> Option<Self> {
        let Ticks(from) = ticks;
        let (anchor, until, rise, span) = match clock.anchors.as_slice() {
            [] => return Some(Self::of_nanoseconds(from, from)),
            [only] => {
                let ns = from.checked_sub(only.ticks.0)?;
                return Some(Self::of_nanoseconds(
                    from,
                    only.monotonic_ns.checked_add(ns)?,
                ));
            }
            anchors => {
                let after = anchors.partition_point(|anchor| anchor.ticks <= ticks);
                let to = after.clamp(1, anchors.len() - 1);
                let (anchor, next) = (&anchors[to - 1], &anchors[to]);
                let until = if to == anchors.len() - 1 {
                    u64::MAX
                } else {
                    next.ticks.0
                };
                let rise = next.monotonic_ns - anchor.monotonic_ns;
                (anchor, until, rise, next.ticks.0 - anchor.ticks.0)
            }
        };
        let passed = from.checked_sub(anchor.ticks.0)?;
        let (rise, span) = (u128::from(rise), u128::from(span));
        let risen = u128::from(passed) * rise;
        let ns = u64::try_from(risen / span).ok()?;
        let ns = anchor.monotonic_ns.checked_add(ns)?;
        let whole = u64::try_from(rise / span).ok()?;
        // Both dividends are less than `span`, so the results are less than 2^64.
        let part = |part: u128| u64::try_from((part << 64).div_ceil(span)).ok();
        // The sum of the numbers, which are rounded up, is too great by less than `(passed + 1) /
        // 2^64`. The true sum is a multiple of `1 / span`. So the sum does not reach the next whole
        // number as long as the error is less.
        let exact = if risen % span == 0 && rise % span == 0 {
            u64::MAX
        } else {
            u64::try_from((1 << 64) / span).unwrap_or(u64::MAX) - 1
        };
        Some(Self {
            from,
            len: (until - from)
                .min(exact)
                .min((u64::MAX - ns) / whole.checked_add(2)?),
            ns,
            whole,
            rest: part(risen % span)?,
            fraction: part(rise % span)?,
        })
    }

    /// A stretch in which a tick is a nanosecond.
    fn of_nanoseconds(from: u64, ns: u64) -> Self {
        Self {
            from,
            len: u64::MAX - from.max(ns),
            ns,
            whole: 1,
            ..Self::default()
        }
    }

    #[inline]
    fn monotonic_ns(&self, ticks: u64) -> Option<u64> {
        // For ticks before the stretch the difference wraps, and exceeds `len`.
        let passed = ticks.wrapping_sub(self.from);
        if passed >= self.len {
            return None;
        }
        let part = u128::from(passed) * u128::from(self.fraction) + u128::from(self.rest);
        let [.., part] = halves(part);
        Some(self.ns + passed * self.whole + part)
    }
}

/// The lower and the upper half of a number.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the halves are what is asked for"
)]
fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

fn saturate(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(ticks: u64, monotonic_ns: u64, wall_ns: u64) -> ClockAnchor {
        ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns,
            wall_ns,
        }
    }

    fn check(anchors: &[ClockAnchor], expected: &[(u64, u64)]) {
        let clock = Clock::new(anchors.to_vec());
        for &(ticks, ns) in expected {
            assert_eq!(clock.monotonic_ns(Ticks(ticks)), ns, "at tick {ticks}");
        }
    }

    #[test]
    fn without_a_rate_a_tick_counts_as_a_nanosecond() {
        check(&[], &[(0, 0), (7, 7), (u64::MAX, u64::MAX)]);
        check(
            &[anchor(100, 1000, 0)],
            &[(100, 1000), (90, 990), (0, 900), (u64::MAX, u64::MAX)],
        );
        check(&[anchor(100, 10, 0)], &[(0, 0)]);
        assert_eq!(
            Clock::new(vec![anchor(1, 1, 1)]).calibration(),
            Calibration::SingleAnchor
        );
        assert_eq!(Clock::new(vec![anchor(1, 1, 1)]).frequency(), None);
    }

    #[test]
    fn two_anchors_give_a_rate_inside_and_outside() {
        let anchors = [anchor(1000, 500, 9_000_000), anchor(4000, 1500, 9_001_000)];
        check(
            &anchors,
            &[
                (1000, 500),
                (1001, 500),
                (1003, 501),
                (4000, 1500),
                (7000, 2500),
                (0, 166),
            ],
        );
        let clock = Clock::new(anchors.to_vec());
        assert_eq!(clock.wall_ns(Ticks(2500)), 9_000_500);
        assert_eq!(clock.frequency(), Some(3_000_000_000));
        assert_eq!(clock.calibration(), Calibration::Measured);
    }

    #[test]
    fn each_stretch_has_its_own_rate() {
        let anchors = [anchor(0, 0, 0), anchor(100, 100, 0), anchor(200, 300, 0)];
        check(&anchors, &[(50, 50), (150, 200), (300, 500)]);
    }

    #[test]
    fn contradicting_anchors_place_nothing() {
        let anchors = [
            anchor(0, 100, 0),
            anchor(10, 50, 0),
            anchor(0, 200, 0),
            anchor(20, 120, 0),
        ];
        let clock = Clock::new(anchors.to_vec());
        assert_eq!((clock.anchors().len(), clock.contradicting().len()), (2, 2));
    }

    #[test]
    fn a_reader_gives_the_same_answers() {
        let far = u64::MAX - 5;
        for anchors in [
            vec![],
            vec![anchor(1000, 77, 0)],
            vec![anchor(1000, 500, 0), anchor(4001, 1502, 0)],
            vec![anchor(3, 0, 0), anchor(7, 1_000_000_007, 0)],
            vec![
                anchor(3, 9, 0),
                anchor(7, 9, 0),
                anchor(1_000_003, 77_777, 0),
            ],
            vec![anchor(0, 0, 0), anchor(1, u64::MAX, 0)],
            vec![anchor(5, 0, 0), anchor(far, u64::MAX, 0)],
            vec![anchor(1 << 62, 1, 0), anchor(3 << 62, 1 << 63, 0)],
        ] {
            let clock = Clock::new(anchors);
            let mut reader = ClockReader::new(&clock);
            let near = (0..5000).chain((0..64).flat_map(|bit| {
                let power = 1_u64 << bit;
                [power - 1, power, power + 1, u64::MAX - power]
            }));
            for ticks in near.chain((0..5000).map(|at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            {
                let ticks = Ticks(ticks);
                let expected = clock.monotonic_ns(ticks);
                // The first call may begin a new stretch; the second one uses the current stretch.
                assert_eq!(reader.monotonic_ns(ticks), expected, "{ticks:?} {clock:?}");
                assert_eq!(reader.monotonic_ns(ticks), expected, "{ticks:?} {clock:?}");
            }
        }
    }

    #[test]
    fn a_time_has_the_first_tick_at_which_it_is_reached() {
        for anchors in [
            vec![],
            vec![anchor(1000, 77, 0)],
            vec![anchor(1000, 500, 0), anchor(4001, 1502, 0)],
            vec![anchor(3, 0, 0), anchor(7, 1_000_000_007, 0)],
            vec![
                anchor(3, 9, 0),
                anchor(7, 9, 0),
                anchor(1_000_003, 77_777, 0),
                anchor(2_000_003, 277_777, 0),
            ],
        ] {
            let clock = Clock::new(anchors);
            for ns in (1..5000).chain((1..400_000).step_by(97)) {
                let ticks = clock.ticks_at(ns);
                if ticks.0 == 0 {
                    continue;
                }
                assert!(clock.monotonic_ns(ticks) >= ns, "{ns} {clock:?}");
                let before = clock.monotonic_ns(Ticks(ticks.0 - 1));
                let is_always = clock.monotonic_ns(Ticks(0)) >= ns;
                assert!(before < ns || is_always, "{ns} {clock:?}");
            }
        }
        let clock = Clock::new(vec![anchor(5, 9, 0), anchor(7, 9, 0)]);
        assert_eq!(clock.ticks_at(100), Ticks(5), "time stands still");
    }

    #[test]
    fn extreme_anchors_do_not_overflow() {
        for (first, wall) in [(0, [u64::MAX, 0]), (1, [0, u64::MAX])] {
            let anchors = [anchor(0, first, wall[0]), anchor(1, u64::MAX, wall[1])];
            let clock = Clock::new(anchors.to_vec());
            let all = [0, 1, 2, u64::MAX].map(|ticks| clock.monotonic_ns(Ticks(ticks)));
            assert!(all.is_sorted(), "{all:?}");
            let _ = [0, 1, 2, u64::MAX].map(|ticks| clock.wall_ns(Ticks(ticks)));
            let ticks = [0, 1, 2, u64::MAX].map(|ns| clock.ticks_at(ns));
            assert!(ticks.is_sorted(), "{ticks:?}");
        }
    }
}
