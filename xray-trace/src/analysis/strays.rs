//! Exits without an entry, one by one: whose they are, and what was open in their thread.

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use super::threads::by_thread;
use crate::model::{CallKind, FunctionId, ThreadId, Ticks, Trace};

/// Open calls that are named at most.
const DEPTH: usize = 64;

/// An exit of a function that is not open: its call began before the trace or in a gap, or had been left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The thread that it happened in.
    pub thread: ThreadId,
    /// The function that was left.
    pub function: FunctionId,
    /// An exit, or a tail exit.
    pub kind: CallKind,
    /// When.
    pub ticks: Ticks,
    /// The functions whose calls were open in the thread, innermost first, at most 64.
    pub open: Vec<FunctionId>,
}

/// The first of one thread's, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Strays {
    limit: usize,
    kept: Vec<Stray>,
}

/// The first `limit` exits without an entry of the threads that are wanted, in order of time. How many there are in all is in
/// [`Notes`](super::Notes).
#[must_use]
pub fn strays(trace: &Trace, filter: &Filter, limit: usize) -> Vec<Stray> {
    let look = |kept: &mut Vec<Stray>, steps: Steps<'_>| {
        let mut steps = steps.keeping_strays(limit);
        steps.by_ref().for_each(drop);
        kept.extend(steps.into_strays());
        first(kept, limit);
    };
    let parts = by_thread(trace, filter, Siblings::Closed, look);
    let mut all = parts.concat();
    first(&mut all, limit);
    all
}

fn first(strays: &mut Vec<Stray>, limit: usize) {
    strays.sort_by_key(|stray| (stray.ticks, stray.thread));
    strays.truncate(limit);
}

// === impl Strays ===

impl Strays {
    pub(super) fn of(limit: usize) -> Self {
        Self {
            limit,
            kept: Vec::new(),
        }
    }

    /// Takes one in, unless there are enough.
    #[cold]
    pub(super) fn keep(
        &mut self,
        thread: ThreadId,
        function: FunctionId,
        kind: CallKind,
        ticks: Ticks,
        open: impl Iterator<Item = FunctionId>,
    ) {
        if self.kept.len() < self.limit {
            self.kept.push(Stray {
                thread,
                function,
                kind,
                ticks,
                open: open.take(DEPTH).collect(),
            });
        }
    }

    pub(super) fn into_kept(self) -> Vec<Stray> {
        self.kept
    }
}
