//! The history of suppressed functions and of duty cycle windows, for users and for traces. The
//! controller writes it, and any thread reads it. It decides nothing.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use xray_trace::model::{DutyWindow, FunctionId, ProcessId, Suppression, Ticks};

use crate::{
    lock::lock,
    types::{Budget, BudgetStatus, Suppressed},
};

/// Times of suppression that are kept for each function. Older ones are merged into one.
const MOST_SPANS: usize = 8;
/// Windows that are kept.
const MOST_WINDOWS: usize = 16 << 10;
/// Functions that a status names.
const MOST_REPORTED: usize = 10;

/// The effect of a limit on the cost of tracing.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    budget: Budget,
    overhead: Option<f64>,
    event_ns: f64,
    suppressed: BTreeMap<FunctionId, SuppressionSpans>,
    /// The windows in ascending order, as a trace has them.
    windows: VecDeque<Open>,
    /// Windows since the attach, dropped ones included.
    opened: u64,
    /// True if the last window belongs to the current cycle.
    cycling: bool,
}

/// Times of suppression in ascending order. The last one has no end while the function is
/// suppressed.
#[derive(Debug, Default)]
struct SuppressionSpans(VecDeque<Span>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    from: Ticks,
    until: Option<Ticks>,
    /// Ticks of the span in which calls were recorded nevertheless.
    recorded: u64,
    /// Estimated number of calls that were not recorded.
    calls: f64,
}

/// A window in which everything was recorded.
#[derive(Debug, Clone, Copy)]
struct Open {
    from: Ticks,
    until: Ticks,
    /// Ticks to the begin of the next window.
    stands_for: u64,
}

// === impl History ===

impl History {
    /// The limit in force.
    pub(crate) fn budget(&self) -> Budget {
        lock(&self.0).budget.clone()
    }

    /// Puts a limit into force.
    pub(super) fn begin(&self, budget: Budget) {
        let mut books = lock(&self.0);
        books.budget = budget;
        books.overhead = None;
        books.cycling = false;
    }

    /// Sets the overhead, as a share, and the cost of an event, in nanoseconds.
    pub(super) fn cost(&self, overhead: Option<f64>, event_ns: f64) {
        let mut books = lock(&self.0);
        books.overhead = overhead;
        books.event_ns = event_ns;
    }

    /// Begins the suppression of these functions.
    pub(super) fn suppress(&self, functions: &[FunctionId], now: Ticks) {
        let mut books = lock(&self.0);
        for &id in functions {
            books.suppressed.entry(id).or_default().begin(now);
        }
    }

    /// Ends the suppression of these functions.
    pub(super) fn resume(&self, functions: impl IntoIterator<Item = FunctionId>, now: Ticks) {
        let mut books = lock(&self.0);
        for id in functions {
            if let Some(span) = books.current(id) {
                span.until = Some(now);
            }
        }
    }

    /// Ends all suppressions.
    pub(super) fn resume_all(&self, now: Ticks) {
        let all = lock(&self.0).suppressed.keys().copied().collect::<Vec<_>>();
        self.resume(all, now);
    }

    /// Adds the estimated number of calls that each function did not record.
    pub(super) fn unrecorded(&self, functions: impl Iterator<Item = (FunctionId, f64)>) {
        let mut books = lock(&self.0);
        for (id, calls) in functions {
            if let Some(span) = books.current(id) {
                span.calls += calls;
            }
        }
    }

    /// Adds ticks in which these functions were recorded although they are suppressed.
    pub(super) fn recorded(&self, functions: &[FunctionId], ticks: u64) {
        let mut books = lock(&self.0);
        for &id in functions {
            if let Some(span) = books.current(id) {
                span.recorded = span.recorded.saturating_add(ticks);
            }
        }
    }

    /// Adds a window. It stands for this many ticks until the next window begins.
    pub(super) fn window(&self, from: Ticks, until: Ticks, stands_for: u64) {
        let mut books = lock(&self.0);
        books.opened += 1;
        // The first window of a cycle has no predecessor: before it everything was recorded, or
        // nothing was to be.
        if std::mem::replace(&mut books.cycling, true) {
            books.end_window(from);
        }
        if books.windows.len() == MOST_WINDOWS {
            books.windows.pop_front();
        }
        books.windows.push_back(Open {
            from,
            until,
            stands_for,
        });
    }

    /// Ends a duty cycle. Everything has been recorded since `from`.
    pub(super) fn end_cycle(&self, from: Ticks) {
        let mut books = lock(&self.0);
        if std::mem::take(&mut books.cycling) {
            books.end_window(from);
        }
    }

    // --- readers

    /// True if a function is suppressed.
    pub(crate) fn is_suppressed(&self, id: FunctionId) -> bool {
        lock(&self.0)
            .suppressed
            .get(&id)
            .is_some_and(SuppressionSpans::is_suppressed)
    }

    /// All times of suppression, in the form of a trace.
    pub(crate) fn suppressions(&self, process: ProcessId) -> Vec<Suppression> {
        let books = lock(&self.0);
        let spans = books
            .suppressed
            .iter()
            .flat_map(|(&id, suppressed)| suppressed.0.iter().map(move |span| (id, span)));
        let suppression = |(function, span): (FunctionId, &Span)| Suppression {
            function,
            process,
            from: span.from,
            until: span.until,
            recorded: span.recorded,
            calls: span.whole_calls(),
        };
        spans.map(suppression).collect()
    }

    /// All windows, in the form of a trace.
    pub(crate) fn windows(&self, process: ProcessId) -> Vec<DutyWindow> {
        let books = lock(&self.0);
        let window = |open: &Open| DutyWindow {
            process,
            from: open.from,
            until: open.until,
            stands_for: open.stands_for,
        };
        books.windows.iter().map(window).collect()
    }

