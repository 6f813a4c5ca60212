//! The parts of the program's run that were not recorded, beside counted losses, and estimates of
//! their size: suppressed functions, the time outside a duty cycle, filters, gaps.
//!
//! All figures cover the time from a trace's first event to its last event or anchor, or a window
//! of it. If a suppression is only partly in that time, its calls are counted in proportion: they
//! are an estimate anyway.

use std::collections::BTreeMap;

use super::Filter;
use crate::model::{
    Clock, DutyWindow, FilterNote, FunctionId, Gap, GapCause, ProcessId, Suppression, Ticks, Trace,
};

/// The parts that were not recorded, beside counted losses. Empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budget {
    /// Functions that were off at times, those with the most missing calls first.
    pub suppressed: Vec<Suppressed>,
    /// The recorded share of the time, if a duty cycle was in force.
    pub duty: Option<DutyCycle>,
    /// Filters that were in force, by process and time.
    pub filters: Vec<FilterSpan>,
    /// Times in which an unknown number of events was lost, by process and time.
    pub gaps: Vec<GapSpan>,
}

/// A function that was suppressed at times to keep to a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suppressed {
    /// The function.
    pub function: FunctionId,
    /// The time for which it was not recorded, in nanoseconds, summed over the processes that
    /// suppressed it.
    pub off_ns: u64,
    /// The longest possible value of `off_ns`; 0 if unknown, as in a profile.
    pub of_ns: u64,
    /// The estimated number of its calls that are missing in the trace.
    pub calls: u64,
}

/// The windows of a duty cycle in which all functions recorded, of all processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DutyCycle {
    /// The number of windows.
    pub windows: u64,
    /// Their total length in nanoseconds.
    pub recorded_ns: u64,
    /// The time that they represent, in nanoseconds. The real number of calls is approximately the
    /// recorded number times this, divided by `recorded_ns`.
    pub stands_for_ns: u64,
}

/// A filter that was in force for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterSpan {
    /// Its process.
    pub process: ProcessId,
    /// The filter as options of `xrayctl filter`.
    pub filter: String,
    /// Its begin on `CLOCK_MONOTONIC`; `None` if it was in force before the trace.
    pub since_ns: Option<u64>,
    /// Its end on `CLOCK_MONOTONIC`; `None` if it was still in force after the trace.
    pub until_ns: Option<u64>,
}

/// A time in which an unknown number of events was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapSpan {
    /// Its process.
    pub process: ProcessId,
    /// Its begin on `CLOCK_MONOTONIC`; `None` if unknown.
    pub since_ns: Option<u64>,
    /// Its end on `CLOCK_MONOTONIC`.
    pub until_ns: u64,
    /// Its cause.
    pub cause: GapCause,
}

/// The time that the figures cover.
#[derive(Debug, Clone, Copy)]
struct Span<'a> {
    first: Ticks,
    last: Ticks,
    clock: &'a Clock,
}

// === impl Budget ===

impl Budget {
    /// The unrecorded parts of the functions and the window that `filter` selects. The selection of
    /// threads has no effect, because a suppression is not of single threads.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter) -> Self {
        let span = Span::new(trace, filter);
        Self {
            suppressed: suppressed(trace, filter, span),
            duty: DutyCycle::new(trace, span),
            filters: filters(trace, span),
            gaps: gaps(trace, filter, span),
        }
    }

    /// Whether no part is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            suppressed,
            duty,
            filters,
            gaps,
        } = self;
        suppressed.is_empty() && duty.is_none() && filters.is_empty() && gaps.is_empty()
    }

    /// The estimated number of missing calls of suppressed functions.
    #[must_use]
    pub fn calls(&self) -> u64 {
        let calls = self.suppressed.iter().map(|suppressed| suppressed.calls);
        calls.fold(0, u64::saturating_add)
    }
}

/// The sums of the suppressions of each function.
fn suppressed(trace: &Trace, filter: &Filter, span: Option<Span<'_>>) -> Vec<Suppressed> {
    let mut functions = BTreeMap::<FunctionId, (Suppressed, ProcessId)>::new();
    let suppressions = trace.coverage().suppressions.iter();
    for suppression in
        suppressions.filter(|suppression| filter.wants_function(suppression.function))
    {
        let Some((off_ns, calls)) = (match span {
            Some(span) => span.off(suppression),
            None => Some((0, suppression.calls)),
        }) else {
            continue;
        };
        let length = span.map_or(0, |span| span.ns(span.first, span.last.0 - span.first.0));
        let none = Suppressed {
            function: suppression.function,
            off_ns: 0,
            of_ns: length,
            calls: 0,
        };
        let entry = functions.entry(suppression.function);
        let (suppressed, process) = entry.or_insert((none, suppression.process));
        // Suppressions are in order of process.
        if *process != suppression.process {
            *process = suppression.process;
            suppressed.of_ns = suppressed.of_ns.saturating_add(length);
        }
        // Suppressions of one process overlap only in a faulty file.
        suppressed.off_ns = suppressed
            .off_ns
            .saturating_add(off_ns)
            .min(suppressed.of_ns);
        suppressed.calls = suppressed.calls.saturating_add(calls);
    }
    let mut functions: Vec<_> = functions
        .into_values()
        .map(|(suppressed, _)| suppressed)
        .collect();
    functions.sort_by_key(|suppressed| std::cmp::Reverse(suppressed.calls));
    functions
}

