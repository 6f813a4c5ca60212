//! What a recording has of a process that others record as well.

use super::{ProcessId, Ticks};

/// The time of a recording in one process, and events of its functions that are not in it. Both
/// ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingWindow {
    /// The process.
    pub process: ProcessId,
    /// When the recording began; `None` if that was when the process began to be traced. Calls that
    /// began before are not in it.
    pub since: Option<Ticks>,
    /// When it ended; `None` if the process ended, or was detached, before. What happened after is
    /// not in it.
    pub until: Option<Ticks>,
    /// Exits that were left out: of calls that began before the recording.
    pub earlier_exits: u64,
    /// Entries and exits that were left out: they happened after its end, while its functions were
    /// switched back.
    pub later_events: u64,
    /// Losses after its end.
    pub later_lost: u64,
}
