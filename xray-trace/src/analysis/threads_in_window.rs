//! The threads that belong to a window, and the blocks that an analysis of it reads.
//!
//! Events are unpacked only of threads that have blocks before and after the window and none in it:
//! such a thread belongs to the window if a call is open there.

use super::Filter;
use super::stack::Steps;
use super::step::{Open, Siblings};
use super::thread_blocks::ThreadBlocks;
use super::window::Window;
use crate::container::{Block, OpenCall};
use crate::model::{ThreadId, Trace};

impl<'a> Steps<'a> {
    /// The steps that `filter` may select, of every thread that has any, by thread.
    pub fn of_wanted(trace: &'a Trace, filter: &Filter) -> impl Iterator<Item = Self> {
        let threads = threads_in_window(trace, filter).into_iter();
        threads.map(|thread| Self::in_window(trace, thread, Siblings::Closed))
    }
}

/// Every thread that the filter selects and that has events or open calls in the filter's
/// window, by thread. A thread that has kernel events alone there is left out.
pub(super) fn threads_in_window<'a>(trace: &'a Trace, filter: &Filter) -> Vec<ThreadBlocks<'a>> {
    let window = Window::of(filter);
    let threads = trace.blocks_by_thread().into_iter();
    let threads = threads.filter(|(thread, _)| filter.wants_thread(*thread));
    threads
        .filter_map(|(thread, blocks)| blocks_of(trace, window, thread, blocks))
        .collect()
}

/// `None` if the thread has no event and no open call in the window. `blocks` are all blocks of
/// the thread.
fn blocks_of<'a>(
    trace: &Trace,
    window: Window,
    thread: ThreadId,
    mut blocks: Vec<&'a Block>,
) -> Option<ThreadBlocks<'a>> {
    let first = blocks.iter().position(|block| block.last >= window.since)?;
    let mut rest = blocks[first..].iter();
    if rest.all(|block| window.is_over_at(block.first)) {
        return blocks_between(trace, window, thread, blocks, first);
    }
    let known = (first > 0).then(|| trace.open_calls(thread, first));
    let (at, open) = known.flatten().unwrap_or_default();
    Some(ThreadBlocks {
        thread,
        window,
        open,
        blocks: blocks.split_off(at),
    })
}

/// A thread whose blocks up to `first` end before the window, and whose other blocks begin
/// after it. `None` if the thread has no open call in the window.
fn blocks_between<'a>(
    trace: &Trace,
    window: Window,
    thread: ThreadId,
    mut blocks: Vec<&'a Block>,
    first: usize,
) -> Option<ThreadBlocks<'a>> {
    if first == 0 {
        return None;
    }
    let (at, mut open) = trace.open_calls(thread, first).unwrap_or_default();
    if at < first {
        let before = blocks.get(at..first)?.to_vec();
        let steps = Steps::new(trace.clock(), thread, before);
        let (calls, _) = steps.open_at(open, window.since);
        let calls = calls.into_iter();
        let stored = |call: Open| OpenCall {
            function: call.function,
            start: call.start,
            args: call.args,
        };
        open = calls.map(stored).collect();
    }
    // The first later block shows that the calls go on.
    (!open.is_empty()).then(|| ThreadBlocks {
        thread,
        window,
        open,
        blocks: blocks.split_off(first),
    })
}
