//! A look at all known processes, and the actions for each. The pauses between looks are in `pace`.

use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd as _,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xray_trace::model::Birth;

use super::{
    follower::Signal,
    known::{Known, State, may_be_same},
    pace::{Cost, Pace, SELDOM, WHILE},
    policy::{Finding, Follow, NotFollowed},
    sessions::Sessions,
};
use crate::{
    pid::Pid,
    process::{attach_options::AttachOptions, group::Group, session::Session},
    refusal::{Reason, Result},
    sys::instant_of,
    target::{
        Children, Glance, Incarnation, Objects, PerfUnavailable, Subscription, age_of, command_of,
        has_sleds, is_older, is_there,
    },
    types::{Kinship, Phase},
};

/// Limit on known processes, those without sleds included.
const MOST_KNOWN: usize = 4096;

/// The state of the search.
#[derive(Debug)]
pub(super) struct Search {
    group: Arc<Group>,
    signal: Arc<Signal>,
    /// Wakes the thread when a watched or traced process changes. `None` without perf events.
    subscription: Option<Subscription>,
    /// The time of the last perf event.
    received: Instant,
    known: BTreeMap<Pid, Known>,
    /// The begin of the last look, and its duration.
    last: Instant,
    cost: Cost,
    /// True if the limit on known processes was reached and logged.
    full: bool,
}

// === impl Search ===

impl Search {
    pub(super) fn new(
        group: Arc<Group>,
        signal: Arc<Signal>,
        subscription: std::result::Result<Subscription, PerfUnavailable>,
    ) -> Self {
        let root = group.root();
        let by = match &subscription {
            Ok(_) => Finding::Perf,
            Err(why) => Finding::Looks(why.to_string()),
        };
        tracing::info!(%root, ?by, "detection method for processes that come from it");
        group.members.tell(|news| news.finding = Some(by));
        let subscription = subscription
            .ok()
            .inspect(|subscription| subscription.to(root));
        Self {
            group,
            signal,
            subscription,
            received: Instant::now(),
            known: BTreeMap::new(),
            last: Instant::now(),
            cost: Cost::default(),
            full: false,
        }
    }

    pub(super) fn group(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    /// Looks until no process can join any more, until the handle ends the search, or until
    /// `sessions` returns `None`.
    pub(super) fn run<S: Sessions>(mut self, sessions: &impl Fn() -> Option<S>) {
        let mut first = true;
        loop {
            let Some(sessions) = sessions() else {
                break;
            };
            let before = std::mem::replace(&mut self.last, Instant::now());
            // Read before the look, because a later event wakes the thread again. Processes that
            // this look finds came after the first event since the last look.
            let since = self
                .subscription
                .as_ref()
                .and_then(Subscription::catch_up_since);
            if since.is_some() {
                self.received = self.last;
            }
            let before = before.max(since.and_then(instant_of).unwrap_or(before));
            self.look(&sessions, (!first).then_some(before));
            // Not held during the wait, so that the daemon's sessions can end.
            drop(sessions);
            first = false;
            if self.is_over() {
                break;
            }
            self.wait();
            if self.signal.over.load(Ordering::Acquire) {
                break;
            }
        }
        self.group.members.finish();
    }

    /// Looks at the first process, whose files and memory may not answer. Comes before `run`.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let group = &self.group;
        let root = group.root();
        let state = match group.root_session() {
            Some(session) => State::Traced(session),
            None => State::watched(),
        };
        let seen = Instant::now();
        let its = |glance: &Glance| glance.start_time == group.start_time;
        let first = Glance::at(root)?.filter(its).map(|glance| Known {
            parent: root,
            start_time: glance.start_time,
            program: glance.program,
            incarnation: Incarnation::of(root),
            by: Birth::Exec,
            before: None,
            seen,
            sleds: false,
            state,
        });
        self.known.extend(first.map(|known| (root, known)));
        // A group that another daemon had has more members from the begin.
        for session in self.group.sessions() {
            let Some(kinship) = session.kinship() else {
                continue;
            };
            let pid = session.pid();
            let its = |glance: &Glance| glance.start_time == session.start_time();
            let member = Glance::at(pid)?.filter(its).map(|glance| Known {
                parent: kinship.parent,
                start_time: glance.start_time,
                program: glance.program,
                incarnation: Incarnation::of(pid),
                by: kinship.by,
                before: None,
                seen,
                sleds: true,
                state: State::Traced(Arc::clone(&session)),
            });
            if member.is_some() {
                self.listen_to(pid);
            }
            self.known.extend(member.map(|known| (pid, known)));
        }
        Ok(())
    }

