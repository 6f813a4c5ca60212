//! The slowest calls of a trace, and the lines of the tree of one of them.
//!
//! A call that takes more than half of the time of its caller is not listed by itself, because the
//! lines of its caller show it. Memory is bounded by the number of wanted calls and the depth of
//! the stacks.
//!
//! ```text
//!  serve 900 ms                  listed
//!    handle 600 ms               more than half of serve: in the lines of serve
//!      parse 200 ms              listed
//!      hash 100 ms               listed
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};

use super::Filter;
use super::stack::Steps;
use super::step::{Call, Ending, Open, Siblings, Visitor};
use super::threads::by_thread;
use super::tree::{Order, Shown, Tree, TreeLine};
use crate::model::{ThreadId, Ticks, Trace};

/// The `most` slowest calls that `filter` selects and that took at least `min_ns` nanoseconds, the
/// slowest first. Calls without an exit are not among them, because their duration is not known.
#[must_use]
pub fn slowest_calls(trace: &Trace, filter: &Filter, min_ns: u64, most: usize) -> Vec<Call> {
    let look = |slowest: &mut Slowest, mut steps: Steps<'_>| {
        steps.visit(&mut Finder {
            slowest,
            filter,
            min_ns,
            most,
            open: Vec::new(),
            longest: Vec::new(),
        });
    };
    let mut parts = by_thread(trace, filter, Siblings::Closed, look).into_iter();
    let mut all = parts.next().unwrap_or_default();
    for Ranked(call) in parts.flat_map(|part| part.0) {
        all.offer(&call, most);
    }
    let calls = all.0.into_sorted_vec().into_iter();
    calls.map(|Ranked(call)| call).collect()
}

/// The lines of one call, from its begin to its end.
#[derive(Debug)]
pub struct Subtree<'a> {
    tree: Tree<'a>,
    root: Open,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    Within,
    Behind,
}

/// The slowest calls so far. The one that goes first when there are too many is on top.
#[derive(Debug, Default)]
struct Slowest(BinaryHeap<Ranked>);

/// A call in the order of the list: the slowest first, equal ones by time.
#[derive(Debug)]
struct Ranked(Call);

/// Follows one thread.
struct Finder<'a> {
    slowest: &'a mut Slowest,
    filter: &'a Filter,
    min_ns: u64,
    most: usize,
    /// The depths of the open selected calls, outermost first.
    open: Vec<usize>,
    /// The longest call directly within an open selected call, with the depth of that caller,
    /// outermost first. It is listed only if it takes half of its caller's time or less.
    longest: Vec<(usize, Call)>,
}

// === impl Subtree ===

impl<'a> Subtree<'a> {
    /// The part of a trace in which the lines of a call are found.
    #[must_use]
    pub fn part(call: &Call) -> Filter {
        Filter {
            threads: Some(BTreeSet::from([call.open.thread])),
            functions: None,
            since: Some(call.open.start),
            until: Some(Ticks(call.end.0.saturating_add(1))),
        }
    }

    /// The lines of a call. `part` is [`Self::part`] of that call. Levels count from the call.
    #[must_use]
    pub fn new(trace: &'a Trace, part: &'a Filter, call: &Call, shown: Shown) -> Self {
        let depth = call.open.depth;
        let shown = Shown {
            // The tree counts from the outermost call of the thread.
            levels: shown.levels.map(|levels| levels.saturating_add(depth)),
            ..shown
        };
        Self {
            tree: Tree::new(trace, part, shown, Order::ByThread),
            root: call.open,
            place: Place::Before,
        }
    }

    /// The number of calls so far that have no line, because they are too short or too deep.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        self.tree.hidden()
    }

    fn is_root(&self, open: &Open) -> bool {
        let id = |open: &Open| (open.start, open.depth, open.function);
        id(open) == id(&self.root)
    }
}

