//! Follows one thread, and keeps the calls, slices and gaps for which there is room. It does not
//! divide the room among threads; `timeline` does. `off_cpu` keeps the times without a processor.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::longest::Longest;
use super::scale::Scale;
use super::thread_timeline::{Gap, OffCpuTimes, Slice, ThreadTimeline, TimelineCall};
use crate::analysis::Filter;
use crate::analysis::step::{Call, Ending, Open, Visitor};
use crate::model::{FunctionId, OffCpu, ThreadId, ThreadRuns, Ticks, Trace};

/// The most lanes of a thread. Calls further in are only counted.
pub const MOST_LANES: usize = 128;

/// The room for one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) calls: usize,
    pub(super) slices: usize,
    pub(super) gaps: usize,
    pub(super) off_cpu: usize,
}

/// Collects the calls of a thread.
pub(in crate::analysis) struct Drawing<'a> {
    trace: &'a Trace,
    filter: &'a Filter,
    /// The begin of the shown time.
    since_ns: u64,
    /// The end of the shown time; `None` if the filter has no end.
    until_ns: Option<u64>,
    origin_ns: u64,
    /// The room; `None` if the thread is not drawn.
    share: Option<Share>,
    longest: &'a mut Longest,
    thread: ThreadId,
    /// The depth of the outermost open call of a selected function.
    inside: Option<usize>,
    /// The number of outermost calls that go on after the shown time. 0 until its end.
    going_on: usize,
    /// The time of the latest event.
    last_ns: u64,
    calls: Vec<TimelineCall>,
    /// The length from which calls are kept. Shorter ones are summed up.
    kept_from_ns: u64,
    slices: foldhash::HashMap<(usize, u64), Sum>,
    /// The current slice of each depth, which is not in `slices` yet: the next call usually belongs
    /// to it.
    latest: Vec<Option<(u64, Sum)>>,
    slice_power: u32,
    summed: u64,
    too_deep: u64,
    gaps: Vec<Gap>,
    /// When the thread had a processor; `None` if that is not known.
    runs: Option<Arc<ThreadRuns>>,
    off_cpu: OffCpuTimes,
    /// The shown time, with the whole times without a processor at its begin and its end.
    off_cpu_within: (u64, u64),
    /// The end of the time whose part of `off_cpu` is complete.
    off_cpu_until_ns: u64,
}

/// The sums of a slice.
#[derive(Debug, Clone, Copy)]
struct Sum {
    calls: u64,
    busy_ns: u64,
    /// The candidate for a function with more than half of the time, and its lead.
    function: FunctionId,
    ahead_ns: u64,
}

// === impl Drawing ===