    /// Waits for the next look.
    fn wait(&self) {
        let mut pause = self.pause();
        loop {
            let left = pause.saturating_sub(self.last.elapsed());
            if left.is_zero() || self.signal.over.load(Ordering::Acquire) {
                return;
            }
            let mut fds = [PollFd::new(self.signal.eventfd.as_fd(), PollFlags::POLLIN)];
            // Rounded up, because a wait that ends too early would be repeated at once.
            let left = u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
            // An error such as an interruption is a wait that ends early.
            let _ = poll(&mut fds, PollTimeout::from(left));
            if self.signal.eventfd.read().is_ok() {
                let lost = self
                    .subscription
                    .as_ref()
                    .is_some_and(|subscription| !subscription.has_something());
                let pace = if lost { Pace::Poll } else { Pace::Activity };
                pause = pause.min(self.cost.pause(pace));
            }
        }
    }

    /// Pause from the begin of the last look to the begin of the next, without perf events.
    fn pause(&self) -> Duration {
        if self.subscription.is_none() || self.received.elapsed() < WHILE {
            return self.cost.pause(Pace::Poll);
        }
        let due = |known: &Known| match known.state {
            State::Watched { next, .. } => next,
            State::Traced(_) | State::Left => None,
        };
        let due = self.known.values().filter_map(due).min();
        let due = due.map_or(SELDOM, |due| due.saturating_duration_since(self.last));
        due.clamp(self.cost.pause(Pace::Poll), SELDOM)
    }

    /// True if no known process can start another one.
    fn is_over(&self) -> bool {
        let left = |known: &Known| matches!(known.state, State::Left);
        self.known.values().all(left)
    }

    /// Finds processes that came since `before`, and does what is due for each.
    fn look(&mut self, sessions: &impl Sessions, before: Option<Instant>) {
        if self.group.follow().forks() {
            self.find_children(before);
        }
        let pids: Vec<Pid> = self.known.keys().copied().collect();
        let (mut reading, mut attaching) = (Duration::ZERO, Duration::ZERO);
        for pid in pids {
            // An attach before may have hung.
            if self.signal.over.load(Ordering::Acquire) {
                return;
            }
            if !self.visit(pid, before) {
                continue;
            }
            let begun = Instant::now();
            let ready = self.read(pid, sessions.objects());
            reading += begun.elapsed();
            if ready {
                let begun = Instant::now();
                self.attach(pid, sessions);
                attaching += begun.elapsed();
            }
        }
        let left = |known: &Known| matches!(known.state, State::Left);
        let left = self.known.iter().filter(|(_, known)| left(known));
        left.for_each(|(&pid, _)| self.ignore(pid));
        let watched = |known: &&Known| matches!(known.state, State::Watched { .. });
        let untraced = self.known.values().filter(watched).count();
        let untraced = u32::try_from(untraced).unwrap_or(u32::MAX);
        self.group.members.tell(|news| news.untraced = untraced);
        self.cost = Cost {
            looking: self.last.elapsed().saturating_sub(reading + attaching),
            reading,
        };
    }

