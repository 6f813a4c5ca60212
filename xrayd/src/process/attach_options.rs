//! The options of an attach. The steps of the attach are in `attach`.

use super::follow::Follow;
use crate::{
    pid::Tid,
    target::{Caller, Sleds},
    types::{Budget, Mode},
};

/// Options of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    /// Bytes of each thread's ring; a power of two from 64 KiB to 1 GiB.
    pub ring_bytes: u64,
    /// Threads that can have a ring at the same time, 1 to 65536.
    pub max_threads: u32,
    /// Refuse unless the process has this start time, so that the pid still names the listed
    /// process.
    pub start_time: Option<u64>,
    /// The thread to borrow. `None`: any thread.
    pub thread: Option<Tid>,
    /// Refuse unless the kernel gives the process's memory to this user. Checked before anything is
    /// changed.
    pub owner: Option<u32>,
    /// Refuse unless this caller may trace the process. Checked before anything is changed. The
    /// quotas of the caller's user count the session. `None` counts against no quota.
    pub caller: Option<Caller>,
    /// The processes that are followed from it.
    pub follow: Follow,
    /// Whether the process must have sleds already.
    pub sleds: Sleds,
    /// The mode of the session.
    pub mode: Mode,
    /// The limit on the cost of tracing.
    pub budget: Budget,
    /// True if a policy attaches. The daemon detaches when no policy and no client has functions on
    /// any more.
    pub by_policy: bool,
}

// === impl AttachOptions ===

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            max_threads: 1024,
            start_time: None,
            thread: None,
            owner: None,
            caller: None,
            follow: Follow::None,
            sleds: Sleds::Needed,
            mode: Mode::Stream,
            budget: Budget::None,
            by_policy: false,
        }
    }
}
