//! Whether and how a thread under seccomp filters can be borrowed.
//!
//! A filter may answer a system call by killing the process, and only root without a filter may
//! read it. So a filtered thread makes a call for us only where the filter cannot harm it. Either
//! the filter is suspended during the call (`PTRACE_O_SUSPEND_SECCOMP`), or it is the same filter
//! under which we make such calls ourselves.

use std::{fmt, fs, path::PathBuf};

use super::ThreadStatus;
use crate::pid::{Pid, Tid};

/// The user namespace in which `capable()` checks, include/linux/proc_ns.h.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
const CAP_SYS_ADMIN: u32 = 21;

/// The consequence of a thread's filters for borrowing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The thread has no filter.
    Unfiltered,
    /// The filters are suspended during each call that the thread makes for us.
    Suspended,
    /// The filters are those that we are under ourselves.
    Shared,
    /// The thread cannot be borrowed.
    Closed(Obstacle),
}

/// The reason why this tracer cannot suspend a filter (`check_ptrace_options` in kernel/ptrace.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The tracer lacks CAP_SYS_ADMIN.
    Capability,
    /// The tracer has its capabilities only in a user namespace.
    UserNamespace,
    /// The tracer is under a filter itself.
    OwnFilter,
}

// === impl Passage ===

impl Passage {
    /// The passage for thread `tid` of process `pid`, whose status was just read.
    pub(crate) fn of(pid: Pid, tid: Tid, status: &ThreadStatus) -> Self {
        if status.seccomp != Some(2) {
            return Self::Unfiltered;
        }
        let Some(own) = ThreadStatus::own() else {
            return Self::Closed(Obstacle::Capability);
        };
        match obstacle(&own) {
            None => Self::Suspended,
            Some(_) if are_shared(pid, tid, status, &own) => Self::Shared,
            Some(obstacle) => Self::Closed(obstacle),
        }
    }
}

fn obstacle(own: &ThreadStatus) -> Option<Obstacle> {
    let namespace = fs::read_link("/proc/self/ns/user").unwrap_or_default();
    if own.capabilities & (1 << CAP_SYS_ADMIN) == 0 {
        Some(Obstacle::Capability)
    } else if namespace.as_os_str() != INITIAL_USER_NAMESPACE {
        Some(Obstacle::UserNamespace)
    } else if own.seccomp != Some(0) {
        Some(Obstacle::OwnFilter)
    } else {
        None
    }
}

/// True if the thread's filters are ours. Filters are inherited and never removed. So a child of
/// ours with as many filters as we have has our filters. The same holds for a process in our
/// container, if the container's first process has as many, too.
fn are_shared(pid: Pid, tid: Tid, status: &ThreadStatus, own: &ThreadStatus) -> bool {
    if status.filters.is_none() || status.filters != own.filters {
        return false;
    }
    if status.parent == Some(std::process::id()) {
        return true;
    }
    let namespaces = |process: &str| -> Option<[PathBuf; 2]> {
        let link = |name| fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
        Some([link("pid")?, link("mnt")?])
    };
    let ours = namespaces("self");
    let first = Pid::try_from(1)
        .ok()
        .and_then(|first| ThreadStatus::read(first, first.leader()));
    ours.is_some()
        && namespaces("1") == ours
        && namespaces(&format!("{pid}/task/{tid}")) == ours
        && first.is_some_and(|first| first.filters == own.filters)
}

// === impl Obstacle ===

impl Obstacle {
    /// The remedy that the user can apply.
    pub(crate) fn remedy(self, pid: Pid) -> String {
        match self {
            Self::Capability => format!("sudo xrayctl record {pid}"),
            Self::UserNamespace | Self::OwnFilter => {
                "run xrayd on the host, by a unit without seccomp settings such as \
                 SystemCallFilter="
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capability => "this tracer has no CAP_SYS_ADMIN",
            Self::UserNamespace => "this tracer has CAP_SYS_ADMIN in a user namespace only",
            Self::OwnFilter => "this tracer is under a seccomp filter itself",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_way_of_suspending_a_filter() {
        let own = |capabilities, seccomp| ThreadStatus {
            capabilities,
            seccomp: Some(seccomp),
            ..ThreadStatus::default()
        };
        let everything = u64::MAX;
        let other = everything & !(1 << CAP_SYS_ADMIN);
        assert_eq!(obstacle(&own(other, 0)), Some(Obstacle::Capability));
        let filtered = obstacle(&own(everything, 2));
        assert!(
            matches!(
                filtered,
                Some(Obstacle::OwnFilter | Obstacle::UserNamespace)
            ),
            "{filtered:?}"
        );
    }

    #[test]
    fn filters_are_shared_only_if_as_many_were_inherited() {
        let pid = Pid::this();
        let status = |filters, parent| ThreadStatus {
            seccomp: Some(2),
            filters,
            parent,
            ..ThreadStatus::default()
        };
        let own = status(Some(3), None);
        let child = Some(std::process::id());
        let shared = |theirs: ThreadStatus| are_shared(pid, pid.leader(), &theirs, &own);
        assert!(shared(status(Some(3), child)));
        assert!(!shared(status(Some(4), child)));
        assert!(!shared(status(None, child)));
        // Not a child of ours, while the first process has no filters or another number of them.
        assert!(!shared(status(Some(3), Some(1))));
    }
}
