//! Threads of traced processes.

use super::ProcessId;

/// A thread's index in its trace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its index in the trace.
    pub id: ThreadId,
    /// Its process.
    pub process: ProcessId,
    /// The kernel's id of the thread, which a later thread may get again.
    pub tid: u32,
    /// Its name (`comm`); empty if the thread ended before the name could be read.
    pub name: String,
}
