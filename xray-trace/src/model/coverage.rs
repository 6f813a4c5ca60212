//! What the events of a trace cover.

use super::{
    DutyWindow, FilterNote, Gap, Lifetime, Overwritten, RecordingWindow, SnapshotWindow,
    Suppression, ThreadId, ThreadWait,
};
use crate::container::Completeness;

/// What the events of a trace cover, and what they do not.
#[derive(Debug, Clone)]
pub struct Coverage {
    /// The times for which modules were loaded, by module and time. A module without such a time
    /// was always loaded.
    pub lifetimes: Vec<Lifetime>,
    /// The times for which functions were suppressed to keep to a budget, by function, process and
    /// time.
    pub suppressions: Vec<Suppression>,
    /// The duty windows of processes with a duty cycle, by process and time.
    pub duty: Vec<DutyWindow>,
    /// The filters that were in force, with their begins, by process and time.
    pub filters: Vec<FilterNote>,
    /// The times in which an unknown number of events was lost, by process and time.
    pub gaps: Vec<Gap>,
    /// The times in which threads waited for the tracer, in the order of the file.
    pub waits: Vec<ThreadWait>,
    /// Losses whose place among a thread's events is unknown.
    pub losses: Vec<(ThreadId, u64)>,
    /// The events that were overwritten before a snapshot was taken, which is no loss. Complete
    /// threads have no entry.
    pub overwritten: Vec<Overwritten>,
    /// The window of a snapshot with a limited time.
    pub snapshot: Option<SnapshotWindow>,
    /// The times that recordings of processes with several recordings cover, with the events
    /// outside of them, by process.
    pub recordings: Vec<RecordingWindow>,
    /// Whether the trace has an end, or where it was cut.
    pub completeness: Completeness,
}
