//! The call that a record belongs to, as its function, thread and process.

use std::fmt;

/// The function, thread and process of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The function's id.
    pub function: i32,
    /// The thread.
    pub tid: u32,
    /// The process. Logs have it from version 3 on.
    pub pid: Option<u32>,
}

// === impl Owner ===

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, tid, pid } = self;
        write!(f, "function {function} in thread {tid}")?;
        pid.map_or(Ok(()), |pid| write!(f, " of process {pid}"))
    }
}
