//! A process that was attached to by its number or started, and those that are followed from it: what is switched in the
//! first one is switched in all, and what all of them do is one trace.
//!
//! A process that nobody follows anything from is a family of one.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    attach::AttachOptions,
    follow::{Finding, Follow, Follower, NotFollowed},
    session::Session,
    untraced::Untraced,
};
use crate::{
    control::{Chosen, Patterns, Rules},
    export::Shot,
    lock::lock,
    pid::Pid,
    quotas::{Accounts, Quotas},
    refusal::{Reason, Refusal, Result},
    store::{Feed, Publisher, Source, feed},
    target::{Caller, Credentials, Yama},
    types::{Capture, Economy, Filter, Kinship, LeaseId, Mode, Reach, Run, ToggleReport, Wanted},
};

/// Processes of a family at the same time, and those that have ended and whose events are retained, together.
pub(super) const MOST_MEMBERS: usize = 1000;
/// Of those that are not followed, so many are told by name.
const MOST_TOLD: usize = 16;

/// A process and those that are followed from it.
#[derive(Debug)]
pub struct Family {
    root: Pid,
    /// Of that process, which tells it from others that get its number later.
    start_time: u64,
    /// Of that process when it was attached.
    credentials: Credentials,
    command: String,
    /// How the others are attached to, but for the mode.
    options: AttachOptions,
    /// In which mode they are.
    mode: Mutex<Mode>,
    /// What tracing each of them may cost.
    economy: Mutex<Economy>,
    /// Which of their events are kept.
    filter: Mutex<Filter>,
    /// A first process that has no sleds.
    untraced: Option<Untraced>,
    kin: Mutex<Kin>,
    /// What is switched on in processes that come. Held while anything is switched, so that nobody misses it.
    rules: Mutex<Rules>,
    /// The caller that asked for following last. It has to be one that may trace the processes that
    /// come, and its user's quotas count them.
    caller: Mutex<Option<Caller>>,
    /// Who looks for them, until there can be no more.
    follower: Mutex<Option<Follower>>,
}

/// Who belongs to it.
#[derive(Debug)]
struct Kin {
    follow: Follow,
    /// In order of their coming.
    members: Vec<(Source, Arc<Session>)>,
    next: u32,
    /// The readers of what comes. Emptied when nobody comes any more.
    inlets: Vec<Publisher>,
    /// Nobody comes any more.
    over: bool,
    news: News,
}

/// What happened to a family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Processes that were followed.
    pub(crate) followed: u64,
    /// Processes with sleds that had ended before they could be attached to.
    pub(crate) missed: u64,
    /// Processes that ended and of which nothing is retained any more.
    dropped: u64,
    /// Processes that are not traced now, because they have no sleds or cannot be.
    pub(crate) untraced: u32,
    /// The latest that cannot be, and why.
    not_followed: VecDeque<NotFollowed>,
    /// How it is noticed who comes, once somebody looks.
    pub(crate) finding: Option<Finding>,
}

/// State of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyStatus {
    /// The process that it was attached by.
    pub root: Pid,
    /// The user of that process.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// Whether that process itself is traced, or was.
    pub root_is_traced: bool,
    /// What is followed.
    pub follow: Follow,
    /// Whether nobody can come any more.
    pub over: bool,
    /// Processes that are traced now.
    pub traced: u32,
    /// Processes that were followed since the beginning.
    pub followed: u64,
    /// Processes with sleds that had ended before they could be attached to. Those that come and go between two looks are not
    /// among them: nobody knows of them.
    pub missed: u64,
    /// Processes that ended and of which nothing is retained any more.
    pub dropped: u64,
    /// Processes that are there now and not traced, because they have no sleds or cannot be.
    pub untraced: u32,
    /// The latest of those that have sleds, and why they are not traced.
    pub not_followed: Vec<NotFollowed>,
    /// How it is noticed who comes, or was; `None` before anybody was followed.
    pub finding: Option<Finding>,
}

/// What a family begins with.
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

// === impl Family ===

