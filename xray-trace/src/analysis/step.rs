//! Changes of the stack of a thread: begins and ends of calls, and user events between them. This
//! file has the types; `stack` produces the steps.

use crate::model::{DataKind, DataRef, FunctionId, OffCpu, ThreadId, Ticks, Values};

/// A change of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A call began.
    Enter(Open),
    /// The innermost call ended.
    Leave(Call),
    /// A user event or a kernel event, within the open calls.
    Data(UserEvent),
    /// Events are missing here. Every call has been closed before.
    Lost {
        /// The time at which the loss was noticed.
        ticks: Ticks,
        /// The number of missing events.
        events: u64,
    },
}

/// A visitor of calls as they begin and end. For speed, its methods should be `#[inline(always)]`.
pub trait Visitor {
    /// A call begins.
    fn enter(&mut self, open: &Open);

    /// The innermost call ends.
    fn leave(&mut self, call: &Call);

    /// Events are missing here. Every call has been closed before.
    #[inline(always)]
    fn lost(&mut self, _ticks: Ticks, _events: u64) {}

    /// A user event, within the open calls.
    #[inline(always)]
    fn user_event(&mut self, _user_event: &UserEvent, _data: &[u8]) {}

    /// The window is over, and the calls that are still open are closed next. The `going_on`
    /// outermost of them go on after the window. The others have no exit.
    #[inline(always)]
    fn window_over(&mut self, _going_on: usize) {}

    /// Whether the visitor takes no more calls for now. Only `visit_run` asks this.
    fn enough(&self) -> bool {
        false
    }
}

/// A visitor that ignores every call.
#[derive(Debug)]
pub(super) struct NoVisitor;

/// Two visitors of the same calls.
pub(super) struct Both<'a, A, B>(pub(super) &'a mut A, pub(super) &'a mut B);

/// A call that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// The thread that called.
    pub thread: ThreadId,
    /// The function that was called.
    pub function: FunctionId,
    /// The number of traced calls around it.
    pub depth: usize,
    /// The number of calls of the same function among these.
    pub nesting: u32,
    /// The time of its begin.
    pub start: Ticks,
    /// The time of its begin on `CLOCK_MONOTONIC`, in nanoseconds.
    pub start_ns: u64,
    /// Its first arguments, if recorded.
    pub args: Values,
}

/// A call that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its begin.
    pub open: Open,
    /// The time of its end; for a closed call, the last time at which it was certainly open.
    pub end: Ticks,
    /// The time of its end on `CLOCK_MONOTONIC`, in nanoseconds.
    pub end_ns: u64,
    /// The time within it, without the time in traced callees, in nanoseconds.
    pub self_ns: u64,
    /// The time within it for which its thread had no processor; `None` if that is not known.
    pub off_cpu: Option<OffCpu>,
    /// The way in which it ended.
    pub how: Ending,
    /// Its result, if recorded.
    pub result: Option<u64>,
}

/// A custom, typed or kernel event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserEvent {
    /// The thread.
    pub thread: ThreadId,
    /// The time.
    pub ticks: Ticks,
    /// The time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub ns: u64,
    /// The number of traced calls around it.
    pub depth: usize,
    /// Custom, typed with its type, or of the kernel.
    pub kind: DataKind,
    /// The reference for [`Steps::data`](super::Steps::data), valid until the next step.
    pub data: DataRef,
}

/// The way in which a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// By its exit.
    Normal,
    /// By a jump to another function: its exit is a tail exit, or it was deduced
    /// ([`Siblings::Deduced`]).
    TailExit,
    /// No exit was seen. The duration is a lower bound.
    Closed,
}

/// The treatment of calls without an exit when a call further out exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Siblings {
    /// They are closed: an exception or a `longjmp` left them.
    #[default]
    Closed,
    /// They ended in sibling calls, with the exit that was seen. For logs without tail exits.
    Deduced,
}

/// Irregularities of a trace. With a window of time: exits and losses in it, and calls that began
/// in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notes {
    /// Exits of calls that are not open: the calls began before the trace or before a loss, or had
    /// been left ([`UnmatchedExit`](crate::model::EventBody::UnmatchedExit)).
    pub exits_without_entry: u64,
    /// Calls that were closed because the trace reports that they were left without an exit.
    pub unwound: u64,
    /// Calls that were closed because a call further out ended.
    pub closed_by_outer_exit: u64,
    /// Calls that count as ended in a sibling call, as requested.
    pub deduced_siblings: u64,
    /// Calls that were closed because events are missing.
    pub closed_by_loss: u64,
    /// Calls still open at the end.
    pub closed_at_end: u64,
    /// Missing events.
    pub lost: u64,
    /// Blocks that were read, and whose events could not all be unpacked.
    pub damaged_blocks: u64,
}

// === impl NoVisitor ===

impl Visitor for NoVisitor {
    #[inline(always)]
    fn enter(&mut self, _: &Open) {}

    #[inline(always)]
    fn leave(&mut self, _: &Call) {}
}

// === impl Both ===

impl<A: Visitor, B: Visitor> Visitor for Both<'_, A, B> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        self.0.enter(open);
        self.1.enter(open);
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        self.0.leave(call);
        self.1.leave(call);
    }

    #[inline(always)]
    fn lost(&mut self, ticks: Ticks, events: u64) {
        self.0.lost(ticks, events);
        self.1.lost(ticks, events);
    }

    #[inline(always)]
    fn user_event(&mut self, user_event: &UserEvent, data: &[u8]) {
        self.0.user_event(user_event, data);
        self.1.user_event(user_event, data);
    }

    #[inline(always)]
    fn window_over(&mut self, going_on: usize) {
        self.0.window_over(going_on);
        self.1.window_over(going_on);
    }

    fn enough(&self) -> bool {
        self.0.enough() || self.1.enough()
    }
}

// === impl Call ===

impl Call {
    /// Its duration in nanoseconds.
    #[inline]
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.open.start_ns)
    }

    /// The time within it for which its thread had a processor, in nanoseconds; `None` if that is
    /// not known.
    #[must_use]
    pub fn on_cpu_ns(&self) -> Option<u64> {
        let off = self.off_cpu?;
        Some(self.duration_ns().saturating_sub(off.total_ns))
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
