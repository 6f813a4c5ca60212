//! A process group: a process that was attached to or started by a user, and the processes that are
//! followed from it. A toggle of the first process holds for all, and all of them share one trace.
//!
//! A process that is not followed is a group of one. The search for processes is in `follow`.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    attach_options::AttachOptions,
    follow::{Finding, Follow, Follower, NotFollowed},
    parallel::{MOST_IN_A_GROUP, in_parallel},
    session::Session,
    untraced::Untraced,
};
use crate::{
    control::{Chosen, Patterns, Rules},
    export::PendingSnapshot,
    lock::lock,
    pid::Pid,
    quotas::{Accounts, Quotas},
    refusal::{Reason, Refusal, Result},
    store::{EventSubscription, Publisher, Source, StreamItem, subscription},
    target::{Caller, Credentials, Yama},
    types::{
        Kinship, LeaseId, Reach, Run, Settings, SettingsUpdate, ToggleReport, ToggleTo, Wanted,
    },
};

/// Limit on members of a group. Ended processes with retained events count.
pub(super) const MOST_MEMBERS: usize = 1000;
/// Limit on processes that a status names because they are not followed.
const MOST_REPORTED: usize = 16;

/// A process and the processes that are followed from it.
#[derive(Debug)]
pub struct Group {
    root: Pid,
    /// Start time of the first process. It distinguishes the process from later ones with its pid.
    start_time: u64,
    /// Credentials of the first process at its attach.
    credentials: Credentials,
    command: String,
    /// The options to attach other processes with. Settings and caller are in the fields below.
    options: AttachOptions,
    /// The settings of all members. Locked during every change of them, so that no new member
    /// misses it.
    settings: Mutex<Settings>,
    /// The first process, if it has no sleds.
    untraced: Option<Untraced>,
    kin: Mutex<Kin>,
    /// The rules for new members. Locked during every toggle, so that no new member misses it.
    rules: Mutex<Rules>,
    /// The caller that requested following last. The caller has to be one that may trace the new
    /// processes, and the quotas of its user count them.
    caller: Mutex<Option<Caller>>,
    /// The search for processes, until it has ended.
    follower: Mutex<Option<Follower>>,
}

/// The members of a group.
#[derive(Debug)]
struct Kin {
    follow: Follow,
    /// In the order in which they joined.
    members: Vec<(Source, Arc<Session>)>,
    next: u32,
    /// The readers of later members. Emptied when the search has ended.
    publishers: Vec<Publisher>,
    /// True if no process can join any more.
    over: bool,
    news: News,
}

/// Counters and reports of the search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Processes that were followed.
    pub(crate) followed: u64,
    /// Processes with sleds that ended before they could be attached to.
    pub(crate) missed: u64,
    /// Processes that have ended and of which no events are retained.
    dropped: u64,
    /// Processes that are not traced now, because they have no sleds or cannot be traced.
    pub(crate) untraced: u32,
    /// The latest processes that cannot be traced, with the reason.
    not_followed: VecDeque<NotFollowed>,
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

/// The first process of a new group.
#[derive(Debug)]
pub(crate) enum Root {
    Traced(Arc<Session>),
    Untraced {
        program: Untraced,
        start_time: u64,
        credentials: Credentials,
        command: String,
    },
}

// === impl Group ===

impl Group {
    /// A group of one, until [`Self::follow_by`] begins the search.
    pub(crate) fn new(root: Root, options: AttachOptions, rules: Rules) -> Self {
        let (pid, start_time, credentials, command, untraced, members) = match root {
            Root::Traced(session) => {
                let (pid, credentials) = (session.pid(), *session.credentials());
                let (start_time, command) = (session.start_time(), session.command_line.clone());
                let members = vec![(Source(0), session)];
                (pid, start_time, credentials, command, None, members)
            }
            Root::Untraced {
                program,
                start_time,
                credentials,
                command,
            } => {
                let pid = program.pid();
                (
                    pid,
                    start_time,
                    credentials,
                    command,
                    Some(program),
                    Vec::new(),
                )
            }
        };
        let next = u32::try_from(members.len()).unwrap_or(1);
        Self {
            root: pid,
            start_time,
            credentials,
            command,
            settings: Mutex::new(Settings {
                mode: options.mode,
                budget: options.budget.clone(),
                ..Settings::default()
            }),
            caller: Mutex::new(options.caller),
            options,
            untraced,
            kin: Mutex::new(Kin {
                follow: Follow::None,
                members,
                next,
                publishers: Vec::new(),
                over: true,
                news: News::default(),
            }),
            rules: Mutex::new(rules),
            follower: Mutex::default(),
        }
    }