impl<'a> Drawing<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        filter: &'a Filter,
        scale: Scale,
        share: Option<Share>,
        (thread, runs): (ThreadId, Option<Arc<ThreadRuns>>),
        longest: &'a mut Longest,
    ) -> Self {
        let Scale {
            origin_ns,
            since_ns,
            until_ns,
            slice_power,
        } = scale;
        Self {
            trace,
            filter,
            since_ns,
            until_ns,
            origin_ns,
            share,
            longest,
            thread,
            inside: None,
            going_on: 0,
            last_ns: since_ns,
            calls: Vec::new(),
            kept_from_ns: 0,
            slices: foldhash::HashMap::default(),
            latest: Vec::new(),
            slice_power,
            summed: 0,
            too_deep: 0,
            gaps: Vec::new(),
            off_cpu_within: off_cpu_within(runs.as_deref(), since_ns, until_ns),
            runs,
            off_cpu: OffCpuTimes::default(),
            off_cpu_until_ns: 0,
        }
    }

    /// The timeline of the thread; `None` if the thread is not drawn.
    pub(super) fn finish(mut self) -> Option<ThreadTimeline> {
        let share = self.share?;
        self.cut(share.calls);
        self.put_latest();
        self.coarsen(share.slices);
        self.off_cpu.cut(share.off_cpu);
        let mut calls = self.calls;
        calls.sort_unstable_by_key(|call| (call.depth, call.start_ns, call.end_ns));
        let slices = self.slices.iter().map(|((depth, at), sum)| Slice {
            depth: *depth,
            at: *at,
            calls: sum.calls,
            busy_ns: sum.busy_ns,
            function: sum.function,
        });
        let mut slices: Vec<_> = slices.collect();
        slices.sort_unstable_by_key(|slice| (slice.depth, slice.at));
        Some(ThreadTimeline {
            thread: self.thread,
            calls,
            slices,
            slice_power: self.slice_power,
            kept_from_ns: self.kept_from_ns,
            summed: self.summed,
            too_deep: self.too_deep,
            gaps: self.gaps,
            off_cpu: self.off_cpu,
        })
    }

    fn take(&mut self, call: TimelineCall) {
        let Some(share) = self.share else { return };
        if call.depth >= MOST_LANES {
            self.too_deep += 1;
            return;
        }
        if call.len_ns() < self.kept_from_ns {
            self.sum(&call);
            self.coarsen(share.slices);
            return;
        }
        self.calls.push(call);
        if self.calls.len() > share.calls.saturating_mul(2).max(64) {
            self.cut(share.calls);
        }
    }

    /// A call that goes on, with the shown time after its latest event.
    #[cold]
    fn extended(&self, call: &Call, drawn: TimelineCall) -> TimelineCall {
        let end_ns = drawn.end_ns.max(self.until_ns.unwrap_or(0));
        // The innermost of these calls has that time for itself.
        let innermost = call.open.depth + 1 == self.going_on;
        let off_cpu = drawn.off_cpu.and_then(|known| {
            let runs = self.runs.as_ref()?;
            let off = runs.off_between(drawn.start_ns, end_ns)?;
            let more_ns = off.total_ns.saturating_sub(known.total_ns);
            let own_ns = if innermost { more_ns } else { 0 };
            let self_ns = known.self_ns.saturating_add(own_ns);
            Some(OffCpu { self_ns, ..off })
        });
        TimelineCall {
            end_ns,
            goes_on: true,
            off_cpu,
            ..drawn
        }
    }

    /// Takes the times without a processor within a call that is in no other call.
    #[inline(never)]
    fn take_off_cpu(&mut self, call: &TimelineCall) {
        let (Some(share), Some(runs)) = (self.share, &self.runs) else {
            return;
        };
        let (from_ns, until_ns) = self.off_cpu_within;
        let from_ns = from_ns.max(call.start_ns).max(self.off_cpu_until_ns);
        let until_ns = match call.goes_on {
            // A thread without a processor ends no call.
            true => until_ns,
            false => until_ns.min(call.end_ns),
        };
        self.off_cpu_until_ns = self.off_cpu_until_ns.max(until_ns);
        self.off_cpu.add(runs, (from_ns, until_ns), share.off_cpu);
    }

    /// Keeps at most `most` of the longest calls, and sums the others up. Of calls of the same
    /// length all are kept, or none.
    fn cut(&mut self, most: usize) {
        if self.calls.len() <= most {
            return;
        }
        let mut lengths: Vec<_> = self.calls.iter().map(TimelineCall::len_ns).collect();
        let longest_too_many = lengths.len() - 1 - most;
        let (_, too_many, _) = lengths.select_nth_unstable(longest_too_many);
        self.kept_from_ns = too_many.saturating_add(1);
        let from_ns = self.kept_from_ns;
        let (kept, short) = std::mem::take(&mut self.calls)
            .into_iter()
            .partition::<Vec<_>, _>(|call| call.len_ns() >= from_ns);
        self.calls = kept;
        let most = self.share.map_or(0, |share| share.slices);
        for call in short {
            self.sum(&call);
            self.coarsen(most);
        }
    }

    /// Adds a call to the slices that it covers.
    fn sum(&mut self, call: &TimelineCall) {
        self.summed += 1;
        let power = self.slice_power;
        let start = call
            .start_ns
            .max(self.since_ns)
            .saturating_sub(self.origin_ns);
        let end = call.end_ns.saturating_sub(self.origin_ns).max(start);
        let (first, last) = (start >> power, end >> power);
        for at in first..=last {
            let begin = (at << power).max(start);
            let over = (at << power).saturating_add(1 << power).min(end);
            let busy_ns = over.saturating_sub(begin);
            if at > first && busy_ns == 0 {
                continue;
            }
            let sum = Sum {
                calls: u64::from(at == first),
                busy_ns,
                function: call.function,
                ahead_ns: busy_ns,
            };
            self.add(call.depth, at, sum);
        }
    }

    #[inline]
    fn add(&mut self, depth: usize, at: u64, sum: Sum) {
        if depth >= self.latest.len() {
            self.latest.resize(depth + 1, None);
        }
        let latest = &mut self.latest[depth];
        match latest {
            Some((place, there)) if *place == at => there.add(&sum),
            _ => {
                if let Some((at, sum)) = latest.replace((at, sum)) {
                    self.put((depth, at), sum);
                }
            }
        }
    }

    fn put_latest(&mut self) {
        for (depth, latest) in std::mem::take(&mut self.latest).into_iter().enumerate() {
            if let Some((at, sum)) = latest {
                self.put((depth, at), sum);
            }
        }
    }

    fn put(&mut self, place: (usize, u64), sum: Sum) {
        match self.slices.entry(place) {
            Entry::Vacant(vacant) => {
                vacant.insert(sum);
            }
            Entry::Occupied(mut there) => there.get_mut().add(&sum),
        }
    }

    /// Makes slices longer until their number fits.
    #[inline]
    fn coarsen(&mut self, most: usize) {
        while self.slices.len() > most && self.slice_power < 62 {
            self.put_latest();
            self.slice_power += 1;
            for ((depth, at), sum) in std::mem::take(&mut self.slices) {
                self.put((depth, at >> 1), sum);
            }
        }
    }
}

