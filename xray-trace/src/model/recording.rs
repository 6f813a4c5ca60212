//! The extent of one recording of a process that has other recordings, too.

use super::{ProcessId, Ticks};

/// The time of a recording in one process, and the events of its functions outside that time. Both
/// ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingWindow {
    /// The process.
    pub process: ProcessId,
    /// The begin; `None` if the recording began with the tracing of the process. Calls that began
    /// before it are not included.
    pub since: Option<Ticks>,
    /// The end; `None` if the process ended, or was detached, before. Later events are not
    /// included.
    pub until: Option<Ticks>,
    /// Exits that were left out, because their calls began before the recording.
    pub earlier_exits: u64,
    /// Entries and exits that were left out, because they happened after the end, while its
    /// functions were being switched back.
    pub later_events: u64,
    /// Losses after the end.
    pub later_lost: u64,
}
