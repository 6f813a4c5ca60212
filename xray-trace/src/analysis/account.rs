//! The table of functions: how often, how long.

use std::cmp::Reverse;

use super::Filter;
use super::function_map::FunctionMap;
use super::histogram::Histogram;
use super::stack::{Call, Ending, Notes, Step, Steps};
use crate::model::{FunctionId, Trace};

/// The table of functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// A row per function that was called, at first in order of id.
    pub rows: Vec<AccountRow>,
    /// What was met that is not an ordinary call, in the threads that were wanted.
    pub notes: Notes,
}

/// What is known of one function's calls. Times are in nanoseconds and of calls whose exit was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountRow {
    /// The function.
    pub function: FunctionId,
    /// How often it was called.
    pub calls: u64,
    /// How many of these calls saw no exit. No time is counted for them.
    pub unfinished: u64,
    /// Time within it, including what it called. A call within a counted call of the same function is not counted again.
    pub total_ns: u64,
    /// Time within it, without traced functions that it called; never more than `total_ns`.
    pub self_ns: u64,
    /// The durations of single calls. `None` if no call finished.
    pub durations: Option<Distribution>,
}

/// The durations of single calls, in nanoseconds. `min` and `max` are exact; the others are exact up to 1024 calls, and
/// off by less than 1 % beyond. Each is a duration that stands at its rank, as in `llvm-xray account`: the median of `n` calls
/// is number `n/2` from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distribution {
    /// The shortest.
    pub min_ns: u64,
    /// The one in the middle.
    pub median_ns: u64,
    /// Longer than 99 in 100.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What to sort the table by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// By function, in order of id.
    Function,
    /// Most calls first.
    Calls,
    /// Longest total first.
    Total,
    /// Longest self time first.
    SelfTime,
    /// Longest shortest call first.
    Min,
    /// Longest median first.
    Median,
    /// Longest 99th percentile first.
    P99,
    /// Longest call first.
    Max,
}

/// What is gathered about one function.
#[derive(Debug, Default)]
struct Gathered {
    calls: u64,
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
    range: Option<(u64, u64)>,
    durations: Histogram,
    /// For each open call, outermost first, the time of the counted calls within it, which its own time will include.
    within_ns: Vec<u64>,
}

/// Makes the table of functions.
#[must_use]
pub fn account(trace: &Trace, filter: &Filter) -> Account {
    let mut functions = FunctionMap::<Option<Box<Gathered>>>::default();
    let mut notes = Notes::default();
    for mut steps in Steps::of_threads(trace).filter(|steps| filter.wants_thread(steps.thread())) {
        for step in &mut steps {
            let open = match &step {
                Step::Enter(open) => open,
                Step::Leave(call) => &call.open,
                Step::Data(_) | Step::Lost { .. } => continue,
            };
            // How a call began decides, so that each `leave` has its `enter`.
            if !filter.wants_call(open) {
                continue;
            }
            let function = functions.entry(open.function).get_or_insert_default();
            match &step {
                Step::Leave(call) => function.leave(call),
                Step::Enter(_) | Step::Data(_) | Step::Lost { .. } => function.enter(),
            }
        }
        notes.add(steps.notes());
    }
    let rows = functions.into_values();
    let rows = rows
        .filter_map(|(function, gathered)| Some(gathered?.row(function)))
        .collect();
    Account { rows, notes }
}

// === impl Account ===

impl Account {
    /// Sorts the rows; equal ones by function.
    pub fn sort(&mut self, by: SortBy) {
        let duration = |row: &AccountRow, which: fn(&Distribution) -> u64| {
            Reverse(row.durations.as_ref().map_or(0, which))
        };
        self.rows.sort_by_key(|row| {
            let key = match by {
                SortBy::Function => Reverse(0),
                SortBy::Calls => Reverse(row.calls),
                SortBy::Total => Reverse(row.total_ns),
                SortBy::SelfTime => Reverse(row.self_ns),
                SortBy::Min => duration(row, |durations| durations.min_ns),
                SortBy::Median => duration(row, |durations| durations.median_ns),
                SortBy::P99 => duration(row, |durations| durations.p99_ns),
                SortBy::Max => duration(row, |durations| durations.max_ns),
            };
            (key, row.function)
        });
    }
}

// === impl Gathered ===

impl Gathered {
    fn enter(&mut self) {
        self.within_ns.push(0);
    }

    fn leave(&mut self, call: &Call) {
        self.calls += 1;
        let within = self.within_ns.pop().unwrap_or(0);
        let counted = if call.how == Ending::Closed {
            self.unfinished += 1;
            // Its own time is not known; that of the finished calls within it is.
            within
        } else {
            let duration = call.duration_ns();
            self.self_ns = self.self_ns.saturating_add(call.self_ns);
            let (min, max) = self.range.unwrap_or((duration, duration));
            self.range = Some((min.min(duration), max.max(duration)));
            self.durations.add(duration);
            duration
        };
        let sum = self.within_ns.last_mut().unwrap_or(&mut self.total_ns);
        *sum = sum.saturating_add(counted);
    }

    fn row(mut self, function: FunctionId) -> AccountRow {
        let ranks = self.durations.ranks([50, 99]);
        let durations = self
            .range
            .zip(ranks)
            .map(|((min_ns, max_ns), [median, p99])| Distribution {
                min_ns,
                median_ns: median.clamp(min_ns, max_ns),
                p99_ns: p99.clamp(min_ns, max_ns),
                max_ns,
            });
        let Self {
            calls,
            unfinished,
            total_ns,
            self_ns,
            ..
        } = self;
        AccountRow {
            function,
            calls,
            unfinished,
            total_ns,
            self_ns,
            durations,
        }
    }
}