    /// The first process.
    pub fn root(&self) -> Pid {
        self.root
    }

    /// Field 22 of the first process's `/proc/<pid>/stat`.
    pub(crate) fn start_time(&self) -> u64 {
        self.start_time
    }

    /// The user of the first process.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// The credentials of the first process at its attach.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The first process, if it has no sleds.
    pub(crate) fn untraced(&self) -> Option<&Untraced> {
        self.untraced.as_ref()
    }

    /// The processes that are followed.
    pub fn follow(&self) -> Follow {
        self.kin().follow
    }

    /// All members: traced processes, and ended ones with retained events. They are in the order in
    /// which they joined.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        let kin = self.kin();
        let sessions = kin.members.iter().map(|(_, session)| Arc::clone(session));
        sessions.collect()
    }

    /// The latest session of the first process.
    pub fn root_session(&self) -> Option<Arc<Session>> {
        let sessions = self.sessions();
        sessions
            .into_iter()
            .rfind(|session| session.pid() == self.root)
    }

    /// The state and the counters.
    pub fn status(&self) -> GroupStatus {
        let kin = self.kin();
        let living = kin.members.iter().filter(|(_, session)| is_living(session));
        let root_is_traced = kin
            .members
            .iter()
            .any(|(_, session)| session.pid() == self.root);
        GroupStatus {
            root: self.root,
            uid: self.uid(),
            command: self.command.clone(),
            root_is_traced,
            follow: kin.follow,
            over: kin.over,
            traced: u32::try_from(living.count()).unwrap_or(u32::MAX),
            followed: kin.news.followed,
            missed: kin.news.missed,
            dropped: kin.news.dropped,
            untraced: kin.news.untraced,
            not_followed: kin.news.not_followed.iter().cloned().collect(),
            finding: kin.news.finding.clone(),
        }
    }

    /// Switches the functions that a selection matches, in all members and in later ones:
    /// permanently, or until [`Self::release`] ends the lease.
    ///
    /// # Errors
    /// For each process, those of [`Session::toggle`].
    pub fn toggle<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: impl Into<ToggleTo>,
        run: Run,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        let to = to.into();
        let patterns = match self.compiled(selection.into()) {
            Ok(patterns) => patterns,
            Err(refusal) => return vec![(self.root, Err(refusal))],
        };
        let mut rules = lock(&self.rules);
        let reports = self.each(|session, root| match root {
            Some(root) => session.toggle_as(root, &patterns, to, run),
            None => session.toggle(&patterns, to, run),
        });
        let any = reports.is_empty() || reports.iter().any(|(_, report)| report.is_ok());
        if run == Run::Real && (to.wanted == Wanted::Off || any) {
            rules.add(&patterns, to);
        }
        reports
    }

    /// Compiles a selection once for all members.
    fn compiled(&self, selection: Chosen<'_>) -> Result<Arc<Patterns>> {
        match self.sessions().first() {
            Some(session) => session.compiled(selection),
            // An untraced process was started here, by the user of this process, so no quota
            // applies.
            None => selection.compiled(&Accounts::new(Quotas::NONE), None),
        }
    }

    /// Ends a lease. In all members its functions get the state that other leases ask for, or else
    /// their permanent state.
    ///
    /// # Errors
    /// For each process, those of [`Session::release`].
    pub fn release(&self, from: LeaseId) -> Vec<(Pid, Result<ToggleReport>)> {
        let mut rules = lock(&self.rules);
        rules.release(from);
        // Done first, because a process that joins from now on has no part in the lease.
        self.kin()
            .publishers
            .retain(|publisher| !publisher.is_for(from));
        self.stop_lease(from);
        self.each(|session, _| session.release(from))
    }

    /// Ends the recordings of a lease in all members at once, not one after the other as each is
    /// switched back.
    fn stop_lease(&self, lease: LeaseId) {
        for session in self.sessions() {
            session.stop_lease(lease);
        }
    }

    /// Ends a lease that `session` has by itself. Processes that were forked from it since have the
    /// lease as well. Members that are not `session` are changed only if they `may` be, and
    /// reported only if something changed.
    pub fn release_of(
        &self,
        session: &Arc<Session>,
        from: LeaseId,
        may: impl Fn(&Session) -> bool,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        // The lock keeps new members out, which would take over the lease.
        let _rules = lock(&self.rules);
        self.kin()
            .publishers
            .retain(|publisher| !publisher.is_for(from));
        self.stop_lease(from);
        let mut reports = vec![(session.pid(), session.release(from))];
        let mut others = self.sessions();
        others.retain(|other| !Arc::ptr_eq(other, session) && is_living(other) && may(other));
        let theirs = in_parallel(&others, MOST_IN_A_GROUP, |other| {
            (other.pid(), other.release(from))
        });
        let is_reported = |report: &Result<ToggleReport>| match report {
            Ok(report) => report.matched > 0,
            Err(refusal) => refusal.reason != Reason::TargetExited,
        };
        reports.extend(theirs.into_iter().filter(|(_, report)| is_reported(report)));
        reports
    }

    /// Calls `call` for each living member. All but the first process get the first one as an
    /// argument.
    fn each(
        &self,
        call: impl Fn(&Session, Option<&Session>) -> Result<ToggleReport> + Sync,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        let sessions = self.sessions();
        let root = self.root_session().or_else(|| sessions.first().cloned());
        let mut reports = self.each_living(|session| match &root {
            Some(root) if !std::ptr::eq(Arc::as_ptr(root), session) => call(session, Some(root)),
            _ => call(session, None),
        });
        // A member may have ended meanwhile. It is left out like other ended ones.
        let ended = |refusal: &Refusal| refusal.reason == Reason::TargetExited;
        if sessions.len() > 1 {
            reports.retain(|(_, report)| !report.as_ref().is_err_and(ended));
        }
        reports
    }

    /// Calls `call` for each living member, several at a time, since each may hang. A group of one
    /// is called even if its process has ended, and so reports that.
    fn each_living<T: Send>(
        &self,
        call: impl Fn(&Session) -> Result<T> + Sync,
    ) -> Vec<(Pid, Result<T>)> {
        let mut sessions = self.sessions();
        if sessions.len() > 1 {
            sessions.retain(|session| is_living(session));
        }
        in_parallel(&sessions, MOST_IN_A_GROUP, |session| {
            (session.pid(), call(session))
        })
    }

    /// A live subscription of all members, and of later ones. A subscription for a lease ends with
    /// the lease. The threads seen so far come first.
    pub fn subscribe(&self, lease: Option<LeaseId>) -> EventSubscription {
        // No lock is held while a member's threads are waited for.
        let sessions = self.sessions();
        let _coming: Vec<_> = sessions.iter().map(|one| one.expect_reader()).collect();
        let mut kin = self.kin();
        let processes = match kin.follow {
            Follow::None => 1,
            Follow::Fork | Follow::Exec | Follow::All => usize::MAX,
        };
        let (publisher, subscription) = subscription(processes, lease);
        for (source, session) in &kin.members {
            session.publish_to(&publisher, *source);
        }
        if !kin.over {
            kin.publishers.retain(|publisher| !publisher.is_closed());
            kin.publishers.push(publisher);
        }
        subscription
    }

    /// Changes settings of all members and of later ones. Returns the settings before.
    ///
    /// # Errors
    /// Settings that are invalid for the group. Otherwise, for each process, those of
    /// [`Session::update`].
    pub fn update(&self, update: impl Into<SettingsUpdate>) -> Vec<(Pid, Result<Settings>)> {
        let update = update.into();
        let mut settings = lock(&self.settings);
        let after = update.applied_to(&settings);
        // Invalid settings would keep later processes from joining.
        if let Err(refusal) = after.check() {
            return vec![(self.root, Err(refusal))];
        }
        let reports = self.each_living(|session| session.update(update.clone()));
        if reports.is_empty() || reports.iter().any(|(_, before)| before.is_ok()) {
            *settings = after;
        }
        reports
    }

    /// Writes all events of all members that are in rings or retained as an `.xtrace` file. `last`
    /// limits them to the last part of this length.
    ///
    /// # Errors
    /// The error of writing to `out`.
    pub fn write_snapshot(
        &self,
        last: Option<Duration>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let reach = last.map_or(Reach::All, Reach::Last);
        PendingSnapshot::take(self.sessions(), reach).write(out)
    }

    // --- for the registry

    /// Sets which processes are followed, and starts the search if there is none.
    pub(super) fn follow_by(
        &self,
        follow: Follow,
        start: impl FnOnce() -> Result<Follower>,
    ) -> Result<()> {
        let mut follower = lock(&self.follower);
        if follower.is_none() {
            let mut kin = self.kin();
            (kin.follow, kin.over) = (follow, false);
            drop(kin);
            match start() {
                Ok(started) => *follower = Some(started),
                Err(refusal) => {
                    self.finish();
                    return Err(refusal);
                }
            }
        }
        self.kin().follow = follow;
        Ok(())
    }

    /// Sets the caller that requested following. It has to be one that may trace later processes,
    /// and the quotas of its user count them.
    pub(super) fn follow_for(&self, caller: Option<Caller>) {
        *lock(&self.caller) = caller;
    }

    /// Ends the search. Waits for an attach that is under way, unless it hangs.
    pub(super) fn stop_following(&self) {
        let follower = lock(&self.follower).take();
        // An attach that is under way is undone.
        self.finish();
        if let Some(follower) = follower {
            follower.stop();
        }
    }

    /// Checks that the group already follows what a client wants to follow from `member`, which was
    /// followed itself.
    ///
    /// # Errors
    /// The group follows less.
    pub(super) fn check_follows(&self, member: Pid, wanted: Follow) -> Result<()> {
        let kin = self.kin();
        if !kin.over && kin.follow.covers(wanted) {
            return Ok(());
        }
        let root = self.root;
        let message = format!(
            "xrayd followed process {member} from process {root}, which decides what is followed: \
             use `xrayctl attach {root} --follow WHAT`"
        );
        Err(Refusal::new(Reason::Followed, message))
    }

    /// Checks that a caller may change which processes are followed. The caller must be one that
    /// may trace all members, because the first process may belong to another user by now.
    ///
    /// # Errors
    /// `caller` may not trace one of them as it was at its attach.
    pub(super) fn check_caller(&self, caller: Caller) -> Result<()> {
        let others = self.sessions();
        let others = others
            .iter()
            .map(|other| (other.pid(), other.credentials()));
        let mut all = std::iter::once((self.root, &self.credentials)).chain(others);
        all.try_for_each(|(pid, was)| {
            let rule = caller.may_trace(was, Yama::Off, || false);
            rule.map_err(|denial| denial.refusal(pid))
        })
    }

    /// True if a session is one of [`Self::sessions`].
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        let kin = self.kin();
        let mut members = kin.members.iter();
        members.any(|(_, member)| Arc::ptr_eq(member, session))
    }

    /// Removes a session. False if it is no member.
    pub(crate) fn forget(&self, session: &Arc<Session>) -> bool {
        let mut kin = self.kin();
        let before = kin.members.len();
        kin.members
            .retain(|(_, member)| !Arc::ptr_eq(member, session));
        kin.members.len() < before
    }

    /// Removes the session of an ended process to make room, and counts it.
    pub(super) fn drop_retained(&self, session: &Arc<Session>) {
        if self.forget(session) {
            self.kin().news.dropped += 1;
        }
    }

    /// True if there are no members, none can join, and there is no untraced first process.
    pub(crate) fn is_empty(&self) -> bool {
        let kin = self.kin();
        kin.over && kin.members.is_empty() && self.untraced.is_none()
    }

    // --- for the search

    pub(crate) fn options(&self) -> AttachOptions {
        let Settings { mode, budget, .. } = lock(&self.settings).clone();
        AttachOptions {
            mode,
            budget,
            caller: *lock(&self.caller),
            ..self.options.clone()
        }
    }

    /// Adds a member. The functions that are on in the group are switched on in it, and the readers
    /// of the group read it, too.
    ///
    /// # Errors
    /// There are too many members, or functions cannot be switched on. The process is no member
    /// then.
    pub(crate) fn adopt(
        &self,
        session: &Arc<Session>,
        parent: Option<&Session>,
        kinship: impl FnOnce() -> Kinship,
    ) -> Result<()> {
        let rules = lock(&self.rules);
        let is_read = !self.kin().publishers.is_empty();
        let _coming = is_read.then(|| session.expect_reader());
        let source = {
            let mut kin = self.kin();
            if kin.over {
                let message = format!(
                    "process {}: xrayd does not follow its group any more",
                    session.pid()
                );
                return Err(Refusal::new(Reason::Followed, message));
            }
            self.make_room(&mut kin)?;
            kin.publishers.retain(|publisher| !publisher.is_closed());
            let source = Source(kin.next);
            kin.next = kin.next.saturating_add(1);
            for publisher in &kin.publishers {
                session.publish_to(publisher, source);
            }
            kin.members.push((source, Arc::clone(session)));
            source
        };
        // A change of settings that begins after this one finds the member.
        let set = {
            let settings = lock(&self.settings);
            match *settings == session.settings() {
                true => Ok(()),
                false => session.update(settings.clone()).map(drop),
            }
        };
        let begun = set.and_then(|()| session.begin_as(rules.clone(), parent));
        let kinship = kinship();
        let origin = StreamItem::Origin(kinship.origin());
        session.source.output.readers.send(&origin);
        // This is the only place that sets it, and it runs once.
        let _ = session.source.kinship.set(kinship);
        let mut kin = self.kin();
        if let Err(refusal) = begun {
            kin.members.retain(|(member, _)| *member != source);
            return Err(refusal);
        }
        kin.news.followed += 1;
        Ok(())
    }

    /// Checks that one more process can join. Called before the process is changed.
    ///
    /// # Errors
    /// There are too many members, and none of them has ended.
    pub(crate) fn has_room(&self) -> Result<()> {
        self.room_in(&self.kin()).map(drop)
    }

    /// Removes the oldest ended member if there are too many members.
    fn make_room(&self, kin: &mut Kin) -> Result<()> {
        if let Some(oldest) = self.room_in(kin)? {
            kin.members.remove(oldest);
            kin.news.dropped += 1;
        }
        Ok(())
    }

    /// The index of the member to remove for a new one. `None` if no member has to go.
    fn room_in(&self, kin: &Kin) -> Result<Option<usize>> {
        if kin.members.len() < MOST_MEMBERS {
            return Ok(None);
        }
        let mut members = kin.members.iter();
        let oldest = members.position(|(_, session)| !is_living(session));
        oldest.map(Some).ok_or_else(|| {
            let message = format!(
                "xrayd traces {MOST_MEMBERS} processes that come from process {}, which is the \
                 maximum, and follows no more",
                self.root
            );
            Refusal::new(Reason::Limit, message)
        })
    }

    pub(crate) fn tell(&self, what: impl FnOnce(&mut News)) {
        what(&mut self.kin().news);
    }

    /// Ends the group's growth. The readers get all events of the members, and then their end.
    pub(crate) fn finish(&self) {
        let mut kin = self.kin();
        kin.over = true;
        kin.publishers.clear();
    }

    fn kin(&self) -> MutexGuard<'_, Kin> {
        lock(&self.kin)
    }
}

fn is_living(session: &Session) -> bool {
    session.is_living()
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
