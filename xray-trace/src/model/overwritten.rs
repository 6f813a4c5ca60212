//! The events that a flight recorder had overwritten by design before a snapshot was taken.

use super::{ThreadId, Ticks};

/// Events of a thread that are not in a snapshot because newer ones have overwritten them. They are
/// no losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwritten {
    /// The thread.
    pub thread: ThreadId,
    /// Their approximate number in the snapshot's window; `None` if unknown.
    pub events: Option<u64>,
    /// All events from here on are in the snapshot. Open calls that began before may be missing.
    pub until: Ticks,
}

/// The window of a snapshot. From the time before it, the trace has only the entries of calls that
/// were open at its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotWindow {
    /// Its begin.
    pub since: Ticks,
    /// Its end: the time at which the snapshot was taken.
    pub until: Ticks,
}
