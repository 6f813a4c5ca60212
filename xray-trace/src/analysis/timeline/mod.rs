//! When calls happened, thread by thread, in bounded memory however many there are: what a picture of a trace is drawn from.
//!
//! The longest calls of each thread are kept one by one. Shorter ones are summed up, by how deep they stand and by slice of time:
//!
//! ```text
//!  depth 0  |=============== a call ===============|      |===== a call =====|
//!  depth 1    |== a call ==| :12:40:41:38:  :  :5 |         :  :  :17:22:  :
//!                            └─ slices: calls that begin here, time in them ─┘
//! ```
//!
//! For each thread there is a length such that all calls that are as long are kept, and none that is shorter. A call is never shorter than
//! those within it, so whatever is kept stands within calls that are kept. A slice is a power of two of nanoseconds, and grows until
//! those that have anything are few enough.

mod lanes;
mod longest;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::threads::by_thread;
use crate::model::{FunctionId, ThreadId, Ticks, Trace};

use lanes::Drawing;
use longest::Longest;

/// Calls within so many others have lanes of their own; those further in are counted.
pub const MOST_LANES: usize = 128;

/// The time is divided into so many slices at most.
const FINEST: u64 = 1 << 14;

/// How much is kept, of all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineRoom {
    /// Threads.
    pub threads: usize,
    /// Calls, one by one.
    pub calls: usize,
    /// Slices, of all depths. A thread has as many as it has lanes, if need be.
    pub slices: usize,
    /// Places where events are missing.
    pub gaps: usize,
    /// The longest calls of each function.
    pub longest: usize,
}

/// When calls happened.
#[derive(Debug, Default)]
pub struct Timeline {
    /// By id; if there are too many, those with the most events.
    pub threads: Vec<ThreadTimeline>,
    /// How many threads with events are not among them.
    pub other_threads: usize,
    /// The longest calls of each function, by function, the longest first. Of calls that saw no exit, as long as they were certainly open.
    pub longest: BTreeMap<FunctionId, Vec<(ThreadId, TimelineCall)>>,
}

/// When the calls of a thread happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTimeline {
    /// Whose.
    pub thread: ThreadId,
    /// The calls that are kept, by depth and time.
    pub calls: Vec<TimelineCall>,
    /// The others, by depth and time.
    pub slices: Vec<Slice>,
    /// A slice is 2 to the power of this nanoseconds long; the first one begins with [`Timeline`]'s origin.
    pub slice_power: u32,
    /// No call that is summed up is as long as this, in nanoseconds; 0 if none is.
    pub kept_from_ns: u64,
    /// Calls that are summed up.
    pub summed: u64,
    /// Calls that are within too many others to have a lane.
    pub too_deep: u64,
    /// Where events are missing, in order of time.
    pub gaps: Vec<Gap>,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineCall {
    /// How many calls it stands within, of those that are shown.
    pub depth: usize,
    /// The function that was called.
    pub function: FunctionId,
    /// When it began, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// When it ended; without an exit, when it was last seen open.
    pub end_ns: u64,
    /// Its exit was seen.
    pub finished: bool,
}

/// Calls that are summed up: those of one depth that begin within a slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// How many calls they stand within.
    pub depth: usize,
    /// Which slice, from 0.
    pub at: u64,
    /// How many begin here.
    pub calls: u64,
    /// How much of the slice is in such calls, also in those that began before it.
    pub busy_ns: u64,
    /// A function of theirs: the one with most of the time, if any has more than half of it.
    pub function: FunctionId,
}

/// Where events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// When the last event before it happened, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// When the loss was noticed.
    pub end_ns: u64,
    /// How many events; 0 if nobody knows.
    pub events: u64,
    /// How many losses these are. Neighbours become one if there are too many; then something happened between them.
    pub losses: u64,
}

/// What is kept of one thread.
#[derive(Debug, Clone, Copy)]
struct Share {
    calls: usize,
    slices: usize,
    gaps: usize,
}

/// How the time that is shown is divided.
#[derive(Debug, Clone, Copy)]
struct Scale {
    origin_ns: u64,
    /// What is shown begins then.
    since_ns: u64,
    /// How long slices are at first.
    slice_power: u32,
}

/// What some threads come to.
#[derive(Debug, Default)]
struct Part {
    threads: Vec<ThreadTimeline>,
    longest: Longest,
}

// === impl Timeline ===

