//! A look at everybody who is known, and what is done for them.

use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd as _,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xray_trace::model::Birth;

use super::{
    known::{Known, State, may_be_same},
    pace::{Cost, Pace, SELDOM, WHILE},
};
use crate::{
    pid::Pid,
    process::{
        attach::AttachOptions,
        family::Family,
        follow::{Finding, Follow, NotFollowed, Signal},
        registry::{Inner, Registry},
        session::Session,
    },
    refusal::{Reason, Result},
    sys::instant_of,
    target::{
        Children, Glance, Incarnation, Objects, PerfUnavailable, Subscription, age_of, command_of,
        has_sleds, is_older, is_there,
    },
    types::{Kinship, Phase},
};

/// Processes that are known of at most, those without sleds among them.
const MOST_KNOWN: usize = 4096;

/// What the thread knows.
#[derive(Debug)]
pub(super) struct Search {
    family: Arc<Family>,
    signal: Arc<Signal>,
    /// Rings when something becomes of those that are watched or traced; `None` where the kernel gives no notice.
    subscription: Option<Subscription>,
    /// When it did last.
    heard: Instant,
    known: BTreeMap<Pid, Known>,
    /// When the last look began, and how long it took.
    last: Instant,
    cost: Cost,
    /// There were too many, which was told.
    full: bool,
}

// === impl Search ===

impl Search {
    pub(super) fn new(
        family: Arc<Family>,
        signal: Arc<Signal>,
        subscription: std::result::Result<Subscription, PerfUnavailable>,
    ) -> io::Result<Self> {
        let root = family.root();
        let by = match &subscription {
            Ok(_) => Finding::Perf,
            Err(why) => Finding::Looks(why.to_string()),
        };
        tracing::info!(%root, ?by, "how processes that come from it are found");
        family.tell(|news| news.finding = Some(by));
        let subscription = subscription
            .ok()
            .inspect(|subscription| subscription.to(root));
        let state = match family.root_session() {
            Some(session) => State::Traced(session),
            None => State::watched(),
        };
        let seen = Instant::now();
        let its = |glance: &Glance| glance.start_time == family.start_time();
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
        Ok(Self {
            family,
            signal,
            subscription,
            heard: Instant::now(),
            known: first.map(|known| (root, known)).into_iter().collect(),
            last: Instant::now(),
            cost: Cost::default(),
            full: false,
        })
    }

    pub(super) fn family(&self) -> Arc<Family> {
        Arc::clone(&self.family)
    }

    /// Looks until nobody can come any more, or nobody is interested.
    pub(super) fn run(mut self, registry: &Weak<Inner>) {
        let mut first = true;
        loop {
            let Some(registry) = registry.upgrade() else {
                break;
            };
            let before = std::mem::replace(&mut self.last, Instant::now());
            // Before looking: what comes after that rings again. Whatever this look finds has come since the first that was heard.
            let since = self
                .subscription
                .as_ref()
                .and_then(Subscription::catch_up_since);
            if since.is_some() {
                self.heard = self.last;
            }
            let before = before.max(since.and_then(instant_of).unwrap_or(before));
            self.look(&Registry(registry), (!first).then_some(before));
            first = false;
            if self.is_over() {
                break;
            }
            self.wait();
            if self.signal.over.load(Ordering::Acquire) {
                break;
            }
        }
        self.family.finish();
    }

    /// Until it is time for the next look.
    fn wait(&self) {
        let mut pause = self.pause();
        loop {
            let left = pause.saturating_sub(self.last.elapsed());
            if left.is_zero() || self.signal.over.load(Ordering::Acquire) {
                return;
            }
            let mut fds = [PollFd::new(self.signal.bell.as_fd(), PollFlags::POLLIN)];
            // Rounded up: a wait that ends too early would be begun again and again.
            let left = u16::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
            // An error, as an interruption, is a wait that ends early.
            let _ = poll(&mut fds, PollTimeout::from(left));
            if self.signal.bell.read().is_ok() {
                let lost = self
                    .subscription
                    .as_ref()
                    .is_some_and(|subscription| !subscription.has_something());
                let pace = if lost { Pace::Poll } else { Pace::Heard };
                pause = pause.min(self.cost.pause(pace));
            }
        }
    }

