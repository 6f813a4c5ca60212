//! A process group: a process that was attached to or started by a user, and the processes that are
//! followed from it. A toggle of the first process holds for all, and all of them share one trace.
//!
//! A process that is not followed is a group of one. The search for processes is in `follow`.

use std::sync::{Arc, Mutex};

use super::{
    attach_options::AttachOptions,
    follow::{Follow, Follower},
    group_status::GroupStatus,
    members::Members,
    parallel::{MOST_IN_A_GROUP, in_parallel},
    session::Session,
    session_record::GroupRecord,
    switching,
    untraced::Untraced,
};
use crate::{
    control::{Chosen, Patterns, Rules},
    lock::lock,
    pid::Pid,
    quotas::{Accounts, Quotas},
    refusal::{Reason, Refusal, Result},
    store::{EventSubscription, StreamItem},
    target::{Caller, Credentials, Yama},
    types::{Kinship, LeaseId, Run, Settings, SettingsUpdate, ToggleReport, ToggleTo, Wanted},
};

/// A process and the processes that are followed from it.
#[derive(Debug)]
pub struct Group {
    root: Pid,
    /// Start time of the first process. It distinguishes the process from later ones with its pid.
    pub(crate) start_time: u64,
    /// Credentials of the first process at its attach.
    pub(crate) credentials: Credentials,
    command: String,
    /// The options to attach other processes with. Settings and caller are in the fields below.
    options: AttachOptions,
    /// The settings of all members. Locked during every change of them, so that no new member
    /// misses it.
    settings: Mutex<Settings>,
    /// The first process, if it has no sleds.
    pub(crate) untraced: Option<Untraced>,
    pub(super) members: Members,
    /// The rules for new members. Locked during every toggle, so that no new member misses it.
    rules: Mutex<Rules>,
    /// The caller that requested following last. The caller has to be one that may trace the new
    /// processes, and the quotas of its user count them.
    caller: Mutex<Option<Caller>>,
    /// The search for processes, until it has ended.
    follower: Mutex<Option<Follower>>,
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
    /// The process has ended before this daemon came.
    Gone {
        pid: Pid,
        start_time: u64,
        /// The credentials of another member, since all members are of one user.
        credentials: Credentials,
    },
}

// === impl Group ===

