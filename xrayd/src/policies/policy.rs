//! A policy in force, and the processes that it matches.
//!
//! ```text
//!              it matches             attached, functions on
//!  (unknown) ────────────► waiting ────────────────────────► traced
//!                          ▲  │  ▲                             │
//!                   retry  │  │  └─────────────────────────────┤ another program, another text,
//!                          │  ▼                                │ a smaller max_processes
//!                        refused ◄─────────────────────────────┘ a client has detached
//! ```
//!
//! A process that ends, or that the policy does not match any more, is forgotten. Nothing is
//! attached to or switched here: the engine does that.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    processes::Seen,
    since_epoch,
    spec::{OutputSpec, PolicySpec},
    status::{PolicySource, PolicyStatus, TracedProcess},
    traced::{Tracing, Wish},
    trigger_spec::TriggerSpec,
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
    pub(super) name: String,
    pub(super) text: Arc<str>,
    pub(super) source: PolicySource,
    /// The mistakes of its file as that is now.
    pub(super) mistakes: Vec<Mistake>,
    /// When it was put in force, and when it ends, in seconds since the Unix epoch.
    pub(super) since: u64,
    pub(super) expires: Option<u64>,
    pub(super) has_expired: bool,
    pub(super) tracing: Arc<Tracing>,
    /// The files that a recorder writes.
    output: Option<OutputSpec>,
    triggers: Arc<[TriggerSpec]>,
    members: BTreeMap<Pid, Member>,
    /// Events and losses of processes that it does not have any more.
    events: u64,
    lost: u64,
}

