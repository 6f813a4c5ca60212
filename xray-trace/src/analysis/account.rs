//! The table of functions: how often, how long. Also of threads, processes and modules.

use super::Filter;
use super::filter::Choice;
use super::part::{NOBODY, Part};
use super::stack::Steps;
use super::step::{Notes, Siblings};
use super::threads::by_thread;
use crate::model::{FunctionId, ModuleId, ProcessId, ThreadId, Trace, XrayIds};

/// What calls are counted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum GroupBy {
    /// By the function that was called.
    #[default]
    Function,
    /// By the thread that called.
    Thread,
    /// By the process of that thread.
    Process,
    /// By the module that the function is in.
    Module,
}

/// Which calls are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// All.
    #[default]
    All,
    /// Those within a call of the same function, and those that had such a one within them.
    Recursive,
}

/// How to count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AccountOptions {
    /// What there is a row for.
    pub by: GroupBy,
    /// Which calls are counted.
    pub counted: Counted,
    /// What to make of calls without an exit.
    pub siblings: Siblings,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// A row per subject with calls, at first in order of id.
    pub rows: Vec<AccountRow>,
    /// What was met that is not an ordinary call, in the threads that were wanted.
    pub notes: Notes,
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A function.
    Function(FunctionId),
    /// A thread.
    Thread(ThreadId),
    /// A process; `None` if the trace does not tell which process a thread belongs to.
    Process(Option<ProcessId>),
    /// A module; `None` if the trace does not tell which module a function is in.
    Module(Option<ModuleId>),
}

/// What is known of one subject's calls. Times are in nanoseconds and of calls whose exit was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountRow {
    /// Whose.
    pub subject: Subject,
    /// How many calls there were.
    pub calls: u64,
    /// How many of these calls saw no exit. No time is counted for them.
    pub unfinished: u64,
    /// Time within it, including what it called. A call within a counted call of the same subject is not counted again.
    pub total_ns: u64,
    /// Time within it, without traced functions that it called; never more than `total_ns`.
    pub self_ns: u64,
    /// The sum of the durations of all calls: a call within a call counts twice.
    pub sum_ns: u64,
    /// The durations of single calls. `None` if no call finished.
    pub durations: Option<Distribution>,
}

/// The durations of single calls, in nanoseconds. `min`, `mean` and `max` are exact; the others are exact up to 256 calls, and
/// off by less than 1 % beyond. Each is a duration that stands at its rank, as in `llvm-xray account`: the median of `n` calls
/// is number `n/2` from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The shortest.
    pub min_ns: u64,
    /// The sum, divided by how many there are, rounded down.
    pub mean_ns: u64,
    /// The one in the middle.
    pub median_ns: u64,
    /// Longer than 9 in 10.
    pub p90_ns: u64,
    /// Longer than 99 in 100.
    pub p99_ns: u64,
    /// Longer than 999 in 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What to sort the table by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The subject's id.
    Id,
    /// The subject's name.
    Name,
    /// How many calls.
    Calls,
    /// How many calls with an exit.
    Finished,
    /// How many calls without an exit.
    Unfinished,
    /// Time within.
    Total,
    /// Time within, without what was called.
    SelfTime,
    /// The sum of all durations.
    Sum,
    /// The shortest call.
    Min,
    /// The mean call.
    Mean,
    /// The call in the middle.
    Median,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The longest call.
    Max,
}

/// Which end of the table is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The least first.
    Ascending,
    /// The greatest first.
    Descending,
}

/// Makes the table.
#[must_use]
pub fn account(trace: &Trace, filter: &Filter, options: AccountOptions) -> Account {
    let choice = Choice::new(filter, options.counted);
    let look = |part: &mut Part, steps: Steps<'_>| match options.by {
        GroupBy::Function => part.add(steps, choice, |call| {
            (call.open.function.0, call.open.nesting as usize)
        }),
        // Every call of a thread stands within all others that are open.
        GroupBy::Thread => {
            let thread = steps.thread().0;
            part.add(steps, choice, |call| (thread, call.open.depth));
        }
        GroupBy::Process => {
            let thread = trace.thread(steps.thread());
            let process = thread.map_or(NOBODY, |thread| thread.process.0);
            part.add(steps, choice, |call| (process, call.open.depth));
        }
        GroupBy::Module => part.add_modules(steps, trace, choice),
    };
    let parts = by_thread(trace, filter, options.siblings, look);
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    parts.for_each(|part| all.merge(part));
    all.into_account(options.by)
}

// === impl Subject ===

impl Subject {
    /// The function, if it is one.
    #[must_use]
    pub fn function(self) -> Option<FunctionId> {
        match self {
            Self::Function(id) => Some(id),
            Self::Thread(_) | Self::Process(_) | Self::Module(_) => None,
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn name(self, trace: &Trace) -> std::borrow::Cow<'_, str> {
        let unknown = || "(unknown)".into();
        match self {
            Self::Function(id) => trace.function_name(id),
            Self::Thread(id) => trace.thread(id).map_or_else(
                || format!("#{}", id.0).into(),
                |thread| thread.name.as_str().into(),
            ),
            Self::Process(id) => id
                .and_then(|id| trace.process(id))
                .map_or_else(unknown, |process| process.command.as_str().into()),
            Self::Module(id) => id
                .and_then(|id| trace.module(id))
                .map_or_else(unknown, |module| module.path.as_str().into()),
        }
    }
}

// === impl Account ===

impl Account {
    /// Sorts the rows; equal ones by id.
    pub fn sort(&mut self, trace: &Trace, by: SortBy, direction: Direction) {
        let duration = |row: &AccountRow, which: fn(&Distribution) -> u64| {
            row.durations.as_ref().map_or(0, which)
        };
        let key = |row: &AccountRow| match by {
            SortBy::Id | SortBy::Name => 0,
            SortBy::Calls => row.calls,
            SortBy::Finished => row.calls - row.unfinished,
            SortBy::Unfinished => row.unfinished,
            SortBy::Total => row.total_ns,
            SortBy::SelfTime => row.self_ns,
            SortBy::Sum => row.sum_ns,
            SortBy::Min => duration(row, |durations| durations.min_ns),
            SortBy::Mean => duration(row, |durations| durations.mean_ns),
            SortBy::Median => duration(row, |durations| durations.median_ns),
            SortBy::P90 => duration(row, |durations| durations.p90_ns),
            SortBy::P99 => duration(row, |durations| durations.p99_ns),
            SortBy::P999 => duration(row, |durations| durations.p999_ns),
            SortBy::Max => duration(row, |durations| durations.max_ns),
        };
        let ids = XrayIds::new(trace);
        self.rows.sort_by(|one, other| {
            let order = match by {
                // The id that is shown; foreign logs name functions in any order.
                SortBy::Id => {
                    let id = |row: &AccountRow| match row.subject {
                        Subject::Function(function) => Some(ids.shown(function)),
                        _ => None,
                    };
                    let order = id(one).cmp(&id(other));
                    order.then_with(|| one.subject.cmp(&other.subject))
                }
                SortBy::Name => one.subject.name(trace).cmp(&other.subject.name(trace)),
                _ => key(one).cmp(&key(other)),
            };
            let order = match direction {
                Direction::Ascending => order,
                Direction::Descending => order.reverse(),
            };
            order.then_with(|| one.subject.cmp(&other.subject))
        });
    }
}
