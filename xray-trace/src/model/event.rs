//! The events of a thread. The encoding of events is in `container`.

use super::{FunctionId, Ticks, Values};

/// The kind of a call event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// The function was entered.
    Enter,
    /// The function returned.
    Exit,
    /// The function ended in a jump to another function, which returns in its place.
    TailExit,
}

/// An event of a thread. The block of the event has the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// The time by the time stamp counter. Never smaller than in the event before, within one
    /// block.
    pub ticks: Ticks,
    /// The kind of the event, with its data.
    pub body: EventBody,
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventBody {
    /// A function began or ended.
    Call {
        /// The function.
        function: FunctionId,
        /// The kind of the call event.
        kind: CallKind,
        /// The arguments of an entry, or the result of an exit, if recorded.
        values: Values,
    },
    /// A user event: a custom or a typed event.
    Data {
        /// Custom, or typed with its type.
        kind: DataKind,
        /// The reference to its data, which the block's events contain.
        data: DataRef,
    },
    /// The thread runs on this processor from here on.
    Cpu {
        /// The number of the processor.
        cpu: u16,
    },
    /// Some of the innermost calls ended before the next event without an exit: an exception or a
    /// jump has left them, or the thread changed to another stack.
    Unwound {
        /// The number of these calls.
        calls: u64,
    },
    /// The next event of the block is the exit of a call that is not open, even if another call of
    /// the same function is open.
    UnmatchedExit,
    /// Events are missing here, so the open calls of the thread are unknown.
    Lost {
        /// The number of missing events.
        events: u64,
    },
}

/// The kind of an event with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataKind {
    /// `__xray_customevent`.
    Custom,
    /// `__xray_typedevent`, with the number of its type.
    Typed(u16),
    /// An event of the kernel tracepoint with this number in the trace. Blocks have no such events.
    Kernel(u16),
}

/// The place of a user event's data in the block of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataRef {
    pub(crate) at: u32,
    pub(crate) len: u32,
    /// Never less than `len`.
    pub(crate) size: u32,
    pub(crate) function: Option<FunctionId>,
}

// === impl DataRef ===

impl DataRef {
    /// The number of bytes in the trace.
    #[must_use]
    pub fn len(self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// The number of bytes that the program announced. It is greater than the number in the trace
    /// if a limit of the recorder cut the data.
    #[must_use]
    pub fn size(self) -> u64 {
        u64::from(self.size)
    }

    /// Whether bytes are missing.
    #[must_use]
    pub fn is_cut(self) -> bool {
        self.size > self.len
    }

    /// The function of the user event, if known.
    #[must_use]
    pub fn function(self) -> Option<FunctionId> {
        self.function
    }

    /// Whether the event has no data, which is allowed.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}
