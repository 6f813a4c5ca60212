//! The target of a request that names one process: a group, or one session.

use std::sync::Arc;

use super::{group::Group, group_profiling::GroupProfiling, registry::Registry, session::Session};
use crate::{
    control::Patterns,
    pid::Pid,
    refusal::Refusal,
    store::{EventSubscription, ResumedStream, StreamBegin},
    types::{DetachReport, LeaseId, Run, Settings, SettingsUpdate, ToggleReport, ToggleTo},
};

/// The target of a request that names one process.
#[derive(Debug, Clone)]
pub(crate) enum ProcessOrGroup {
    /// The first process of a group. The target is all members.
    Group(Arc<Group>),
    /// Any other process. The target is its session.
    Session(Arc<Session>),
}

/// A request to switch functions.
#[derive(Debug)]
pub(crate) enum Toggle {
    /// Switches functions, permanently or for a lease.
    Functions(Arc<Patterns>, ToggleTo, Run),
    /// Ends a lease.
    Release(LeaseId),
}

/// The outcome for each process.
pub(crate) type Outcomes<T> = Vec<(Pid, Result<T, Refusal>)>;

// === impl Toggle ===

impl Toggle {
    /// True if it has values of calls recorded.
    pub(crate) fn captures(&self) -> bool {
        match self {
            Self::Functions(_, to, _) => to.captures(),
            Self::Release(_) => false,
        }
    }
}

// === impl ProcessOrGroup ===

impl ProcessOrGroup {
    /// Switches functions as requested in all processes of the target. A lease that one process has
    /// by itself also ends in processes that were forked from it, if they `may` be changed.
    pub(crate) fn toggle(
        &self,
        registry: &Registry,
        toggle: &Toggle,
        may: impl Fn(&Session) -> bool,
    ) -> Outcomes<ToggleReport> {
        match self {
            Self::Group(group) => match toggle {
                Toggle::Functions(selection, to, run) => group.toggle(selection, *to, *run),
                Toggle::Release(from) => group.release(*from),
            },
            Self::Session(session) => {
                if let Toggle::Release(from) = toggle
                    && let Some(group) = registry.group_of(session)
                {
                    return group.release_of(session, *from, may);
                }
                let report = match toggle {
                    Toggle::Functions(selection, to, run) => session.toggle(selection, *to, *run),
                    Toggle::Release(from) => session.release(*from),
                };
                vec![(session.pid(), report)]
            }
        }
    }

    /// As [`Registry::end_group`].
    pub(crate) fn end(&self, registry: &Registry) -> Outcomes<DetachReport> {
        match self {
            Self::Group(group) => registry.end_group(group),
            Self::Session(session) => vec![(session.pid(), registry.end(session))],
        }
    }

    /// The same refusal for each process.
    pub(crate) fn refused<T>(&self, refusal: &Refusal) -> Outcomes<T> {
        let sessions = self.sessions().into_iter();
        sessions
            .map(|session| (session.pid(), Err(refusal.clone())))
            .collect()
    }

    /// A live subscription of all events from now on. A subscription for a lease ends with the
    /// lease. Threads wait as for [`Session::subscribe`].
    pub(crate) fn subscribe(&self, lease: Option<LeaseId>, wait: u64) -> EventSubscription {
        match self {
            Self::Group(group) => group.subscribe(lease, wait),
            Self::Session(session) => session.subscribe(lease, wait),
        }
    }

    /// A live stream of the process, or of the first process of the group, as for
    /// [`Session::resume`]. `None` if that process is not traced.
    pub(crate) fn resume(&self, begin: StreamBegin) -> Option<ResumedStream> {
        match self {
            Self::Group(group) => group.root_session().map(|session| session.resume(begin)),
            Self::Session(session) => Some(session.resume(begin)),
        }
    }

    /// Begins sums of calls of all living processes, and of those that join later.
    ///
    /// # Errors
    /// A process or its files do not answer.
    pub(crate) fn profile(&self) -> Result<Arc<GroupProfiling>, Refusal> {
        let profiling = Arc::new(GroupProfiling::new());
        // First, so that no process joins in between.
        if let Self::Group(group) = self {
            group.members.profile_later(&profiling);
        }
        for session in self.sessions() {
            if !session.has_exited() {
                profiling.join(&session)?;
            }
        }
        Ok(profiling)
    }

    /// True if a process can still join.
    pub(crate) fn can_grow(&self) -> bool {
        match self {
            Self::Group(group) => group.members.can_grow(),
            Self::Session(_) => false,
        }
    }

    /// All sessions, ended ones included.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        match self {
            Self::Group(group) => group.sessions(),
            Self::Session(session) => vec![Arc::clone(session)],
        }
    }

    /// The process whose function ids hold for the target.
    pub(crate) fn first(&self) -> Option<Arc<Session>> {
        match self {
            Self::Group(group) => group
                .root_session()
                .or_else(|| group.sessions().into_iter().next()),
            Self::Session(session) => Some(Arc::clone(session)),
        }
    }

    /// True for the same group, or the same session.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Group(one), Self::Group(other)) => Arc::ptr_eq(one, other),
            (Self::Session(one), Self::Session(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Changes settings of all processes, and returns the settings before. An empty update returns
    /// the settings in force, of ended processes, too.
    pub(crate) fn update(&self, update: &SettingsUpdate) -> Outcomes<Settings> {
        if update.is_empty() {
            let sessions = self.sessions().into_iter();
            return sessions
                .map(|session| (session.pid(), Ok(session.settings())))
                .collect();
        }
        match self {
            Self::Group(group) => group.update(update.clone()),
            Self::Session(session) => vec![(session.pid(), session.update(update.clone()))],
        }
    }
}