impl Timeline {
    /// Calls of what `filter` wants, and what they call: with a window of time those that are open in it, also if they began before. Times are
    /// compared with `origin_ns`, which is not after any event that is wanted.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter, origin_ns: u64, room: TimelineRoom) -> Self {
        let (shares, other_threads) = shares(trace, filter, room);
        let scale = Scale::new(trace, filter, origin_ns);
        let parts = by_thread(
            trace,
            filter,
            Siblings::Closed,
            |part: &mut Part, steps: Steps<'_>| {
                part.longest.keep(room.longest);
                // The longest calls of functions are those of all threads.
                let share = shares.get(&steps.thread()).copied();
                let drawing = Drawing::new(trace, filter, scale, share, &mut part.longest);
                part.threads.extend(drawing.of(steps));
            },
        );
        let mut timeline = Self {
            other_threads,
            ..Self::default()
        };
        let mut longest = Longest::default();
        longest.keep(room.longest);
        for part in parts {
            timeline.threads.extend(part.threads);
            longest.merge(part.longest);
        }
        timeline.longest = longest.into_calls();
        timeline
    }
}

// === impl Scale ===

impl Scale {
    fn new(trace: &Trace, filter: &Filter, origin_ns: u64) -> Self {
        let clock = trace.clock();
        let since = filter.since.map(|since| clock.monotonic_ns(since));
        let since_ns = since.unwrap_or(origin_ns).max(origin_ns);
        let last = trace.blocks().iter().map(|block| block.last).max();
        let until = filter.until.into_iter().chain(last).min();
        let until_ns = until.map_or(since_ns, |until| clock.monotonic_ns(until));
        let slice = (until_ns.saturating_sub(since_ns) / FINEST).max(1);
        Self {
            origin_ns,
            since_ns,
            slice_power: slice.ilog2(),
        }
    }
}

/// What each thread has of the room, by how many events are said to be in it; and how many threads have none.
fn shares(
    trace: &Trace,
    filter: &Filter,
    room: TimelineRoom,
) -> (BTreeMap<ThreadId, Share>, usize) {
    let since = filter.since.unwrap_or(Ticks(0));
    let wanted = trace.blocks().iter().filter(|block| {
        let over = filter.until.is_some_and(|until| block.first >= until);
        filter.wants_thread(block.thread) && block.last >= since && !over
    });
    let mut events = BTreeMap::<ThreadId, u64>::new();
    for block in wanted {
        *events.entry(block.thread).or_default() += u64::from(block.calls);
    }
    let mut threads: Vec<_> = events.into_iter().collect();
    threads.sort_by_key(|(thread, events)| (Reverse(*events), *thread));
    let others = threads.len().saturating_sub(room.threads);
    threads.truncate(room.threads);
    let wants: Vec<_> = threads.iter().map(|(_, events)| *events).collect();
    let [calls, slices, gaps] = [room.calls, room.slices, room.gaps].map(|all| divide(&wants, all));
    let shares = threads.iter().enumerate().map(|(at, (thread, _))| {
        let share = Share {
            calls: calls[at],
            slices: slices[at],
            gaps: gaps[at].max(1),
        };
        (*thread, share)
    });
    (shares.collect(), others)
}

/// Divides what there is among those who want something, most first. Whoever wants little has it; half of the rest is the same for all others, half by how
/// much they want.
fn divide(wants: &[u64], all: usize) -> Vec<usize> {
    let mut left = all as u64;
    let mut shares = vec![0; wants.len()];
    let mut many = wants.len();
    while let Some(want) = many.checked_sub(1).map(|least| wants[least])
        && want <= left / 2 / many as u64
    {
        many -= 1;
        left -= want;
        shares[many] = want;
    }
    let sum: u128 = wants[..many].iter().map(|want| u128::from(*want)).sum();
    for (share, want) in shares.iter_mut().zip(&wants[..many]) {
        let even = left / 2 / many as u64;
        let own = u128::from(left - left / 2) * u128::from(*want) / sum.max(1);
        *share = even + u64::try_from(own).unwrap_or(0);
    }
    let shares = shares.into_iter();
    shares
        .map(|share| usize::try_from(share).unwrap_or(usize::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_given_than_there_is_and_little_is_not_refused() {
        for (wants, all, expected) in [
            (&[][..], 10, &[][..]),
            (&[5, 3], 100, &[5, 3]),
            (&[1000], 100, &[100]),
            (&[1000, 1000], 100, &[50, 50]),
            (&[1000, 3], 100, &[97, 3]),
            (&[900, 100], 100, &[70, 30]),
            (&[7, 7, 0], 0, &[0, 0, 0]),
            (&[u64::MAX, u64::MAX], 9, &[4, 4]),
        ] {
            let shares = divide(wants, all);
            assert_eq!(shares, expected, "{wants:?} of {all}");
            assert!(shares.iter().sum::<usize>() <= all);
        }
    }
}