impl Iterator for Subtree<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        while self.place != Place::Behind {
            let line = self.tree.next()?;
            match (&line, self.place) {
                (TreeLine::Leaf(call), Place::Before) if self.is_root(&call.open) => {
                    self.place = Place::Behind;
                }
                (TreeLine::Begin(open), Place::Before) if self.is_root(open) => {
                    self.place = Place::Within;
                }
                (_, Place::Before) => continue,
                (TreeLine::End(call), _) if self.is_root(&call.open) => {
                    self.place = Place::Behind;
                }
                (_, Place::Within | Place::Behind) => {}
            }
            return Some(line);
        }
        None
    }
}

// === impl Slowest ===

impl Slowest {
    #[inline]
    fn offer(&mut self, call: &Call, most: usize) {
        if self.0.len() < most {
            self.0.push(Ranked(*call));
        } else if let Some(mut last) = self.0.peek_mut()
            && call.duration_ns() >= last.0.duration_ns()
        {
            let ranked = Ranked(*call);
            if ranked < *last {
                *last = ranked;
            }
        }
    }
}

// === impl Ranked ===

impl Ranked {
    fn key(&self) -> (Reverse<u64>, Ticks, ThreadId, usize) {
        let Open {
            start,
            thread,
            depth,
            ..
        } = self.0.open;
        (Reverse(self.0.duration_ns()), start, thread, depth)
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ranked {}

// === impl Finder ===

impl Visitor for Finder<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        if self.filter.wants_call(open) {
            self.open.push(open.depth);
        }
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        let depth = call.open.depth;
        if self.open.pop_if(|open| *open == depth).is_none() {
            return;
        }
        let ns = call.duration_ns();
        let is_listed = call.how != Ending::Closed && ns >= self.min_ns;
        if let Some((_, within)) = self.longest.pop_if(|(caller, _)| *caller == depth) {
            let is_shown = is_listed && within.duration_ns() > ns / 2;
            if !is_shown {
                self.slowest.offer(&within, self.most);
            }
        }
        if !is_listed {
            return;
        }
        let Some(caller) = self.open.last() else {
            self.slowest.offer(call, self.most);
            return;
        };
        match self.longest.last_mut() {
            Some((its, longest)) if its == caller => {
                if ns > longest.duration_ns() {
                    let shorter = std::mem::replace(longest, *call);
                    self.slowest.offer(&shorter, self.most);
                } else {
                    self.slowest.offer(call, self.most);
                }
            }
            _ => self.longest.push((*caller, *call)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{BlockEncoder, Writer};
    use crate::model::{CallKind, FunctionId};

    /// The slowest calls as function, start and duration.
    type Listed = Vec<(u32, u64, u64)>;

    /// A trace with a thread for each list of calls: function, begin and end, if there is one. A
    /// call within another one begins before that one ends.
    fn trace(threads: &[&[(u32, u64, Option<u64>)]]) -> Trace {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (thread, calls) in (0..).zip(threads) {
            let mut events = Vec::new();
            for (depth, (function, begin, end)) in calls.iter().enumerate() {
                events.push((*begin, 0, depth, *function, CallKind::Enter));
                // Inner calls end first.
                let end = end.map(|end| (end, -1, usize::MAX - depth, *function, CallKind::Exit));
                events.extend(end);
            }
            events.sort_by_key(|(at, order, depth, ..)| (*at, *order, *depth));
            let mut block = BlockEncoder::new(ThreadId(thread));
            for (at, _, _, function, kind) in events {
                block.push_call(Ticks(at), FunctionId(function), kind, None);
            }
            writer.block(&block.finish().unwrap()).unwrap();
        }
        Trace::read(writer.get_ref().as_slice()).unwrap()
    }

    fn listed(trace: &Trace, filter: &Filter, min_ns: u64, most: usize) -> Listed {
        let calls = slowest_calls(trace, filter, min_ns, most).into_iter();
        let rows = calls.map(|call| (call.open.function.0, call.open.start.0, call.duration_ns()));
        rows.collect()
    }

    #[test]
    fn the_slowest_come_first_and_a_bound_holds() {
        let one: &[_] = &[(1, 0, Some(50)), (2, 60, Some(70)), (1, 80, Some(180))];
        let other: &[_] = &[(3, 5, Some(55)), (3, 60, Some(61))];
        let trace = trace(&[one, other]);
        let all = Filter::default();
        let expected = [
            (1, 80, 100),
            (1, 0, 50),
            (3, 5, 50),
            (2, 60, 10),
            (3, 60, 1),
        ];
        for most in 0..7 {
            let expected = &expected[..most.min(5)];
            assert_eq!(listed(&trace, &all, 0, most), expected, "{most}");
        }
        assert_eq!(listed(&trace, &all, 50, 9), expected[..3]);
        let only = Filter {
            functions: Some(BTreeSet::from([FunctionId(3)])),
            ..Filter::default()
        };
        assert_eq!(listed(&trace, &only, 0, 9), [(3, 5, 50), (3, 60, 1)]);
    }

    #[test]
    fn a_call_that_takes_most_of_its_caller_is_not_listed_again() {
        let calls: &[_] = &[
            (1, 0, Some(900)),
            (2, 10, Some(700)),
            (3, 20, Some(220)),
            (4, 300, Some(400)),
        ];
        let trace = trace(&[calls]);
        let all = Filter::default();
        let expected = [(1, 0, 900), (3, 20, 200), (4, 300, 100)];
        assert_eq!(listed(&trace, &all, 0, 9), expected);
        // Without a listed caller, a call stands for itself.
        let inner = Filter {
            functions: Some(BTreeSet::from([FunctionId(2), FunctionId(4)])),
            ..Filter::default()
        };
        assert_eq!(listed(&trace, &inner, 0, 9), [(2, 10, 690), (4, 300, 100)]);
    }

    #[test]
    fn a_call_without_an_exit_is_not_listed_and_calls_in_it_are() {
        let calls: &[_] = &[(1, 0, None), (2, 10, Some(90)), (3, 20, Some(80))];
        let trace = trace(&[calls]);
        assert_eq!(listed(&trace, &Filter::default(), 0, 9), [(2, 10, 80)]);
    }

    #[test]
    fn the_lines_of_a_call_end_with_it() {
        let calls: &[_] = &[
            (1, 0, Some(1000)),
            (2, 10, Some(110)),
            (2, 200, Some(600)),
            (3, 210, Some(500)),
            (4, 220, Some(320)),
            (4, 330, Some(331)),
            (2, 700, Some(710)),
        ];
        let trace = trace(&[calls]);
        let found = slowest_calls(&trace, &Filter::default(), 0, 99);
        let call = found.iter().find(|call| call.open.start == Ticks(200));
        // It takes less than half of its caller's time.
        let call = *call.unwrap();
        let lines = |shown| {
            let part = Subtree::part(&call);
            let mut subtree = Subtree::new(&trace, &part, &call, shown);
            let lines: Vec<_> = subtree
                .by_ref()
                .map(|line| match line {
                    TreeLine::Leaf(call) => ('l', call.open.function.0),
                    TreeLine::Begin(open) => ('b', open.function.0),
                    TreeLine::End(call) => ('e', call.open.function.0),
                    TreeLine::Data { .. } | TreeLine::Lost { .. } => ('?', 0),
                })
                .collect();
            (lines, subtree.hidden())
        };
        let whole = vec![('b', 2), ('b', 3), ('l', 4), ('l', 4), ('e', 3), ('e', 2)];
        assert_eq!(lines(Shown::default()), (whole, 0));
        let long = Shown {
            min_ns: 4,
            levels: None,
        };
        let without_short = vec![('b', 2), ('b', 3), ('l', 4), ('e', 3), ('e', 2)];
        assert_eq!(lines(long), (without_short, 1));
        let two = Shown {
            min_ns: 0,
            levels: Some(2),
        };
        assert_eq!(lines(two), (vec![('b', 2), ('l', 3), ('e', 2)], 2));
    }
}
