//! The state of a group, and what the search for processes reports.

use std::collections::VecDeque;

use super::follow::{Finding, Follow, NotFollowed};
use crate::pid::Pid;

/// Limit on processes that a status names because they are not followed.
const MOST_REPORTED: usize = 16;

/// Counters and reports of the search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Processes that were followed.
    pub(crate) followed: u64,
    /// Processes with sleds that ended before they could be attached to.
    pub(crate) missed: u64,
    /// Processes that have ended and of which no events are retained.
    pub(super) dropped: u64,
    /// Processes that are not traced now, because they have no sleds or cannot be traced.
    pub(crate) untraced: u32,
    /// The latest processes that cannot be traced, with the reason.
    pub(super) not_followed: VecDeque<NotFollowed>,
    /// The detection method for processes, once the search has begun.
    pub(crate) finding: Option<Finding>,
}

/// The state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The first process.
    pub root: Pid,
    /// The user of the first process.
    pub uid: u32,
    /// The command line of the first process.
    pub command: String,
    /// True if the first process is traced, or was.
    pub root_is_traced: bool,
    /// The processes that are followed.
    pub follow: Follow,
    /// True if no process can join any more.
    pub over: bool,
    /// Processes that are traced now.
    pub traced: u32,
    /// Processes that were followed so far.
    pub followed: u64,
    /// Processes with sleds that ended before they could be attached to. Processes that begin and
    /// end between two looks are unknown, and do not count.
    pub missed: u64,
    /// Processes that have ended and of which no events are retained.
    pub dropped: u64,
    /// Living processes that are not traced, because they have no sleds or cannot be traced.
    pub untraced: u32,
    /// The latest of them that have sleds, with the reason.
    pub not_followed: Vec<NotFollowed>,
    /// The detection method for processes. `None` if none was ever followed.
    pub finding: Option<Finding>,
}

// === impl News ===

impl News {
    /// Adds a process that has sleds and is not traced.
    pub(super) fn add_not_followed(&mut self, process: NotFollowed) {
        self.not_followed.retain(|other| other.pid != process.pid);
        if self.not_followed.len() == MOST_REPORTED {
            self.not_followed.pop_front();
        }
        self.not_followed.push_back(process);
    }
}
