//! The times of calls, thread by thread, in bounded memory for any number of calls: the data for a
//! picture of a trace.
//!
//! The longest calls of each thread are kept one by one. Shorter ones are summed up by depth and by
//! slice of time:
//!
//! ```text
//!  depth 0  |=============== a call ===============|      |===== a call =====|
//!  depth 1    |== a call ==| :12:40:41:38:  :  :5 |         :  :  :17:22:  :
//!                            └─ slices: calls that begin here, time in them ─┘
//! ```
//!
//! Each thread has a length from which all calls are kept; no shorter call is kept. A call is never
//! shorter than the calls within it, so the calls around a kept call are kept, too. The length of a
//! slice is a power of two of nanoseconds. It grows until the number of slices with calls fits.
//!
//! If the trace has run times, each thread also has the longest times within its outermost calls
//! for which it had no processor. Such a time lies within every call that is open at that time.

mod lanes;
mod longest;
mod off_cpu;
mod scale;
mod thread_timeline;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::threads::by_thread;
use super::threads_in_window::threads_in_window;
use crate::model::{FunctionId, ThreadId, Trace};

use lanes::{Drawing, Share};
use longest::Longest;
use scale::Scale;

pub use lanes::MOST_LANES;
pub use thread_timeline::{Gap, OffCpuSpan, OffCpuTimes, Slice, ThreadTimeline, TimelineCall};

/// The limits for all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineLimits {
    /// Threads.
    pub threads: usize,
    /// Calls, one by one.
    pub calls: usize,
    /// Slices of all depths. A thread has at least as many as it has lanes.
    pub slices: usize,
    /// Gaps: places with missing events. There can be twice as many.
    pub gaps: usize,
    /// Times without a processor.
    pub off_cpu: usize,
    /// The longest calls, for each function.
    pub longest: usize,
}

/// The times of calls.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The threads by id; if there are too many, the threads with the most events.
    pub threads: Vec<ThreadTimeline>,
    /// The number of other threads with events.
    pub other_threads: usize,
    /// The longest calls of each function, the longest first. A call without an exit has the time
    /// for which it was certainly open.
    pub longest: BTreeMap<FunctionId, Vec<(ThreadId, TimelineCall)>>,
}

/// The results for some threads.
#[derive(Debug, Default)]
pub(super) struct TimelinePart {
    threads: Vec<ThreadTimeline>,
    longest: Longest,
}

/// The way to draw each thread of a trace.
#[derive(Debug)]
pub(super) struct Drawings<'a> {
    trace: &'a Trace,
    filter: &'a Filter,
    scale: Scale,
    shares: BTreeMap<ThreadId, Share>,
    /// The number of threads without a share.
    other_threads: usize,
    /// The number of the longest calls of each function.
    longest: usize,
}

// === impl Timeline ===

impl Timeline {
    /// The timeline of the calls that `filter` selects, and of their callees. With a window of
    /// time, calls that are open in it are included, even if they began before. Calls that began in
    /// it have their ends; other calls that are open at its end go on. Times are compared
    /// with `origin_ns`, which must not be after any selected event.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter, origin_ns: u64, room: TimelineLimits) -> Self {
        let drawings = Drawings::new(trace, filter, origin_ns, room);
        let look = |part: &mut TimelinePart, mut steps: Steps<'_>| {
            part.draw(&drawings, &mut steps, |steps, drawing| steps.visit(drawing));
        };
        let parts = by_thread(trace, filter, Siblings::Closed, look);
        drawings.timeline(parts)
    }
}

// === impl TimelinePart ===

impl TimelinePart {
    /// Draws a thread while `visit` shows its calls to the visitor.
    pub(super) fn draw<'a>(
        &mut self,
        drawings: &Drawings<'_>,
        steps: &mut Steps<'a>,
        visit: impl FnOnce(&mut Steps<'a>, &mut Drawing<'_>),
    ) {
        let mut drawing = drawings.of(steps, &mut self.longest);
        visit(steps, &mut drawing);
        self.threads.extend(drawing.finish());
    }
}

