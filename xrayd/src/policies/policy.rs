//! A policy in force, and the processes that it matches.
//!
//! ```text
//!              it matches             attached, functions on
//!  (unknown) ────────────► waiting ────────────────────────► traced
//!                          ▲  │  ▲                             │
//!                   retry  │  │  └─────────────────────────────┤ another program, another policy,
//!                          │  ▼                                │ beyond max_processes
//!                        refused ◄─────────────────────────────┘ a client has detached
//! ```
//!
//! A process that ends, or that the policy does not match any more, is forgotten.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::{
    processes::Seen,
    spec::PolicySpec,
    status::{PolicySource, PolicyStatus},
    traced::{Tracing, Wish, end_lease, release},
};
use crate::{
    pid::Pid,
    process::{Registry, Session},
    refusal::{Reason, Refusal, Result},
    target::age_of,
    toml_file::Mistake,
    types::LeaseId,
};

/// The first pause before an attach is tried again, and the longest one. Each is twice the one
/// before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time between two looks whether sessions are over.
const LOOK_AT_SESSIONS: Duration = Duration::from_secs(1);
/// The most refusals that a status names.
const MOST_REFUSALS: usize = 100;

/// A policy, and its processes.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) spec: PolicySpec,
    pub(super) text: Arc<str>,
    pub(super) source: PolicySource,
    /// The mistakes of its file as that is now.
    pub(super) mistakes: Vec<Mistake>,
    /// The moment at which it ends, in seconds since the Unix epoch.
    pub(super) expires: Option<u64>,
    pub(super) has_expired: bool,
    pub(super) tracing: Arc<Tracing>,
    members: BTreeMap<Pid, Member>,
    /// Events and losses of processes that it does not have any more.
    events: u64,
    lost: u64,
}

#[derive(Debug)]
struct Member {
    start_time: u64,
    user: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting(Wait),
    Traced(Traced),
    /// `next` is the time of the next attempt, or `None` if none can succeed.
    Refused {
        refusal: Refusal,
        next: Option<Instant>,
        tries: u32,
    },
}

/// A session in which the policy has functions on.
#[derive(Debug)]
struct Traced {
    session: Arc<Session>,
    /// Its events and losses before that.
    before: (u64, u64),
}

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The next round.
    Round,
    /// Its age.
    Age,
    /// A place among the processes of the policy.
    Place,
}

/// What is to be done for a policy.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The processes to switch on, with the number of attempts so far.
    pub(super) wishes: Vec<(Wish, u32)>,
    /// When there is something to do next. `None`: when something changes.
    pub(super) next: Option<Instant>,
}

// === impl Policy ===

impl Policy {
    /// A policy without processes.
    ///
    /// # Errors
    /// The patterns of the selection exceed the quota.
    pub(super) fn new(
        registry: &Registry,
        (spec, text): (PolicySpec, String),
        source: PolicySource,
        expires: Option<u64>,
    ) -> Result<Self> {
        let tracing = Tracing {
            patterns: registry.compile(None, &spec.trace.selection)?,
            lease: LeaseId::of_policy(&spec.name),
            trace: spec.trace.clone(),
        };
        Ok(Self {
            spec,
            text: text.into(),
            source,
            mistakes: Vec::new(),
            expires,
            has_expired: false,
            tracing: Arc::new(tracing),
            members: BTreeMap::new(),
            events: 0,
            lost: 0,
        })
    }

    /// Takes the place of an earlier version of itself, with its processes. What they record
    /// changes in the next round.
    pub(super) fn replace(&mut self, registry: &Registry, earlier: Self) {
        (self.events, self.lost) = (earlier.events, earlier.lost);
        self.members = earlier.members;
        if self.tracing.trace == earlier.tracing.trace {
            return;
        }
        for member in self.members.values_mut() {
            let was = std::mem::replace(&mut member.state, State::Waiting(Wait::Round));
            if let State::Traced(traced) = was {
                end_lease(registry, &traced.session, self.tracing.lease);
                let (events, lost) = traced.since();
                self.events = self.events.saturating_add(events);
                self.lost = self.lost.saturating_add(lost);
            }
        }
    }

