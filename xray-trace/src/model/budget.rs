//! Facts about calls that were not recorded and not counted: suppressed functions, the time outside
//! a duty cycle, filters, gaps.

use super::{FunctionId, ProcessId, Ticks};

/// A time for which a function was suppressed to keep to a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suppression {
    /// The function.
    pub function: FunctionId,
    /// The process in which it was off.
    pub process: ProcessId,
    /// Its begin.
    pub from: Ticks,
    /// Its end; `None` if it had not ended at the end of the trace.
    pub until: Option<Ticks>,
    /// Ticks in this time for which the function recorded nevertheless, to measure its rate of
    /// calls.
    pub recorded: u64,
    /// The estimated number of its calls that were not recorded.
    pub calls: u64,
}

/// A time in which all functions of a process recorded. Between such times none did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DutyWindow {
    /// The process.
    pub process: ProcessId,
    /// Its begin.
    pub from: Ticks,
    /// Its end.
    pub until: Ticks,
    /// The ticks that it represents: from its begin to the begin of the next one. Divided by its
    /// own length, this is the weight of its events.
    pub stands_for: u64,
}

/// A filter that was in force from a moment on: only events that it lets pass were recorded or
/// kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterNote {
    /// The process.
    pub process: ProcessId,
    /// Its begin; it is in force until the next one. `None` for the begin of the trace.
    pub since: Option<Ticks>,
    /// The filter as options of `xrayctl filter`: `--min-duration 10us --module libfoo.so`. Empty
    /// if the filter was removed.
    pub filter: String,
}

/// A time in which a process made calls that were not recorded and not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The process.
    pub process: ProcessId,
    /// Its begin; `None` if unknown.
    pub from: Option<Ticks>,
    /// Its end.
    pub until: Ticks,
    /// Its cause.
    pub cause: GapCause,
}

/// The cause of a [`Gap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapCause {
    /// No daemon was at work, so recording had closed itself.
    NoDaemon,
    /// The daemon could not read the rings of an earlier daemon.
    UnreadRings,
    /// Events that an earlier daemon had retained were damaged.
    DamagedEvents,
    /// A cause that this version does not know.
    Unknown,
}