impl Visitor for Drawing<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        self.last_ns = self.last_ns.max(open.start_ns);
        if self.inside.is_none() && self.filter.wants_function(open.function) {
            self.inside = Some(open.depth);
        }
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        self.last_ns = self.last_ns.max(call.end_ns);
        let Some(outermost) = self.inside else { return };
        if outermost == call.open.depth {
            self.inside = None;
        }
        if self
            .filter
            .until
            .is_some_and(|until| call.open.start >= until)
        {
            return;
        }
        let drawn = TimelineCall {
            depth: call.open.depth.saturating_sub(outermost),
            function: call.open.function,
            start_ns: call.open.start_ns,
            end_ns: call.end_ns.max(call.open.start_ns),
            finished: call.how != Ending::Closed,
            goes_on: false,
            off_cpu: call.off_cpu,
        };
        let drawn = if call.open.depth < self.going_on {
            self.extended(call, drawn)
        } else {
            drawn
        };
        let may_wait = || drawn.off_cpu.is_none_or(|off| off.total_ns > 0);
        if drawn.depth == 0 && self.runs.is_some() && may_wait() {
            self.take_off_cpu(&drawn);
        }
        if self.filter.wants_call(&call.open) {
            self.longest.see(self.thread, &drawn);
        }
        self.take(drawn);
    }

    fn lost(&mut self, ticks: Ticks, events: u64) {
        let end_ns = self.trace.clock().monotonic_ns(ticks);
        let start_ns = self.last_ns.min(end_ns);
        self.last_ns = end_ns;
        let Some(share) = self.share.filter(|_| self.filter.wants_time(ticks)) else {
            return;
        };
        self.gaps.push(Gap {
            start_ns,
            end_ns,
            events,
            losses: 1,
        });
        if self.gaps.len() > share.gaps.saturating_mul(2) {
            self.gaps = self.gaps.chunks(2).map(Gap::together).collect();
        }
    }

    fn window_over(&mut self, going_on: usize) {
        self.going_on = going_on;
    }
}

/// A part of the time, extended by the times without a processor that it has only a part of.
fn off_cpu_within(runs: Option<&ThreadRuns>, since_ns: u64, until_ns: Option<u64>) -> (u64, u64) {
    let at = |ns: u64| runs.and_then(|runs| runs.off_run_at(ns));
    let from_ns = at(since_ns).map_or(since_ns, |run| run.from_ns);
    let Some(until_ns) = until_ns else {
        return (from_ns, u64::MAX);
    };
    let last = until_ns.checked_sub(1).and_then(at);
    (from_ns, last.map_or(until_ns, |run| run.until_ns))
}

// === impl Sum ===

impl Sum {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
        if self.function == other.function {
            self.ahead_ns = self.ahead_ns.saturating_add(other.ahead_ns);
        } else if self.ahead_ns >= other.ahead_ns {
            self.ahead_ns -= other.ahead_ns;
        } else {
            self.function = other.function;
            self.ahead_ns = other.ahead_ns - self.ahead_ns;
        }
    }
}

// === impl Gap ===

impl Gap {
    /// Joins neighbouring gaps.
    fn together(neighbours: &[Self]) -> Self {
        let first = neighbours.first().copied().unwrap_or(Self {
            start_ns: 0,
            end_ns: 0,
            events: 0,
            losses: 0,
        });
        neighbours.iter().skip(1).fold(first, |sum, gap| Self {
            start_ns: sum.start_ns,
            end_ns: gap.end_ns.max(sum.end_ns),
            events: sum.events.saturating_add(gap.events),
            losses: sum.losses + gap.losses,
        })
    }
}