impl Family {
    /// A family of one, until somebody follows its children.
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
            mode: Mutex::new(options.mode),
            economy: Mutex::new(options.economy),
            filter: Mutex::default(),
            caller: Mutex::new(options.caller),
            options,
            untraced,
            kin: Mutex::new(Kin {
                follow: Follow::None,
                members,
                next,
                inlets: Vec::new(),
                over: true,
                news: News::default(),
            }),
            rules: Mutex::new(rules),
            follower: Mutex::default(),
        }
    }

    /// The process that it was attached by.
    pub fn root(&self) -> Pid {
        self.root
    }

    /// Field 22 of that process's `/proc/<pid>/stat`.
    pub(crate) fn start_time(&self) -> u64 {
        self.start_time
    }

    /// The user of that process.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// Whose that process was at attach, and what it might do.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The first process, if it has no sleds.
    pub(crate) fn untraced(&self) -> Option<&Untraced> {
        self.untraced.as_ref()
    }

    /// What is followed.
    pub fn follow(&self) -> Follow {
        self.kin().follow
    }

    /// Everybody who is traced, and who was and has events retained, in order of their coming.
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

    /// State and counters.
    pub fn status(&self) -> FamilyStatus {
        let kin = self.kin();
        let living = kin.members.iter().filter(|(_, session)| is_living(session));
        let root_is_traced = kin
            .members
            .iter()
            .any(|(_, session)| session.pid() == self.root);
        FamilyStatus {
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

    /// Switches the functions that a selection matches, in everybody who is there and in whoever comes.
    ///
    /// # Errors
    /// For each process, those of [`Session::toggle`].
    pub fn toggle<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: impl Into<Wanted>,
        run: Run,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        let to = to.into();
        let patterns = match self.compiled(selection.into()) {
            Ok(patterns) => patterns,
            Err(refusal) => return vec![(self.root, Err(refusal))],
        };
        let mut rules = lock(&self.rules);
        let reports = self.each(|session, root| match root {
            Some(root) => session.toggle_as(root, None, &patterns, to, run),
            None => session.toggle(&patterns, to, run),
        });
        let any = reports.is_empty() || reports.iter().any(|(_, report)| report.is_ok());
        if run == Run::Real && (to == Wanted::Off || any) {
            rules.add(&patterns, to);
        }
        reports
    }

    /// Switches functions on for a while: until [`Self::take_back`] they are on, and then again what they were.
    ///
    /// # Errors
    /// For each process, those of [`Session::toggle`].
    pub fn lend<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: LeaseId,
        capture: Capture,
        run: Run,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        let patterns = match self.compiled(selection.into()) {
            Ok(patterns) => patterns,
            Err(refusal) => return vec![(self.root, Err(refusal))],
        };
        let mut rules = lock(&self.rules);
        let on = Wanted::On(capture);
        let reports = self.each(|session, root| match root {
            Some(root) => session.toggle_as(root, Some(to), &patterns, on, run),
            None => session.lend(&patterns, to, capture, run),
        });
        let any = reports.is_empty() || reports.iter().any(|(_, report)| report.is_ok());
        if run == Run::Real && any {
            rules.lend(&patterns, to, capture);
        }
        reports
    }

    /// Compiled once, for all of them.
    fn compiled(&self, selection: Chosen<'_>) -> Result<Arc<Patterns>> {
        match self.sessions().first() {
            Some(session) => session.compiled(selection),
            // An untraced process that was started here, by this process's own user.
            None => selection.compiled(&Accounts::new(Quotas::NONE), None),
        }
    }

    /// A loan is over: in everybody who is there, its functions are what the other loans say, or what they were.
    ///
    /// # Errors
    /// For each process, those of [`Session::take_back`].
    pub fn take_back(&self, from: LeaseId) -> Vec<(Pid, Result<ToggleReport>)> {
        let mut rules = lock(&self.rules);
        rules.take_back(from);
        // Before: whoever comes from now on is none of it.
        self.kin().inlets.retain(|inlet| !inlet.is_for(from));
        self.stop_loan(from);
        self.each(|session, _| session.take_back(from))
    }

    /// Recordings on that loan end in everybody now, not one after the other as each is switched
    /// back.
    fn stop_loan(&self, loan: LeaseId) {
        for session in self.sessions() {
            session.stop_loan(loan);
        }
    }

    /// The same of a loan that `session` has by itself: whoever came from it since has it as well. Tells of others what was put back
    /// in them, if they `may` be touched.
    pub fn take_back_of(
        &self,
        session: &Arc<Session>,
        from: LeaseId,
        may: impl Fn(&Session) -> bool,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        // Nobody comes meanwhile who would take over what is on loan.
        let _rules = lock(&self.rules);
        self.kin().inlets.retain(|inlet| !inlet.is_for(from));
        self.stop_loan(from);
        let mut reports = vec![(session.pid(), session.take_back(from))];
        for other in self.sessions() {
            if Arc::ptr_eq(&other, session) || !is_living(&other) || !may(&other) {
                continue;
            }
            let report = other.take_back(from);
            let is_told = match &report {
                Ok(report) => report.matched > 0,
                Err(refusal) => refusal.reason != Reason::TargetExited,
            };
            if is_told {
                reports.push((other.pid(), report));
            }
        }
        reports
    }

    /// Does something to everybody who is there; who is not the first process is shown it with that.
    fn each(
        &self,
        call: impl Fn(&Session, Option<&Session>) -> Result<ToggleReport>,
    ) -> Vec<(Pid, Result<ToggleReport>)> {
        let sessions = self.sessions();
        let root = self.root_session().or_else(|| sessions.first().cloned());
        let mut reports = Vec::new();
        for session in &sessions {
            let is_root = root.as_ref().is_some_and(|root| Arc::ptr_eq(root, session));
            // Of a process alone it is told that it has ended.
            if !(is_living(session) || is_root && sessions.len() == 1) {
                continue;
            }
            let report = match &root {
                Some(root) if !is_root => call(session, Some(root)),
                _ => call(session, None),
            };
            // It may have ended meanwhile, as others do.
            let ended = matches!(&report, Err(refusal) if refusal.reason == Reason::TargetExited);
            if !ended || sessions.len() == 1 {
                reports.push((session.pid(), report));
            }
        }
        reports
    }

    /// A live feed of all its processes from now on, also of later ones. A feed for a loan ends
    /// with the loan. The threads seen so far come first.
    pub fn subscribe(&self, loan: Option<LeaseId>) -> Feed {
        let mut kin = self.kin();
        let processes = match kin.follow {
            Follow::None => 1,
            Follow::Fork | Follow::Exec | Follow::All => usize::MAX,
        };
        let (inlet, feed) = feed(processes, loan);
        for (source, session) in &kin.members {
            session.feed_to(&inlet, *source);
        }
        if !kin.over {
            kin.inlets.retain(|inlet| !inlet.is_closed());
            kin.inlets.push(inlet);
        }
        feed
    }

    /// From now on events of everybody, and of whoever comes, are kept so; says how they were.
    ///
    /// # Errors
    /// For each process, those of [`Session::set_mode`].
    pub fn set_mode(&self, mode: Mode) -> Vec<(Pid, Result<Mode>)> {
        // Whoever comes could not be taken in else.
        if lock(&self.economy).suits(mode, &lock(&self.filter)).is_ok() {
            *lock(&self.mode) = mode;
        }
        let sessions = self.sessions();
        let living = sessions
            .iter()
            .filter(|session| is_living(session) || sessions.len() == 1);
        living
            .map(|session| (session.pid(), session.set_mode(mode)))
            .collect()
    }

    /// From now on tracing may cost each of them, and whoever comes, so much; says how much it was.
    ///
    /// # Errors
    /// A value out of range. For each process, those of [`Session::set_economy`].
    pub fn set_economy(&self, economy: Economy) -> Result<Vec<(Pid, Result<Economy>)>> {
        // Else whoever comes could not be taken in.
        economy.check()?;
        economy.suits(*lock(&self.mode), &lock(&self.filter))?;
        *lock(&self.economy) = economy;
        let sessions = self.sessions();
        let living = sessions
            .iter()
            .filter(|session| is_living(session) || sessions.len() == 1);
        let before = living.map(|session| (session.pid(), session.set_economy(economy)));
        Ok(before.collect())
    }

    /// From now on these events of everybody, and of whoever comes, are kept; says which were.
    ///
    /// # Errors
    /// A filter that means nothing. For each process, those of [`Session::set_filter`].
    pub fn set_filter(&self, filter: &Filter) -> Result<Vec<(Pid, Result<Filter>)>> {
        // Else whoever comes could not be taken in.
        filter.check()?;
        lock(&self.economy).suits(*lock(&self.mode), filter)?;
        *lock(&self.filter) = filter.clone();
        let sessions = self.sessions();
        let living = sessions
            .iter()
            .filter(|session| is_living(session) || sessions.len() == 1);
        let before = living.map(|session| (session.pid(), session.set_filter(filter)));
        Ok(before.collect())
    }

    /// Everything of everybody that rings hold or that is retained, as an `.xtrace` file; of the `last` so long, if that is given.
    ///
    /// # Errors
    /// What writing to `out` says.
    pub fn write_snapshot(
        &self,
        last: Option<Duration>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let reach = last.map_or(Reach::All, Reach::Last);
        Shot::take(self.sessions(), reach).write(out)
    }

    // --- by the registry

    /// From now on, `follower` looks for others.
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

    /// From now on this caller has to be one who may trace what comes, and its user's quotas count
    /// that.
    pub(super) fn follow_for(&self, caller: Option<Caller>) {
        *lock(&self.caller) = caller;
    }

    /// Nobody is looked for any more. Waits for an attach that is under way.
    pub(super) fn stop_following(&self) {
        let follower = lock(&self.follower).take();
        if let Some(follower) = follower {
            follower.stop();
        }
        self.finish();
    }

    /// Somebody wants this followed from `member`, which was followed itself.
    ///
    /// # Errors
    /// The family does not follow as much.
    pub(super) fn check_follows(&self, member: Pid, wanted: Follow) -> Result<()> {
        let kin = self.kin();
        if !kin.over && kin.follow.covers(wanted) {
            return Ok(());
        }
        let root = self.root;
        let message = format!(
            "process {member} was followed from process {root}, and what is followed is said there: `xrayctl attach {root} --follow WHAT`"
        );
        Err(Refusal::new(Reason::Followed, message))
    }

    /// What a family follows is for whoever may trace everybody in it: its first process may be another user's by now.
    ///
    /// # Errors
    /// `caller` may not trace all of them as they were at their attach.
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

    /// True if it is one of those whom [`Self::sessions`] tells.
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        let kin = self.kin();
        let mut members = kin.members.iter();
        members.any(|(_, member)| Arc::ptr_eq(member, session))
    }

    /// Forgets a session; false if it was none of the family's.
    pub(crate) fn forget(&self, session: &Arc<Session>) -> bool {
        let mut kin = self.kin();
        let before = kin.members.len();
        kin.members
            .retain(|(_, member)| !Arc::ptr_eq(member, session));
        kin.members.len() < before
    }

    /// The same, of a process that has ended and makes room.
    pub(super) fn drop_retained(&self, session: &Arc<Session>) {
        if self.forget(session) {
            self.kin().news.dropped += 1;
        }
    }

    /// True if nobody is in it and nobody will be, and nobody waits for its end.
    pub(crate) fn is_empty(&self) -> bool {
        let kin = self.kin();
        kin.over && kin.members.is_empty() && self.untraced.is_none()
    }

    // --- by the follower

    pub(crate) fn options(&self) -> AttachOptions {
        AttachOptions {
            mode: *lock(&self.mode),
            economy: *lock(&self.economy),
            caller: *lock(&self.caller),
            ..self.options
        }
    }

    /// Takes a process in: what is switched on in the family is switched on in it, and the readers of the family read it, too.
    ///
    /// # Errors
    /// There are too many, or what is to be on cannot be switched on. It is no member then.
    pub(crate) fn adopt(
        &self,
        session: &Arc<Session>,
        parent: Option<&Session>,
        kinship: impl FnOnce() -> Kinship,
    ) -> Result<()> {
        let rules = lock(&self.rules);
        let source = {
            let mut kin = self.kin();
            self.make_room(&mut kin)?;
            kin.inlets.retain(|inlet| !inlet.is_closed());
            let source = Source(kin.next);
            kin.next = kin.next.saturating_add(1);
            for inlet in &kin.inlets {
                session.feed_to(inlet, source);
            }
            kin.members.push((source, Arc::clone(session)));
            source
        };
        let filter = lock(&self.filter).clone();
        let filtered = match filter == Filter::default() {
            true => Ok(()),
            false => session.set_filter(&filter).map(drop),
        };
        let begun = filtered.and_then(|()| session.begin_as(rules.clone(), parent));
        let kinship = kinship();
        session.source.output.origin(kinship.origin());
        // It is set once, here.
        let _ = session.source.kinship.set(kinship);
        let mut kin = self.kin();
        if let Err(refusal) = begun {
            kin.members.retain(|(member, _)| *member != source);
            return Err(refusal);
        }
        kin.news.followed += 1;
        Ok(())
    }

    /// Whether one more can be taken in. Asked before anything is done to it.
    ///
    /// # Errors
    /// There are too many, and none of them has ended.
    pub(crate) fn has_room(&self) -> Result<()> {
        self.room_in(&self.kin()).map(drop)
    }

    /// The oldest that has ended goes, if there are too many.
    fn make_room(&self, kin: &mut Kin) -> Result<()> {
        if let Some(oldest) = self.room_in(kin)? {
            kin.members.remove(oldest);
            kin.news.dropped += 1;
        }
        Ok(())
    }

    /// Where there is room for one more: `None` beside all others.
    fn room_in(&self, kin: &Kin) -> Result<Option<usize>> {
        if kin.members.len() < MOST_MEMBERS {
            return Ok(None);
        }
        let mut members = kin.members.iter();
        let oldest = members.position(|(_, session)| !is_living(session));
        oldest.map(Some).ok_or_else(|| {
            let message = format!(
                "{MOST_MEMBERS} processes are traced that come from process {}; no more are followed",
                self.root
            );
            Refusal::new(Reason::Limit, message)
        })
    }

    pub(crate) fn tell(&self, what: impl FnOnce(&mut News)) {
        what(&mut self.kin().news);
    }

    /// Nobody comes any more: the readers have everything when those who are there have ended.
    pub(crate) fn finish(&self) {
        let mut kin = self.kin();
        kin.over = true;
        kin.inlets.clear();
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
    /// A process has sleds and is not traced.
    pub(super) fn add_not_followed(&mut self, process: NotFollowed) {
        self.not_followed.retain(|other| other.pid != process.pid);
        if self.not_followed.len() == MOST_TOLD {
            self.not_followed.pop_front();
        }
        self.not_followed.push_back(process);
    }
}
