//! Makes the index of a trace while the trace is written: the open calls at the begins of blocks.
//! It follows the open calls by the changes that come with the blocks, and unpacks no block.
//!
//! ```text
//!  open calls of the thread   ├── outer ──┤├── open ──┤
//!                             │ │└ their entries are in the trace: a reader has them, too └ they
//!                             began before the first block in the trace
//! ```
//!
//! The result is the index that a reader of the whole trace would make. If that is not certain any
//! more, because blocks are missing or the changes contradict each other, the index is given up.
//! Sections that were made before stay right.

use std::collections::HashMap;

use super::closed::StackChange;
use super::{OpenCall, OpenCalls, OpenCallsEncoder};
use crate::model::{FunctionId, ThreadId};

/// The most threads that are followed.
const MOST_THREADS: usize = 1 << 16;
/// The most open calls of all threads together: 36 MiB with the copies in the encoders.
const MOST_CALLS: usize = 1 << 18;
/// The most bytes of entries that wait for their sections to be long.
const MOST_PENDING: usize = 16 << 20;

/// The index of a trace that is being written.
#[derive(Debug)]
pub struct StreamIndex {
    /// The bytes of events that justify one byte of an entry.
    spacing: u64,
    /// The threads that have a block. Emptied when the index is given up.
    threads: HashMap<ThreadId, FollowedThread>,
    /// The number of their open calls.
    calls: usize,
    /// The bytes of their entries that are in no section yet.
    pending: usize,
    complete: bool,
}

#[derive(Debug)]
struct FollowedThread {
    encoder: OpenCallsEncoder,
    /// The open calls that are in the trace, outermost first.
    open: Vec<OpenCall>,
    /// The number of open calls around them. `None` before the first block.
    outer: Option<u64>,
}

// === impl StreamIndex ===

impl StreamIndex {
    /// The index of a trace without blocks. A byte of the index covers at least `spacing` bytes of
    /// events.
    #[must_use]
    pub fn new(spacing: u64) -> Self {
        Self {
            spacing,
            threads: HashMap::new(),
            calls: 0,
            pending: 0,
            complete: true,
        }
    }

    /// True if the sections are the whole index of the blocks so far.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Gives up: blocks are missing in the trace, or were added without this index.
    pub fn give_up(&mut self) {
        self.complete = false;
        self.threads.clear();
        self.calls = 0;
        self.pending = 0;
    }

    /// Adds a block of `len` bytes of events that was written, with its change of the open calls.
    /// `number` gives the functions of the trace. Returns the sections that are long enough.
    pub fn block(
        &mut self,
        thread: ThreadId,
        len: u64,
        change: Option<&StackChange>,
        number: impl Fn(FunctionId) -> FunctionId,
    ) -> Vec<OpenCalls> {
        if !self.complete {
            return Vec::new();
        }
        let sections = change.and_then(|change| self.follow(thread, len, change, number));
        if sections.is_none() {
            self.give_up();
        }
        sections.unwrap_or_default()
    }

    /// Ends a thread. Returns its last sections.
    pub fn end_thread(&mut self, thread: ThreadId) -> Vec<OpenCalls> {
        let Some(gone) = self.threads.remove(&thread) else {
            return Vec::new();
        };
        self.calls -= gone.open.len();
        self.pending -= gone.encoder.pending();
        gone.encoder.finish()
    }

    /// Ends all threads. Returns the last sections, in order of thread.
    pub fn finish(&mut self) -> Vec<OpenCalls> {
        let mut threads: Vec<_> = self.threads.keys().copied().collect();
        threads.sort_unstable();
        let sections = threads.into_iter().map(|thread| self.end_thread(thread));
        sections.flatten().collect()
    }

    /// `None` if the index is not certain any more.
    fn follow(
        &mut self,
        thread: ThreadId,
        len: u64,
        change: &StackChange,
        number: impl Fn(FunctionId) -> FunctionId,
    ) -> Option<Vec<OpenCalls>> {
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&thread) {
            return None;
        }
        let spacing = self.spacing;
        let followed = self
            .threads
            .entry(thread)
            .or_insert_with(|| FollowedThread {
                encoder: OpenCallsEncoder::new(thread, spacing),
                open: Vec::new(),
                outer: None,
            });
        let (calls, pending) = (followed.open.len(), followed.encoder.pending());
        followed.block(len, change, number)?;
        self.calls = self.calls - calls + followed.open.len();
        self.pending = self.pending - pending + followed.encoder.pending();
        if self.calls > MOST_CALLS {
            return None;
        }
        let mut sections = followed.encoder.take_finished();
        if self.pending > MOST_PENDING {
            for followed in self.threads.values_mut() {
                followed.encoder.end_section();
                sections.extend(followed.encoder.take_finished());
            }
            self.pending = 0;
        }
        Some(sections)
    }
}

