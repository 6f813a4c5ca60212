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
//! level. Memory is bounded by the depth of the stack. This file does not choose the slow calls;
//! `slowest` does.

use std::sync::Arc;

use super::step::{Call, Open, UserEvent};
use super::tree_line::TreeLine;

/// An open call has this number of kept entries before the first search for entries that are not
/// needed any more.
const FIRST_SEARCH: usize = 64;
/// More entries than this are not needed unless calls take no time at all, as with a coarse clock.
const MOST_KEPT: usize = 8192;

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
#[derive(Debug, Default)]
pub(super) struct SlowLines {
    /// Outermost first. All open calls are here, so the index of a call is its depth.
    open: Vec<CallSoFar>,
    /// In the order in which they ended. A call comes after the entries within it.
    kept: Vec<Kept>,
    /// The number of calls that began so far.
    begun: u64,
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
}

/// The lines of a call. `within` has the entries within it in the order in which they ended, so the
/// lines are made from the end to the begin.
fn tree_lines(call: &Call, within: &[&Kept]) -> Vec<TreeLine> {
    let mut lines = Vec::new();
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