    /// From the beginning of the last look to that of the next, if nothing is heard.
    fn pause(&self) -> Duration {
        if self.subscription.is_none() || self.heard.elapsed() < WHILE {
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

    /// Nobody is left who could start anybody.
    fn is_over(&self) -> bool {
        let left = |known: &Known| matches!(known.state, State::Left);
        self.known.values().all(left)
    }

    /// Finds who has come since `before`, and does for everybody what is to be done.
    fn look(&mut self, registry: &Registry, before: Option<Instant>) {
        if self.family.follow().forks() {
            self.find_children(before);
        }
        let pids: Vec<Pid> = self.known.keys().copied().collect();
        let (mut reading, mut attaching) = (Duration::ZERO, Duration::ZERO);
        for pid in pids {
            if !self.visit(pid, before) {
                continue;
            }
            let begun = Instant::now();
            let ready = self.read(pid, registry.objects());
            reading += begun.elapsed();
            if ready {
                let begun = Instant::now();
                self.attach(pid, registry);
                attaching += begun.elapsed();
            }
        }
        let left = |known: &Known| matches!(known.state, State::Left);
        let left = self.known.iter().filter(|(_, known)| left(known));
        left.for_each(|(&pid, _)| self.ignore(pid));
        let watched = |known: &&Known| matches!(known.state, State::Watched { .. });
        let untraced = self.known.values().filter(watched).count();
        let untraced = u32::try_from(untraced).unwrap_or(u32::MAX);
        self.family.tell(|news| news.untraced = untraced);
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
                // One who follows does not follow itself.
                if self.known.contains_key(&pid) || pid == Pid::this() {
                    continue;
                }
                // It may have ended without its parent's knowing it yet, or be another one's by now; what cannot be looked at is
                // found again.
                // Before looking at it, so that whatever becomes of it since is heard.
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
            // Asked afterwards: then it was there all the time, and its number was no other process's.
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
                // Who has lived for longer had another parent before, or was one too many.
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
                root = %self.family.root(),
                "more than {MOST_KNOWN} processes come from this one: the rest are not followed"
            );
        }
    }

    /// Sees what became of a process. True if it may be attached to, if it has sleds.
    fn visit(&mut self, pid: Pid, before: Option<Instant>) -> bool {
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        let follow = self.family.follow();
        let now = Instant::now();
        // Of what cannot be looked at nothing is known; a later look may be luckier.
        let Ok(glance) = Glance::at(pid) else {
            if known.state.is_due() {
                known.state.failed(None);
            }
            return false;
        };
        let its = |glance: &Glance| glance.start_time == known.start_time;
        let Some(Glance { program, .. }) = glance.filter(its) else {
            if known.sleds && matches!(known.state, State::Watched { .. }) {
                self.family.tell(|news| news.missed += 1);
            }
            self.known.remove(&pid);
            self.ignore(pid);
            return false;
        };
        let is_another = program != known.program;
        match &known.state {
            State::Left => return false,
            State::Traced(session) => match (
                session.source.control.phase(),
                session.source.control.executed(),
            ) {
                (Phase::Tracing | Phase::Detaching, _) => return false,
                // That its program looks like another one was seen since, or not at all.
                (Phase::Exited, Some(still)) if follow.execs() => {
                    known.becomes(pid, program, Some(still));
                }
                // It is on its way out; or somebody let it go.
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

    /// Sees whether a process has sleds. True if it is to be attached to.
    fn read(&mut self, pid: Pid, objects: &Objects) -> bool {
        let follow = self.family.follow();
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        // It may have become itself, without address space randomisation, and nobody knows when.
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

    fn attach(&mut self, pid: Pid, registry: &Registry) {
        let tried = self.try_to_attach(pid, registry);
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        match tried {
            Ok(Some(session)) => known.state = State::Traced(session),
            Ok(None) => known.state = State::Left,
            Err(refusal) => match refusal.reason {
                // The next look tells.
                Reason::NoSuchProcess
                | Reason::Zombie
                | Reason::TargetExited
                | Reason::PidReused => {}
                reason => {
                    if known.state.failed(Some(reason)) {
                        tracing::warn!(%pid, root = %self.family.root(), %refusal, "not followed");
                        let command = command_of(pid);
                        let told = NotFollowed {
                            pid,
                            command,
                            refusal,
                        };
                        self.family.tell(|news| news.add_not_followed(told));
                    }
                }
            },
        }
    }

    /// Attaches and switches on; `None` if somebody has attached to it by itself.
    fn try_to_attach(&self, pid: Pid, registry: &Registry) -> Result<Option<Arc<Session>>> {
        let Some(known) = self.known.get(&pid) else {
            return Ok(None);
        };
        let other = registry.get(pid);
        if other.is_some_and(|session| !session.has_exited()) {
            return Ok(None);
        }
        let (root, uid) = (self.family.root(), self.family.uid());
        let options = AttachOptions {
            start_time: Some(known.start_time),
            thread: None,
            // Whoever may trace the first one may trace this one as well, or it is not traced.
            owner: (uid != 0).then_some(uid),
            follow: Follow::None,
            ..self.family.options()
        };
        self.family.has_room()?;
        let session = registry.attach_followed(pid, options)?;
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
        let adopted = self.family.adopt(&session, parent.as_deref(), kinship);
        if let Err(refusal) = adopted {
            if let Err(second) = registry.end(&session) {
                tracing::warn!(%pid, %second, "a process that was not followed was not let go");
            }
            return Err(refusal);
        }
        registry.0.share_retained();
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
