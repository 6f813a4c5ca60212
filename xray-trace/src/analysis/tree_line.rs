//! A line of the call tree: a line for the begin and the end of a call, or one line for both if the
//! call has no shown content. This file also has the options of a tree.

use std::sync::Arc;

use super::step::{Call, Open, UserEvent};
use crate::model::{ThreadId, Ticks};

/// A line of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeLine {
    /// A call without shown content, from its begin to its end.
    Leaf(Call),
    /// A call begins.
    Begin(Open),
    /// A call ends.
    End(Call),
    /// A user event.
    Data {
        /// Its time and place.
        user_event: UserEvent,
        /// Its data.
        data: Arc<[u8]>,
    },
    /// Events are missing here.
    Lost {
        /// The thread.
        thread: ThreadId,
        /// The time at which the loss was noticed.
        ticks: Ticks,
        /// The number of missing events.
        events: u64,
    },
}

/// The selected calls that have a line. The default is all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Only calls of at least this duration in nanoseconds. A call without an exit has the time for
    /// which it was certainly open.
    pub min_ns: u64,
    /// Only this number of levels, counted from the outermost call of a selected function. `None`
    /// for all levels.
    pub levels: Option<usize>,
}

/// The order of the threads' lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// One thread after the other.
    ByThread,
    /// All threads together, in order of time.
    ByTime,
}

// === impl TreeLine ===

impl TreeLine {
    /// The thread of the line.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        match self {
            Self::Leaf(call) | Self::End(call) => call.open.thread,
            Self::Begin(open) => open.thread,
            Self::Data { user_event, .. } => user_event.thread,
            Self::Lost { thread, .. } => *thread,
        }
    }

    /// The time of the line; for a leaf, the begin of the call.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        match self {
            Self::Leaf(call) => call.open.start,
            Self::End(call) => call.end,
            Self::Begin(open) => open.start,
            Self::Data { user_event, .. } => user_event.ticks,
            Self::Lost { ticks, .. } => *ticks,
        }
    }
}
