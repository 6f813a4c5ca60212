//! Follows the stack of one thread: turns events into begins and ends of calls that are always
//! properly nested.
//!
//! Inconsistent events are never guessed at. A trace of ours reports calls that were left without
//! an exit (an exception, a `longjmp`), and exits of calls that are not open. In other traces an
//! exit ends the innermost open call of its function, and calls further in were left. Calls that
//! were left are *closed*.
//!
//! An exit of a function that is not open belongs to a call that began before the trace. It is
//! counted and otherwise ignored. After a loss every open call is closed. A closed call ends at the
//! last event before, when it was certainly still open, so the time after that event belongs to its
//! caller.
//!
//! With a window, there are steps for the events in the window, and for later events until every
//! call that began in the window has ended. The calls that are open at its begin come first, as if
//! they began then. At the end the open calls are closed. A closed call that is open at the end of
//! the window *goes on* ([`Steps::goes_on`]); the first event after the window shows that. Counts
//! cover the window alone. So the result does not depend on where reading began before the window.

mod call_stack;
mod irregular;

use std::sync::Arc;
use std::vec;

use self::call_stack::CallStack;
use super::closing::{Cause, Closing};
use super::frames::Moment;
use super::kernel_queue::{KernelQueue, TakenEvent};
use super::step::{Call, NoVisitor, Notes, Open, Siblings, Step, UserEvent, Visitor};
use super::thread_blocks::ThreadBlocks;
use super::unmatched_exit::{UnmatchedExit, UnmatchedExits};
use super::window::Window;
use crate::container::{Block, Events, Form, OpenCall};
use crate::event_format::{EventFilter, RecordedData};
use crate::model::{
    CallKind, Clock, DataKind, Event, EventBody, ThreadId, ThreadRuns, Ticks, Trace,
};

/// The steps of one thread's stack, in order of time.
#[derive(Debug)]
pub struct Steps<'a> {
    stack: CallStack<'a>,
    /// The blocks that were not begun yet.
    blocks: vec::IntoIter<&'a Block>,
    /// The events of the current block.
    events: Option<Events>,
    /// An event that was taken out of them too early, because it is not before `turn`.
    pending: Option<Event>,
    /// The next bound: the begin of the window before it is reached, then its end.
    turn: Ticks,
    /// The kernel events of the thread; `None` if there are none, or they have no steps.
    kernel: Option<Box<KernelQueue<'a>>>,
    /// The next bound, or the time of the next kernel event if that is earlier.
    due: Ticks,
    /// The calls that are open at the begin of the window, and have no step yet.
    begun: vec::IntoIter<Open>,
    /// The steps end when fewer calls are open than this. 0 until the end of the window.
    enough: usize,
    /// The number of outermost calls that go on after the window. 0 until the steps close them.
    going_on: usize,
    /// The trace, and its user events that have a step; `None` if all of them have one.
    user_events: Option<(&'a Trace, &'a EventFilter)>,
}

/// The next event of a thread.
enum NextEvent {
    Program(Event),
    Kernel(TakenEvent),
}

// === impl Steps ===

impl<'a> Steps<'a> {
    /// The steps of one thread. `blocks` are its blocks, in order of time.
    #[must_use]
    pub fn new(clock: &'a Clock, thread: ThreadId, blocks: Vec<&'a Block>) -> Self {
        Self {
            stack: CallStack::new(clock, thread),
            blocks: blocks.into_iter(),
            events: None,
            pending: None,
            turn: Window::default().until,
            kernel: None,
            due: Window::default().until,
            begun: Vec::new().into_iter(),
            enough: 0,
            going_on: 0,
            user_events: None,
        }
    }

    /// The same steps, with this treatment of calls that have no exit.
    #[must_use]
    pub fn with_siblings(mut self, siblings: Siblings) -> Self {
        self.stack.siblings = siblings;
        self
    }

    /// The same steps, whose calls have the time for which their thread had no processor.
    #[must_use]
    pub fn with_runs(mut self, runs: Option<ThreadRuns>) -> Self {
        self.stack.frames.use_runs(runs);
        self
    }

    /// The same steps, without the user events that `filter` does not select. `trace` has the names
    /// of their types.
    #[must_use]
    pub fn with_user_events(mut self, trace: &'a Trace, filter: &'a EventFilter) -> Self {
        self.user_events = (!filter.is_empty()).then_some((trace, filter));
        self
    }

