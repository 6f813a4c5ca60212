//! Waits of threads for the tracer.

use super::{ThreadId, Ticks};

/// A time in which a thread waited, once or several times, until the tracer had read events of it:
/// it did not record the next event before there was room. Calls that were open meanwhile took
/// longer because of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadWait {
    /// The thread.
    pub thread: ThreadId,
    /// A moment before the first of these waits.
    pub from: Ticks,
    /// A moment after the last of these waits.
    pub until: Ticks,
    /// The ticks of all of them.
    pub waited: u64,
}