/// The filters with the times for which they were in force.
fn filters(trace: &Trace, span: Option<Span<'_>>) -> Vec<FilterSpan> {
    let mut found = Vec::new();
    for notes in trace
        .coverage()
        .filters
        .chunk_by(|a, b| a.process == b.process)
    {
        let ends = notes.iter().skip(1).map(|note| note.since);
        let ends = ends.chain([None]);
        for (note, until) in notes.iter().zip(ends) {
            let FilterNote {
                process,
                since,
                filter,
            } = note;
            let (mut since, mut until) = (*since, until);
            if let Some(Span { first, last, .. }) = span {
                if since.is_some_and(|since| since > last) || until.is_some_and(|at| at < first) {
                    continue;
                }
                since = since.filter(|since| *since > first);
                until = until.filter(|until| *until < last);
            }
            if !filter.is_empty() {
                let ns = |ticks: Ticks| trace.clock().monotonic_ns(ticks);
                found.push(FilterSpan {
                    process: *process,
                    filter: filter.clone(),
                    since_ns: since.map(ns),
                    until_ns: until.map(ns),
                });
            }
        }
    }
    found
}

/// The gaps that are at least partly in the time that the figures cover. If that begins with the
/// trace, also the gaps before it: they may be the reason why no earlier event is there.
fn gaps(trace: &Trace, filter: &Filter, span: Option<Span<'_>>) -> Vec<GapSpan> {
    let is_within = |gap: &&Gap| {
        let Some(Span { first, last, .. }) = span else {
            return true;
        };
        let is_early_enough = gap.from.is_none_or(|from| from <= last);
        is_early_enough && (gap.until >= first || filter.since.is_none())
    };
    let gaps = trace.coverage().gaps.iter().filter(is_within);
    let ns = |ticks: Ticks| trace.clock().monotonic_ns(ticks);
    gaps.map(|gap| GapSpan {
        process: gap.process,
        since_ns: gap.from.map(ns),
        until_ns: ns(gap.until),
        cause: gap.cause,
    })
    .collect()
}

// === impl Suppressed ===

impl Suppressed {
    /// The share of the time for which it was off, in thousandths. 0 only if it was never off;
    /// `None` if unknown.
    #[must_use]
    pub fn off_thousandths(&self) -> Option<u64> {
        let thousandths = u128::from(self.off_ns) * 1000;
        let thousandths = thousandths.checked_div(u128::from(self.of_ns))?;
        u64::try_from(thousandths.max(u128::from(self.off_ns > 0))).ok()
    }
}

// === impl DutyCycle ===

impl DutyCycle {
    fn new(trace: &Trace, span: Option<Span<'_>>) -> Option<Self> {
        let mut cycle = Self::default();
        for window in &trace.coverage().duty {
            let DutyWindow {
                process: _,
                from,
                until,
                stands_for,
            } = *window;
            if span.is_some_and(|span| from > span.last || until < span.first) {
                continue;
            }
            let length = until.0.saturating_sub(from.0);
            let ns = |ticks| ns_of(trace.clock(), from, ticks);
            cycle.windows += 1;
            cycle.recorded_ns = cycle.recorded_ns.saturating_add(ns(length));
            // A window represents at least its own length.
            let stands_for_ns = ns(stands_for.max(length));
            cycle.stands_for_ns = cycle.stands_for_ns.saturating_add(stands_for_ns);
        }
        (cycle.windows > 0).then_some(cycle)
    }

    /// The ratio of what happened to what was recorded, in tenths; `None` if nothing was recorded.
    #[must_use]
    pub fn weight_tenths(&self) -> Option<u64> {
        let tenths = u128::from(self.stands_for_ns) * 10 + u128::from(self.recorded_ns / 2);
        let tenths = tenths.checked_div(u128::from(self.recorded_ns))?;
        Some(u64::try_from(tenths).unwrap_or(u64::MAX))
    }
}

// === impl Span ===

impl<'a> Span<'a> {
    /// `None` for a trace without events: the time that it covers is unknown.
    fn new(trace: &'a Trace, filter: &Filter) -> Option<Self> {
        let blocks = trace.blocks().iter();
        let first = blocks.clone().map(|block| block.first).min()?;
        let clock = trace.clock();
        // After the suppression of the only function that is called, a trace has only anchors.
        let anchor = clock.anchors().iter().map(|anchor| anchor.ticks).max();
        let last = blocks.map(|block| block.last).max().max(anchor)?;
        let first = first.max(filter.since.unwrap_or(first));
        let last = last.min(filter.until.unwrap_or(last)).max(first);
        Some(Self { first, last, clock })
    }

    fn ns(self, from: Ticks, ticks: u64) -> u64 {
        ns_of(self.clock, from, ticks)
    }

    /// The time for which a function was suppressed in this span, and the estimated number of calls
    /// in it. `None` if it was not suppressed in this span.
    fn off(self, suppression: &Suppression) -> Option<(u64, u64)> {
        let Suppression {
            function: _,
            process: _,
            from,
            until,
            recorded,
            calls,
        } = *suppression;
        let until = until.unwrap_or(self.last.max(from)).max(from);
        let (begin, end) = (from.max(self.first), until.min(self.last));
        let within = end.0.checked_sub(begin.0)?;
        let (within, all) = (u128::from(within), u128::from(until.0 - from.0));
        // The suppression began and ended at once.
        let part = |number: u64| match all {
            0 => number,
            all => u64::try_from(u128::from(number) * within / all).unwrap_or(u64::MAX),
        };
        let within = u64::try_from(within).unwrap_or(u64::MAX);
        let off = within.saturating_sub(part(recorded));
        Some((self.ns(begin, off), part(calls)))
    }
}

/// The length of this number of ticks after `from`, in nanoseconds.
fn ns_of(clock: &Clock, from: Ticks, ticks: u64) -> u64 {
    let end = Ticks(from.0.saturating_add(ticks));
    clock
        .monotonic_ns(end)
        .saturating_sub(clock.monotonic_ns(from))
}
