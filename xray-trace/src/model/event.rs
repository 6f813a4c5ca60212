//! What one thread did at one moment.

use super::{FunctionId, Ticks, Values};

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
        /// At its beginning its arguments, at its end its result, where they were recorded.
        values: Values,
    },
    /// The program said something: a custom or a typed event.
    Data {
        /// Which of the two.
        kind: DataKind,
        /// What it said; the block's events have the bytes.
        data: DataRef,
    },
    /// From here on the thread ran on this processor.
    Cpu {
        /// Its number.
        cpu: u16,
    },
    /// So many of the innermost calls ended before the next event, without an exit: an exception or a jump has left them, or the thread
    /// went to another stack.
    Unwound {
        /// How many.
        calls: u64,
    },
    /// The next event of the block is the exit of a call that is not open, though one of the same function may be.
    Astray,
    /// Events are missing here: what stood on the thread's stack before is no longer certain.
    Lost {
        /// How many.
        events: u64,
    },
}

/// What kind of event of the program's own it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataKind {
    /// `__xray_customevent`.
    Custom,
    /// `__xray_typedevent`, with the number of its type.
    Typed(u16),
}

/// Where the bytes of an event of the program's own stand in the block that the event is in.
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
    /// How many bytes there are.
    #[must_use]
    pub fn len(self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// How many bytes the program said there are: more than are here where the recorder has a limit.
    #[must_use]
    pub fn size(self) -> u64 {
        u64::from(self.size)
    }

    /// Whether bytes are missing.
    #[must_use]
    pub fn is_cut(self) -> bool {
        self.size > self.len
    }

    /// The function that the event stands in, where that is known.
    #[must_use]
    pub fn function(self) -> Option<FunctionId> {
        self.function
    }

    /// Whether there are none, which is allowed.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}
