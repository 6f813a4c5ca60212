//! The calls within open calls, as far as they can have a line if one of the open calls becomes one
//! of the slowest. So the lines of a slow call are known when it ends, and no event is read again.
//!
//! A call within a slow one has a line if it takes a certain part of its time, such as one in 100.
//! The time of an open call grows, so fewer and fewer calls within it have a line:
//!
//! ```text
//!  serve                         ends after 900 ms: calls of 9 ms or more have a line
//!    parse 2 ms                  serve is open for 3 ms: kept, and dropped after 200 ms
//!    hash 10 ms                  kept
//!    log 1 ms                    serve is open for 150 ms: not kept
//! ```
//!
//! The calls of one level follow each other in time, so an open call has at most about 200 of each
//! level. A stack that is too deep for that has no lines for some of its calls, and says so: memory
//! is bounded by [`Bounds`]. This file does not choose the slow calls; `slowest` does.

use std::sync::Arc;

use super::step::{Call, Open, UserEvent};
use super::tree_line::TreeLine;

/// An open call has this number of kept entries before the first search for entries that are not
/// needed any more.
const FIRST_SEARCH: usize = 64;
/// More entries than this are not needed unless calls take no time at all, as with a coarse clock.
const MOST_KEPT: usize = 8192;

/// The limits on what is kept for a thread.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    entries: usize,
    /// Bytes of user events.
    data: usize,
}

const BOUNDS: Bounds = Bounds {
    entries: 1 << 17,
    data: 64 << 20,
};

/// The lines that a slow call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowCallLines {
    /// The number of levels, the slow call included; at most 60.
    pub levels: usize,
    /// A call has a line if it takes at least one in so many parts of the time of the slow call.
    pub parts: u64,
    /// The number of user events. Later ones have no line and are counted.
    pub user_events: u64,
}

/// A slow call and the lines of its tree, from its begin to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowCall {
    /// The call.
    pub call: Call,
    /// Its lines.
    pub lines: Vec<TreeLine>,
    /// Calls shorter than this have no line, in nanoseconds.
    pub shortest_ns: u64,
    /// The number of calls within it without a line, because they are too short or too deep.
    pub hidden_calls: u64,
    /// The number of user events without a line, because there are too many.
    pub hidden_user_events: u64,
}

/// The open calls of a thread, and the ended calls and user events that can have a line.
#[derive(Debug)]
pub(super) struct SlowLines {
    bounds: Bounds,
    /// Outermost first. All open calls are here, so the index of a call is its depth.
    open: Vec<CallSoFar>,
    /// In the order in which they ended. A call comes after the entries within it.
    kept: Vec<Kept>,
    /// The number of calls that began so far.
    begun: u64,
    /// The bytes of user events that were kept since they were counted last.
    data: usize,
}

/// A call, from its begin until the entries within it are used.
#[derive(Debug)]
pub(super) struct CallSoFar {
    start_ns: u64,
    /// The number of entries in `kept` when it began. Later entries are within it.
    kept: usize,
    /// The number of entries within it at which the next search for unneeded entries begins.
    search_at: usize,
    /// The number of calls that began before, and itself.
    begun: u64,
    /// The number of user events within it that are not too deep.
    user_events: u64,
    /// Shorter calls have no line, because there were too many; 0 by default.
    shortest_ns: u64,
}

/// An entry that can have a line.
#[derive(Debug)]
enum Kept {
    Call(Call),
    UserEvent(UserEvent, Arc<[u8]>),
}

/// Chooses the entries that have a line below a call.
struct Choice {
    /// The depth of the call.
    depth: usize,
    lines: SlowCallLines,
    shortest_ns: u64,
    /// The calls that are to have a line because of a user event within them: the bit of each
    /// distance to the call.
    with_user_event: u64,
}

// === impl SlowLines ===

impl SlowLines {
    fn with(bounds: Bounds) -> Self {
        Self {
            bounds,
            open: Vec::new(),
            kept: Vec::new(),
            begun: 0,
            data: 0,
        }
    }

    /// A call begins.
    #[inline(always)]
    pub(super) fn enter(&mut self, open: &Open) {
        self.begun += 1;
        self.open.push(CallSoFar {
            start_ns: open.start_ns,
            kept: self.kept.len(),
            search_at: FIRST_SEARCH,
            begun: self.begun,
            user_events: 0,
            shortest_ns: 0,
        });
    }

