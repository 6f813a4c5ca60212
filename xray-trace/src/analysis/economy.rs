//! What was not recorded on purpose, and how much that may be: functions that rested, the time outside a duty cycle, filters.
//!
//! All of it is about the time from a trace's first event to its last event or anchor, or a window of that. Of a rest that lies in it
//! in part, so much of the calls is counted: they are an estimate anyway.

use std::collections::BTreeMap;

use super::Filter;
use crate::model::{Clock, DutyWindow, FilterNote, FunctionId, ProcessId, Rest, Ticks, Trace};

/// What was not recorded on purpose. Empty for a trace of all that happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Economy {
    /// Functions that were off at times, those with the most calls that are missing first.
    pub resting: Vec<Resting>,
    /// How much of the time was recorded, if that was a part.
    pub duty: Option<DutyCycle>,
    /// Filters that were in force, by process and time.
    pub filters: Vec<FilterSpan>,
}

/// A function that was off at times, to keep to a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resting {
    /// The function.
    pub function: FunctionId,
    /// How long it was not recorded, in all processes that say so together.
    pub off_ns: u64,
    /// How long that could have been at most; 0 if that is not known, of sums.
    pub of_ns: u64,
    /// About so many of its calls are not in the trace.
    pub calls: u64,
}

/// Times in which everything was recorded, with nothing between them, of all processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DutyCycle {
    /// How many there are.
    pub windows: u64,
    /// How long they are.
    pub recorded_ns: u64,
    /// How long they stand for. What they hold stands for this divided by `recorded_ns` times as much.
    pub stands_for_ns: u64,
}

/// A filter that was in force for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterSpan {
    /// Of which process.
    pub process: ProcessId,
    /// In the words of `xrayctl filter`'s options.
    pub filter: String,
    /// From when on, by `CLOCK_MONOTONIC`; `None`: all the time before.
    pub since_ns: Option<u64>,
    /// Until when; `None`: all the time after.
    pub until_ns: Option<u64>,
}

/// The time that it is about.
#[derive(Debug, Clone, Copy)]
struct Span<'a> {
    first: Ticks,
    last: Ticks,
    clock: &'a Clock,
}

// === impl Economy ===

impl Economy {
    /// What was not recorded of what `filter` wants. Rests are not of single threads, so threads make no difference.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter) -> Self {
        let span = Span::new(trace, filter);
        Self {
            resting: resting(trace, filter, span),
            duty: DutyCycle::new(trace, span),
            filters: filters(trace, span),
        }
    }

    /// Whether there is anything to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            resting,
            duty,
            filters,
        } = self;
        resting.is_empty() && duty.is_none() && filters.is_empty()
    }

    /// About how many calls of functions that rested are missing.
    #[must_use]
    pub fn calls(&self) -> u64 {
        let calls = self.resting.iter().map(|resting| resting.calls);
        calls.fold(0, u64::saturating_add)
    }
}

/// What all rests of a function come to.
fn resting(trace: &Trace, filter: &Filter, span: Option<Span<'_>>) -> Vec<Resting> {
    let mut functions = BTreeMap::<FunctionId, (Resting, ProcessId)>::new();
    let rests = trace.rests().iter();
    for rest in rests.filter(|rest| filter.wants_function(rest.function)) {
        let Some((off_ns, calls)) = (match span {
            Some(span) => span.off(rest),
            None => Some((0, rest.calls)),
        }) else {
            continue;
        };
        let length = span.map_or(0, |span| span.ns(span.first, span.last.0 - span.first.0));
        let none = Resting {
            function: rest.function,
            off_ns: 0,
            of_ns: length,
            calls: 0,
        };
        let entry = functions.entry(rest.function);
        let (resting, process) = entry.or_insert((none, rest.process));
        // They stand in order of process.
        if *process != rest.process {
            *process = rest.process;
            resting.of_ns = resting.of_ns.saturating_add(length);
        }
        // Rests of one process that overlap are a mistake of the file's.
        resting.off_ns = resting.off_ns.saturating_add(off_ns).min(resting.of_ns);
        resting.calls = resting.calls.saturating_add(calls);
    }
    let mut functions: Vec<_> = functions
        .into_values()
        .map(|(resting, _)| resting)
        .collect();
    functions.sort_by_key(|resting| std::cmp::Reverse(resting.calls));
    functions
}

/// When which filter was in force.
fn filters(trace: &Trace, span: Option<Span<'_>>) -> Vec<FilterSpan> {
    let mut found = Vec::new();
    for notes in trace.filters().chunk_by(|a, b| a.process == b.process) {
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

// === impl Resting ===

impl Resting {
    /// For which part of the time it was off, in thousandths; 0 only if it never was, `None` if that is not known.
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
        for window in trace.duty() {
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
            // Nothing stands for less than itself.
            let stands_for_ns = ns(stands_for.max(length));
            cycle.stands_for_ns = cycle.stands_for_ns.saturating_add(stands_for_ns);
        }
        (cycle.windows > 0).then_some(cycle)
    }

    /// How many times as much happened as was recorded, in tenths; `None` if nothing was.
    #[must_use]
    pub fn weight_tenths(&self) -> Option<u64> {
        let tenths = u128::from(self.stands_for_ns) * 10 + u128::from(self.recorded_ns / 2);
        let tenths = tenths.checked_div(u128::from(self.recorded_ns))?;
        Some(u64::try_from(tenths).unwrap_or(u64::MAX))
    }
}

// === impl Span ===

impl<'a> Span<'a> {
    /// `None` without events: then nobody knows what time they are about.
    fn new(trace: &'a Trace, filter: &Filter) -> Option<Self> {
        let blocks = trace.blocks().iter();
        let first = blocks.clone().map(|block| block.first).min()?;
        let clock = trace.clock();
        // A function that was called last, and off from then on, leaves no events but anchors.
        let anchor = clock.anchors().iter().map(|anchor| anchor.ticks).max();
        let last = blocks.map(|block| block.last).max().max(anchor)?;
        let first = first.max(filter.since.unwrap_or(first));
        let last = last.min(filter.until.unwrap_or(last)).max(first);
        Some(Self { first, last, clock })
    }

    fn ns(self, from: Ticks, ticks: u64) -> u64 {
        ns_of(self.clock, from, ticks)
    }

    /// How long a function was not recorded in this time, and about how many calls that were; `None` if it did not rest in it.
    fn off(self, rest: &Rest) -> Option<(u64, u64)> {
        let Rest {
            function: _,
            process: _,
            from,
            until,
            recorded,
            calls,
        } = *rest;
        let until = until.unwrap_or(self.last.max(from)).max(from);
        let (begin, end) = (from.max(self.first), until.min(self.last));
        let within = end.0.checked_sub(begin.0)?;
        let (within, all) = (u128::from(within), u128::from(until.0 - from.0));
        // It began and ended at once.
        let part = |number: u64| match all {
            0 => number,
            all => u64::try_from(u128::from(number) * within / all).unwrap_or(u64::MAX),
        };
        let within = u64::try_from(within).unwrap_or(u64::MAX);
        let off = within.saturating_sub(part(recorded));
        Some((self.ns(begin, off), part(calls)))
    }
}

/// How long so many ticks are from a moment on.
fn ns_of(clock: &Clock, from: Ticks, ticks: u64) -> u64 {
    let end = Ticks(from.0.saturating_add(ticks));
    clock
        .monotonic_ns(end)
        .saturating_sub(clock.monotonic_ns(from))
}
