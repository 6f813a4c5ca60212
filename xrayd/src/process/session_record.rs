//! The record of a session, from which a later daemon goes on with it, and the keeper that writes
//! it. The files of the records are in `recovery`.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use super::{attach_options::AttachOptions, follow::Follow};
use crate::{
    control::{ChoiceKeeper, Choices},
    lock::lock,
    pid::Pid,
    segments::SegmentStore,
    target::{Caller, Credentials, Sleds},
    types::Kinship,
};

/// A session, as a later daemon needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRecord {
    pub(crate) pid: Pid,
    pub(crate) start_time: u64,
    /// Names the session among those of the process: the counter at its attach. A later daemon that
    /// goes on with the session keeps it.
    pub(crate) session: u64,
    /// The credentials of the process at its attach.
    pub(crate) credentials: Credentials,
    /// True if the process has ended, or runs another program. The session has its retained events
    /// only.
    pub(crate) has_ended: bool,
    /// The caller that attached. The quotas of its user count the session.
    pub(crate) caller: Option<Caller>,
    pub(crate) ring_bytes: u64,
    pub(crate) max_threads: u32,
    pub(crate) sleds: Sleds,
    pub(crate) by_policy: bool,
    pub(crate) group: GroupRecord,
    pub(crate) choices: Choices,
}

/// The place of a session in its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// The first process of the group, and its start time.
    pub(crate) root: Pid,
    pub(crate) root_start_time: u64,
    pub(crate) follow: Follow,
    /// The caller that requested following last.
    pub(crate) caller: Option<Caller>,
    /// The origin of a process that was followed. `None` for the first process.
    pub(crate) kinship: Option<Kinship>,
}

/// The place where records outlive the daemon. A failure is logged there: a session goes on without
/// its record.
pub(crate) trait SessionRecords: fmt::Debug + Send + Sync {
    /// Writes a record, or replaces the former record of the session.
    fn write(&self, record: &SessionRecord);

    /// Removes the record of a session that is over.
    fn remove(&self, record: &SessionRecord);
}

/// What a daemon keeps for the next one.
#[derive(Debug, Clone)]
pub(crate) struct KeptForNext {
    /// The records of sessions.
    pub(crate) records: Arc<dyn SessionRecords>,
    /// The retained events.
    pub(crate) segments: Arc<SegmentStore>,
}

/// Keeps the record of one session. After the end of the process, the record is there for as long
/// as the session is.
#[derive(Debug)]
pub(crate) struct SessionKeeper {
    next: KeptForNext,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    record: SessionRecord,
    /// False until the session has its place in a group, and once it is over.
    is_written: bool,
}

// === impl SessionRecord ===

impl SessionRecord {
    /// The options to attach to the process again.
    pub(super) fn options(&self) -> AttachOptions {
        AttachOptions {
            ring_bytes: self.ring_bytes,
            max_threads: self.max_threads,
            start_time: Some(self.start_time),
            thread: None,
            owner: Some(self.credentials.user),
            caller: self.caller,
            follow: match self.group.kinship {
                None => self.group.follow,
                Some(_) => Follow::None,
            },
            sleds: self.sleds,
            mode: self.choices.settings.mode,
            budget: self.choices.settings.budget.clone(),
            by_policy: self.by_policy,
        }
    }
}

// === impl SessionKeeper ===

impl SessionKeeper {
    /// The keeper of a session whose place in a group is unknown so far. Nothing is written.
    pub(super) fn new(
        next: KeptForNext,
        (pid, start_time, session): (Pid, u64, u64),
        credentials: Credentials,
        options: &AttachOptions,
    ) -> Self {
        let record = SessionRecord {
            pid,
            start_time,
            session,
            credentials,
            has_ended: false,
            caller: options.caller,
            ring_bytes: options.ring_bytes,
            max_threads: options.max_threads,
            sleds: options.sleds,
            by_policy: options.by_policy,
            group: GroupRecord {
                root: pid,
                root_start_time: start_time,
                follow: Follow::None,
                caller: options.caller,
                kinship: None,
            },
            choices: Choices::default(),
        };
        let is_written = false;
        Self {
            next,
            kept: Mutex::new(Kept { record, is_written }),
        }
    }

    /// The keeper of a session of a process that has ended. An earlier daemon has recorded it.
    pub(super) fn of_ended(next: KeptForNext, record: SessionRecord) -> Self {
        let record = SessionRecord {
            has_ended: true,
            ..record
        };
        let is_written = true;
        Self {
            next,
            kept: Mutex::new(Kept { record, is_written }),
        }
    }

    /// Writes the record, with this place in a group.
    pub(super) fn place(&self, group: GroupRecord) {
        let mut kept = lock(&self.kept);
        kept.record.group = group;
        kept.is_written = true;
        self.write(&kept);
    }

    /// Notes what is followed, and for whom.
    pub(super) fn follow(&self, follow: Follow, caller: Option<Caller>) {
        let mut kept = lock(&self.kept);
        let group = &mut kept.record.group;
        if (group.follow, group.caller) == (follow, caller) {
            return;
        }
        (group.follow, group.caller) = (follow, caller);
        self.write(&kept);
    }

    /// Removes the record, unless the daemon leaves its sessions to the next one.
    pub(super) fn drop_record(&self) {
        if !self.next.segments.are_left() {
            self.forget();
        }
    }

    fn write(&self, kept: &Kept) {
        if kept.is_written {
            self.next.records.write(&kept.record);
        }
    }
}

impl Drop for SessionKeeper {
    fn drop(&mut self) {
        let has_ended = lock(&self.kept).record.has_ended;
        if has_ended {
            self.drop_record();
        }
    }
}

impl ChoiceKeeper for SessionKeeper {
    fn keep(&self, choices: Choices) {
        let mut kept = lock(&self.kept);
        if kept.record.choices != choices {
            kept.record.choices = choices;
            self.write(&kept);
        }
    }

    fn forget(&self) {
        let mut kept = lock(&self.kept);
        if std::mem::take(&mut kept.is_written) {
            self.next.records.remove(&kept.record);
        }
    }

    fn end(&self) {
        let mut kept = lock(&self.kept);
        kept.record.has_ended = true;
        self.write(&kept);
    }
}
