//! The policy of following, and the reports of the search.

use crate::{pid::Pid, refusal::Refusal};

/// The processes that are traced besides the one that is attached to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// None.
    #[default]
    None,
    /// Processes that it forks, and their forks, as long as they run the same program.
    Fork,
    /// The program that it becomes by `exec`.
    Exec,
    /// All processes that come from it, whichever program they run.
    All,
}

/// The detection method for processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The kernel's perf events.
    Perf,
    /// Looks every few milliseconds, and the reason for them.
    Looks(String),
}

/// A process with sleds that comes from a traced one and is not traced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFollowed {
    /// Its id.
    pub pid: Pid,
    /// Its command line.
    pub command: String,
    /// The reason.
    pub refusal: Refusal,
}

// === impl Follow ===

impl Follow {
    /// True if children are followed.
    pub fn forks(self) -> bool {
        matches!(self, Self::Fork | Self::All)
    }

    /// True if a process is followed through `exec`.
    pub fn execs(self) -> bool {
        matches!(self, Self::Exec | Self::All)
    }

    /// True if this policy follows all processes that `other` follows.
    pub(crate) fn covers(self, other: Self) -> bool {
        (self.forks() || !other.forks()) && (self.execs() || !other.execs())
    }
}