#[derive(Debug)]
struct Member {
    start_time: u64,
    /// The user of the process, and the owner of its memory.
    user: u32,
    owner: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting(Wait),
    /// An attach is under way.
    Attaching,
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
    /// What the status tells.
    process: TracedProcess,
}

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Its turn.
    Turn,
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
    /// Sessions in which nothing of the policy is to be on any more.
    pub(super) left: Vec<Arc<Session>>,
    /// Sessions that have failed.
    pub(super) failed: Vec<Arc<Session>>,
    /// Processes whose sessions are over. Those that live on were detached from by a client.
    pub(super) over: Vec<(Pid, u64)>,
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
        (since, expires): (u64, Option<u64>),
        adopts: bool,
    ) -> Result<Self> {
        let PolicySpec {
            name,
            expires: _,
            matching,
            trace,
            output,
            triggers,
        } = spec;
        let tracing = Tracing {
            matching,
            patterns: registry.compile(None, &trace.selection)?,
            lease: LeaseId::of_policy(&name),
            trace,
            adopts,
        };
        Ok(Self {
            name,
            text: text.into(),
            source,
            mistakes: Vec::new(),
            since,
            expires,
            has_expired: false,
            tracing: Arc::new(tracing),
            output,
            triggers: triggers.into(),
            members: BTreeMap::new(),
            events: 0,
            lost: 0,
        })
    }

    /// Takes the place of an earlier version of itself, with its processes. Returns the sessions in
    /// which something else is to be on now.
    pub(super) fn replace(&mut self, earlier: Self) -> Vec<Arc<Session>> {
        (self.events, self.lost) = (earlier.events, earlier.lost);
        self.members = earlier.members;
        let mut changed = Vec::new();
        if self.tracing.trace == earlier.tracing.trace {
            return changed;
        }
        for member in self.members.values_mut() {
            if matches!(member.state, State::Attaching) {
                // The outcome tells that it was for the earlier version.
                continue;
            }
            let was = std::mem::replace(&mut member.state, State::Waiting(Wait::Turn));
            if let State::Traced(traced) = was {
                let (events, lost) = traced.since();
                self.events = self.events.saturating_add(events);
                self.lost = self.lost.saturating_add(lost);
                changed.push(traced.session);
            }
        }
        changed
    }

    /// True if its time is over at this moment, in seconds since the Unix epoch.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Takes note of a process as it is now. `None`: it has ended. Returns its session if nothing
    /// of the policy is to be on in it any more.
    pub(super) fn consider(&mut self, pid: Pid, seen: Option<&Seen>) -> Option<Arc<Session>> {
        let meant = seen.filter(|seen| {
            !self.has_expired && self.tracing.matching.condition.matches(&seen.facts)
        });
        let mut left = None;
        if let Some(member) = self.members.get_mut(&pid) {
            let is_same =
                seen.is_some_and(|seen| seen.start_time == member.start_time && !seen.is_new);
            if let (true, Some(seen)) = (is_same, meant) {
                let is_changed = (member.user, member.owner) != (seen.facts.user, seen.owner);
                (member.user, member.owner) = (seen.facts.user, seen.owner);
                if is_changed && matches!(member.state, State::Refused { .. }) {
                    member.state = State::Waiting(Wait::Turn);
                }
                return None;
            }
            // The session of an earlier program, or of a process that has ended, ends by itself.
            left = self.forget(pid).filter(|_| is_same);
        }
        if let Some(seen) = meant {
            let member = Member {
                start_time: seen.start_time,
                user: seen.facts.user,
                owner: seen.owner,
                state: State::Waiting(Wait::Turn),
            };
            self.members.insert(pid, member);
        }
        left
    }

    /// Forgets a process. Returns its session.
    fn forget(&mut self, pid: Pid) -> Option<Arc<Session>> {
        let State::Traced(traced) = self.members.remove(&pid)?.state else {
            return None;
        };
        self.note_end(&traced);
        Some(traced.session)
    }

    /// Ends the policy. Returns the sessions in which it has functions on.
    pub(super) fn end(&mut self) -> Vec<Arc<Session>> {
        let pids: Vec<Pid> = self.members.keys().copied().collect();
        pids.into_iter()
            .filter_map(|pid| self.forget(pid))
            .collect()
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

    /// True if the policy has functions on in a process, or is to have them once it answers.
    pub(super) fn wants(&self, pid: Pid) -> bool {
        let member = self.members.get(&pid);
        member.is_some_and(|member| match &member.state {
            State::Waiting(wait) => *wait == Wait::Turn,
            State::Attaching | State::Traced(_) => true,
            State::Refused { next, .. } => next.is_some(),
        })
    }

    /// Has functions switched on anew in a process in which they were switched off.
    pub(super) fn redo(&mut self, pid: Pid) {
        let member = self.members.get_mut(&pid);
        let Some(member) = member.filter(|member| matches!(member.state, State::Traced(_))) else {
            return;
        };
        let was = std::mem::replace(&mut member.state, State::Waiting(Wait::Turn));
        if let State::Traced(traced) = was {
            self.note_end(&traced);
        }
    }

    /// True if the policy has functions on in a process, or is about to.
    pub(super) fn has_on(&self, pid: Pid) -> bool {
        let member = self.members.get(&pid);
        member.is_some_and(|member| matches!(member.state, State::Traced(_) | State::Attaching))
    }

    /// True if an attach to a process is under way.
    pub(super) fn is_attaching(&self, pid: Pid) -> bool {
        let member = self.members.get(&pid);
        member.is_some_and(|member| matches!(member.state, State::Attaching))
    }

    /// Notes that an attach begins. Returns false if the policy is not for the process any more.
    pub(super) fn begin_attach(&mut self, wish: &Wish) -> bool {
        let member = self.members.get_mut(&wish.pid);
        let member = member.filter(|member| member.start_time == wish.start_time);
        let is_meant = member.is_some();
        if let Some(member) = member {
            member.state = State::Attaching;
        }
        is_meant
    }

    /// Has a refused process tried again in the next round, because another policy has let it go.
    /// Returns true if it was refused.
    pub(super) fn try_again(&mut self, pid: Pid) -> bool {
        let member = self.members.get_mut(&pid);
        let state = member.map(|member| &mut member.state);
        match state {
            Some(State::Refused { refusal, next, .. }) if refusal.reason == Reason::Mode => {
                *next = Some(Instant::now());
                true
            }
            _ => false,
        }
    }

    /// Decides what is to be done in its processes. `left_alone` are the processes that clients
    /// have detached from, with their start times.
    pub(super) fn round(&mut self, now: Instant, left_alone: &HashMap<Pid, u64>) -> Round {
        let mut round = Round::default();
        if self.has_expired {
            return round;
        }
        let most = usize::try_from(self.tracing.matching.max_processes).unwrap_or(usize::MAX);
        let mut soon = |at: Instant| round.next = Some(round.next.map_or(at, |next| next.min(at)));
        let mut places = 0;
        let mut ended = Vec::new();
        let mut ordered: Vec<_> = self.members.iter_mut().collect();
        ordered.sort_by_key(|(pid, member)| (member.start_time, **pid));
        // A process that is traced keeps its place, whatever older ones come.
        for (pid, member) in &mut ordered {
            let State::Traced(Traced { session, .. }) = &member.state else {
                places += usize::from(matches!(member.state, State::Attaching));
                continue;
            };
            let failure = session.failure();
            let is_living = session.is_living() && failure.is_none();
            if is_living && places < most {
                places += 1;
                soon(now + LOOK_AT_SESSIONS);
                continue;
            }
            let after = match &failure {
                Some(refusal) => State::refused(refusal.clone(), now, 0),
                None if is_living => State::Waiting(Wait::Place),
                // The session of an earlier program of the process.
                None if session.has_executed() => State::Waiting(Wait::Turn),
                None => State::refused(detached(**pid), now, 0),
            };
            if let State::Traced(traced) = std::mem::replace(&mut member.state, after) {
                let session = Arc::clone(&traced.session);
                match (failure, is_living) {
                    (Some(_), _) => round.failed.push(session),
                    (None, true) => round.left.push(session),
                    (None, false) if session.has_executed() => {}
                    (None, false) => round.over.push((**pid, member.start_time)),
                }
                ended.push(traced);
            }
        }
        for (&pid, member) in ordered {
            let tries = match &member.state {
                State::Waiting(_) => 0,
                State::Traced(_) | State::Attaching => continue,
                State::Refused { next, tries, .. } => match *next {
                    Some(next) if next <= now => *tries,
                    Some(next) => {
                        soon(next);
                        continue;
                    }
                    None => continue,
                },
            };
            if left_alone.get(&pid) == Some(&member.start_time) {
                member.state = State::refused(detached(pid), now, 0);
                continue;
            }
            let least = self.tracing.matching.min_age;
            let left = match least.is_zero() {
                true => Duration::ZERO,
                false => least.saturating_sub(age_of(member.start_time)),
            };
            if !left.is_zero() {
                member.state = State::Waiting(Wait::Age);
                soon(now + left);
            } else if places < most {
                places += 1;
                let wish = Wish {
                    pid,
                    start_time: member.start_time,
                    user: member.user,
                    owner: member.owner,
                    is_first: true,
                };
                round.wishes.push((wish, tries));
            } else if matches!(member.state, State::Waiting(_)) {
                member.state = State::Waiting(Wait::Place);
            }
        }
        ended.iter().for_each(|traced| self.note_end(traced));
        round
    }

    /// Takes note of the outcome of an attach; `None` if it was for an earlier version. Returns
    /// false if the policy does not wait for it any more.
    pub(super) fn note(
        &mut self,
        (pid, start_time): (Pid, u64),
        outcome: Option<&Result<Arc<Session>>>,
        tries: u32,
    ) -> bool {
        let name = &self.name;
        let member = self.members.get_mut(&pid);
        let is_waited_for = |member: &&mut Member| {
            member.start_time == start_time && matches!(member.state, State::Attaching)
        };
        let Some(member) = member.filter(is_waited_for) else {
            return false;
        };
        let Some(outcome) = outcome else {
            member.state = State::Waiting(Wait::Turn);
            return false;
        };
        member.state = match outcome {
            Ok(session) => {
                tracing::info!(policy = name, %pid, "a policy has functions on in a process");
                let before = session.events_and_losses();
                let session = Arc::clone(session);
                let now = since_epoch();
                let first = session.anchors().first().map(|anchor| anchor.wall_ns);
                let begun = now.saturating_sub(age_of(start_time));
                let process = TracedProcess {
                    pid,
                    meant_since: begun.max(Duration::from_secs(self.since)),
                    traced_since: first.map_or(now, Duration::from_nanos),
                };
                State::Traced(Traced {
                    session,
                    before,
                    process,
                })
            }
            Err(refusal) => {
                // Others pass, or are of processes that live for a moment.
                if tries == 0 && refusal.reason.is_lasting() {
                    tracing::warn!(policy = name, %pid, %refusal, "a policy cannot trace a process");
                }
                State::refused(refusal.clone(), Instant::now(), tries)
            }
        };
        true
    }

    /// Its state now.
    pub(super) fn status(&self) -> PolicyStatus {
        let mut status = PolicyStatus {
            name: self.name.clone(),
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
            mode: self.tracing.trace.settings.mode,
            output: self.output,
            triggers: Arc::clone(&self.triggers),
        };
        for (&pid, member) in &self.members {
            match &member.state {
                State::Waiting(Wait::Turn) | State::Attaching => {}
                State::Waiting(Wait::Age) => status.too_young += 1,
                State::Waiting(Wait::Place) => status.beyond += 1,
                State::Traced(traced) => {
                    status.traced.push(traced.process);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{process::RegistryConfig, target::ProcessFacts};

    fn policy(matching: &str) -> Policy {
        let text =
            format!("name = \"x\"\n[match]\nexe = \"/a\"\n{matching}\n[trace]\nenable = \"*\"\n");
        let spec = PolicySpec::parse(&text).unwrap();
        let registry = Registry::new(RegistryConfig::default());
        let source = PolicySource::Applied;
        Policy::new(&registry, (spec, text), source, (0, None), false).unwrap()
    }

    fn pid(number: u32) -> Pid {
        Pid::try_from(number).unwrap()
    }

    fn seen(start_time: u64, exe: &str, is_new: bool) -> Seen {
        Seen {
            start_time,
            owner: 7,
            facts: ProcessFacts {
                exe: exe.to_owned(),
                user: 7,
                ..ProcessFacts::default()
            },
            is_new,
        }
    }

    /// The processes that a round wants to switch on.
    fn wanted(policy: &mut Policy, now: Instant, left_alone: &HashMap<Pid, u64>) -> Vec<u32> {
        let round = policy.round(now, left_alone);
        let wishes = round.wishes.into_iter();
        wishes.map(|(wish, _)| wish.pid.as_u32()).collect()
    }

    fn refuse(policy: &mut Policy, number: u32, start_time: u64, reason: Reason) {
        let wish = Wish {
            pid: pid(number),
            start_time,
            user: 7,
            owner: 7,
            is_first: true,
        };
        assert!(policy.begin_attach(&wish) && policy.is_attaching(pid(number)));
        let refusal = Refusal::new(reason, String::new());
        assert!(policy.note((pid(number), start_time), Some(&Err(refusal)), 0));
    }

    #[test]
    fn the_oldest_come_first_and_what_is_refused_takes_no_place() {
        let (mut policy, none) = (policy("max_processes = 2"), HashMap::new());
        let now = Instant::now();
        for (number, start_time) in [(13, 1), (12, 2), (11, 3), (10, 4)] {
            policy.consider(pid(number), Some(&seen(start_time, "/a", true)));
        }
        policy.consider(pid(14), Some(&seen(0, "/b", true)));
        assert_eq!(wanted(&mut policy, now, &none), [13, 12]);
        refuse(&mut policy, 13, 1, Reason::NoSleds);
        assert_eq!(wanted(&mut policy, now, &none), [12, 11]);
        // It is tried again later, and as long as there is no place it stays refused.
        let later = Instant::now() + FIRST_PAUSE;
        assert_eq!(wanted(&mut policy, later, &none), [13, 12]);
        refuse(&mut policy, 12, 2, Reason::Permission);
        let much_later = later + 2 * LONGEST_PAUSE;
        assert_eq!(wanted(&mut policy, much_later, &none), [13, 11]);
        // Another user may be allowed.
        let other_user = Seen {
            owner: 8,
            ..seen(2, "/a", false)
        };
        policy.consider(pid(12), Some(&other_user));
        assert_eq!(wanted(&mut policy, much_later, &none), [13, 12]);
        let status = policy.status();
        assert_eq!((status.matched, status.beyond), (4, 2));
        // A process that ended, another one with its id, and one that runs another program.
        policy.consider(pid(13), None);
        policy.consider(pid(12), Some(&seen(9, "/a", true)));
        policy.consider(pid(11), Some(&seen(3, "/b", true)));
        assert_eq!(wanted(&mut policy, much_later, &none), [10, 12]);
    }

    #[test]
    fn what_a_client_has_detached_from_is_left_alone() {
        let mut policy = policy("");
        let now = Instant::now();
        policy.consider(pid(10), Some(&seen(1, "/a", true)));
        let left_alone = HashMap::from([(pid(10), 1)]);
        assert!(wanted(&mut policy, now, &left_alone).is_empty());
        let (_, refusal) = policy.status().refused.pop().unwrap();
        assert_eq!(refusal.reason, Reason::NotAttached);
        // Until it runs another program.
        policy.consider(pid(10), Some(&seen(1, "/a", true)));
        assert_eq!(wanted(&mut policy, now, &HashMap::new()), [10]);
    }

    #[test]
    fn an_outcome_that_comes_too_late_is_not_taken() {
        let (mut policy, none) = (policy(""), HashMap::new());
        let now = Instant::now();
        policy.consider(pid(10), Some(&seen(1, "/a", true)));
        let (wish, _) = policy.round(now, &none).wishes.pop().unwrap();
        assert!(policy.begin_attach(&wish));
        assert!(wanted(&mut policy, now, &none).is_empty());
        policy.consider(pid(10), Some(&seen(2, "/a", true)));
        assert!(!policy.begin_attach(&wish));
        let refusal = Err(Refusal::new(Reason::Busy, String::new()));
        assert!(!policy.note((pid(10), 1), Some(&refusal), 0));
        assert_eq!(wanted(&mut policy, now, &none), [10]);
        policy.has_expired = true;
        assert!(wanted(&mut policy, now, &none).is_empty());
    }

    #[test]
    fn a_process_waits_for_its_age() {
        let mut policy = policy("min_age = \"1h\"");
        // It began with the machine.
        policy.consider(pid(10), Some(&seen(0, "/a", true)));
        let young = u64::MAX / 2;
        policy.consider(pid(11), Some(&seen(young, "/a", true)));
        let round = policy.round(Instant::now(), &HashMap::new());
        assert!(round.wishes.iter().all(|(wish, _)| wish.pid == pid(10)));
        assert!(round.next.is_some());
        assert!(policy.status().too_young >= 1);
    }
}
