//! The kernel's process and thread ids of a thread. Most formats name a thread by them.

use crate::model::{ThreadId, Trace};

/// The kernel's ids of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelIds {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

// === impl KernelIds ===

impl KernelIds {
    /// The ids of a thread. A thread that is not in the trace's table has its own id, in process 0.
    pub(super) fn of(trace: &Trace, thread: ThreadId) -> Self {
        let known = trace.thread(thread);
        let process = known.and_then(|known| trace.process(known.process));
        Self {
            pid: process.map_or(0, |process| process.pid),
            tid: known.map_or(thread.0, |known| known.tid),
        }
    }
}
