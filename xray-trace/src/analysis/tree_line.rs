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
    /// Only calls that took at least these times.
    pub least: LeastTimes,
    /// Only this number of levels, counted from the outermost call of a selected function. `None`
    /// for all levels.
    pub levels: Option<usize>,
}

/// The least times of a call, in nanoseconds. 0 is no bound.
///
/// A call without an exit has the times for which it was certainly open. A call whose time on a
/// processor is not known meets no bound on that time, nor on the time without a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeastTimes {
    /// From its begin to its end.
    pub duration_ns: u64,
    /// For which its thread had a processor.
    pub on_cpu_ns: u64,
    /// For which its thread had no processor.
    pub off_cpu_ns: u64,
}

/// The order of the threads' lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// One thread after the other.
    ByThread,
    /// All threads together, in order of time.
    ByTime,
}

// === impl LeastTimes ===

impl LeastTimes {
    /// A bound on the duration alone.
    #[must_use]
    pub const fn of_duration(ns: u64) -> Self {
        Self {
            duration_ns: ns,
            on_cpu_ns: 0,
            off_cpu_ns: 0,
        }
    }

    /// Whether a call meets all bounds.
    #[inline]
    #[must_use]
    pub fn are_met_by(self, call: &Call) -> bool {
        call.duration_ns() >= self.duration_ns && self.parts_are_met_by(call)
    }

    /// Whether a call meets the bounds on the time with and without a processor.
    #[inline]
    fn parts_are_met_by(self, call: &Call) -> bool {
        if self.on_cpu_ns == 0 && self.off_cpu_ns == 0 {
            return true;
        }
        let times = call.on_cpu_ns().zip(call.off_cpu);
        times.is_some_and(|(on_ns, off)| on_ns >= self.on_cpu_ns && off.total_ns >= self.off_cpu_ns)
    }
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