    /// A user event.
    #[cold]
    pub(super) fn user_event(&mut self, user_event: &UserEvent, data: &[u8], lines: SlowCallLines) {
        let mut is_needed = false;
        for open in self.open.iter_mut().rev().take(lines.levels) {
            is_needed |= open.user_events < lines.user_events;
            open.user_events += 1;
        }
        if is_needed {
            self.kept.push(Kept::UserEvent(*user_event, data.into()));
            self.data += data.len();
            self.keep_bounds();
        }
    }

    /// The innermost call ends.
    #[inline(always)]
    pub(super) fn leave(&mut self) -> Option<CallSoFar> {
        self.open.pop()
    }

    /// True if nothing within the call is kept.
    #[inline(always)]
    pub(super) fn is_empty_in(&self, ended: &CallSoFar) -> bool {
        self.kept.len() == ended.kept
    }

    /// The call with its lines, if calls shorter than `min_ns` have none.
    #[cold]
    pub(super) fn slow_call(
        &self,
        ended: &CallSoFar,
        call: &Call,
        min_ns: u64,
        lines: SlowCallLines,
    ) -> SlowCall {
        let part = call.duration_ns() / lines.parts.max(1);
        let mut choice = Choice {
            depth: call.open.depth,
            lines,
            shortest_ns: min_ns.max(part).max(ended.shortest_ns),
            with_user_event: 0,
        };
        let mut user_events = 0;
        let within = self.kept[ended.kept..].iter();
        let within: Vec<&Kept> = within
            .filter(|kept| {
                let is_user_event = matches!(kept, Kept::UserEvent(..));
                let has_line =
                    !(is_user_event && user_events == lines.user_events) && choice.has_line(kept);
                user_events += u64::from(is_user_event && has_line);
                has_line
            })
            .collect();
        let calls = within.len() as u64 - user_events;
        SlowCall {
            call: *call,
            lines: tree_lines(call, &within),
            shortest_ns: choice.shortest_ns,
            hidden_calls: (self.begun - ended.begun).saturating_sub(calls),
            hidden_user_events: ended.user_events.saturating_sub(user_events),
        }
    }

    /// Keeps an ended call if it can have a line in the calls around it. Calls shorter than
    /// `shortest_ns` have none anywhere.
    pub(super) fn keep(
        &mut self,
        ended: &CallSoFar,
        call: &Call,
        shortest_ns: u64,
        lines: SlowCallLines,
    ) {
        let Some(caller) = self.open.last_mut() else {
            self.kept.clear();
            return;
        };
        caller.shortest_ns = caller.shortest_ns.max(ended.shortest_ns);
        let open_ns = call.end_ns.saturating_sub(caller.start_ns);
        let shortest_ns = shortest_ns
            .max(open_ns / lines.parts.max(1))
            .max(caller.shortest_ns);
        if call.duration_ns() < shortest_ns && ended.user_events == 0 {
            self.kept.truncate(ended.kept);
            return;
        }
        self.kept.push(Kept::Call(*call));
        if self.kept.len() - caller.kept >= caller.search_at {
            self.drop_unneeded(shortest_ns, lines);
        }
        self.keep_bounds();
    }

    /// Drops all entries if they exceed a bound.
    #[inline(always)]
    fn keep_bounds(&mut self) {
        if self.kept.len() >= self.bounds.entries || self.data >= self.bounds.data {
            self.drop_over_bounds();
        }
    }

    #[cold]
    fn drop_over_bounds(&mut self) {
        self.data = self.kept.iter().map(Kept::data_len).sum();
        if self.kept.len() < self.bounds.entries && self.data < self.bounds.data / 2 {
            return;
        }
        // No dropped call has a line in any call around it.
        let (mut end, mut longest_ns) = (self.kept.len(), 0);
        for open in self.open.iter_mut().rev() {
            let within = self.kept[open.kept..end].iter();
            longest_ns = within.map(Kept::duration_ns).fold(longest_ns, u64::max);
            end = open.kept;
            open.shortest_ns = open.shortest_ns.max(longest_ns.saturating_add(1));
            open.kept = 0;
            open.search_at = FIRST_SEARCH;
        }
        self.kept.clear();
        self.data = 0;
    }

