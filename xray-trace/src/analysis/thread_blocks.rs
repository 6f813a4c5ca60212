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
//! is followed from its first event on. `threads_in_window` chooses the blocks.

use super::window::Window;
use crate::container::{Block, OpenCall};
use crate::model::ThreadId;

/// Calls that a thread may have at the begin of the window. The exact number would need reading.
const CALLS_AT_BEGIN: u64 = 16;

/// A thread with events or open calls in the window, and the blocks to read.
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

impl ThreadBlocks<'_> {
    /// About the number of calls in the window: the call events of the thread's blocks in it, and
    /// some calls that are open at its begin. It is the same with and without an index.
    pub(super) fn calls(&self) -> u64 {
        let window = self.window;
        let blocks = self.blocks.iter();
        let within = blocks
            .filter(|block| block.last >= window.since && !window.is_over_at(block.first))
            .map(|block| u64::from(block.calls));
        within.sum::<u64>().saturating_add(CALLS_AT_BEGIN)
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
