//! An exit without an entry, and a bounded list of such exits. The stack of a thread finds them;
//! this file only holds them.

use crate::model::{CallKind, FunctionId, ThreadId, Ticks};

/// The most open calls that an exit names.
const MAX_OPEN: usize = 64;

/// An exit of a function that is not open. Its call began before the trace or in a gap, or the call
/// was left before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedExit {
    /// The thread of the exit.
    pub thread: ThreadId,
    /// The function that was left.
    pub function: FunctionId,
    /// An exit, or a tail exit.
    pub kind: CallKind,
    /// The time of the exit.
    pub ticks: Ticks,
    /// The functions whose calls were open in the thread, innermost first, at most 64.
    pub open: Vec<FunctionId>,
}

/// The first unmatched exits of one thread, up to a limit.
#[derive(Debug, Default)]
pub(super) struct UnmatchedExits {
    limit: usize,
    kept: Vec<UnmatchedExit>,
}

/// Keeps the first `limit` exits, in order of time.
pub(super) fn keep_first(exits: &mut Vec<UnmatchedExit>, limit: usize) {
    exits.sort_by_key(|exit| (exit.ticks, exit.thread));
    exits.truncate(limit);
}

// === impl UnmatchedExits ===

impl UnmatchedExits {
    /// An empty list that keeps the first `limit` exits.
    pub(super) fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            kept: Vec::new(),
        }
    }

    /// Keeps the exit, unless the list is full.
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
            self.kept.push(UnmatchedExit {
                thread,
                function,
                kind,
                ticks,
                open: open.take(MAX_OPEN).collect(),
            });
        }
    }

    /// The exits that the list kept.
    pub(super) fn into_kept(self) -> Vec<UnmatchedExit> {
        self.kept
    }
}