    /// Drops the entries within the innermost open call that cannot have a line any more.
    #[cold]
    fn drop_unneeded(&mut self, shortest_ns: u64, lines: SlowCallLines) {
        let depth = self.open.len().saturating_sub(1);
        let Some(innermost) = self.open.last_mut() else {
            return;
        };
        let mut within = self.kept.split_off(innermost.kept);
        for shortest_ns in [shortest_ns, shortest_ns.max(1)] {
            let mut choice = Choice {
                depth,
                lines,
                shortest_ns,
                with_user_event: 0,
            };
            // The number of user events of each distance and less. A call further out does not
            // count the deepest ones, so those do not replace others.
            let mut user_events = vec![0; lines.levels + 1];
            within.retain(|kept| {
                if let Kept::UserEvent(event, _) = kept {
                    let distance = event.depth.saturating_sub(depth);
                    let Some(before) = user_events.get(distance).copied() else {
                        return false;
                    };
                    user_events[distance..].iter_mut().for_each(|sum| *sum += 1);
                    return before < lines.user_events && choice.has_line(kept);
                }
                choice.has_line(kept)
            });
            if within.len() <= MOST_KEPT {
                break;
            }
            innermost.shortest_ns = innermost.shortest_ns.max(1);
        }
        innermost.search_at = FIRST_SEARCH.max(2 * within.len());
        self.kept.append(&mut within);
    }
}

impl Default for SlowLines {
    fn default() -> Self {
        Self::with(BOUNDS)
    }
}

// === impl Choice ===

impl Choice {
    /// Whether an entry has a line. The entries come in the order in which they ended.
    fn has_line(&mut self, kept: &Kept) -> bool {
        match kept {
            Kept::UserEvent(user_event, _) => {
                let distance = user_event.depth.saturating_sub(self.depth);
                let has_line = distance <= self.lines.levels;
                if has_line {
                    self.need_caller(distance);
                }
                has_line
            }
            Kept::Call(call) => {
                let distance = call.open.depth.saturating_sub(self.depth);
                if distance >= self.lines.levels {
                    return false;
                }
                let bit = 1_u64.checked_shl(u32::try_from(distance).unwrap_or(u32::MAX));
                let bit = bit.unwrap_or(0);
                let has_user_event = self.with_user_event & bit != 0;
                self.with_user_event &= !bit;
                if has_user_event {
                    self.need_caller(distance);
                }
                has_user_event || call.duration_ns() >= self.shortest_ns
            }
        }
    }

    /// The call around a line at this distance has a line, too.
    fn need_caller(&mut self, distance: usize) {
        let caller = distance.saturating_sub(1);
        let bit = 1_u64.checked_shl(u32::try_from(caller).unwrap_or(u32::MAX));
        self.with_user_event |= bit.unwrap_or(0);
    }
}

// === impl Kept ===

impl Kept {
    /// The number of calls around it.
    fn depth(&self) -> usize {
        match self {
            Self::Call(call) => call.open.depth,
            Self::UserEvent(user_event, _) => user_event.depth,
        }
    }

    fn duration_ns(&self) -> u64 {
        match self {
            Self::Call(call) => call.duration_ns(),
            Self::UserEvent(..) => 0,
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Self::Call(_) => 0,
            Self::UserEvent(_, data) => data.len(),
        }
    }
}

