//! What happens to the stack of a thread: calls that begin and end, and what the program says within them.

use crate::model::{DataKind, DataRef, FunctionId, ThreadId, Ticks, Values};

/// What happened to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A call began.
    Enter(Open),
    /// The innermost call ended.
    Leave(Call),
    /// The program said something, within the calls that are open.
    Data(Said),
    /// Events are missing here. Every call has been closed before.
    Lost {
        /// When the loss was noticed.
        ticks: Ticks,
        /// How many events.
        events: u64,
    },
}

/// Looks at calls as they begin and end. For speed, what it does is best `#[inline(always)]`.
pub trait Visitor {
    /// A call begins.
    fn enter(&mut self, open: &Open);

    /// The innermost call ends.
    fn leave(&mut self, call: &Call);

    /// So many events are missing here. Every call has been closed before.
    #[inline(always)]
    fn lost(&mut self, _ticks: Ticks, _events: u64) {}

    /// Whether it is shown no more for now, where that is for it to say.
    fn enough(&self) -> bool {
        false
    }
}

/// A visitor that ignores every call.
pub(super) struct NoVisitor;

/// A call that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// The thread that called.
    pub thread: ThreadId,
    /// The function that was called.
    pub function: FunctionId,
    /// How many traced calls it stands within.
    pub depth: usize,
    /// How many of these are calls of the same function.
    pub nesting: u32,
    /// When it began.
    pub start: Ticks,
    /// When it began, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Its first arguments, where recorded.
    pub args: Values,
}

/// A call that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// How it began.
    pub open: Open,
    /// When it ended; of a closed call, when it was last seen open.
    pub end: Ticks,
    /// The same on `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// Time within it but not within traced functions that it called, in nanoseconds.
    pub self_ns: u64,
    /// How it ended.
    pub how: Ending,
    /// Its result, where recorded.
    pub result: Option<u64>,
}

/// A custom or typed event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// The thread that said it.
    pub thread: ThreadId,
    /// When.
    pub ticks: Ticks,
    /// When, on `CLOCK_MONOTONIC`.
    pub ns: u64,
    /// How many traced calls it stands within.
    pub depth: usize,
    /// Custom, or typed with its type.
    pub kind: DataKind,
    /// For [`Steps::data`](super::Steps::data), until the next step.
    pub data: DataRef,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// By its exit.
    Normal,
    /// By a jump to another function: its exit says so, or it was deduced ([`Siblings::Deduced`]).
    TailExit,
    /// No exit was seen. Its duration is the least it can have been.
    Closed,
}

/// What calls become that have no exit of their own when a call further out exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Siblings {
    /// They are closed: an exception or a `longjmp` left them.
    #[default]
    Closed,
    /// They ended in sibling calls: with the exit that was seen. For logs whose writer did not record tail exits.
    Deduced,
}

/// What was met that is not an ordinary call. With a window of time: exits and losses in it, and calls that began in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notes {
    /// Exits of calls that are not open: they began before the trace or before a loss, or had been left ([`Astray`](crate::model::EventBody::Astray)).
    pub exits_without_entry: u64,
    /// Calls closed because the trace says that they were left without an exit.
    pub unwound: u64,
    /// Calls closed because a call further out ended.
    pub closed_by_outer_exit: u64,
    /// Calls taken to have ended in a sibling call, because that was asked for.
    pub deduced_siblings: u64,
    /// Calls closed because events are missing.
    pub closed_by_loss: u64,
    /// Calls still open at the end.
    pub closed_at_end: u64,
    /// Events that are missing.
    pub lost: u64,
    /// Blocks that were looked at, and whose events could not all be unpacked.
    pub damaged_blocks: u64,
}

// === impl Step ===

impl Step {
    /// Shows the step to `visitor`, which sees no data of the program.
    #[inline(always)]
    pub(super) fn show(self, visitor: &mut impl Visitor) {
        match self {
            Self::Enter(open) => visitor.enter(&open),
            Self::Leave(call) => visitor.leave(&call),
            Self::Lost { ticks, events } => visitor.lost(ticks, events),
            Self::Data(_) => {}
        }
    }
}

// === impl NoVisitor ===

impl Visitor for NoVisitor {
    #[inline(always)]
    fn enter(&mut self, _: &Open) {}

    #[inline(always)]
    fn leave(&mut self, _: &Call) {}
}

// === impl Call ===

impl Call {
    /// How long it took, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.open.start_ns)
    }
}

// === impl Notes ===

impl Notes {
    /// Adds the notes of another thread.
    pub fn add(&mut self, other: Self) {
        let Self {
            exits_without_entry,
            unwound,
            closed_by_outer_exit,
            deduced_siblings,
            closed_by_loss,
            closed_at_end,
            lost,
            damaged_blocks,
        } = other;
        self.exits_without_entry += exits_without_entry;
        self.unwound += unwound;
        self.closed_by_outer_exit += closed_by_outer_exit;
        self.deduced_siblings += deduced_siblings;
        self.closed_by_loss += closed_by_loss;
        self.closed_at_end += closed_at_end;
        self.lost = self.lost.saturating_add(lost);
        self.damaged_blocks += damaged_blocks;
    }
}