// === impl FollowedThread ===

impl FollowedThread {
    fn block(
        &mut self,
        len: u64,
        change: &StackChange,
        number: impl Fn(FunctionId) -> FunctionId,
    ) -> Option<()> {
        let open = self.open.len() as u64;
        let outer = match self.outer {
            Some(outer) if change.continues => {
                (outer.checked_add(open) == Some(change.before)).then_some(outer)?
            }
            _ if open == 0 => change.before,
            _ => return None,
        };
        self.encoder.block(self.open.iter().copied(), len);
        let outer = outer.min(change.kept);
        let keep = usize::try_from(change.kept - outer).ok()?;
        if keep > self.open.len() {
            return None;
        }
        self.open.truncate(keep);
        self.open.extend(change.begun.iter().map(|call| OpenCall {
            function: number(call.function),
            ..call
        }));
        self.outer = Some(outer);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::BegunCalls;
    use crate::model::{Ticks, Values};

    fn change(before: u64, kept: u64, begun: &[u32], continues: bool) -> StackChange {
        let calls = begun.iter().map(|id| OpenCall {
            function: FunctionId(*id),
            start: Ticks(u64::from(*id)),
            args: Values::NONE,
        });
        StackChange {
            before,
            kept,
            begun: BegunCalls::new(calls),
            nests: true,
            continues,
        }
    }

    fn followed(changes: &[StackChange]) -> (Vec<OpenCalls>, bool) {
        let mut index = StreamIndex::new(0);
        for change in changes {
            let sections = index.block(ThreadId(1), 100, Some(change), |id| FunctionId(id.0 + 1));
            assert!(sections.is_empty());
        }
        (index.finish(), index.is_complete())
    }

    #[test]
    fn only_calls_that_began_in_the_trace_are_open_in_it() {
        let (sections, complete) = followed(&[
            change(2, 2, &[5, 6], false),
            change(4, 3, &[], true),
            change(3, 1, &[7], true),
            change(2, 2, &[], true),
        ]);
        assert!(complete);
        let open: Vec<Vec<u32>> = (0..4)
            .map(|block| {
                let (at, open) = sections[0].before(block).unwrap();
                assert_eq!(at, block);
                open.iter().map(|call| call.function.0).collect()
            })
            .collect();
        assert_eq!(open, [vec![], vec![6, 7], vec![6], vec![8]]);
    }

    #[test]
    fn an_index_that_is_not_certain_is_given_up() {
        for (what, second) in [
            ("a block is missing", change(7, 7, &[], true)),
            ("events are in no block", change(1, 1, &[], false)),
            (
                "more calls are kept than there are",
                change(1, 9, &[], true),
            ),
        ] {
            let (_, complete) = followed(&[change(0, 0, &[5], false), second]);
            assert!(!complete, "{what}");
        }
        // Without open calls in the trace it makes no difference.
        let (_, complete) = followed(&[change(1, 1, &[], false), change(9, 9, &[], false)]);
        assert!(complete);
        let mut index = StreamIndex::new(0);
        index.block(ThreadId(0), 1, None, |id| id);
        assert!(!index.is_complete());
    }

    /// Deep stacks of many threads, and entries of many threads.
    #[test]
    fn memory_is_bounded() {
        let mut index = StreamIndex::new(0);
        let deep: Vec<u32> = (0..1 << 12).collect();
        let deep = change(0, 0, &deep, false);
        for thread in 0..1 << 8 {
            index.block(ThreadId(thread), 1, Some(&deep), |id| id);
            assert!(index.calls <= MOST_CALLS);
        }
        let shallow = change(0, 0, &[], false);
        let mut sections = 0;
        for thread in 1 << 8..1 << 17 {
            sections += index
                .block(ThreadId(thread), 1, Some(&shallow), |id| id)
                .len();
            assert!(index.threads.len() <= MOST_THREADS && index.pending <= MOST_PENDING);
        }
        assert!(!index.is_complete() && sections == 0);
    }
}