    fn find_children(&mut self, before: Option<Instant>) {
        let children = Children::now();
        let left = |known: &Known| matches!(known.state, State::Left);
        let parents = self.known.iter().filter(|(_, known)| !left(known));
        let mut parents: Vec<Pid> = parents.map(|(&pid, _)| pid).collect();
        while let Some(parent) = parents.pop() {
            let Some(of) = self.known.get(&parent) else {
                continue;
            };
            let start_time = of.start_time;
            let (program, incarnation) = (of.program, of.incarnation);
            let traced = matches!(of.state, State::Traced(_));
            let mut found = Vec::new();
            for pid in children.of(parent) {
                // The tracing process does not follow itself.
                if self.known.contains_key(&pid) || pid == Pid::this() {
                    continue;
                }
                // The child may have ended, or its pid may belong to another process by now. A
                // later look finds again what cannot be looked at now. The subscription begins
                // before the look, so that no later change is missed.
                self.listen_to(pid);
                let seen = Instant::now();
                if let Ok(Some(glance)) = Glance::at(pid)
                    && glance.parent == Some(parent)
                {
                    found.push((pid, seen, glance));
                } else {
                    self.ignore(pid);
                }
            }
            // Checked after the look. The parent has existed all the time then, and its pid
            // belonged to no other process.
            if found.is_empty() || !is_there(parent, start_time) {
                found.iter().for_each(|(pid, ..)| self.ignore(*pid));
                continue;
            }
            for (pid, seen, glance) in found {
                if self.known.len() >= MOST_KNOWN {
                    self.ignore(pid);
                    self.tell_full();
                    continue;
                }
                let own = Incarnation::of(pid);
                let by = match glance.program == program && may_be_same(own, incarnation) {
                    true => Birth::Fork,
                    false => Birth::Exec,
                };
                // An older process had another parent before, or was above the limit.
                let before = before.filter(|before| !is_older(glance.start_time, before.elapsed()));
                let known = Known {
                    parent,
                    start_time: glance.start_time,
                    program: glance.program,
                    incarnation: own,
                    by,
                    before,
                    seen,
                    sleds: traced && by == Birth::Fork,
                    state: State::watched(),
                };
                self.known.insert(pid, known);
                parents.push(pid);
            }
        }
    }

    fn listen_to(&self, pid: Pid) {
        if let Some(subscription) = &self.subscription {
            subscription.to(pid);
        }
    }

    fn ignore(&self, pid: Pid) {
        if let Some(subscription) = &self.subscription {
            subscription.not_to(pid);
        }
    }

