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
//! they began then. At the end the open calls are closed. Counts cover the window alone. So the
//! result does not depend on where reading began before the window.

mod irregular;

use std::vec;

use super::Filter;
use super::closing::{Cause, Closing};
use super::frames::{Frames, Moment};
use super::step::{Ending, NoVisitor, Notes, Open, Siblings, Step, UserEvent, Visitor};
use super::thread_blocks::ThreadBlocks;
use super::unmatched_exit::{UnmatchedExit, UnmatchedExits};
use super::window::Window;
use crate::container::{Block, Events, Form, OpenCall, PlainCalls};
use crate::model::{
    CallKind, Clock, ClockReader, Event, EventBody, ThreadId, Ticks, Trace, Values,
};

/// The steps of one thread's stack, in order of time.
#[derive(Debug)]
pub struct Steps<'a> {
    thread: ThreadId,
    clock: ClockReader<'a>,
    siblings: Siblings,
    /// The blocks that were not begun yet.
    blocks: vec::IntoIter<&'a Block>,
    /// The events of the current block.
    events: Option<Events>,
    /// An event that was taken out of them too early, because it is not before `turn`.
    pending: Option<Event>,
    /// The window of the analysis.
    window: Window,
    /// The next bound: the begin of the window before it is reached, then its end.
    turn: Ticks,
    /// The calls that are open at the begin of the window, and have no step yet.
    begun: vec::IntoIter<Open>,
    /// The steps end when fewer calls are open than this. 0 until the end of the window.
    enough: usize,
    /// The calls that are open.
    frames: Frames,
    /// The time of the latest event; 0 before the first.
    now: Moment,
    /// Calls that are to be closed before anything else.
    closing: Option<Closing>,
    /// True if the next event of the block is an exit of a call that is not open.
    unmatched_exit: bool,
    /// The irregularities so far.
    notes: Notes,
    /// The first exits without an entry. `stray` adds to the list; the list keeps none by default.
    unmatched: UnmatchedExits,
    /// The number of processor events so far.
    processors: u64,
    /// The latest processor.
    processor: Option<u16>,
}

// === impl Steps ===

impl<'a> Steps<'a> {
    /// The steps of one thread. `blocks` are its blocks, in order of time.
    #[must_use]
    pub fn new(clock: &'a Clock, thread: ThreadId, blocks: Vec<&'a Block>) -> Self {
        let mut clock = ClockReader::new(clock);
        let now = (Ticks(0), clock.monotonic_ns(Ticks(0)));
        Self {
            thread,
            clock,
            siblings: Siblings::Closed,
            blocks: blocks.into_iter(),
            events: None,
            pending: None,
            window: Window::default(),
            turn: Window::default().until,
            begun: Vec::new().into_iter(),
            enough: 0,
            frames: Frames::new(thread),
            now,
            closing: None,
            unmatched_exit: false,
            notes: Notes::default(),
            unmatched: UnmatchedExits::default(),
            processors: 0,
            processor: None,
        }
    }

    /// The same steps, with this treatment of calls that have no exit.
    #[must_use]
    pub fn with_siblings(self, siblings: Siblings) -> Self {
        Self { siblings, ..self }
    }

    /// The same steps, which also keep the first `limit` exits without an entry.
    pub(super) fn keeping_unmatched(self, limit: usize) -> Self {
        let unmatched = UnmatchedExits::with_limit(limit);
        Self { unmatched, ..self }
    }

    /// The exits without an entry that the steps kept.
    pub(super) fn into_unmatched(self) -> Vec<UnmatchedExit> {
        self.unmatched.into_kept()
    }

    /// The steps of every thread of a trace that has events, by thread.
    pub fn of_threads(trace: &'a Trace) -> impl Iterator<Item = Self> {
        let threads = trace.blocks_by_thread().into_iter();
        threads.map(|(thread, blocks)| Self::new(trace.clock(), thread, blocks))
    }

    /// The steps that `filter` may select, of every thread that has any, by thread.
    pub fn of_wanted(trace: &'a Trace, filter: &Filter) -> impl Iterator<Item = Self> {
        let threads = ThreadBlocks::of_trace(trace, filter).into_iter();
        threads.map(|thread| Self::in_window(trace, thread, Siblings::Closed))
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
        let steps = Self::new(trace.clock(), thread, blocks).with_siblings(siblings);
        let mut this = steps.with_open(open);
        this.window = window;
        if window.since > Ticks(0) {
            this.turn = window.since;
            this.follow(&mut NoVisitor);
            this.begin();
        }
        this.turn = window.until;
        this
    }

