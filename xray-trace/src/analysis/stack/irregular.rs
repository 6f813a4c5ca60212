//! The rare events of a stack: exits that do not end the innermost call, losses, unwound calls, and
//! events that are no calls. They close calls that have no exit.

use super::call_stack::CallStack;
use crate::analysis::closing::{Cause, Closing};
use crate::analysis::frames::Moment;
use crate::analysis::kernel_queue::TakenEvent;
use crate::analysis::step::{Ending, Siblings, Step, UserEvent};
use crate::model::{CallKind, EventBody, FunctionId};

// === impl CallStack ===

impl CallStack<'_> {
    /// Orders the end of a call that is not the innermost.
    #[cold]
    pub(super) fn exit_further_out(
        &mut self,
        function: FunctionId,
        how: Ending,
        result: Option<u64>,
        last_seen: Moment,
    ) {
        let Some(keep) = self.frames.depth_of(function) else {
            return self.stray(function, how);
        };
        self.closing = Some(Closing {
            keep,
            last_seen,
            cause: Cause::Exit(how, result),
        });
    }

    /// Counts an exit of a call that is not open.
    #[cold]
    pub(super) fn stray(&mut self, function: FunctionId, how: Ending) {
        let (ticks, _) = self.now;
        if !self.window.has(ticks) {
            return;
        }
        self.notes.exits_without_entry += 1;
        let kind = match how {
            Ending::TailExit => CallKind::TailExit,
            Ending::Normal | Ending::Closed => CallKind::Exit,
        };
        let open = self.frames.functions();
        self.unmatched
            .keep(self.thread, function, kind, ticks, open);
    }

    /// Applies an event that is no call.
    #[cold]
    pub(super) fn take_other(&mut self, body: EventBody, last_seen: Moment) -> Option<Step> {
        let (ticks, ns) = self.now;
        match body {
            EventBody::Data { kind, data } => Some(Step::Data(UserEvent {
                thread: self.thread,
                ticks,
                ns,
                depth: self.frames.len(),
                kind,
                data,
            })),
            EventBody::Lost { events } => {
                if self.window.has(ticks) {
                    self.notes.lost = self.notes.lost.saturating_add(events);
                }
                self.closing = Some(Closing {
                    keep: 0,
                    last_seen,
                    cause: Cause::Loss { ticks, events },
                });
                None
            }
            EventBody::Unwound { calls } => {
                let calls = usize::try_from(calls).unwrap_or(usize::MAX);
                self.closing = Some(Closing {
                    keep: self.frames.len().saturating_sub(calls),
                    last_seen,
                    cause: Cause::Unwound,
                });
                None
            }
            EventBody::UnmatchedExit => {
                self.unmatched_exit = true;
                None
            }
            EventBody::Cpu { cpu } => {
                self.processors += 1;
                self.processor = Some(cpu);
                None
            }
            EventBody::Call { .. } => None,
        }
    }

    /// The step of a kernel event. It does not show which calls are open, so the time of the latest
    /// event stays.
    #[cold]
    pub(super) fn kernel_event(&self, event: TakenEvent) -> Step {
        let TakenEvent {
            ticks,
            ns,
            kind,
            data,
        } = event;
        Step::Data(UserEvent {
            thread: self.thread,
            ticks,
            ns,
            depth: self.frames.len(),
            kind,
            data,
        })
    }

    /// Closes the innermost call as `closing` orders. After the last one, returns the step that
    /// follows from its cause.
    pub(super) fn close(&mut self, closing: Closing) -> Option<Step> {
        if self.frames.len() <= closing.keep {
            self.closing = None;
            return match closing.cause {
                Cause::Loss { ticks, events } => Some(Step::Lost { ticks, events }),
                Cause::Exit(..) | Cause::Unwound | Cause::End => None,
            };
        }
        let start = self.frames.innermost_start()?;
        let noted = u64::from(self.window.has(start));
        let mut its = None;
        let (how, end) = match closing.cause {
            Cause::Exit(how, result) if self.frames.len() == closing.keep + 1 => {
                its = result;
                (how, self.now)
            }
            Cause::Exit(..) if self.siblings == Siblings::Deduced => {
                self.notes.deduced_siblings += noted;
                (Ending::TailExit, self.now)
            }
            Cause::Exit(..) => {
                self.notes.closed_by_outer_exit += noted;
                (Ending::Closed, closing.last_seen)
            }
            Cause::Unwound => {
                self.notes.unwound += noted;
                (Ending::Closed, closing.last_seen)
            }
            Cause::Loss { .. } => {
                self.notes.closed_by_loss += noted;
                (Ending::Closed, closing.last_seen)
            }
            Cause::End => {
                self.notes.closed_at_end += noted;
                (Ending::Closed, closing.last_seen)
            }
        };
        self.frames.close(how, end, its).map(Step::Leave)
    }
}
