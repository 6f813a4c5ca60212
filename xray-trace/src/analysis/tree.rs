//! The call tree: a line for the begin and the end of a call, or one line for both if the call has
//! no shown content.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::Filter;
use super::stack::Steps;
use super::step::{Call, Open, Step, UserEvent};
use crate::model::{ThreadId, Ticks, Trace};

/// A line of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeLine {
    /// A call without shown content, from its begin to its end.
    Leaf(Call),
    /// A call begins.
    Begin(Open),
    /// A call ends.
    End(Call),
    /// A user event.
    Data {
        /// Its time and place.
        user_event: UserEvent,
        /// Its data.
        data: Arc<[u8]>,
    },
    /// Events are missing here.
    Lost {
        /// The thread.
        thread: ThreadId,
        /// The time at which the loss was noticed.
        ticks: Ticks,
        /// The number of missing events.
        events: u64,
    },
}

/// The selected calls that have a line. The default is all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Only calls of at least this duration in nanoseconds. A call without an exit has the time for
    /// which it was certainly open.
    pub min_ns: u64,
    /// Only this number of levels, counted from the outermost call of a selected function. `None`
    /// for all levels.
    pub levels: Option<usize>,
}

/// The order of the threads' lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// One thread after the other.
    ByThread,
    /// All threads together, in order of time.
    ByTime,
}

/// The lines of the tree.
#[derive(Debug)]
pub struct Tree<'a> {
    order: Order,
    /// The threads with lines left.
    threads: BTreeMap<ThreadId, ThreadLines<'a>>,
    /// The time of each thread's next line, if the lines come in order of time.
    next: BinaryHeap<Reverse<(Ticks, ThreadId)>>,
    /// The selected calls without a line in threads that have no lines left.
    hidden: u64,
}

#[derive(Debug)]
struct ThreadLines<'a> {
    thread: ThreadId,
    filter: &'a Filter,
    steps: Steps<'a>,
    shown: Shown,
    /// The open selected calls without a line so far. They get a line for their begin as soon as a
    /// line within them is shown.
    held: Vec<Open>,
    /// The lines to come.
    lines: VecDeque<TreeLine>,
    /// The depth of the outermost open call of a selected function.
    inside: Option<usize>,
    /// The selected calls so far that have no line: they are too short or too deep.
    hidden: u64,
}

// === impl TreeLine ===

impl TreeLine {
    /// The thread of the line.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        match self {
            Self::Leaf(call) | Self::End(call) => call.open.thread,
            Self::Begin(open) => open.thread,
            Self::Data { user_event, .. } => user_event.thread,
            Self::Lost { thread, .. } => *thread,
        }
    }

    /// The time of the line; for a leaf, the begin of the call.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        match self {
            Self::Leaf(call) => call.open.start,
            Self::End(call) => call.end,
            Self::Begin(open) => open.start,
            Self::Data { user_event, .. } => user_event.ticks,
            Self::Lost { ticks, .. } => *ticks,
        }
    }
}

// === impl Tree ===

impl<'a> Tree<'a> {
    /// The tree of the calls that `filter` selects, and of their callees.
    #[must_use]
    pub fn new(trace: &'a Trace, filter: &'a Filter, shown: Shown, order: Order) -> Self {
        let steps = Steps::of_wanted(trace, filter);
        let threads = steps.map(|steps| (steps.thread(), ThreadLines::new(filter, shown, steps)));
        let mut threads = threads.collect::<BTreeMap<_, _>>();
        let mut next = BinaryHeap::new();
        if order == Order::ByTime {
            for (thread, lines) in &mut threads {
                next.extend(lines.peek().map(|line| Reverse((line.ticks(), *thread))));
            }
        }
        Self {
            order,
            threads,
            next,
            hidden: 0,
        }
    }

    /// The number of threads that may have lines.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The number of selected calls so far that have no line: [`Shown`] leaves them out.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        let threads = self.threads.values();
        self.hidden + threads.map(|thread| thread.hidden).sum::<u64>()
    }

    fn first_thread(&mut self) -> Option<TreeLine> {
        loop {
            let mut first = self.threads.first_entry()?;
            if let Some(line) = first.get_mut().next() {
                return Some(line);
            }
            self.hidden += first.remove().hidden;
        }
    }

    fn first_line(&mut self) -> Option<TreeLine> {
        let Reverse((_, thread)) = self.next.pop()?;
        let lines = self.threads.get_mut(&thread)?;
        let line = lines.next()?;
        match lines.peek() {
            Some(following) => self.next.push(Reverse((following.ticks(), thread))),
            None => {
                let ended = self.threads.remove(&thread);
                self.hidden += ended.map_or(0, |ended| ended.hidden);
            }
        }
        Some(line)
    }
}

impl Iterator for Tree<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        match self.order {
            Order::ByThread => self.first_thread(),
            Order::ByTime => self.first_line(),
        }
    }
}

// === impl ThreadLines ===

impl<'a> ThreadLines<'a> {
    fn new(filter: &'a Filter, shown: Shown, steps: Steps<'a>) -> Self {
        let thread = steps.thread();
        Self {
            thread,
            filter,
            steps,
            shown,
            held: Vec::new(),
            lines: VecDeque::new(),
            inside: None,
            hidden: 0,
        }
    }

    fn peek(&mut self) -> Option<&TreeLine> {
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
        } else if call.duration_ns() >= self.shown.min_ns {
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

impl Iterator for ThreadLines<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        if self.lines.is_empty() {
            self.advance();
        }
        self.lines.pop_front()
    }
}
