//! The part of its time that is looked at of each thread: where to begin, so that no more is read than is needed, and when enough
//! was seen.
//!
//! ```text
//!  blocks  |--------|--------|--------|--------|--------|--------|--------
//!  window                        since ══════════ until
//!  read             |········|······██████████████···|
//!                   what is open here was written down     every call of the window has ended
//! ```
//!
//! What is open at `since` is known from a block whose open calls the trace has, or from following the thread from its first event on.

use super::Filter;
use super::stack::Steps;
use super::step::Siblings;
use crate::container::{Block, OpenCall};
use crate::model::{ThreadId, Ticks, Trace};

/// From a tick on, up to another one. The default is always.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) since: Ticks,
    /// The first tick after it; the greatest number if it has no end.
    pub(super) until: Ticks,
}

/// A thread that has something in the window, and what is to be read of it.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    thread: ThreadId,
    window: Window,
    /// What is open before the first of `blocks`.
    open: Vec<OpenCall>,
    blocks: Vec<&'a Block>,
}

/// Every thread that `filter` wants something of, by thread.
pub(super) fn wanted<'a>(trace: &'a Trace, filter: &Filter) -> Vec<Wanted<'a>> {
    let window = Window::of(filter);
    let threads = trace.blocks_by_thread().into_iter();
    let threads = threads.filter(|(thread, _)| filter.wants_thread(*thread));
    threads
        .filter_map(|(thread, blocks)| Wanted::new(trace, window, thread, blocks))
        .collect()
}

// === impl Window ===

impl Window {
    fn of(filter: &Filter) -> Self {
        let all = Self::default();
        Self {
            since: filter.since.unwrap_or(all.since),
            until: filter.until.unwrap_or(all.until),
        }
    }

    #[inline]
    pub(super) fn has(self, ticks: Ticks) -> bool {
        self.since <= ticks && !self.is_over_at(ticks)
    }

    pub(super) fn is_over_at(self, ticks: Ticks) -> bool {
        self.until <= ticks && self.until != Self::default().until
    }
}

impl Default for Window {
    fn default() -> Self {
        Self {
            since: Ticks(0),
            until: Ticks(u64::MAX),
        }
    }
}

// === impl Wanted ===

impl<'a> Wanted<'a> {
    /// `None` if nothing happens in the window. `blocks` are all of the thread's.
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

    /// About how many bytes of events there are to be read. Calls of the window may go on after it.
    pub(super) fn len(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks
            .filter(|block| !self.window.is_over_at(block.first))
            .map(|block| block.encoded_len())
            .sum()
    }

    /// The steps in the window, and after it until every call of the window has ended.
    pub(super) fn steps(self, trace: &'a Trace, siblings: Siblings) -> Steps<'a> {
        Steps::new(trace.clock(), self.thread, self.blocks)
            .with_siblings(siblings)
            .within(self.window, self.open)
    }
}
