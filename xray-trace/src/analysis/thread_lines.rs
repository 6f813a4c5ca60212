//! The lines of the tree of one thread. An observer sees the same steps, so that a report does not
//! unpack events twice.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Filter;
use super::stack::Steps;
use super::step::{Call, NoVisitor, Notes, Open, Step, Visitor};
use super::tree_line::{Shown, TreeLine};
use crate::model::ThreadId;

/// A visitor of the steps of one thread, and a part of an answer for all threads.
pub(super) trait Observer: Visitor + Sized {
    /// The answer for the threads that have ended.
    type Found: Default;
    /// The question.
    type Options: Copy;

    /// An observer of the next thread. It may take over `found` until the thread ends.
    fn begin(options: Self::Options, found: &mut Self::Found) -> Self;

    /// Adds the answer for the thread to `found`.
    fn end(self, notes: Notes, found: &mut Self::Found);
}

/// The lines of one thread.
#[derive(Debug)]
pub(super) struct ThreadLines<'a, V> {
    thread: ThreadId,
    filter: &'a Filter,
    steps: Steps<'a>,
    observer: V,
    shown: Shown,
    /// The open selected calls without a line so far. They get a line for their begin as soon as a
    /// line within them is shown.
    held: Vec<Open>,
    /// The lines to come.
    lines: VecDeque<TreeLine>,
    /// The depth of the outermost open call of a selected function.
    inside: Option<usize>,
    /// The selected calls so far that have no line: their times are too short, or they are too
    /// deep.
    hidden: u64,
}

// === impl NoVisitor ===

impl Observer for NoVisitor {
    type Found = ();
    type Options = ();

    fn begin((): (), (): &mut ()) -> Self {
        Self
    }

    fn end(self, _: Notes, (): &mut ()) {}
}

// === impl ThreadLines ===

impl<'a, V: Visitor> ThreadLines<'a, V> {
    pub(super) fn new(filter: &'a Filter, shown: Shown, steps: Steps<'a>, observer: V) -> Self {
        let thread = steps.thread();
        Self {
            thread,
            filter,
            steps,
            observer,
            shown,
            held: Vec::new(),
            lines: VecDeque::new(),
            inside: None,
            hidden: 0,
        }
    }

    /// The number of calls so far without a line.
    pub(super) fn hidden(&self) -> u64 {
        self.hidden
    }

    /// The steps that are left, and the observer of those before.
    pub(super) fn into_rest(self) -> (Steps<'a>, V) {
        (self.steps, self.observer)
    }

    /// The next line.
    pub(super) fn peek(&mut self) -> Option<&TreeLine> {
        if self.lines.is_empty() {
            self.advance();
        }
        self.lines.front()
    }

    /// Whether the call is selected, by itself or because of a call around it.
    fn wants(&self, open: &Open) -> bool {
        let deep = |outermost| {
            let levels = self.shown.levels;
            levels.is_none_or(|levels| open.depth - outermost < levels)
        };
        self.inside.is_some_and(deep) && self.filter.wants_time(open.start)
    }

    /// Adds a line, and before it the begins of the calls around it.
    fn show(&mut self, line: TreeLine) {
        let begun = self.held.drain(..).map(TreeLine::Begin);
        self.lines.extend(begun);
        self.lines.push_back(line);
    }

    fn leave(&mut self, call: Call) {
        let open = &call.open;
        let wants = self.wants(open);
        let is_selected = self.inside.is_some() && self.filter.wants_time(open.start);
        if self.inside == Some(open.depth) {
            self.inside = None;
        }
        if !wants {
            self.hidden += u64::from(is_selected);
            return;
        }
        if self.held.pop_if(|held| held == open).is_none() {
            // A line within it was shown, and so was its begin.
            self.lines.push_back(TreeLine::End(call));
        } else if self.shown.least.are_met_by(&call) {
            self.show(TreeLine::Leaf(call));
        } else {
            self.hidden += 1;
        }
    }

    /// Goes on until there is a line, or the steps end.
    fn advance(&mut self) {
        while self.lines.is_empty() {
            let Some(step) = self.steps.next() else {
                return;
            };
            self.steps.show(step, &mut self.observer);
            match step {
                Step::Enter(open) => {
                    if self.inside.is_none() && self.filter.wants_function(open.function) {
                        self.inside = Some(open.depth);
                    }
                    if self.wants(&open) {
                        self.held.push(open);
                    }
                }
                Step::Leave(call) => self.leave(call),
                Step::Data(user_event) => {
                    // Outside of every call a user event is shown unless the filter selects
                    // functions.
                    let within = match self.inside {
                        Some(outermost) => {
                            let levels = self.shown.levels;
                            levels.is_none_or(|levels| user_event.depth - outermost <= levels)
                        }
                        None => user_event.depth == 0 && self.filter.functions.is_none(),
                    };
                    if within && self.filter.wants_time(user_event.ticks) {
                        let data = Arc::from(self.steps.data(&user_event));
                        self.show(TreeLine::Data { user_event, data });
                    }
                }
                Step::Lost { ticks, events } => {
                    if self.filter.wants_time(ticks) {
                        self.show(TreeLine::Lost {
                            thread: self.thread,
                            ticks,
                            events,
                        });
                    }
                }
            }
        }
    }
}

impl<V: Visitor> Iterator for ThreadLines<'_, V> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        if self.lines.is_empty() {
            self.advance();
        }
        self.lines.pop_front()
    }
}
