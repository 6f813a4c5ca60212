//! The lines of the trees of several threads, one thread after the other or in order of time. A
//! thread is followed only as far as its lines are read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::thread_blocks::ThreadBlocks;
use super::thread_lines::{Observer, ThreadLines};
use super::threads_in_window::threads_in_window;
use super::tree_line::{Order, Shown, TreeLine};
use crate::model::{ThreadId, Ticks, Trace};

/// The lines, and observers of the same steps.
#[derive(Debug)]
pub(super) struct OrderedLines<'a, V: Observer> {
    trace: &'a Trace,
    filter: &'a Filter,
    shown: Shown,
    order: Order,
    options: V::Options,
    /// The threads that were not begun yet, by thread.
    waiting: VecDeque<ThreadBlocks<'a>>,
    /// The threads that were begun, and have lines left.
    threads: BTreeMap<ThreadId, ThreadLines<'a, V>>,
    /// The time of each thread's next line, if the lines come in order of time.
    next: BinaryHeap<Reverse<(Ticks, ThreadId)>>,
    /// The selected calls without a line in threads that have no lines left.
    hidden: u64,
    /// The answer for these threads.
    found: V::Found,
}

/// A thread that is not at its end.
#[derive(Debug)]
pub(super) enum Rest<'a, V> {
    /// It was not begun.
    Whole(ThreadBlocks<'a>),
    /// The observer has seen the steps before these.
    Steps(Box<Steps<'a>>, V),
}

// === impl OrderedLines ===

impl<'a, V: Observer> OrderedLines<'a, V> {
    /// The lines of the calls that `filter` selects, and of their callees.
    pub(super) fn new(
        trace: &'a Trace,
        filter: &'a Filter,
        (shown, order): (Shown, Order),
        options: V::Options,
    ) -> Self {
        Self {
            trace,
            filter,
            shown,
            order,
            options,
            waiting: threads_in_window(trace, filter).into(),
            threads: BTreeMap::new(),
            next: BinaryHeap::new(),
            hidden: 0,
            found: V::Found::default(),
        }
    }

    /// The number of threads that may have lines.
    pub(super) fn threads(&self) -> usize {
        self.waiting.len() + self.threads.len()
    }

    /// The number of selected calls so far that have no line.
    pub(super) fn hidden(&self) -> u64 {
        let threads = self.threads.values();
        self.hidden + threads.map(ThreadLines::hidden).sum::<u64>()
    }

    /// The answer for the threads that have ended, and the other threads by thread.
    pub(super) fn into_rest(self) -> (V::Found, Vec<Rest<'a, V>>) {
        let begun = self.threads.into_values().map(|lines| {
            let (steps, observer) = lines.into_rest();
            Rest::Steps(Box::new(steps), observer)
        });
        let waiting = self.waiting.into_iter().map(Rest::Whole);
        (self.found, begun.chain(waiting).collect())
    }

    /// Begins the next thread. `None` if all are begun.
    fn begin(&mut self) -> Option<ThreadId> {
        let blocks = self.waiting.pop_front()?;
        let thread = blocks.thread;
        let steps = Steps::in_window(self.trace, blocks, Siblings::Closed)
            .with_user_events(self.trace, &self.filter.user_events);
        let observer = V::begin(self.options, &mut self.found);
        let lines = ThreadLines::new(self.filter, self.shown, steps, observer);
        self.threads.insert(thread, lines);
        Some(thread)
    }

    /// Ends a thread that has no lines left.
    fn end(&mut self, thread: ThreadId) {
        if let Some(lines) = self.threads.remove(&thread) {
            self.hidden += lines.hidden();
            let (steps, observer) = lines.into_rest();
            observer.end(steps.notes(), &mut self.found);
        }
    }

    fn first_thread(&mut self) -> Option<TreeLine> {
        loop {
            let Some((thread, lines)) = self.threads.iter_mut().next() else {
                self.begin()?;
                continue;
            };
            if let Some(line) = lines.next() {
                return Some(line);
            }
            let thread = *thread;
            self.end(thread);
        }
    }

    fn first_line(&mut self) -> Option<TreeLine> {
        while let Some(thread) = self.begin() {
            self.expect(thread);
        }
        let Reverse((_, thread)) = self.next.pop()?;
        let line = self.threads.get_mut(&thread)?.next()?;
        self.expect(thread);
        Some(line)
    }

    /// Notes the time of the next line of a thread. Ends the thread if it has none.
    fn expect(&mut self, thread: ThreadId) {
        let lines = self.threads.get_mut(&thread);
        match lines.and_then(ThreadLines::peek).map(TreeLine::ticks) {
            Some(ticks) => self.next.push(Reverse((ticks, thread))),
            None => self.end(thread),
        }
    }
}

impl<V: Observer> Iterator for OrderedLines<'_, V> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        match self.order {
            Order::ByThread => self.first_thread(),
            Order::ByTime => self.first_line(),
        }
    }
}