    /// True if its time is over at this moment.
    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Takes note of a process as it is now. `None`: it is gone.
    pub(super) fn consider(&mut self, registry: &Registry, pid: Pid, seen: Option<&Seen>) {
        let meant =
            seen.filter(|seen| !self.has_expired && self.spec.matching.matches(&seen.facts));
        if let Some(member) = self.members.get(&pid) {
            let is_same =
                seen.is_some_and(|seen| seen.start_time == member.start_time && !seen.is_new);
            if is_same && meant.is_some() {
                return;
            }
            // Another program has nothing of the earlier one on.
            self.forget(registry, pid, is_same);
        }
        if let Some(seen) = meant {
            let member = Member {
                start_time: seen.start_time,
                user: seen.facts.user,
                state: State::Waiting(Wait::Round),
            };
            self.members.insert(pid, member);
        }
    }

    /// Forgets a process. `releases`: what is on by the policy is switched off.
    fn forget(&mut self, registry: &Registry, pid: Pid, releases: bool) {
        let Some(member) = self.members.remove(&pid) else {
            return;
        };
        if let State::Traced(traced) = member.state {
            if releases {
                release(registry, &traced.session, self.tracing.lease);
            }
            self.note_end(&traced);
        }
    }

    /// Ends the policy: switches off what it has on in its processes.
    pub(super) fn end(&mut self, registry: &Registry) {
        let pids: Vec<Pid> = self.members.keys().copied().collect();
        for pid in pids {
            self.forget(registry, pid, true);
        }
    }

    fn note_end(&mut self, traced: &Traced) {
        let (events, lost) = traced.since();
        self.events = self.events.saturating_add(events);
        self.lost = self.lost.saturating_add(lost);
    }

