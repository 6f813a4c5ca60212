//! The slowest calls of a trace, with the lines of the tree of each.
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
use std::collections::BinaryHeap;

use super::Filter;
use super::slow_lines::{CallSoFar, SlowCall, SlowCallLines, SlowLines};
use super::step::{Call, Ending, Open, UserEvent};
use super::tree_line::LeastTimes;
use crate::model::{ThreadId, Ticks};

/// The slow calls to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowestOptions {
    /// The number of calls.
    pub most: usize,
    /// Only calls that took at least these times. Calls of too short a duration have no line
    /// either.
    pub least: LeastTimes,
    /// The lines of each call.
    pub lines: SlowCallLines,
}

/// The slowest calls so far. The one that goes first when there are too many is on top.
#[derive(Debug, Default)]
pub(super) struct Slowest(BinaryHeap<Ranked>);

/// A call in the order of the list: the slowest first, equal ones by time.
#[derive(Debug)]
struct Ranked(SlowCall);

/// The order of the list.
type Rank = (Reverse<u64>, Ticks, ThreadId, usize);

/// Follows one thread.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    slowest: Slowest,
    filter: &'a Filter,
    options: SlowestOptions,
    /// The depths of the open selected calls, outermost first.
    open: Vec<usize>,
    /// The longest call directly within an open selected call, with the depth of that caller,
    /// outermost first. It is listed only if it takes half of its caller's time or less.
    longest: Vec<(usize, SlowCall)>,
    /// The calls within the open ones.
    lines: SlowLines,
}

// === impl Slowest ===

impl Slowest {
    /// True if a call has a place in the list.
    #[inline]
    fn takes(&self, call: &Call, most: usize) -> bool {
        if self.0.len() < most {
            return true;
        }
        self.0.peek().is_some_and(|last| {
            call.duration_ns() >= last.0.call.duration_ns() && rank(call) < rank(&last.0.call)
        })
    }

    /// Adds a call if it has a place.
    fn offer(&mut self, call: SlowCall, most: usize) {
        if !self.takes(&call.call, most) {
            return;
        }
        if self.0.len() >= most {
            self.0.pop();
        }
        self.0.push(Ranked(call));
    }

    /// The duration that every further call of the list has at least.
    #[inline]
    fn least_ns(&self, most: usize) -> u64 {
        match self.0.peek() {
            Some(last) if self.0.len() >= most => last.0.call.duration_ns(),
            _ => 0,
        }
    }

    /// Adds the calls of other threads.
    pub(super) fn merge(&mut self, mut other: Self, most: usize) {
        if self.0.is_empty() {
            std::mem::swap(self, &mut other);
        }
        let others = other.0.into_iter();
        others.for_each(|Ranked(call)| self.offer(call, most));
    }

    /// The calls, the slowest first.
    pub(super) fn into_calls(self) -> Vec<SlowCall> {
        let calls = self.0.into_sorted_vec().into_iter();
        calls.map(|Ranked(call)| call).collect()
    }
}

// === impl Ranked ===

fn rank(call: &Call) -> Rank {
    let Open {
        start,
        thread,
        depth,
        ..
    } = call.open;
    (Reverse(call.duration_ns()), start, thread, depth)
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        rank(&self.0.call).cmp(&rank(&other.0.call))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

// === impl Finder ===

impl<'a> Finder<'a> {
    /// Adds the calls of a thread that `filter` selects to `slowest`. Calls without an exit are not
    /// among them, because their duration is not known.
    pub(super) fn new(slowest: Slowest, filter: &'a Filter, options: SlowestOptions) -> Self {
        Self {
            slowest,
            filter,
            options,
            open: Vec::new(),
            longest: Vec::new(),
            lines: SlowLines::default(),
        }
    }

    /// The slowest calls.
    pub(super) fn into_slowest(self) -> Slowest {
        self.slowest
    }

    #[inline(always)]
    pub(super) fn enter(&mut self, open: &Open) {
        self.lines.enter(open);
        if self.filter.wants_call(open) {
            self.open.push(open.depth);
        }
    }

    #[cold]
    pub(super) fn user_event(&mut self, user_event: &UserEvent, data: &[u8]) {
        self.lines.user_event(user_event, data, self.options.lines);
    }

    #[inline(always)]
    pub(super) fn leave(&mut self, call: &Call) {
        let SlowestOptions { most, least, lines } = self.options;
        let depth = call.open.depth;
        let is_selected = self.open.pop_if(|open| *open == depth).is_some();
        let Some(ended) = self.lines.leave() else {
            return;
        };
        // A shorter call has no line in any call of the list.
        let shortest_ns = least
            .duration_ns
            .max(self.slowest.least_ns(most) / lines.parts.max(1));
        let has_longest = self
            .longest
            .last()
            .is_some_and(|(caller, _)| *caller == depth);
        if call.duration_ns() < shortest_ns && !has_longest && self.lines.is_empty_in(&ended) {
            return;
        }
        if is_selected {
            self.list(call, &ended);
        }
        self.lines.keep(&ended, call, shortest_ns, lines);
    }

    /// Lists a selected call that ended, and the longest call within it.
    fn list(&mut self, call: &Call, ended: &CallSoFar) {
        let SlowestOptions { most, least, lines } = self.options;
        let ns = call.duration_ns();
        let is_listed = call.how != Ending::Closed && least.are_met_by(call);
        let depth = call.open.depth;
        if let Some((_, within)) = self.longest.pop_if(|(caller, _)| *caller == depth) {
            let is_shown = is_listed && within.call.duration_ns() > ns / 2;
            if !is_shown {
                self.slowest.offer(within, most);
            }
        }
        // The calls of the list only become slower.
        if !is_listed || !self.slowest.takes(call, most) {
            return;
        }
        let slow_call = self.lines.slow_call(ended, call, least.duration_ns, lines);
        let Some(caller) = self.open.last() else {
            self.slowest.offer(slow_call, most);
            return;
        };
        match self.longest.last_mut() {
            Some((its, longest)) if its == caller => {
                if ns > longest.call.duration_ns() {
                    let shorter = std::mem::replace(longest, slow_call);
                    self.slowest.offer(shorter, most);
                } else {
                    self.slowest.offer(slow_call, most);
                }
            }
            _ => self.longest.push((*caller, slow_call)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::analysis::{OnePass, OnePassOptions, Order, Shown, TableOption};
    use crate::container::{BlockEncoder, Writer};
    use crate::model::{CallKind, FunctionId, Trace};

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

    fn slowest_calls(trace: &Trace, filter: &Filter, min_ns: u64, most: usize) -> Vec<SlowCall> {
        let options = OnePassOptions {
            table: TableOption::NotesOnly,
            slowest: Some(SlowestOptions {
                most,
                least: LeastTimes::of_duration(min_ns),
                lines: SlowCallLines {
                    levels: 8,
                    parts: 100,
                    user_events: 20,
                },
            }),
            shown: Shown::default(),
            order: Order::ByThread,
        };
        OnePass::new(trace, filter, options).finish().slowest
    }

    fn listed(trace: &Trace, filter: &Filter, min_ns: u64, most: usize) -> Listed {
        let calls = slowest_calls(trace, filter, min_ns, most).into_iter();
        let rows = calls.map(|SlowCall { call, .. }| {
            (call.open.function.0, call.open.start.0, call.duration_ns())
        });
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
}