// === impl Drawings ===

impl<'a> Drawings<'a> {
    /// The way to draw the threads that `filter` selects, as [`Timeline::new`] does.
    pub(super) fn new(
        trace: &'a Trace,
        filter: &'a Filter,
        origin_ns: u64,
        room: TimelineLimits,
    ) -> Self {
        let scale = Scale::new(trace, filter, origin_ns);
        let (shares, other_threads) = shares(trace, filter, scale, room);
        Self {
            trace,
            filter,
            scale,
            shares,
            other_threads,
            longest: room.longest,
        }
    }

    /// The drawing of a thread. Threads without a share also count for the longest calls of
    /// functions.
    fn of<'b>(&'b self, steps: &Steps<'_>, longest: &'b mut Longest) -> Drawing<'b> {
        longest.keep(self.longest);
        let thread = steps.thread();
        let share = self.shares.get(&thread).copied();
        Drawing::new(
            self.trace,
            self.filter,
            self.scale,
            share,
            (thread, steps.runs()),
            longest,
        )
    }

    /// The timeline of all threads.
    pub(super) fn timeline(self, parts: impl IntoIterator<Item = TimelinePart>) -> Timeline {
        let mut timeline = Timeline {
            other_threads: self.other_threads,
            ..Timeline::default()
        };
        let mut longest = Longest::default();
        longest.keep(self.longest);
        for part in parts {
            timeline.threads.extend(part.threads);
            longest.merge(part.longest);
        }
        timeline.longest = longest.into_calls();
        timeline
    }
}

/// The share of each thread in the room, by about the number of its calls; and the number of
/// threads without a share.
fn shares(
    trace: &Trace,
    filter: &Filter,
    scale: Scale,
    room: TimelineLimits,
) -> (BTreeMap<ThreadId, Share>, usize) {
    let threads = threads_in_window(trace, filter).into_iter();
    let threads = threads.map(|blocks| (blocks.thread, blocks.calls()));
    let mut threads: Vec<_> = threads.collect();
    threads.sort_by_key(|(thread, events)| (Reverse(*events), *thread));
    let others = threads.len().saturating_sub(room.threads);
    threads.truncate(room.threads);
    let wants: Vec<_> = threads.iter().map(|(_, events)| *events).collect();
    let [calls, slices, gaps] = [room.calls, room.slices, room.gaps].map(|all| divide(&wants, all));
    let shown = (scale.since_ns, scale.until_ns.unwrap_or(u64::MAX));
    let lengths = threads
        .iter()
        .map(|(thread, _)| (*thread, trace.switches_len(*thread, shown) as u64));
    let off_cpu = off_cpu_shares(lengths.collect(), room.off_cpu);
    let shares = threads.iter().enumerate().map(|(at, (thread, _))| {
        let share = Share {
            calls: calls[at],
            slices: slices[at],
            gaps: gaps[at].max(1),
            off_cpu: off_cpu.get(thread).copied().unwrap_or(0),
        };
        (*thread, share)
    });
    (shares.collect(), others)
}

/// The share of each thread in the room for `all` times without a processor, by the length of its
/// context switches in the shown time.
fn off_cpu_shares(mut lengths: Vec<(ThreadId, u64)>, all: usize) -> BTreeMap<ThreadId, usize> {
    lengths.sort_by_key(|(thread, len)| (Reverse(*len), *thread));
    let wants: Vec<_> = lengths.iter().map(|(_, len)| *len).collect();
    let shares = lengths.iter().zip(divide(&wants, all));
    shares
        .map(|((thread, _), share)| (*thread, share))
        .collect()
}

/// Divides `all` among `wants`, which are in descending order. Small wants are satisfied. Half of
/// the rest is divided evenly among the others, half in proportion to their wants.
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
