//! The times of several traces on one clock, whose ticks are nanoseconds.

use std::collections::HashMap;

use super::unit::CommonUnit;
use crate::model::{Clock, ClockAnchor, ClockReader, Ticks, Trace};

/// The greatest difference between the boot times that two traces of one machine show, if they are
/// of one boot: its wall clock may have been set in between. In nanoseconds.
const ONE_BOOT: u64 = 60_000_000_000;

/// Moments of one trace on the clock of the merged trace.
pub(super) trait Moments {
    /// This moment on the clock of the merged trace.
    fn at(&mut self, ticks: Ticks) -> Ticks;

    /// The ticks from `from` to `from + ticks`.
    fn length(&mut self, from: Ticks, ticks: u64) -> u64 {
        let until = self.at(Ticks(from.0.saturating_add(ticks)));
        until.0.saturating_sub(self.at(from).0)
    }
}

/// The time of one trace in the merged one.
#[derive(Debug)]
pub(super) struct Time<'a> {
    clock: ClockReader<'a>,
    /// What is added to monotonic time, in nanoseconds.
    shift: i128,
}

/// The same for a trace of a machine of which other traces came before. The clocks of two traces of
/// a machine differ by nanoseconds. A moment that an earlier trace had is the same moment here.
#[derive(Debug)]
pub(super) struct SharedTime<'a> {
    pub(super) time: Time<'a>,
    /// The moments of earlier traces, by the machine's counter.
    pub(super) known: &'a mut HashMap<Ticks, Ticks>,
}

// === impl Time ===

impl<'a> Time<'a> {
    pub(super) fn new(trace: &'a Trace, by_wall: bool) -> Self {
        Self {
            clock: ClockReader::new(trace.clock()),
            shift: match by_wall {
                true => booted(trace.clock()).unwrap_or(0),
                false => 0,
            },
        }
    }

    #[inline]
    pub(super) fn shifted(&self, ns: u64) -> u64 {
        if self.shift == 0 {
            return ns;
        }
        let at = i128::from(ns) + self.shift;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }
}

impl Moments for Time<'_> {
    #[inline]
    fn at(&mut self, ticks: Ticks) -> Ticks {
        let ns = self.clock.monotonic_ns(ticks);
        Ticks(self.shifted(ns))
    }
}

// === impl SharedTime ===

impl Moments for SharedTime<'_> {
    fn at(&mut self, ticks: Ticks) -> Ticks {
        let Self { time, known } = self;
        *known.entry(ticks).or_insert_with(|| time.at(ticks))
    }
}

/// The wall time at which the monotonic clock was 0, in nanoseconds. `None` without a clock.
pub(super) fn booted(clock: &Clock) -> Option<i128> {
    let anchor = clock.anchors().first()?;
    Some(i128::from(anchor.wall_ns) - i128::from(anchor.monotonic_ns))
}

/// True if all traces are of one boot of one machine, as far as they show it.
pub(super) fn are_of_one_boot(traces: &[Trace]) -> bool {
    let mut processes = traces.iter().flat_map(Trace::processes);
    let host = processes.next().map(|process| &process.host);
    let has_one_host = processes.all(|process| Some(&process.host) == host);
    let mut booted = traces.iter().filter_map(|trace| booted(trace.clock()));
    let first = booted.next();
    has_one_host && booted.all(|at| first.is_none_or(|first| is_one_boot(at, first)))
}

/// True if two boot times of one machine are of one boot.
pub(super) fn is_one_boot(one: i128, other: i128) -> bool {
    one.abs_diff(other) < u128::from(ONE_BOOT)
}

/// The clock of the merged trace, whose ticks are nanoseconds. It has no rate if the traces have
/// none: their ticks count as nanoseconds.
pub(super) fn anchors(traces: &[Trace], by_wall: bool, unit: CommonUnit) -> Vec<ClockAnchor> {
    let clocks = traces.iter().map(Trace::clock);
    let Some(booted) = clocks.clone().find_map(booted) else {
        return Vec::new();
    };
    let anchors = clocks.flat_map(|clock| clock.anchors().iter());
    let times = anchors.map(|anchor| match by_wall {
        true => anchor.wall_ns,
        false => anchor.monotonic_ns,
    });
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), at| {
        (first.min(at), last.max(at))
    });
    // The rate needs two of them.
    let ends = match unit.is_ticks() {
        true => vec![first],
        false => vec![first, last.max(first.saturating_add(1))],
    };
    let ends = ends.into_iter().map(|ns| {
        let wall = match by_wall {
            true => ns,
            false => u64::try_from((i128::from(ns) + booted).max(0)).unwrap_or(u64::MAX),
        };
        ClockAnchor {
            ticks: Ticks(ns),
            monotonic_ns: ns,
            wall_ns: wall,
        }
    });
    ends.collect()
}
