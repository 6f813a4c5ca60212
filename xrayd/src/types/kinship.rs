//! The origin of a process that was followed from another process.

use std::time::Duration;

use xray_trace::model::{Birth, Origin};

use crate::pid::Pid;

/// The origin of a process that was followed, not attached by its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinship {
    /// The process that was attached or started by a user.
    pub root: Pid,
    /// The process that forked it. A process that called `exec` is its own parent here.
    pub parent: Pid,
    /// The call that made the process run this program.
    pub by: Birth,
    /// The longest time that the program can have run before its functions were on. Nothing of that
    /// time is recorded.
    pub within: Duration,
}

// === impl Kinship ===

impl Kinship {
    /// The same for a trace.
    pub fn origin(&self) -> Origin {
        Origin {
            parent: self.parent.as_u32(),
            by: self.by,
            unrecorded_ns: u64::try_from(self.within.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
