//! The table of sessions and groups: look-ups, lists, and the reservations of pids. The steps of
//! attach and detach are in `registry`.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use super::{
    group::Group,
    refusals::{busy, not_attached},
    session::Session,
};
use crate::{lock::lock, pid::Pid, refusal::Result};

/// The sessions and groups of a registry.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    sessions: Mutex<HashMap<Pid, Entry>>,
    /// Process groups by their first processes. Never locked after `sessions`.
    groups: Mutex<HashMap<Pid, Arc<Group>>>,
}

#[derive(Debug, Clone)]
enum Entry {
    /// An attach or detach is under way.
    Busy,
    Attached(Arc<Session>),
}

/// The result of [`SessionTable::reserve`].
#[derive(Debug)]
pub(super) enum Reservation {
    Running(Arc<Session>),
    Free(Reserved),
}

/// A pid that is marked busy, until this is dropped or kept.
#[derive(Debug)]
pub(super) struct Reserved {
    table: Arc<SessionTable>,
    pid: Pid,
    /// The session of an ended process with this pid. It stays if no new session replaces it.
    before: Option<Arc<Session>>,
}

// === impl SessionTable ===

impl SessionTable {
    /// The session of a process.
    pub(super) fn get(&self, pid: Pid) -> Option<Arc<Session>> {
        match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            Some(Entry::Busy) | None => None,
        }
    }

    /// True if a process is attached, or an attach or a detach is under way.
    pub(super) fn has(&self, pid: Pid) -> bool {
        match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => !session.has_exited(),
            Some(Entry::Busy) => true,
            None => false,
        }
    }

    /// The session of a process that is to be detached from.
    ///
    /// # Errors
    /// The process is not attached, or an attach or detach is under way.
    pub(super) fn attached(&self, pid: Pid) -> Result<Arc<Session>> {
        match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Ok(Arc::clone(session)),
            Some(Entry::Busy) => Err(busy(pid)),
            None => Err(not_attached(pid)),
        }
    }

    /// The pids of all sessions, and of attaches and detaches that are under way.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.lock().keys().copied().collect()
    }

    /// All sessions.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.lock();
        let attached = sessions.values().filter_map(|entry| match entry {
            Entry::Attached(session) => Some(Arc::clone(session)),
            Entry::Busy => None,
        });
        attached.collect()
    }

    /// Adds a session. It replaces the entry of its pid.
    pub(super) fn insert(&self, session: &Arc<Session>) {
        self.lock()
            .insert(session.pid(), Entry::Attached(Arc::clone(session)));
    }

    /// Removes a session, unless another entry has its pid by now.
    pub(super) fn remove(&self, session: &Arc<Session>) {
        let (pid, mut sessions) = (session.pid(), self.lock());
        if let Some(Entry::Attached(current)) = sessions.get(&pid)
            && Arc::ptr_eq(current, session)
        {
            sessions.remove(&pid);
        }
    }

    /// The running session of `pid`, if there is one. Otherwise marks the pid as busy for the
    /// caller.
    ///
    /// # Errors
    /// Another attach or detach is under way, or the running session has failed.
    pub(super) fn reserve(self: &Arc<Self>, pid: Pid) -> Result<Reservation> {
        let mut sessions = self.lock();
        let before = match sessions.get(&pid) {
            Some(Entry::Busy) => return Err(busy(pid)),
            Some(Entry::Attached(session)) if !session.has_exited() => {
                if let Some(failed) = session.failure() {
                    return Err(failed);
                }
                return Ok(Reservation::Running(Arc::clone(session)));
            }
            // The pid may belong to a new process.
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            None => None,
        };
        sessions.insert(pid, Entry::Busy);
        Ok(Reservation::Free(Reserved {
            table: Arc::clone(self),
            pid,
            before,
        }))
    }

    /// Marks the pid of exactly this session as busy, for its detach.
    ///
    /// # Errors
    /// The session is not in the table, or another detach is under way.
    pub(super) fn reserve_for_end(self: &Arc<Self>, session: &Arc<Session>) -> Result<Reserved> {
        let pid = session.pid();
        match self.lock().get_mut(&pid) {
            Some(entry) => match entry {
                Entry::Attached(current) if Arc::ptr_eq(current, session) => *entry = Entry::Busy,
                Entry::Attached(_) => return Err(not_attached(pid)),
                Entry::Busy => return Err(busy(pid)),
            },
            None => return Err(not_attached(pid)),
        }
        Ok(Reserved {
            table: Arc::clone(self),
            pid,
            before: None,
        })
    }

    /// The group whose first process is `root`. `None` if that process has ended and another
    /// process has its pid and a session.
    pub(super) fn group(&self, root: Pid) -> Option<Arc<Group>> {
        let group = self.groups_lock().get(&root).cloned()?;
        let session = self.get(root);
        let same = |session: &Arc<Session>| session.start_time() == group.start_time;
        session.as_ref().is_none_or(same).then_some(group)
    }

    /// All groups, ordered by first process.
    pub(super) fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups: Vec<_> = self.groups_lock().values().cloned().collect();
        groups.sort_unstable_by_key(|group| group.root());
        groups
    }

    /// Adds a group. Returns the group whose first process had the same pid.
    pub(super) fn insert_group(&self, group: &Arc<Group>) -> Option<Arc<Group>> {
        self.groups_lock().insert(group.root(), Arc::clone(group))
    }

    /// Removes a group.
    pub(super) fn remove_group(&self, group: &Arc<Group>) {
        self.groups_lock()
            .retain(|_, other| !Arc::ptr_eq(other, group));
    }

    /// Removes the groups without a member.
    pub(super) fn remove_empty_groups(&self) {
        self.groups_lock().retain(|_, group| !group.is_empty());
    }

    /// All groups, and the sessions whose group is gone.
    pub(super) fn all_sessions(&self) -> (Vec<Arc<Group>>, Vec<Arc<Session>>) {
        let groups = self.groups();
        let members = groups.iter().flat_map(|group| group.sessions());
        let members: HashSet<_> = members.map(|session| Arc::as_ptr(&session)).collect();
        let sessions = self.lock();
        let attached = sessions.values().filter_map(|entry| match entry {
            Entry::Attached(session) => Some(session),
            Entry::Busy => None,
        });
        let strays = attached.filter(|session| !members.contains(&Arc::as_ptr(session)));
        (groups, strays.cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pid, Entry>> {
        lock(&self.sessions)
    }

    fn groups_lock(&self) -> MutexGuard<'_, HashMap<Pid, Arc<Group>>> {
        lock(&self.groups)
    }
}

// === impl Reserved ===

impl Reserved {
    /// Replaces the mark by a session.
    pub(super) fn keep(self, session: &Arc<Session>) {
        self.table
            .lock()
            .insert(self.pid, Entry::Attached(Arc::clone(session)));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut sessions = self.table.lock();
        if !matches!(sessions.get(&self.pid), Some(Entry::Busy)) {
            return;
        }
        match self.before.take() {
            Some(session) => sessions.insert(self.pid, Entry::Attached(session)),
            None => sessions.remove(&self.pid),
        };
    }
}
