//! The origin of a process that was followed from another process.

use std::time::Duration;

use xray_trace::model::{Birth, Origin};

use crate::pid::Pid;

/// How a process came to be traced that nobody attached to by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinship {
    /// The process that its family was attached by.
    pub root: Pid,
    /// The process that forked it; of one that became another program, itself.
    pub parent: Pid,
    /// What made it what it is.
    pub by: Birth,
    /// How long it had run at most before its functions were on: what it did in that time is in no trace.
    pub within: Duration,
}

impl Kinship {
    /// As a trace says it.
    pub fn origin(&self) -> Origin {
        Origin {
            parent: self.parent.as_u32(),
            by: self.by,
            unrecorded_ns: u64::try_from(self.within.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