    fn tell_full(&mut self) {
        if !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                root = %self.group.root(),
                "more than {MOST_KNOWN} processes come from this one: the daemon follows no \
                 further ones"
            );
        }
    }

    /// Updates the state of a process. True if it may be attached to in case it has sleds.
    fn visit(&mut self, pid: Pid, before: Option<Instant>) -> bool {
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        let follow = self.group.follow();
        let now = Instant::now();
        // A process that cannot be looked at is left for a later look.
        let Ok(glance) = Glance::at(pid) else {
            if known.state.is_due() {
                known.state.failed(None);
            }
            return false;
        };
        let its = |glance: &Glance| glance.start_time == known.start_time;
        let Some(Glance { program, .. }) = glance.filter(its) else {
            if known.sleds && matches!(known.state, State::Watched { .. }) {
                self.group.members.tell(|news| news.missed += 1);
            }
            self.known.remove(&pid);
            self.ignore(pid);
            return false;
        };
        let is_another = program != known.program;
        match &known.state {
            State::Left => return false,
            State::Traced(session) => match (
                session.source.control.shared.phase(),
                session.source.control.shared.executed(),
            ) {
                (Phase::Tracing, _) => {
                    if follow.execs() {
                        session.source.control.look_for_exec();
                    }
                    return false;
                }
                (Phase::Detaching, _) => return false,
                // A look shows the other program later than the session does, or not at all.
                (Phase::Exited, Some(still)) if follow.execs() => {
                    known.becomes(pid, program, Some(still));
                }
                // It is about to end, or a client detached from it.
                (Phase::Exited, None) if !is_another && session.ended().is_some() => return false,
                (Phase::Exited | Phase::Failed, _) => {
                    known.state = State::Left;
                    return false;
                }
            },
            State::Watched { .. } if is_another => {
                known.becomes(pid, program, Some(known.seen).max(before));
            }
            State::Watched { .. } => {}
        }
        known.seen = now;
        known.is_meant(follow) && known.state.is_due()
    }

    /// Checks whether a process has sleds. True if it is to be attached to.
    fn read(&mut self, pid: Pid, objects: &Objects) -> bool {
        let follow = self.group.follow();
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        // Without address space randomisation, a process can `exec` its own program unnoticed. The
        // time of that is unknown.
        let now = Incarnation::of(pid);
        if known.incarnation.is_none() {
            known.incarnation = now;
        }
        if !may_be_same(now, known.incarnation) {
            known.becomes(pid, known.program, None);
            if !known.is_meant(follow) {
                return false;
            }
        }
        known.sleds = has_sleds(pid, objects);
        if !known.sleds {
            known.state.failed(None);
        }
        known.sleds
    }

    fn attach(&mut self, pid: Pid, sessions: &impl Sessions) {
        let tried = self.try_to_attach(pid, sessions);
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        match tried {
            Ok(Some(session)) => known.state = State::Traced(session),
            Ok(None) => known.state = State::Left,
            Err(refusal) => match refusal.reason {
                // The next look finds its end.
                Reason::NoSuchProcess
                | Reason::Zombie
                | Reason::TargetExited
                | Reason::PidReused => {}
                reason => {
                    if known.state.failed(Some(reason)) {
                        tracing::warn!(
                            %pid,
                            root = %self.group.root(),
                            %refusal,
                            "cannot follow a process"
                        );
                        let command = command_of(pid);
                        let reported = NotFollowed {
                            pid,
                            command,
                            refusal,
                        };
                        self.group
                            .members
                            .tell(|news| news.add_not_followed(reported));
                    }
                }
            },
        }
    }

    /// Attaches, and switches functions on. `None` if a client has attached to the process by
    /// itself.
    fn try_to_attach(&self, pid: Pid, sessions: &impl Sessions) -> Result<Option<Arc<Session>>> {
        let Some(known) = self.known.get(&pid) else {
            return Ok(None);
        };
        if sessions.is_attached(pid) {
            return Ok(None);
        }
        let (root, uid) = (self.group.root(), self.group.uid());
        let options = AttachOptions {
            start_time: Some(known.start_time),
            thread: None,
            // Only processes of the first process's user are traced, so a caller that may trace the
            // first one may trace all. If root owns the first one, there is no such limit.
            owner: (uid != 0).then_some(uid),
            follow: Follow::None,
            ..self.group.options()
        };
        self.group.members.has_room()?;
        let session = sessions.attach_followed(pid, options)?;
        let parent = match (known.by, self.known.get(&known.parent)) {
            (Birth::Fork, Some(parent)) => match &parent.state {
                State::Traced(session) => Some(Arc::clone(session)),
                State::Watched { .. } | State::Left => None,
            },
            _ => None,
        };
        let kinship = || Kinship {
            root,
            parent: known.parent,
            by: known.by,
            within: match known.before {
                Some(before) => before.elapsed(),
                None => age_of(known.start_time),
            },
        };
        let adopted = self.group.adopt(&session, parent.as_deref(), kinship);
        if let Err(refusal) = adopted {
            if let Err(second) = sessions.end_followed(&session) {
                tracing::warn!(%pid, %second, "cannot detach from a process that is not followed");
            }
            return Err(refusal);
        }
        sessions.share_retained();
        let kinship = session.kinship();
        tracing::info!(
            %pid,
            %root,
            parent = %known.parent,
            by = ?known.by,
            within_us = kinship.map(|kinship| kinship.within.as_micros()),
            "followed"
        );
        Ok(Some(session))
    }
}