    /// The same steps, of a thread in which these calls are open before the first block, outermost
    /// first.
    pub(super) fn with_open(mut self, open: Vec<OpenCall>) -> Self {
        for OpenCall {
            function,
            start,
            args,
        } in open
        {
            self.now = (start, self.clock.monotonic_ns(start));
            self.frames.enter(function, args, self.now);
        }
        self
    }

    /// The calls that are open before that moment, outermost first, and the time of the last event
    /// before it.
    pub(super) fn open_at(mut self, at: Ticks) -> (Vec<Open>, Moment) {
        self.window.since = at;
        self.turn = at;
        self.follow(&mut NoVisitor);
        (self.frames.opens().collect(), self.now)
    }

    /// Enters the window.
    fn begin(&mut self) {
        self.now = (
            self.window.since,
            self.clock.monotonic_ns(self.window.since),
        );
        // Irregularities before the window do not count.
        self.notes = Notes {
            damaged_blocks: self.notes.damaged_blocks,
            ..Notes::default()
        };
        self.frames.forget_callees();
        self.begun = self.frames.opens().collect::<Vec<_>>().into_iter();
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    /// The irregularities so far.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// The number of processor events so far. They are no steps.
    #[must_use]
    pub fn processors(&self) -> u64 {
        self.processors
    }

    /// The latest processor of the thread; `None` before the first processor event.
    #[must_use]
    pub fn processor(&self) -> Option<u16> {
        self.processor
    }

    /// The data of the user event of the latest step; empty after the next step.
    #[must_use]
    pub fn data(&self, user_event: &UserEvent) -> &[u8] {
        self.events
            .as_ref()
            .map_or(&[], |events| events.data(user_event.data))
    }

    /// The next event, or `None` at a bound.
    #[inline]
    fn event(&mut self) -> Option<Event> {
        if self.frames.len() < self.enough {
            return None;
        }
        let event = match self.pending.take() {
            Some(event) => event,
            None => self.unpack()?,
        };
        if event.ticks >= self.turn {
            return self.after_turn(event);
        }
        Some(event)
    }

    /// Handles the first event that is not before the bound. Returns it if it is still needed.
    #[cold]
    fn after_turn(&mut self, event: Event) -> Option<Event> {
        if self.turn == self.window.since {
            self.pending = Some(event);
            return None;
        }
        let ends = self.window.is_over_at(event.ticks) && self.ends();
        (!ends).then_some(event)
    }

    /// Handles the end of the window. Returns whether the steps end here, because no call that
    /// began in the window is open.
    #[cold]
    fn ends(&mut self) -> bool {
        self.turn = Window::default().until;
        self.enough = self.frames.begun_before(self.window.since) + 1;
        self.frames.len() < self.enough
    }

    /// The next event. A damaged block ends in a loss of unknown size.
    #[inline]
    fn unpack(&mut self) -> Option<Event> {
        loop {
            if let Some(events) = &mut self.events {
                match events.next() {
                    Some(Ok(event)) => return Some(event),
                    Some(Err(_)) => {
                        self.notes.damaged_blocks += 1;
                        return Some(Event {
                            ticks: self.now.0,
                            body: EventBody::Lost { events: 0 },
                        });
                    }
                    None => {
                        self.events = None;
                        // A reader that begins with the next block does not see the mark either.
                        self.unmatched_exit = false;
                    }
                }
            }
            let next = self.blocks.as_slice().first()?;
            let over = self.turn == self.window.until && self.window.is_over_at(next.first);
            if over && self.ends() {
                return None;
            }
            self.events = Some(self.blocks.next()?.events());
        }
    }

    /// Applies an event; `None` if it makes no step of its own.
    #[inline]
    fn take(&mut self, event: Event) -> Option<Step> {
        let before = self.now;
        let unmatched_exit = std::mem::take(&mut self.unmatched_exit);
        let now = self.pass_to(event.ticks);
        match event.body {
            EventBody::Call {
                function,
                kind: CallKind::Enter,
                values,
            } => Some(Step::Enter(self.frames.enter(function, values, now))),
            EventBody::Call {
                function,
                kind,
                values,
            } => {
                let result = match kind {
                    CallKind::Exit => values.first(),
                    CallKind::Enter | CallKind::TailExit => None,
                };
                let how = if kind == CallKind::TailExit {
                    Ending::TailExit
                } else {
                    Ending::Normal
                };
                if unmatched_exit {
                    self.stray(function, how);
                    return None;
                }
                // Usually the innermost call ends.
                let call = self.frames.leave(function, how, now, result);
                if call.is_none() {
                    self.exit_further_out(function, how, result, before);
                }
                call.map(Step::Leave)
            }
            body => self.take_other(body, before),
        }
    }

    /// Passes all remaining calls to `visitor`. This is much faster than step by step.
    #[inline]
    pub fn visit(&mut self, visitor: &mut impl Visitor) {
        self.begun.by_ref().for_each(|open| visitor.enter(&open));
        self.follow(visitor);
        while let Some(step) = self.next() {
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
        self.frames.open_calls()
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
            let step = match self.closing {
                Some(closing) => self.close(closing),
                None => match self.event() {
                    Some(event) => self.take(event),
                    None => break,
                },
            };
            if let Some(step) = step {
                self.show(step, visitor);
            }
        }
    }

    /// Passes the next calls to `visitor`, up to any other event. This is much faster than step by
    /// step.
    #[inline(always)]
    pub(crate) fn visit_run(&mut self, visitor: &mut impl Visitor) {
        if self.closing.is_none()
            && self.pending.is_none()
            && !self.unmatched_exit
            && self.frames.len() >= self.enough
            && self.begun.as_slice().is_empty()
            && let Some(mut events) = self.events.take()
        {
            match &mut events.0 {
                Form::Packed(events) => self.visit_plain_calls(events, visitor),
                #[cfg(feature = "import")]
                Form::InLog(events) => self.visit_plain_calls(events, visitor),
                Form::Failed(_) => {}
            }
            self.events = Some(events);
        }
    }

    /// Handles calls as long as they are properly nested, which they nearly always are. With all
    /// code in one place, the compiler keeps the state in registers, and computes nothing that the
    /// visitor does not use.
    #[inline(always)]
    fn visit_plain_calls(&mut self, events: &mut impl PlainCalls, visitor: &mut impl Visitor) {
        let (turn, enough) = (self.turn, self.enough);
        let mut now = self.now;
        while !visitor.enough()
            && let Some((ticks, function, kind)) = events.next_plain_call()
        {
            if ticks >= turn {
                let values = Values::NONE;
                let body = EventBody::Call {
                    function,
                    kind,
                    values,
                };
                self.pending = Some(Event { ticks, body });
                break;
            }
            let before = now;
            if ticks > before.0 {
                now = (ticks, self.clock.monotonic_ns(ticks));
            }
            let how = match kind {
                CallKind::Enter => {
                    visitor.enter(&self.frames.enter(function, Values::NONE, now));
                    continue;
                }
                CallKind::Exit => Ending::Normal,
                CallKind::TailExit => Ending::TailExit,
            };
            let Some(call) = self.frames.leave(function, how, now, None) else {
                self.now = now;
                self.exit_further_out(function, how, None, before);
                break;
            };
            visitor.leave(&call);
            if self.frames.len() < enough {
                break;
            }
        }
        self.now = now;
    }

    /// Advances the time. A hostile file may contain blocks in any order, but time does not run
    /// backwards.
    #[inline]
    fn pass_to(&mut self, ticks: Ticks) -> Moment {
        if ticks > self.now.0 {
            self.now = (ticks, self.clock.monotonic_ns(ticks));
        }
        self.now
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
            let step = match self.closing {
                Some(closing) => self.close(closing),
                None => match self.event() {
                    Some(event) => self.take(event),
                    None if self.frames.len() == 0 => return None,
                    None => {
                        let last_seen = self.now;
                        self.closing = Some(Closing {
                            keep: 0,
                            last_seen,
                            cause: Cause::End,
                        });
                        None
                    }
                },
            };
            if step.is_some() {
                return step;
            }
        }
    }
}