/// The lines of a call. `within` has the entries within it in the order in which they ended, so the
/// lines are made from the end to the begin.
fn tree_lines(call: &Call, within: &[&Kept]) -> Vec<TreeLine> {
    // Exact for a call without lines within it, of which there may be one for each open call.
    let mut lines = Vec::with_capacity(within.len() + 1);
    // The calls whose end is made already, outermost first.
    let mut ended: Vec<&Call> = Vec::new();
    let root = Kept::Call(*call);
    let entries: Vec<&Kept> = within.iter().copied().chain([&root]).collect();
    for (at, entry) in entries.iter().enumerate().rev() {
        while let Some(outer) = ended.pop_if(|outer| outer.open.depth >= entry.depth()) {
            lines.push(TreeLine::Begin(outer.open));
        }
        match entry {
            Kept::UserEvent(user_event, data) => lines.push(TreeLine::Data {
                user_event: *user_event,
                data: Arc::clone(data),
            }),
            Kept::Call(call) => {
                let before = at.checked_sub(1).map(|before| entries[before].depth());
                if before.is_some_and(|depth| depth > call.open.depth) {
                    lines.push(TreeLine::End(*call));
                    ended.push(call);
                } else {
                    lines.push(TreeLine::Leaf(*call));
                }
            }
        }
    }
    let begun = ended.iter().rev();
    lines.extend(begun.map(|outer| TreeLine::Begin(outer.open)));
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Ending;
    use crate::model::{DataKind, DataRef, FunctionId, ThreadId, Ticks, Values};

    const LINES: SlowCallLines = SlowCallLines {
        levels: 3,
        parts: 100,
        user_events: 20,
    };

    fn open(depth: usize, start_ns: u64) -> Open {
        Open {
            thread: ThreadId(0),
            function: FunctionId(1),
            depth,
            nesting: 0,
            start: Ticks(start_ns),
            start_ns,
            args: Values::default(),
        }
    }

    fn call(open: Open, end_ns: u64) -> Call {
        Call {
            open,
            end: Ticks(end_ns),
            end_ns,
            self_ns: 0,
            off_cpu: None,
            how: Ending::Normal,
            result: None,
        }
    }

    fn end(lines: &mut SlowLines, open: Open, end_ns: u64) -> SlowCall {
        let ended = lines.leave().unwrap();
        let call = call(open, end_ns);
        let slow_call = lines.slow_call(&ended, &call, 0, LINES);
        lines.keep(&ended, &call, 0, LINES);
        slow_call
    }

    /// Each call of a deep recursion has calls that may have a line.
    #[test]
    fn a_deep_stack_takes_bounded_memory_and_says_what_it_leaves_out() {
        let mut lines = SlowLines::with(Bounds {
            entries: 1000,
            data: 1 << 20,
        });
        let mut now = 0;
        let mut opened = Vec::new();
        let mut most = 0;
        for depth in 0..2000 {
            opened.push(open(depth, now));
            lines.enter(&opened[depth]);
            let inner = open(depth + 1, now);
            lines.enter(&inner);
            now += 10;
            end(&mut lines, inner, now);
            most = most.max(lines.kept.len());
        }
        assert!(most < 1000, "{most}");
        // The durations of the calls of the recursion that have ended, outermost last.
        let mut ended: Vec<u64> = Vec::new();
        let mut is_left_out = false;
        while let Some(outer) = opened.pop() {
            now += 10;
            let depth = outer.depth;
            let slow_call = end(&mut lines, outer, now);
            let calls = 2 * (2000 - depth as u64);
            let shown = slow_call.lines.iter();
            let shown = shown.filter(|line| !matches!(line, TreeLine::Begin(_)));
            let shown = shown.count() as u64;
            assert_eq!(shown + slow_call.hidden_calls, calls, "{depth}");
            // A call of the recursion at each of two levels, and a call of 10 ns beside each.
            let recursion: Vec<u64> = ended.iter().rev().take(2).copied().collect();
            let beside = recursion.len().min(1) + 1;
            let within = recursion.iter().copied().chain(vec![10; beside]);
            let long = within.filter(|ns| *ns >= slow_call.shortest_ns).count() as u64;
            assert_eq!(shown, 1 + long, "{depth}: {slow_call:?}");
            is_left_out |= slow_call.shortest_ns > slow_call.call.duration_ns() / LINES.parts;
            ended.push(slow_call.call.duration_ns());
            assert!(lines.kept.len() < 1000);
        }
        assert!(is_left_out);
    }

    #[test]
    fn user_events_take_bounded_memory() {
        let mut lines = SlowLines::with(Bounds {
            entries: 1000,
            data: 10_000,
        });
        let mut opened = Vec::new();
        for depth in 0..200 {
            opened.push(open(depth, 0));
            lines.enter(&opened[depth]);
            let user_event = UserEvent {
                thread: ThreadId(0),
                ticks: Ticks(0),
                ns: 0,
                depth: depth + 1,
                kind: DataKind::Custom,
                data: DataRef {
                    at: 0,
                    len: 0,
                    size: 0,
                    function: None,
                },
            };
            lines.user_event(&user_event, &[7; 100], LINES);
            let bytes: usize = lines.kept.iter().map(Kept::data_len).sum();
            assert!(bytes <= 10_000, "{bytes}");
        }
        let outer = opened.remove(197);
        opened.truncate(197);
        lines.leave();
        lines.leave();
        let slow_call = end(&mut lines, outer, 100);
        let shown = slow_call.lines.iter();
        let shown = shown
            .filter(|line| matches!(line, TreeLine::Data { .. }))
            .count() as u64;
        assert_eq!(shown + slow_call.hidden_user_events, 3);
    }
}
