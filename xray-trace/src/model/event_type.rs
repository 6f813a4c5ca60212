//! Names of typed events' types.

use super::ProcessId;

/// A type of typed events that a program has registered under a name (`__xray_register_event_type`). The numbers of one process mean nothing
/// in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventType {
    /// The process whose events have it.
    pub process: ProcessId,
    /// Its number, as events have it.
    pub number: u16,
    /// What the program calls it.
    pub name: String,
}
