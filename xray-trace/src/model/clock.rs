//! From the time stamp counter to nanoseconds.

/// A reading of the time stamp counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

/// The same moment on three clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockAnchor {
    /// The time stamp counter.
    pub ticks: Ticks,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970-01-01 UTC.
    pub wall_ns: u64,
}

/// What the rate of a [`Clock`] rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calibration {
    /// No anchor: a tick counts as a nanosecond, from 0 on.
    None,
    /// One anchor: moments are placed by it, but the counter's rate is not known and a tick counts as a nanosecond.
    SingleAnchor,
    /// Two anchors or more: the rate is measured.
    Measured,
}

/// Converts the counter to nanoseconds: linear between neighbouring anchors, and beyond the outer ones at the rate of
/// the outermost pair. All arithmetic is on integers; results are rounded down, so order is never reversed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// Strictly increasing in ticks, never decreasing in monotonic time.
    anchors: Vec<ClockAnchor>,
}

/// Reads a [`Clock`] at moments that are near each other, as those of a thread are: the same answers as
/// [`Clock::monotonic_ns`], without a division.
#[derive(Debug, Clone)]
pub struct ClockReader<'a> {
    clock: &'a Clock,
    stretch: Stretch,
}

/// From some tick on, the clock runs at one rate: `passed` ticks later, `passed * (whole + rest / span)` nanoseconds have
/// passed.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    from: u64,
    /// How many ticks it holds for; few enough that nothing overflows.
    len: u64,
    /// The time at `from`.
    ns: u64,
    whole: u64,
    rest: u64,
    span: u64,
    /// `rest / span`, in units of 2^-64, rounded down.
    fraction: u64,
}

// === impl Clock ===

impl Clock {
    /// Makes a clock of anchors in any order. Anchors that contradict earlier ones (the same tick again, or monotonic
    /// time that runs backwards) are dropped.
    #[must_use]
    pub fn new(mut anchors: Vec<ClockAnchor>) -> Self {
        anchors.sort_by_key(|anchor| (anchor.ticks, anchor.monotonic_ns));
        let mut latest: Option<ClockAnchor> = None;
        anchors.retain(|anchor| {
            let fits = latest.is_none_or(|latest| {
                anchor.ticks > latest.ticks && anchor.monotonic_ns >= latest.monotonic_ns
            });
            if fits {
                latest = Some(*anchor);
            }
            fits
        });
        Self { anchors }
    }

    /// What the clock's rate rests on.
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

    /// `CLOCK_MONOTONIC` at that tick, in nanoseconds. Saturates at 0 and at the greatest number.
    #[must_use]
    pub fn monotonic_ns(&self, ticks: Ticks) -> u64 {
        self.convert(ticks, |anchor| anchor.monotonic_ns)
    }

    /// `CLOCK_REALTIME` at that tick, in nanoseconds since 1970-01-01 UTC. Saturates likewise. Where somebody set the
    /// wall clock between two anchors, the step is spread evenly between them.
    #[must_use]
    pub fn wall_ns(&self, ticks: Ticks) -> u64 {
        self.convert(ticks, |anchor| anchor.wall_ns)
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
        // Each factor is below 2^64 in magnitude, so the product can pass i128 only when both are near their limits;
        // such anchors are nonsense, and any answer in range is as good as another.
        saturate(i128::from(time(from)) + passed.saturating_mul(rise).div_euclid(span))
    }
}

// === impl ClockReader ===

impl<'a> ClockReader<'a> {
    /// A reader that has read nothing yet.
    #[must_use]
    pub fn new(clock: &'a Clock) -> Self {
        Self {
            clock,
            stretch: Stretch::default(),
        }
    }

    /// `CLOCK_MONOTONIC` at that tick, as [`Clock::monotonic_ns`] gives it.
    #[inline]
    pub fn monotonic_ns(&mut self, ticks: Ticks) -> u64 {
        match self.stretch.monotonic_ns(ticks.0) {
            Some(ns) => ns,
            None => self.elsewhere(ticks),
        }
    }

    #[cold]
    fn elsewhere(&mut self, ticks: Ticks) -> u64 {
        if let Some(stretch) = Stretch::around(self.clock, ticks) {
            self.stretch = stretch;
        }
        self.clock.monotonic_ns(ticks)
    }
}

// === impl Stretch ===

impl Stretch {
    /// The stretch that `ticks` is in; `None` before the first anchor, and for anchors so far apart that they are nonsense.
    fn around(clock: &Clock, ticks: Ticks) -> Option<Self> {
        let (from, len, rise, span) = match clock.anchors.as_slice() {
            [] => return Some(Self::new(0, u64::MAX, 0, (1, 1))),
            [only] => (only, u64::MAX, 1, 1),
            anchors => {
                let after = anchors.partition_point(|anchor| anchor.ticks <= ticks);
                let to = after.clamp(1, anchors.len() - 1);
                let (from, next) = (&anchors[to - 1], &anchors[to]);
                let span = next.ticks.0 - from.ticks.0;
                let len = if to == anchors.len() - 1 {
                    u64::MAX
                } else {
                    span
                };
                (from, len, next.monotonic_ns - from.monotonic_ns, span)
            }
        };
        let fits = ticks >= from.ticks && span < 1 << 63;
        fits.then(|| Self::new(from.ticks.0, len, from.monotonic_ns, (rise, span)))
    }

    fn new(from: u64, len: u64, ns: u64, (rise, span): (u64, u64)) -> Self {
        let (whole, rest) = (rise / span, rise % span);
        let fraction = (u128::from(rest) << 64) / u128::from(span);
        Self {
            from,
            len: len.min(u64::MAX / whole.saturating_add(2)),
            ns,
            whole,
            rest,
            span,
            // `rest` is less than `span`.
            fraction: u64::try_from(fraction).unwrap_or(u64::MAX),
        }
    }

    #[inline]
    fn monotonic_ns(&self, ticks: u64) -> Option<u64> {
        let passed = ticks.checked_sub(self.from)?;
        if passed >= self.len {
            return None;
        }
        // `fraction` is too small by less than 2^-64 and `passed` is less than 2^64, so this is too small by 1 at most.
        let product = u128::from(passed) * u128::from(self.fraction);
        let part = u64::try_from(product >> 64).unwrap_or(u64::MAX);
        // What is left is less than twice `span`, so it is right although the products are not.
        let left = passed
            .wrapping_mul(self.rest)
            .wrapping_sub(part.wrapping_mul(self.span));
        let part = part + u64::from(left >= self.span);
        Some(self.ns.saturating_add(passed * self.whole + part))
    }
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
    fn contradicting_anchors_are_dropped() {
        let anchors = [
            anchor(0, 100, 0),
            anchor(10, 50, 0),
            anchor(0, 200, 0),
            anchor(20, 120, 0),
        ];
        assert_eq!(Clock::new(anchors.to_vec()).anchors().len(), 2);
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
                // Once as it comes, once in the stretch that is known by now.
                assert_eq!(reader.monotonic_ns(ticks), expected, "{ticks:?} {clock:?}");
                assert_eq!(reader.monotonic_ns(ticks), expected, "{ticks:?} {clock:?}");
            }
        }
    }

    #[test]
    fn extreme_anchors_do_not_overflow() {
        let clock = Clock::new(vec![anchor(0, 0, u64::MAX), anchor(1, u64::MAX, 0)]);
        for ticks in [0, 1, 2, u64::MAX] {
            let _ = (
                clock.monotonic_ns(Ticks(ticks)),
                clock.wall_ns(Ticks(ticks)),
            );
        }
    }
}