impl Group {
    /// A group of one, until [`Self::follow_by`] begins the search.
    pub(crate) fn new(root: Root, options: AttachOptions, rules: Rules) -> Self {
        let (pid, start_time, credentials, command, untraced, first) = match root {
            Root::Traced(session) => {
                let (pid, credentials) = (session.pid(), *session.credentials());
                let (start_time, command) = (session.start_time(), session.command_line.clone());
                (pid, start_time, credentials, command, None, Some(session))
            }
            Root::Untraced {
                program,
                start_time,
                credentials,
                command,
            } => {
                let pid = program.pid();
                (pid, start_time, credentials, command, Some(program), None)
            }
            Root::Gone {
                pid,
                start_time,
                credentials,
            } => (pid, start_time, credentials, String::new(), None, None),
        };
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
            members: Members::new(pid, first),
            rules: Mutex::new(rules),
            follower: Mutex::default(),
        }
    }

    /// A group that a daemon had that has ended. The caller is the one that requested following.
    pub(super) fn recovered(
        root: Root,
        (options, caller): (AttachOptions, Option<Caller>),
        settings: Settings,
        rules: Rules,
    ) -> Self {
        Self {
            settings: Mutex::new(settings),
            caller: Mutex::new(caller),
            ..Self::new(root, options, rules)
        }
    }

    /// The first process.
    pub fn root(&self) -> Pid {
        self.root
    }

    /// The user of the first process.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// The processes that are followed.
    pub fn follow(&self) -> Follow {
        self.members.follow()
    }

    /// All members: traced processes, and ended ones with retained events. They are in the order in
    /// which they joined.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.members.sessions()
    }

    /// The living session of the first process, or the last one.
    pub fn root_session(&self) -> Option<Arc<Session>> {
        let mut sessions = self.sessions();
        sessions.retain(|session| session.pid() == self.root);
        let living = sessions.iter().rfind(|session| session.is_living());
        living.cloned().or_else(|| sessions.pop())
    }

    /// The state and the counters.
    pub fn status(&self) -> GroupStatus {
        self.members.status(self.uid(), self.command.clone())
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
            Some(root) => switching::toggle_as(&session.source, &root.source, &patterns, to, run),
            None => switching::toggle(&session.source, Arc::clone(&patterns), to, run),
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
        self.members.end_lease(from);
        self.stop_lease(from);
        self.each(|session, _| session.release(from))
    }

    /// The leases of policies among the rules for new members.
    pub(crate) fn policy_leases(&self) -> Vec<LeaseId> {
        lock(&self.rules).policy_leases()
    }

    /// Ends the recordings of a lease in all members at once, not one after the other as each is
    /// switched back.
    fn stop_lease(&self, lease: LeaseId) {
        for session in self.sessions() {
            switching::stop_lease(&session.source, lease);
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
        self.members.end_lease(from);
        self.stop_lease(from);
        let mut reports = vec![(session.pid(), session.release(from))];
        let mut others = self.sessions();
        others.retain(|other| !Arc::ptr_eq(other, session) && other.is_living() && may(other));
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
        // The functions of a process that ended before this daemon came cannot be compared.
        let root = self.root_session().filter(|root| !root.ended_before());
        let others = || sessions.iter().find(|session| !session.ended_before());
        let root = root.or_else(|| others().cloned());
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
            sessions.retain(|session| session.is_living());
        }
        in_parallel(&sessions, MOST_IN_A_GROUP, |session| {
            (session.pid(), call(session))
        })
    }

    /// A live subscription of all members, and of later ones. A subscription for a lease ends with
    /// the lease. The threads seen so far come first. Threads wait as for [`Session::subscribe`].
    pub fn subscribe(&self, lease: Option<LeaseId>, wait: u64) -> EventSubscription {
        self.members.subscribe(lease, wait)
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

    // --- for the registry

    /// Sets which processes are followed, and starts the search if there is none.
    pub(super) fn follow_by(
        &self,
        follow: Follow,
        start: impl FnOnce() -> Result<Follower>,
    ) -> Result<()> {
        let mut follower = lock(&self.follower);
        if follower.is_none() {
            self.members.begin(follow);
            match start() {
                Ok(started) => *follower = Some(started),
                Err(refusal) => {
                    self.members.finish();
                    return Err(refusal);
                }
            }
        }
        self.members.set_follow(follow);
        self.record_follow();
        Ok(())
    }

    /// Adds a member that the group had before, with the functions that are on in it.
    ///
    /// # Errors
    /// There are too many members.
    pub(super) fn rejoin(&self, session: &Arc<Session>, kinship: Option<Kinship>) -> Result<()> {
        self.members.rejoin(session)?;
        if let Some(kinship) = kinship {
            // This is the only place that sets it, and it runs once.
            let _ = session.source.kinship.set(kinship);
        }
        Ok(())
    }

    /// Writes the record of a member that has its place in the group.
    pub(super) fn record(&self, session: &Session) {
        if let Some(keeper) = &session.keeper {
            keeper.place(GroupRecord {
                root: self.root,
                root_start_time: self.start_time,
                follow: self.follow(),
                caller: *lock(&self.caller),
                kinship: session.kinship(),
            });
        }
    }

    /// Writes to the records of all members what is followed.
    fn record_follow(&self) {
        let (follow, caller) = (self.follow(), *lock(&self.caller));
        for session in self.sessions() {
            if let Some(keeper) = &session.keeper {
                keeper.follow(follow, caller);
            }
        }
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
        self.members.finish();
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
        if self.members.covers(wanted) {
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

    /// True if there are no members, none can join, and there is no untraced first process.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.are_over() && self.untraced.is_none()
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

    /// Adds a member. The functions that are on in the group are switched on in it, the readers of
    /// the group read it, and its calls are in the sums that are being made of the group.
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
        let is_read = self.members.are_read();
        let _coming = is_read.then(|| session.expect_reader());
        let source = self.members.join(session)?;
        // A change of settings that begins after this one finds the member.
        let set = {
            let settings = lock(&self.settings);
            match *settings == session.settings() {
                true => Ok(()),
                false => session.update(settings.clone()).map(drop),
            }
        };
        let profilings = self.members.profilings();
        let profiled = set.and_then(|()| {
            let mut profilings = profilings.iter();
            profilings.try_for_each(|profiling| profiling.join(session))
        });
        let begun = profiled.and_then(|()| {
            let parent = parent.map(|parent| &parent.source);
            switching::begin_as(&session.source, rules.clone(), parent)
        });
        let kinship = kinship();
        let origin = StreamItem::Origin(kinship.origin());
        session.source.output.readers.send(&origin);
        // This is the only place that sets it, and it runs once.
        let _ = session.source.kinship.set(kinship);
        if let Err(refusal) = begun {
            for profiling in &profilings {
                profiling.leave(session);
            }
            self.members.leave(source);
            return Err(refusal);
        }
        self.record(session);
        self.members.tell(|news| news.followed += 1);
        Ok(())
    }
}
