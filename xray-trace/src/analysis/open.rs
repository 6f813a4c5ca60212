//! The open calls of every thread at one moment, like the stacks of all threads in a debugger. It
//! follows no event after that moment.

use super::Filter;
use super::stack::Steps;
use super::step::Open;
use crate::model::{ThreadId, Ticks, Trace};

/// A thread that has open calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenThread {
    /// The thread.
    pub thread: ThreadId,
    /// Its open calls, outermost first; never none.
    pub calls: Vec<Open>,
    /// The moment at which they were known to be open: the requested moment, or the last event of
    /// the thread if that was before.
    pub seen: Ticks,
    /// The same moment on `CLOCK_MONOTONIC`, in nanoseconds.
    pub seen_ns: u64,
}

// === impl OpenThread ===

impl OpenThread {
    /// The time for which a call has been open, in nanoseconds.
    #[must_use]
    pub fn open_ns(&self, call: &Open) -> u64 {
        self.seen_ns.saturating_sub(call.start_ns)
    }

    /// The time for which the thread has been in its innermost call, in nanoseconds.
    #[must_use]
    pub fn innermost_ns(&self) -> u64 {
        self.calls.last().map_or(0, |call| self.open_ns(call))
    }
}

/// The open calls of the threads that `filter` selects, at the end of the filter's window or of the
/// trace. Only threads in a call of a selected function are included. The threads that have been in
/// their innermost call for the longest time come first.
#[must_use]
pub fn open_calls(trace: &Trace, filter: &Filter) -> Vec<OpenThread> {
    let at = filter.until.unwrap_or(Ticks(u64::MAX));
    let threads = trace.blocks_by_thread().into_iter();
    let threads = threads.filter(|(thread, _)| filter.wants_thread(*thread));
    let open = threads.filter_map(|(thread, mut blocks)| {
        let goes_on = blocks.iter().any(|block| block.last >= at);
        blocks.retain(|block| block.first < at);
        let last = blocks.len().checked_sub(1)?;
        // The trace has the calls that are open at the begin of the last block.
        let (from, open) = trace.open_calls(thread, last).unwrap_or_default();
        let blocks = blocks.split_off(from);
        let steps = Steps::new(trace.clock(), thread, blocks);
        let (calls, (mut seen, mut seen_ns)) = steps.open_at(open, at);
        if goes_on {
            (seen, seen_ns) = (at, trace.clock().monotonic_ns(at));
        }
        let wanted = calls
            .iter()
            .any(|call| filter.wants_function(call.function));
        wanted.then_some(OpenThread {
            thread,
            calls,
            seen,
            seen_ns,
        })
    });
    let mut open: Vec<OpenThread> = open.collect();
    open.sort_by_key(|thread| std::cmp::Reverse(thread.innermost_ns()));
    open
}