    /// The same steps, and the kernel events of the thread. A kernel event does not show whether a
    /// call is open, so it never changes the end of a call.
    #[must_use]
    pub fn with_kernel_events(mut self, trace: &'a Trace) -> Self {
        self.kernel = KernelQueue::of(trace, self.thread());
        self.turn_at(self.turn);
        self
    }

    /// When the thread had a processor, if the steps use that ([`Self::with_runs`]).
    pub(super) fn runs(&self) -> Option<Arc<ThreadRuns>> {
        self.stack.frames.runs()
    }

    /// The same steps, which also keep the first `limit` exits without an entry.
    pub(super) fn keeping_unmatched(mut self, limit: usize) -> Self {
        self.stack.unmatched = UnmatchedExits::with_limit(limit);
        self
    }

    /// The exits without an entry that the steps kept.
    pub(super) fn into_unmatched(self) -> Vec<UnmatchedExit> {
        self.stack.unmatched.into_kept()
    }

    /// The steps of every thread of a trace that has events, by thread. Their calls do not have the
    /// time without a processor ([`Self::with_runs`]), and kernel events are no steps
    /// ([`Self::with_kernel_events`]).
    pub fn of_threads(trace: &'a Trace) -> impl Iterator<Item = Self> {
        let threads = trace.blocks_by_thread().into_iter();
        threads.map(|(thread, blocks)| Self::new(trace.clock(), thread, blocks))
    }

    /// The steps of a thread in its window, and after it until every call of the window has ended.
    pub(super) fn in_window(
        trace: &'a Trace,
        thread_blocks: ThreadBlocks<'a>,
        siblings: Siblings,
    ) -> Self {
        let ThreadBlocks {
            thread,
            window,
            open,
            blocks,
        } = thread_blocks;
        let mut this = Self::new(trace.clock(), thread, blocks)
            .with_siblings(siblings)
            .with_runs(trace.thread_runs(thread))
            .with_kernel_events(trace);
        this.stack.open(open);
        this.stack.window = window;
        if window.since > Ticks(0) {
            if let Some(kernel) = &mut this.kernel {
                kernel.skip_before(window.since);
            }
            this.turn_at(window.since);
            this.follow(&mut NoVisitor);
            this.begin();
        }
        this.turn_at(window.until);
        this
    }

    /// The calls that are open before that moment, outermost first, and the time of the last event
    /// before it. `open` are the calls that are open before the first block, outermost first.
    pub(super) fn open_at(mut self, open: Vec<OpenCall>, at: Ticks) -> (Vec<Open>, Moment) {
        self.stack.open(open);
        self.stack.window.since = at;
        self.turn_at(at);
        self.follow(&mut NoVisitor);
        (self.stack.frames.opens().collect(), self.stack.now)
    }

    /// Enters the window.
    fn begin(&mut self) {
        self.stack.begin_window();
        self.begun = self.stack.frames.opens().collect::<Vec<_>>().into_iter();
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.stack.thread
    }

