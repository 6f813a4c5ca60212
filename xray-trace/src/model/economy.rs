//! What was not recorded on purpose: functions that rested, time outside a duty cycle, what a filter kept out.

use super::{FunctionId, ProcessId, Ticks};

/// A function was off between two moments, to keep to a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// The function.
    pub function: FunctionId,
    /// The process in which it was off.
    pub process: ProcessId,
    /// From when on.
    pub from: Ticks,
    /// Until when; `None` if it still was when the trace ended.
    pub until: Option<Ticks>,
    /// For how many ticks in between it was recorded all the same, to see how often it is called.
    pub recorded: u64,
    /// About so many of its calls were not recorded: an estimate.
    pub calls: u64,
}

/// A time in which everything was recorded, of a process of which nothing is between such times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DutyWindow {
    /// The process.
    pub process: ProcessId,
    /// When it began.
    pub from: Ticks,
    /// When it ended.
    pub until: Ticks,
    /// For how many ticks it stands: from its begin to the begin of the next one. Divided by its own length, that is the weight of what it
    /// holds.
    pub stands_for: u64,
}

/// From a moment on, only what a filter lets pass was recorded or kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterNote {
    /// The process.
    pub process: ProcessId,
    /// From when on, until the next one; `None`: from the beginning.
    pub since: Option<Ticks>,
    /// In the words of `xrayctl filter`'s options: `--min-duration 10us --module libfoo.so`. Empty: everything again.
    pub filter: String,
}
