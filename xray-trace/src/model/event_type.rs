//! Names of typed events' types.

use super::ProcessId;

/// A type of typed events that a program has registered under a name
/// (`__xray_register_event_type`). The numbers of one process have no meaning in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventType {
    /// The process.
    pub process: ProcessId,
    /// Its number in the events.
    pub number: u16,
    /// Its name in the program.
    pub name: String,
}