    /// The irregularities so far.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.stack.notes
    }

    /// The number of processor events so far. They are no steps.
    #[must_use]
    pub fn processors(&self) -> u64 {
        self.stack.processors
    }

    /// The latest processor of the thread; `None` before the first processor event.
    #[must_use]
    pub fn processor(&self) -> Option<u16> {
        self.stack.processor
    }

    /// Whether the call of the latest step goes on after the window. Such a call is
    /// [`Ending::Closed`](super::Ending::Closed), because the steps end before its exit. It is open
    /// until the end of the window or longer.
    #[must_use]
    pub fn goes_on(&self, call: &Call) -> bool {
        call.open.depth < self.going_on
    }

    /// The data of the user event of the latest step; empty after the next step.
    #[must_use]
    pub fn data(&self, user_event: &UserEvent) -> &[u8] {
        match (user_event.kind, &self.kernel, &self.events) {
            (DataKind::Kernel(_), Some(kernel), _) => kernel.data(),
            (DataKind::Custom | DataKind::Typed(_), _, Some(events)) => {
                events.data(user_event.data)
            }
            _ => &[],
        }
    }

    /// Makes `turn` the next bound.
    fn turn_at(&mut self, turn: Ticks) {
        self.turn = turn;
        let kernel = self.kernel.as_ref();
        self.due = kernel.map_or(turn, |kernel| kernel.due().min(turn));
    }

    /// The next event of the program or the kernel, or `None` at a bound.
    #[inline]
    fn event(&mut self) -> Option<NextEvent> {
        if self.stack.frames.len() < self.enough {
            return None;
        }
        let event = match self.pending.take().or_else(|| self.unpack()) {
            Some(event) => event,
            // The window may have ended.
            None if self.stack.frames.len() < self.enough => return None,
            None => return self.kernel_event().map(NextEvent::Kernel),
        };
        if event.ticks >= self.due {
            return self.after_due(event);
        }
        Some(NextEvent::Program(event))
    }

    /// The next kernel event, if it is before the bound.
    #[cold]
    fn kernel_event(&mut self) -> Option<TakenEvent> {
        let taken = self.kernel.as_mut()?.take_before(self.turn);
        self.turn_at(self.turn);
        taken
    }

    /// Handles an event at or after the next kernel event or the bound.
    #[cold]
    fn after_due(&mut self, event: Event) -> Option<NextEvent> {
        if let Some(taken) = self.kernel_event() {
            self.pending = Some(event);
            return Some(NextEvent::Kernel(taken));
        }
        if event.ticks < self.turn {
            return Some(NextEvent::Program(event));
        }
        self.after_turn(event).map(NextEvent::Program)
    }

    /// Handles the first event that is not before the bound. Returns it if it is still needed.
    #[cold]
    fn after_turn(&mut self, event: Event) -> Option<Event> {
        if self.turn == self.stack.window.since {
            self.pending = Some(event);
            return None;
        }
        if self.stack.window.is_over_at(event.ticks) && self.ends() {
            self.pending = Some(event);
            return None;
        }
        Some(event)
    }

    /// Handles the end of the window. Returns whether the steps end here, because no call that
    /// began in the window is open.
    #[cold]
    fn ends(&mut self) -> bool {
        self.turn_at(Window::default().until);
        self.enough = self.stack.frames.begun_before(self.stack.window.since) + 1;
        self.stack.frames.len() < self.enough
    }

    /// The number of open calls that go on after the window, at the end of the steps. All of them
    /// do, except for the calls that the next event leaves without an exit: these were open at the
    /// last event before. None do if no event follows.
    #[cold]
    fn count_going_on(&mut self) -> usize {
        if self.enough == 0 {
            // The trace ends before the window does.
            return 0;
        }
        // Counts do not cover the next event.
        let notes = self.stack.notes;
        let next = self.pending.take().or_else(|| self.unpack());
        self.stack.notes = notes;
        let Some(event) = next else { return 0 };
        let open = self.stack.frames.len();
        match event.body {
            EventBody::Lost { .. } => 0,
            EventBody::Unwound { calls } => {
                open.saturating_sub(usize::try_from(calls).unwrap_or(usize::MAX))
            }
            EventBody::Call {
                function,
                kind: CallKind::Exit | CallKind::TailExit,
                ..
            } if self.stack.siblings == Siblings::Closed && !self.stack.unmatched_exit => {
                let depth = self.stack.frames.depth_of(function);
                depth.map_or(open, |depth| depth + 1)
            }
            EventBody::Call { .. }
            | EventBody::Data { .. }
            | EventBody::UnmatchedExit
            | EventBody::Cpu { .. } => open,
        }
    }

    /// The next event. A damaged block ends in a loss of unknown size.
    #[inline]
    fn unpack(&mut self) -> Option<Event> {
        loop {
            if let Some(events) = &mut self.events {
                match events.next() {
                    Some(Ok(event)) => return Some(event),
                    Some(Err(_)) => {
                        self.stack.notes.damaged_blocks += 1;
                        return Some(Event {
                            ticks: self.stack.now.0,
                            body: EventBody::Lost { events: 0 },
                        });
                    }
                    None => {
                        self.events = None;
                        // A reader that begins with the next block does not see the mark either.
                        self.stack.unmatched_exit = false;
                    }
                }
            }
            let next = self.blocks.as_slice().first()?;
            let over =
                self.turn == self.stack.window.until && self.stack.window.is_over_at(next.first);
            // Kernel events of the window are before its end.
            if over && (self.due < self.turn || self.ends()) {
                return None;
            }
            self.events = Some(self.blocks.next()?.events());
        }
    }

    /// Passes all remaining calls to `visitor`. This is much faster than step by step.
    #[inline]
    pub fn visit(&mut self, visitor: &mut impl Visitor) {
        self.begun.by_ref().for_each(|open| visitor.enter(&open));
        self.follow(visitor);
        while let Some(step) = self.next() {
            visitor.window_over(self.going_on);
            self.show(step, visitor);
        }
    }

    /// The blocks that were not begun yet.
    pub(super) fn blocks(&self) -> &[&'a Block] {
        self.blocks.as_slice()
    }

    /// Passes the calls of the next block to `visitor`. Calls that are open at its end stay open.
    pub(super) fn visit_block(&mut self, visitor: &mut impl Visitor) {
        self.events = self.blocks.next().map(Block::events);
        let others = std::mem::take(&mut self.blocks);
        self.follow(visitor);
        self.blocks = others;
    }

    /// The open calls.
    pub(super) fn open_calls(&self) -> impl ExactSizeIterator<Item = OpenCall> + Clone {
        self.stack.frames.open_calls()
    }

    /// Passes the latest step to `visitor`.
    #[inline(always)]
    pub(super) fn show(&self, step: Step, visitor: &mut impl Visitor) {
        match step {
            Step::Enter(open) => visitor.enter(&open),
            Step::Leave(call) => visitor.leave(&call),
            Step::Lost { ticks, events } => visitor.lost(ticks, events),
            Step::Data(user_event) => visitor.user_event(&user_event, self.data(&user_event)),
        }
    }

    /// Follows the stack for as long as there are events.
    #[inline]
    fn follow(&mut self, visitor: &mut impl Visitor) {
        loop {
            self.visit_run(visitor);
            // Anything that the run did not handle.
            let step = match self.stack.closing {
                Some(closing) => self.stack.close(closing),
                None => match self.event() {
                    Some(NextEvent::Program(event)) => self.stack.take(event),
                    Some(NextEvent::Kernel(event)) => Some(self.stack.kernel_event(event)),
                    None => break,
                },
            };
            if let Some(step) = step
                && self.is_selected(&step)
            {
                self.show(step, visitor);
            }
        }
    }

    /// False for a user event that is not selected.
    #[inline]
    fn is_selected(&self, step: &Step) -> bool {
        match (step, self.user_events) {
            (Step::Data(user_event), Some((trace, filter))) => {
                let of = trace.type_of(user_event.thread, user_event.kind);
                let data = RecordedData::of_size(self.data(user_event), user_event.data.size());
                filter.wants(of, data)
            }
            (Step::Enter(_) | Step::Leave(_) | Step::Data(_) | Step::Lost { .. }, _) => true,
        }
    }

    /// Passes the next calls to `visitor`, up to any other event. This is much faster than step by
    /// step.
    #[inline(always)]
    pub(crate) fn visit_run(&mut self, visitor: &mut impl Visitor) {
        if self.stack.closing.is_none()
            && self.pending.is_none()
            && !self.stack.unmatched_exit
            && self.stack.frames.len() >= self.enough
            && self.begun.as_slice().is_empty()
            && let Some(mut events) = self.events.take()
        {
            let (turn, enough) = (self.due, self.enough);
            self.pending = match &mut events.0 {
                Form::Packed(events) => self.stack.visit_plain_calls(events, turn, enough, visitor),
                #[cfg(feature = "import")]
                Form::InLog(events) => self.stack.visit_plain_calls(events, turn, enough, visitor),
                Form::Failed(_) => None,
            };
            self.events = Some(events);
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        if let Some(open) = self.begun.next() {
            return Some(Step::Enter(open));
        }
        loop {
            let step = match self.stack.closing {
                Some(closing) => self.stack.close(closing),
                None => match self.event() {
                    Some(NextEvent::Program(event)) => self.stack.take(event),
                    Some(NextEvent::Kernel(event)) => Some(self.stack.kernel_event(event)),
                    None if self.stack.frames.len() == 0 => return None,
                    None => {
                        self.going_on = self.count_going_on();
                        let last_seen = self.stack.now;
                        self.stack.closing = Some(Closing {
                            keep: 0,
                            last_seen,
                            cause: Cause::End,
                        });
                        None
                    }
                },
            };
            if let Some(step) = step
                && self.is_selected(&step)
            {
                return Some(step);
            }
        }
    }
}