    /// The processes that it matches.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.members.keys().copied()
    }

    /// True if the policy has functions on in a process.
    pub(super) fn has_on(&self, pid: Pid) -> bool {
        let member = self.members.get(&pid);
        member.is_some_and(|member| matches!(member.state, State::Traced(_)))
    }

    /// Decides what is to be done in its processes. Returns the processes whose sessions are over,
    /// too, which are to be looked at.
    pub(super) fn round(&mut self, registry: &Registry, now: Instant) -> (Round, Vec<Pid>) {
        let (mut round, mut over) = (Round::default(), Vec::new());
        if self.has_expired {
            return (round, over);
        }
        let most = usize::try_from(self.spec.matching.max_processes).unwrap_or(usize::MAX);
        let mut places = 0;
        let mut soon = |at: Instant| round.next = Some(round.next.map_or(at, |next| next.min(at)));
        let (mut beyond, mut ended) = (Vec::new(), Vec::new());
        let mut ordered: Vec<_> = self.members.iter_mut().collect();
        ordered.sort_by_key(|(pid, member)| (member.start_time, **pid));
        for (&pid, member) in ordered {
            if let State::Traced(Traced { session, .. }) = &member.state {
                let failure = session.failure();
                if session.is_living() && failure.is_none() && places < most {
                    places += 1;
                    soon(now + LOOK_AT_SESSIONS);
                    continue;
                }
                let after = match failure {
                    Some(refusal) => State::refused(refusal, now, 0),
                    None if session.is_living() => State::Waiting(Wait::Place),
                    // The session of an earlier program of the process.
                    None if session.has_executed() => State::Waiting(Wait::Round),
                    None => State::refused(detached(pid), now, 0),
                };
                let is_beyond = matches!(after, State::Waiting(Wait::Place));
                if let State::Traced(traced) = std::mem::replace(&mut member.state, after) {
                    match is_beyond {
                        true => beyond.push(traced),
                        false => {
                            over.push(pid);
                            ended.push(traced);
                        }
                    }
                }
                continue;
            }
            let tries = match &member.state {
                State::Waiting(_) | State::Traced(_) => 0,
                State::Refused { next, tries, .. } => match *next {
                    Some(next) if next <= now => *tries,
                    Some(next) => {
                        soon(next);
                        continue;
                    }
                    None => continue,
                },
            };
            let age = age_of(member.start_time);
            if let Some(left) = self.spec.matching.min_age.checked_sub(age)
                && !left.is_zero()
            {
                member.state = State::Waiting(Wait::Age);
                soon(now + left);
            } else if places < most {
                places += 1;
                let wish = Wish {
                    pid,
                    start_time: member.start_time,
                    user: member.user,
                    is_first: true,
                };
                round.wishes.push((wish, tries));
            } else {
                member.state = State::Waiting(Wait::Place);
            }
        }
        for traced in &beyond {
            release(registry, &traced.session, self.tracing.lease);
        }
        beyond
            .iter()
            .chain(&ended)
            .for_each(|traced| self.note_end(traced));
        (round, over)
    }

    /// Takes note of the outcome of a wish.
    pub(super) fn note(&mut self, pid: Pid, outcome: Result<Arc<Session>>, tries: u32) {
        let name = &self.spec.name;
        let Some(member) = self.members.get_mut(&pid) else {
            return;
        };
        member.state = match outcome {
            Ok(session) => {
                tracing::info!(policy = name, %pid, "a policy has functions on in a process");
                let before = session.events_and_losses();
                State::Traced(Traced { session, before })
            }
            Err(refusal) => {
                let is_news = !matches!(
                    &member.state,
                    State::Refused { refusal: before, .. } if before.reason == refusal.reason
                );
                if is_news && !matches!(refusal.reason, Reason::NoSleds | Reason::Busy) {
                    tracing::warn!(policy = name, %pid, %refusal, "a policy cannot trace a process");
                }
                State::refused(refusal, Instant::now(), tries)
            }
        };
    }

    /// The time of the next attempt after refusals.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        let next = |member: &Member| match &member.state {
            State::Refused { next, .. } => *next,
            State::Waiting(_) | State::Traced(_) => None,
        };
        self.members.values().filter_map(next).min()
    }

    /// Its state now.
    pub(super) fn status(&self) -> PolicyStatus {
        let mut status = PolicyStatus {
            name: self.spec.name.clone(),
            text: Arc::clone(&self.text),
            source: self.source.clone(),
            has_expired: self.has_expired,
            expires: self.expires,
            mistakes: self.mistakes.clone(),
            matched: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            traced: Vec::new(),
            too_young: 0,
            beyond: 0,
            refused: Vec::new(),
            events: self.events,
            lost: self.lost,
        };
        for (&pid, member) in &self.members {
            match &member.state {
                State::Waiting(Wait::Round) => {}
                State::Waiting(Wait::Age) => status.too_young += 1,
                State::Waiting(Wait::Place) => status.beyond += 1,
                State::Traced(traced) => {
                    status.traced.push(pid);
                    let (events, lost) = traced.since();
                    status.events = status.events.saturating_add(events);
                    status.lost = status.lost.saturating_add(lost);
                }
                State::Refused { refusal, .. } => {
                    if status.refused.len() < MOST_REFUSALS {
                        status.refused.push((pid, refusal.clone()));
                    }
                }
            }
        }
        status
    }
}

// === impl Traced ===

impl Traced {
    /// The events and losses since the policy has functions on.
    fn since(&self) -> (u64, u64) {
        let ((events, lost), before) = (self.session.events_and_losses(), self.before);
        (
            events.saturating_sub(before.0),
            lost.saturating_sub(before.1),
        )
    }
}

// === impl State ===

impl State {
    fn refused(refusal: Refusal, now: Instant, tries: u32) -> Self {
        let lasts = refusal.reason.is_lasting() || refusal.reason == Reason::NotAttached;
        let pause = FIRST_PAUSE.saturating_mul(1 << tries.min(16));
        Self::Refused {
            refusal,
            next: (!lasts).then(|| now + pause.min(LONGEST_PAUSE)),
            tries: tries.saturating_add(1),
        }
    }
}

/// The refusal of a process that a client has taken from the policy.
fn detached(pid: Pid) -> Refusal {
    let message = format!(
        "a client has detached from process {pid}: the policy leaves the process alone until it \
         executes another program"
    );
    Refusal::new(Reason::NotAttached, message)
}