    pub(crate) fn status(&self, name: impl Fn(FunctionId) -> Option<String>) -> BudgetStatus {
        let books = lock(&self.0);
        let all = books.suppressed.iter();
        let mut all: Vec<(FunctionId, bool, u64)> = all
            .map(|(&id, spans)| (id, spans.is_suppressed(), spans.calls()))
            .collect();
        all.sort_by_key(|&(id, _, calls)| (Reverse(calls), id));
        let suppressed = all.iter().filter(|(_, is_suppressed, _)| *is_suppressed);
        let suppressed = suppressed.count();
        let top = all.iter().take(MOST_REPORTED);
        let top = top.map(|&(function, suppressed, unrecorded)| Suppressed {
            function,
            name: name(function).unwrap_or_default(),
            suppressed,
            unrecorded,
        });
        BudgetStatus {
            budget: books.budget.clone(),
            overhead: books.overhead,
            event_ns: books.event_ns,
            suppressed: u32::try_from(suppressed).unwrap_or(u32::MAX),
            unrecorded: all
                .iter()
                .fold(0, |sum, (_, _, calls)| sum.saturating_add(*calls)),
            top: top.collect(),
            windows: books.opened,
        }
    }
}

// === impl Books ===

impl Books {
    /// The span of a function that is suppressed now.
    fn current(&mut self, id: FunctionId) -> Option<&mut Span> {
        let SuppressionSpans(spans) = self.suppressed.get_mut(&id)?;
        spans.back_mut().filter(|span| span.until.is_none())
    }

    /// The last window stands for the time up to `end`.
    fn end_window(&mut self, end: Ticks) {
        if let Some(last) = self.windows.back_mut() {
            last.stands_for = end.0.saturating_sub(last.from.0);
        }
    }
}

// === impl SuppressionSpans ===

impl SuppressionSpans {
    fn begin(&mut self, now: Ticks) {
        if self.is_suppressed() {
            return;
        }
        if self.0.len() == MOST_SPANS
            && let (Some(oldest), Some(next)) = (self.0.pop_front(), self.0.front_mut())
        {
            *next = oldest.up_to(*next);
        }
        self.0.push_back(Span {
            from: now,
            until: None,
            recorded: 0,
            calls: 0.0,
        });
    }

    fn is_suppressed(&self) -> bool {
        self.0.back().is_some_and(|span| span.until.is_none())
    }

    fn calls(&self) -> u64 {
        let calls = self.0.iter().map(|span| span.whole_calls());
        calls.fold(0, u64::saturating_add)
    }
}

// === impl Span ===

impl Span {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, never below 0"
    )]
    fn whole_calls(&self) -> u64 {
        self.calls.round() as u64
    }

    /// Merges this span and a later one. Calls between the two were recorded.
    fn up_to(self, later: Self) -> Self {
        let between = self
            .until
            .map_or(0, |until| later.from.0.saturating_sub(until.0));
        Self {
            from: self.from,
            until: later.until,
            recorded: self
                .recorded
                .saturating_add(later.recorded)
                .saturating_add(between),
            calls: self.calls + later.calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: FunctionId = FunctionId(3);
    const PROCESS: ProcessId = ProcessId(0);

    #[test]
    fn repeated_suppressions_take_bounded_memory_and_all_are_counted() {
        let history = History::default();
        for time in 0..100 {
            let at = time * 10;
            history.suppress(&[F], Ticks(at));
            history.suppress(&[F], Ticks(at + 1));
            history.unrecorded([(F, 2.5), (FunctionId(9), 1.0)].into_iter());
            history.recorded(&[F], 1);
            history.resume([F], Ticks(at + 6));
            history.unrecorded([(F, 1000.0)].into_iter());
        }
        history.suppress(&[F], Ticks(2000));
        let suppressions = history.suppressions(PROCESS);
        assert_eq!(suppressions.len(), MOST_SPANS);
        let first = &suppressions[0];
        // 94 spans, with 4 recorded ticks between neighbours.
        assert_eq!((first.from, first.until), (Ticks(0), Some(Ticks(936))));
        assert_eq!((first.recorded, first.calls), (94 + 93 * 4, 235));
        assert_eq!(suppressions.last().unwrap().until, None);
        let status = history.status(|_| Some("f".to_owned()));
        assert_eq!((status.suppressed, status.top.len()), (1, 1));
        assert!((245..=255).contains(&status.unrecorded), "{status:?}");
        history.resume_all(Ticks(2001));
        assert_eq!(history.status(|_| None).suppressed, 0);
    }

    #[test]
    fn a_window_stands_for_the_time_up_to_the_next() {
        let history = History::default();
        for at in [0, 1000, 1900] {
            history.window(Ticks(at), Ticks(at + 5), 1000);
        }
        let windows = history.windows(PROCESS);
        let stands: Vec<u64> = windows.iter().map(|window| window.stands_for).collect();
        assert_eq!(stands, [1000, 900, 1000]);
        // Another cycle, much later.
        history.begin(Budget::None);
        history.window(Ticks(90_000), Ticks(90_005), 1000);
        assert_eq!(history.windows(PROCESS)[2].stands_for, 1000);
        assert_eq!(history.status(|_| None).windows, 4);
    }

    /// What is recorded after the end of a cycle stands for itself.
    #[test]
    fn the_last_window_stands_for_the_time_up_to_the_end_of_the_cycle() {
        let history = History::default();
        history.end_cycle(Ticks(50));
        history.window(Ticks(100), Ticks(105), 1000);
        history.end_cycle(Ticks(700));
        history.end_cycle(Ticks(900));
        assert_eq!(history.windows(PROCESS)[0].stands_for, 600);
    }
}
