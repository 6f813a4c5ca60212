//! The table of functions, threads, processes or modules: the number of calls of each, and their
//! times. This file sorts the rows; it does not count the calls.

use super::distribution::Distribution;
use super::step::Notes;
use crate::model::{FunctionId, ModuleId, ProcessId, ThreadId, Trace, XrayIds};

/// A table of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// One row for each subject that has calls, initially in order of id.
    pub rows: Vec<AccountRow>,
    /// The irregularities in the threads that the filter selects.
    pub notes: Notes,
}

/// The function, thread, process or module that a row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A function.
    Function(FunctionId),
    /// A thread.
    Thread(ThreadId),
    /// A process; `None` if the trace has no process for a thread.
    Process(Option<ProcessId>),
    /// A module; `None` if the trace has no module for a function.
    Module(Option<ModuleId>),
}

/// The calls of one subject. Times are in nanoseconds. Only calls with an exit have a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountRow {
    /// The subject.
    pub subject: Subject,
    /// The number of calls.
    pub calls: u64,
    /// The number of calls without an exit. They add no time.
    pub unfinished: u64,
    /// The time within the subject, with its callees. A call within a counted call of the same
    /// subject adds nothing.
    pub total_ns: u64,
    /// The time within the subject, without traced callees; never more than `total_ns`.
    pub self_ns: u64,
    /// The sum of the durations of all calls. A call within a call adds its time twice.
    pub sum_ns: u64,
    /// The durations of single calls. `None` if no call finished.
    pub durations: Option<Distribution>,
    /// The part of the total time for which the thread had a processor, as far as the trace shows
    /// that. `None` if it shows nothing.
    pub on_cpu: Option<OnCpu>,
}

/// The time on a processor within some calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnCpu {
    /// The time on a processor, in nanoseconds.
    pub ns: u64,
    /// The time of the calls of which it is known, in nanoseconds. If this is less than the total
    /// time of the subject, `ns` is what is known at least.
    pub of_ns: u64,
}

/// The kind of a table's subjects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum GroupBy {
    /// Functions: the function that was called.
    #[default]
    Function,
    /// Threads: the thread that called.
    Thread,
    /// Processes: the process of that thread.
    Process,
    /// Modules: the module of the function.
    Module,
}

/// The column that sorts the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The subject's id.
    Id,
    /// The subject's name.
    Name,
    /// The number of calls.
    Calls,
    /// The number of calls with an exit.
    Finished,
    /// The number of calls without an exit.
    Unfinished,
    /// The total time.
    Total,
    /// The self time.
    SelfTime,
    /// The sum of all durations.
    Sum,
    /// The time on a processor.
    OnCpu,
    /// The time without a processor.
    OffCpu,
    /// The shortest call.
    Min,
    /// The mean call.
    Mean,
    /// The median call.
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

/// The direction of a sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The least value comes first.
    Ascending,
    /// The greatest value comes first.
    Descending,
}

// === impl Account ===

impl Account {
    /// Sorts the rows. Equal rows are in order of id.
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
            SortBy::OnCpu => row.on_cpu.map_or(0, |on_cpu| on_cpu.ns),
            SortBy::OffCpu => row.on_cpu.map_or(0, OnCpu::off_ns),
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
                // The id that a table shows. Foreign logs number functions in any order.
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

// === impl OnCpu ===

impl OnCpu {
    /// The time without a processor within the same calls, in nanoseconds.
    #[must_use]
    pub fn off_ns(self) -> u64 {
        self.of_ns.saturating_sub(self.ns)
    }

    /// Adds the time within other calls.
    pub(super) fn add(&mut self, other: Self) {
        self.ns = self.ns.saturating_add(other.ns);
        self.of_ns = self.of_ns.saturating_add(other.of_ns);
    }
}

// === impl Subject ===

impl Subject {
    /// The function, if the subject is one.
    #[must_use]
    pub fn function(self) -> Option<FunctionId> {
        match self {
            Self::Function(id) => Some(id),
            Self::Thread(_) | Self::Process(_) | Self::Module(_) => None,
        }
    }

    /// The name that a user reads.
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
