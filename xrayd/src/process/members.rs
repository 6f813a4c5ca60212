//! The members of a group: the processes of one trace, and the readers of later members.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::{
    follow::Follow,
    group_profiling::GroupProfiling,
    group_status::{GroupStatus, News},
    session::Session,
};
use crate::{
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    store::{EventSubscription, Publisher, Source, subscription},
    types::LeaseId,
};

/// Limit on members of a group. Ended processes with retained events count.
pub(super) const MOST_MEMBERS: usize = 1000;

/// The members of a group.
#[derive(Debug)]
pub(super) struct Members {
    /// The first process.
    root: Pid,
    joined: Mutex<Joined>,
}

#[derive(Debug)]
struct Joined {
    follow: Follow,
    /// In the order in which they joined.
    sessions: Vec<(Source, Arc<Session>)>,
    /// The source of the next member.
    next: u32,
    /// The readers of later members. Emptied when the search has ended.
    publishers: Vec<Publisher>,
    /// The sums of calls that later members have a part in.
    profilings: Vec<Weak<GroupProfiling>>,
    /// True if no process can join any more.
    over: bool,
    news: News,
}

// === impl Members ===

impl Members {
    /// The members of a group that no process can join yet. `first` is the session of the first
    /// process, if it has sleds.
    pub(super) fn new(root: Pid, first: Option<Arc<Session>>) -> Self {
        let sessions: Vec<_> = first
            .into_iter()
            .map(|session| (Source(0), session))
            .collect();
        Self {
            root,
            joined: Mutex::new(Joined {
                follow: Follow::None,
                next: u32::try_from(sessions.len()).unwrap_or(1),
                sessions,
                publishers: Vec::new(),
                profilings: Vec::new(),
                over: true,
                news: News::default(),
            }),
        }
    }

