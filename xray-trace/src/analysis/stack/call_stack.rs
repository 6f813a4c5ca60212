//! The stack of one thread: it applies one event after another.

use crate::analysis::closing::Closing;
use crate::analysis::frames::{Frames, Moment};
use crate::analysis::step::{Ending, Notes, Siblings, Step, Visitor};
use crate::analysis::unmatched_exit::UnmatchedExits;
use crate::analysis::window::Window;
use crate::container::{OpenCall, PlainCalls};
use crate::model::{CallKind, Clock, ClockReader, Event, EventBody, ThreadId, Ticks, Values};

/// The open calls of a thread, and the irregularities among its events.
#[derive(Debug)]
pub(super) struct CallStack<'a> {
    pub(super) thread: ThreadId,
    clock: ClockReader<'a>,
    pub(super) siblings: Siblings,
    /// The window of the analysis. Irregularities outside of it do not count.
    pub(super) window: Window,
    /// The calls that are open.
    pub(super) frames: Frames,
    /// The time of the latest event; 0 before the first.
    pub(super) now: Moment,
    /// Calls that are to be closed before anything else.
    pub(super) closing: Option<Closing>,
    /// True if the next event of the block is an exit of a call that is not open.
    pub(super) unmatched_exit: bool,
    /// The irregularities so far.
    pub(super) notes: Notes,
    /// The first exits without an entry. `stray` adds to the list; the list keeps none by default.
    pub(super) unmatched: UnmatchedExits,
    /// The number of processor events so far.
    pub(super) processors: u64,
    /// The latest processor.
    pub(super) processor: Option<u16>,
}

// === impl CallStack ===

impl<'a> CallStack<'a> {
    /// An empty stack. Its window is all time.
    pub(super) fn new(clock: &'a Clock, thread: ThreadId) -> Self {
        let mut clock = ClockReader::new(clock);
        let now = (Ticks(0), clock.monotonic_ns(Ticks(0)));
        Self {
            thread,
            clock,
            siblings: Siblings::Closed,
            window: Window::default(),
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

    /// Opens the calls that are open before the first event, outermost first.
    pub(super) fn open(&mut self, open: Vec<OpenCall>) {
        for OpenCall {
            function,
            start,
            args,
        } in open
        {
            self.now = (start, self.clock.monotonic_ns(start));
            self.frames.enter(function, args, self.now);
        }
    }

    /// Enters the window. Irregularities before it do not count.
    pub(super) fn begin_window(&mut self) {
        let since = self.window.since;
        self.now = (since, self.clock.monotonic_ns(since));
        self.notes = Notes {
            damaged_blocks: self.notes.damaged_blocks,
            ..Notes::default()
        };
        self.frames.forget_callees();
    }

    /// Applies an event; `None` if it makes no step of its own.
    #[inline]
    pub(super) fn take(&mut self, event: Event) -> Option<Step> {
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

    /// Handles calls as long as they are properly nested, which they nearly always are. With all
    /// code in one place, the compiler keeps the state in registers, and computes nothing that the
    /// visitor does not use. Stops before a call at `turn` or later, which it returns, and when
    /// fewer than `enough` calls are open.
    #[inline(always)]
    pub(super) fn visit_plain_calls(
        &mut self,
        events: &mut impl PlainCalls,
        turn: Ticks,
        enough: usize,
        visitor: &mut impl Visitor,
    ) -> Option<Event> {
        let mut pending = None;
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
                pending = Some(Event { ticks, body });
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
        pending
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
