//! The blocks of a thread that an analysis of a window reads. Reading begins as late as possible,
//! so that the analysis reads no more blocks than it needs.
//!
//! ```text
//!  blocks  |--------|--------|--------|--------|--------|--------|--------
//!  window                        since ══════════ until
//!  read             |········|······██████████████···|
//!                   the open calls are known here          every call of the window has ended
//! ```
//!
//! If the trace has the open calls of an earlier block, reading begins there. Otherwise the thread
//! is followed from its first event on. This file chooses the blocks; it unpacks no event.

use super::Filter;
use super::window::Window;
use crate::container::{Block, OpenCall};
use crate::model::{ThreadId, Trace};

/// A thread with events in the window, and the blocks to read.
#[derive(Debug)]
pub(super) struct ThreadBlocks<'a> {
    /// The thread.
    pub(super) thread: ThreadId,
    /// The window of the analysis.
    pub(super) window: Window,
    /// The calls that are open before the first of `blocks`, outermost first.
    pub(super) open: Vec<OpenCall>,
    /// The blocks from the first one to read, in order of time.
    pub(super) blocks: Vec<&'a Block>,
}

// === impl ThreadBlocks ===

impl<'a> ThreadBlocks<'a> {
    /// Every thread that the filter selects and that has events in the filter's window, by thread.
    pub(super) fn of_trace(trace: &'a Trace, filter: &Filter) -> Vec<Self> {
        let window = Window::of(filter);
        let threads = trace.blocks_by_thread().into_iter();
        let threads = threads.filter(|(thread, _)| filter.wants_thread(*thread));
        threads
            .filter_map(|(thread, blocks)| Self::new(trace, window, thread, blocks))
            .collect()
    }

    /// `None` if the thread has no event in the window. `blocks` are all blocks of the thread.
    fn new(
        trace: &Trace,
        window: Window,
        thread: ThreadId,
        mut blocks: Vec<&'a Block>,
    ) -> Option<Self> {
        let first = blocks.iter().position(|block| block.last >= window.since)?;
        let mut rest = blocks[first..].iter();
        if rest.all(|block| window.is_over_at(block.first)) {
            return None;
        }
        let known = (first > 0).then(|| trace.open_calls(thread, first));
        let (at, open) = known.flatten().unwrap_or_default();
        Some(Self {
            thread,
            window,
            open,
            blocks: blocks.split_off(at),
        })
    }

    /// The packed bytes of the blocks that begin before the window ends. Calls of the window may go
    /// on after it, so that the analysis may read more.
    pub(super) fn len(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks
            .filter(|block| !self.window.is_over_at(block.first))
            .map(|block| block.encoded_len())
            .sum()
    }
}