    /// Sessions of traced processes, and of ended ones with retained events, in the order in which
    /// they joined.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        let joined = self.joined();
        let sessions = joined.sessions.iter();
        sessions.map(|(_, session)| Arc::clone(session)).collect()
    }

    /// The state of the group. Its first process has this user and this command line.
    pub(super) fn status(&self, uid: u32, command: String) -> GroupStatus {
        let joined = self.joined();
        let sessions = || joined.sessions.iter().map(|(_, session)| session);
        let traced = sessions().filter(|session| session.is_living()).count();
        let news = &joined.news;
        GroupStatus {
            root: self.root,
            uid,
            command,
            root_is_traced: sessions().any(|session| session.pid() == self.root),
            follow: joined.follow,
            over: joined.over,
            traced: u32::try_from(traced).unwrap_or(u32::MAX),
            followed: news.followed,
            missed: news.missed,
            dropped: news.dropped,
            untraced: news.untraced,
            not_followed: news.not_followed.iter().cloned().collect(),
            finding: news.finding.clone(),
        }
    }

    /// Changes the counters and reports of the search.
    pub(super) fn tell(&self, what: impl FnOnce(&mut News)) {
        what(&mut self.joined().news);
    }

    // --- what is followed

    /// The processes that are followed.
    pub(super) fn follow(&self) -> Follow {
        self.joined().follow
    }

    pub(super) fn set_follow(&self, follow: Follow) {
        self.joined().follow = follow;
    }

    /// Lets processes join that are found.
    pub(super) fn begin(&self, follow: Follow) {
        let mut joined = self.joined();
        (joined.follow, joined.over) = (follow, false);
    }

    /// Lets no process join any more. The readers get all events of the members, and then their
    /// end.
    pub(super) fn finish(&self) {
        let mut joined = self.joined();
        joined.over = true;
        joined.publishers.clear();
    }

    /// True if the processes of `wanted` can join.
    pub(super) fn covers(&self, wanted: Follow) -> bool {
        let joined = self.joined();
        !joined.over && joined.follow.covers(wanted)
    }

    /// True if there are no members, and none can join.
    pub(super) fn are_over(&self) -> bool {
        let joined = self.joined();
        joined.over && joined.sessions.is_empty()
    }

    // --- readers

    /// A live subscription of all members, and of later ones.
    pub(super) fn subscribe(&self, lease: Option<LeaseId>, wait: u64) -> EventSubscription {
        // No lock is held while a member's threads are waited for.
        let sessions = self.sessions();
        // The members prepare at the same time.
        let announced = sessions.iter();
        let _announced: Vec<_> = announced
            .map(|one| one.source.output.expect_reader())
            .collect();
        let _coming: Vec<_> = sessions.iter().map(|one| one.expect_reader()).collect();
        let mut joined = self.joined();
        let processes = match joined.follow {
            Follow::None => 1,
            Follow::Fork | Follow::Exec | Follow::All => usize::MAX,
        };
        let (publisher, subscription) = subscription(processes, lease, wait);
        for (source, session) in &joined.sessions {
            session.publish_to(&publisher, *source);
        }
        if !joined.over {
            joined.publishers.retain(|other| !other.is_closed());
            joined.publishers.push(publisher);
        }
        subscription
    }

    /// True if later members have a reader.
    pub(super) fn are_read(&self) -> bool {
        !self.joined().publishers.is_empty()
    }

    /// Ends the subscriptions of a lease for later members.
    pub(super) fn end_lease(&self, lease: LeaseId) {
        let mut joined = self.joined();
        joined
            .publishers
            .retain(|publisher| !publisher.is_for(lease));
    }

    /// Has later members take part in these sums.
    pub(super) fn profile_later(&self, profiling: &Arc<GroupProfiling>) {
        let mut joined = self.joined();
        joined.profilings.retain(|other| other.strong_count() > 0);
        joined.profilings.push(Arc::downgrade(profiling));
    }

    /// The sums that later members have a part in.
    pub(super) fn profilings(&self) -> Vec<Arc<GroupProfiling>> {
        let joined = self.joined();
        let profilings = joined.profilings.iter();
        profilings.filter_map(Weak::upgrade).collect()
    }

    /// True if a process can still join.
    pub(super) fn can_grow(&self) -> bool {
        !self.joined().over
    }

    // --- joining and leaving

    /// Adds a member, and has the readers of the group read it. Returns its source in the trace.
    ///
    /// # Errors
    /// There are too many members, or no process can join any more.
    pub(super) fn join(&self, session: &Arc<Session>) -> Result<Source> {
        let mut joined = self.joined();
        if joined.over {
            let message = format!(
                "process {}: xrayd does not follow its group any more",
                session.pid()
            );
            return Err(Refusal::new(Reason::Followed, message));
        }
        self.add(&mut joined, session)
    }

    /// The same, also for a member that the group had before a search began.
    ///
    /// # Errors
    /// There are too many members.
    pub(super) fn rejoin(&self, session: &Arc<Session>) -> Result<Source> {
        self.add(&mut self.joined(), session)
    }

    fn add(&self, joined: &mut Joined, session: &Arc<Session>) -> Result<Source> {
        if let Some(oldest) = self.room_in(joined)? {
            joined.sessions.remove(oldest);
            joined.news.dropped += 1;
        }
        joined.publishers.retain(|publisher| !publisher.is_closed());
        let source = Source(joined.next);
        joined.next = joined.next.saturating_add(1);
        for publisher in &joined.publishers {
            session.publish_to(publisher, source);
        }
        joined.sessions.push((source, Arc::clone(session)));
        Ok(source)
    }

    /// Removes a member that could not be switched on.
    pub(super) fn leave(&self, source: Source) {
        self.joined().sessions.retain(|(its, _)| *its != source);
    }

    /// True if the session is a member.
    pub(super) fn has(&self, session: &Arc<Session>) -> bool {
        let joined = self.joined();
        let mut sessions = joined.sessions.iter();
        sessions.any(|(_, member)| Arc::ptr_eq(member, session))
    }

    /// Removes a session. False if it is no member.
    pub(super) fn forget(&self, session: &Arc<Session>) -> bool {
        let mut joined = self.joined();
        let before = joined.sessions.len();
        joined
            .sessions
            .retain(|(_, member)| !Arc::ptr_eq(member, session));
        joined.sessions.len() < before
    }

    /// Removes the session of an ended process to make room, and counts it.
    pub(super) fn drop_retained(&self, session: &Arc<Session>) {
        if self.forget(session) {
            self.joined().news.dropped += 1;
        }
    }

    /// Checks that one more process can join. Called before the process is changed.
    ///
    /// # Errors
    /// There are too many members, and none of them has ended.
    pub(super) fn has_room(&self) -> Result<()> {
        self.room_in(&self.joined()).map(drop)
    }

    /// The index of the member to remove for a new one. `None` if no member has to go.
    fn room_in(&self, joined: &Joined) -> Result<Option<usize>> {
        if joined.sessions.len() < MOST_MEMBERS {
            return Ok(None);
        }
        let mut sessions = joined.sessions.iter();
        let oldest = sessions.position(|(_, session)| !session.is_living());
        oldest.map(Some).ok_or_else(|| {
            let message = format!(
                "xrayd traces {MOST_MEMBERS} processes that come from process {}, which is the \
                 maximum, and follows no more",
                self.root
            );
            Refusal::new(Reason::Limit, message)
        })
    }

    fn joined(&self) -> MutexGuard<'_, Joined> {
        lock(&self.joined)
    }
}
