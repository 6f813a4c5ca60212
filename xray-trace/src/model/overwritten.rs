//! What a recorder that keeps the newest events had dropped by design before a snapshot was taken.

use super::{ThreadId, Ticks};

/// Events of a thread that are not in a snapshot because newer ones have taken their place. They
/// are no losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwritten {
    /// The thread.
    pub thread: ThreadId,
    /// About how many, in the time that the snapshot shows; `None` if that is not known.
    pub events: Option<u64>,
    /// From here on all events are there. Of calls that began before, those may be missing that are
    /// open.
    pub until: Ticks,
}

/// The time that a snapshot shows. Of what was before there are only the entries of calls that were
/// open when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotWindow {
    /// When it begins.
    pub since: Ticks,
    /// When it ends: when the snapshot was taken.
    pub until: Ticks,
}
