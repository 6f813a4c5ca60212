//! The call tree: one line where a call begins, one where it ends, and one for both where it called nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::Filter;
use super::stack::{Call, Open, Said, Step, Steps};
use crate::model::{ThreadId, Ticks, Trace};

/// A line of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeLine {
    /// A call that called nothing, from its beginning to its end.
    Leaf(Call),
    /// A call begins.
    Begin(Open),
    /// A call ends.
    End(Call),
    /// The program said something.
    Data {
        /// When and where.
        said: Said,
        /// What.
        data: Arc<[u8]>,
    },
    /// Events are missing here.
    Lost {
        /// Whose.
        thread: ThreadId,
        /// When the loss was noticed.
        ticks: Ticks,
        /// How many events.
        events: u64,
    },
}

/// In which order the threads' lines come.
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
    /// The threads that have lines left.
    threads: BTreeMap<ThreadId, ThreadLines<'a>>,
    /// The threads with the time of their next line, if they come in order of time.
    next: BinaryHeap<Reverse<(Ticks, ThreadId)>>,
}

#[derive(Debug)]
struct ThreadLines<'a> {
    thread: ThreadId,
    filter: &'a Filter,
    steps: Steps<'a>,
    /// The step to come, if it was looked at already. It is the latest of `steps`.
    ahead: Option<Step>,
    /// The line to come, if it was asked for already.
    line: Option<TreeLine>,
    /// The depth of the outermost open call of a wanted function.
    inside: Option<usize>,
}

// === impl TreeLine ===

impl TreeLine {
    /// Whose line it is.
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        match self {
            Self::Leaf(call) | Self::End(call) => call.open.thread,
            Self::Begin(open) => open.thread,
            Self::Data { said, .. } => said.thread,
            Self::Lost { thread, .. } => *thread,
        }
    }

    /// When it happened; of a leaf, when it began.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        match self {
            Self::Leaf(call) => call.open.start,
            Self::End(call) => call.end,
            Self::Begin(open) => open.start,
            Self::Data { said, .. } => said.ticks,
            Self::Lost { ticks, .. } => *ticks,
        }
    }
}

// === impl Tree ===

impl<'a> Tree<'a> {
    /// The tree of the calls that `filter` wants, and of what they call.
    #[must_use]
    pub fn new(trace: &'a Trace, filter: &'a Filter, order: Order) -> Self {
        let steps = Steps::of_threads(trace).filter(|steps| filter.wants_thread(steps.thread()));
        let threads = steps.map(|steps| (steps.thread(), ThreadLines::new(filter, steps)));
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
        }
    }

    fn first_thread(&mut self) -> Option<TreeLine> {
        loop {
            let mut first = self.threads.first_entry()?;
            if let Some(line) = first.get_mut().next() {
                return Some(line);
            }
            first.remove();
        }
    }

    fn first_line(&mut self) -> Option<TreeLine> {
        let Reverse((_, thread)) = self.next.pop()?;
        let lines = self.threads.get_mut(&thread)?;
        let line = lines.next()?;
        match lines.peek() {
            Some(following) => self.next.push(Reverse((following.ticks(), thread))),
            None => {
                self.threads.remove(&thread);
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
    fn new(filter: &'a Filter, steps: Steps<'a>) -> Self {
        let thread = steps.thread();
        Self {
            thread,
            filter,
            steps,
            ahead: None,
            line: None,
            inside: None,
        }
    }

    fn peek(&mut self) -> Option<&TreeLine> {
        self.line = self.next();
        self.line.as_ref()
    }

    /// Whether the call is wanted, for itself or because of one it stands within.
    fn enter(&mut self, open: &Open) -> bool {
        if self.inside.is_none() && self.filter.wants_function(open.function) {
            self.inside = Some(open.depth);
        }
        self.shows(open)
    }

    fn shows(&self, open: &Open) -> bool {
        self.inside.is_some() && self.filter.wants_time(open.start)
    }

    fn leave(&mut self, open: &Open) -> bool {
        let shows = self.shows(open);
        if self.inside == Some(open.depth) {
            self.inside = None;
        }
        shows
    }
}

impl Iterator for ThreadLines<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        if let Some(line) = self.line.take() {
            return Some(line);
        }
        loop {
            match self.ahead.take().or_else(|| self.steps.next())? {
                Step::Enter(open) => {
                    let shows = self.enter(&open);
                    match self.steps.next() {
                        Some(Step::Leave(call)) => {
                            self.leave(&open);
                            if shows {
                                return Some(TreeLine::Leaf(call));
                            }
                        }
                        other => {
                            self.ahead = other;
                            if shows {
                                return Some(TreeLine::Begin(open));
                            }
                        }
                    }
                }
                Step::Data(said) => {
                    // Outside every call it is wanted unless functions were asked for.
                    let within =
                        self.inside.is_some() || said.depth == 0 && self.filter.functions.is_none();
                    if within && self.filter.wants_time(said.ticks) {
                        let data = Arc::from(self.steps.data(&said));
                        return Some(TreeLine::Data { said, data });
                    }
                }
                Step::Leave(call) => {
                    if self.leave(&call.open) {
                        return Some(TreeLine::End(call));
                    }
                }
                Step::Lost { ticks, events } if self.filter.wants_time(ticks) => {
                    return Some(TreeLine::Lost {
                        thread: self.thread,
                        ticks,
                        events,
                    });
                }
                Step::Lost { .. } => {}
            }
        }
    }
}
