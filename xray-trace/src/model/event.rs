//! What one thread did at one moment.

use super::{FunctionId, Ticks};

/// What a call event says about its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// The function was entered.
    Enter,
    /// The function returned.
    Exit,
    /// The function ended in a jump to another function, which returns in its place.
    TailExit,
}

/// One thing that happened in a thread. Which thread is said by the block that holds the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// When, by the time stamp counter. Never smaller than in the event before, within one block.
    pub ticks: Ticks,
    /// What.
    pub body: EventBody,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventBody {
    /// A function began or ended.
    Call {
        /// Which function.
        function: FunctionId,
        /// Began or ended, and how.
        kind: CallKind,
        /// The first argument, where the sled records it.
        arg: Option<u64>,
    },
    /// Events are missing here: what stood on the thread's stack before is no longer certain.
    Lost {
        /// How many.
        events: u64,
    },
}
