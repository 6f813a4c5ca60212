//! What every thread was in at one moment: its open calls, as a debugger shows the stacks of all
//! threads.

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
    /// Until when they were seen to be open: the moment that was asked for, or the last event of
    /// the thread, if that was before.
    pub seen: Ticks,
    /// The same on `CLOCK_MONOTONIC`, in nanoseconds.
    pub seen_ns: u64,
}

// === impl OpenThread ===

impl OpenThread {
    /// How long a call has been open, in nanoseconds.
    #[must_use]
    pub fn open_ns(&self, call: &Open) -> u64 {
        self.seen_ns.saturating_sub(call.start_ns)
    }

    /// For how long the thread has been in its innermost call, in nanoseconds.
    #[must_use]
    pub fn innermost_ns(&self) -> u64 {
        self.calls.last().map_or(0, |call| self.open_ns(call))
    }
}

/// The calls that are open in each thread that `filter` wants, at its end or at the trace's; of
/// threads in a call of a function that it wants. Those that have been in their innermost call for
/// the longest time come first.
#[must_use]
pub fn open_calls(trace: &Trace, filter: &Filter) -> Vec<OpenThread> {
    let at = filter.until.unwrap_or(Ticks(u64::MAX));
    let threads = trace.blocks_by_thread().into_iter();
    let threads = threads.filter(|(thread, _)| filter.wants_thread(*thread));
    let open = threads.filter_map(|(thread, mut blocks)| {
        let goes_on = blocks.iter().any(|block| block.last >= at);
        blocks.retain(|block| block.first < at);
        let last = blocks.len().checked_sub(1)?;
        // What is open where the last block begins need not be found again.
        let (from, open) = trace.open_calls(thread, last).unwrap_or_default();
        let blocks = blocks.split_off(from);
        let steps = Steps::new(trace.clock(), thread, blocks).with_open(open);
        let (calls, (mut seen, mut seen_ns)) = steps.open_at(at);
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
