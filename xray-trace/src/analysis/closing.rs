//! An order to the stack of a thread: close calls that saw no exit. The stack itself closes them,
//! one in each step.

use super::frames::Moment;
use super::step::Ending;
use crate::model::Ticks;

/// An order to close open calls down to a depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Closing {
    /// The number of calls that stay open.
    pub(super) keep: usize,
    /// The last moment at which the calls without an exit were certainly open.
    pub(super) last_seen: Moment,
    /// The cause.
    pub(super) cause: Cause,
}

/// The cause for closing calls.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause {
    /// The outermost of them has ended now, in this way and with this result.
    Exit(Ending, Option<u64>),
    /// An event of the trace reports that they were left.
    Unwound,
    /// This number of events is missing.
    Loss { ticks: Ticks, events: u64 },
    /// The trace ends.
    End,
}
