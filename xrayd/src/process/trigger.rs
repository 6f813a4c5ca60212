//! A trigger, and the sessions that it is armed in.
//!
//! [`triggers`](crate::triggers) judges the conditions, without sessions.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use xray_trace::model::{Clock, ClockAnchor, Ticks};

use super::session::Session;
use crate::{
    export::{LEAST_SPAN_NS, ticks_in},
    pid::{Pid, Tid},
    refusal::{Reason, Refusal, Result},
    sys::{now_anchor, ticks_now},
    triggers::{
        Condition, EventNeed, EventOrigin, FiringLimiter, LongCalls, MOST_CONDITIONS, MOST_FIRINGS,
        Match, Matches, TriggerMatcher, Value, limiter,
    },
};

/// Conditions that are judged in some processes. A dropped trigger is disarmed.
#[derive(Debug)]
pub struct Trigger {
    conditions: Vec<Condition>,
    limiter: Arc<FiringLimiter>,
    /// Events before this are not judged.
    since: Ticks,
    /// Ticks of the counter per second. Set when it is armed first.
    frequency: Option<u64>,
    /// The processes. Sessions that are gone are removed by [`Self::tidy`].
    armed: Vec<Armed>,
    next: usize,
}

/// A process in which the trigger is or was armed. It does not keep the session alive.
#[derive(Debug)]
struct Armed {
    key: usize,
    session: Weak<Session>,
    matcher: Weak<TriggerMatcher>,
}

/// A trigger has fired.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// The index of the condition that was met. `None` if a client fired the trigger.
    pub condition: Option<usize>,
    /// The process.
    pub pid: Option<Pid>,
    /// Id and name of the thread, if the condition is about a thread.
    pub thread: Option<(u32, String)>,
    /// Name of the function, if the condition is about a function.
    pub function: Option<String>,
    /// The begin of the call. For other conditions the same as `at`.
    pub begun: Ticks,
    /// The time at which the condition was met.
    pub at: Ticks,
    /// `at` on the host's monotonic clock, in nanoseconds.
    pub monotonic_ns: u64,
    /// `at` in nanoseconds since the Unix epoch.
    pub wall_ns: u64,
    /// The delay until the condition was noticed, in nanoseconds.
    pub noticed_after_ns: u64,
    /// The measured value.
    pub value: Value,
}

// === impl Trigger ===

impl Trigger {
    /// A trigger that is armed in no process yet. It fires `limit` times at most; each
    /// [`Self::give_back`] adds one. The caller judges the long calls.
    ///
    /// # Errors
    /// Too many conditions, a limit out of its range, or an invalid condition.
    pub fn new(conditions: Vec<Condition>, limit: u32) -> Result<(Self, Matches, LongCalls)> {
        if conditions.len() > MOST_CONDITIONS {
            let message = format!("a trigger can have at most {MOST_CONDITIONS} conditions");
            return Err(Refusal::new(Reason::Limit, message));
        }
        if !(1..=MOST_FIRINGS).contains(&limit) {
            let message = format!("a trigger can fire between 1 and {MOST_FIRINGS} times");
            return Err(Refusal::new(Reason::Limit, message));
        }
        conditions.iter().try_for_each(Condition::check)?;
        let (limiter, hits, long_calls) = limiter(limit);
        let trigger = Self {
            conditions,
            limiter: Arc::new(limiter),
            since: ticks_now(),
            frequency: None,
            armed: Vec::new(),
            next: 0,
        };
        Ok((trigger, hits, long_calls))
    }

    /// Arms the trigger in a process. Does not wait for the process. Events since the creation of
    /// the trigger count if they are still in the rings. True if the conditions need events: then
    /// [`Self::read_all`] has to follow.
    ///
    /// # Errors
    /// An invalid selection, or an unreadable clock.
    pub fn arm(&mut self, session: &Arc<Session>) -> Result<bool> {
        if self.has(session) {
            return Ok(false);
        }
        let frequency = match self.frequency {
            Some(known) => known,
            None => *self.frequency.insert(frequency(session)?),
        };
        let key = self.next;
        self.next += 1;
        let matcher = TriggerMatcher::new(
            &self.conditions,
            (key, Arc::clone(&self.limiter)),
            Arc::clone(&session.source.tables.functions),
            (self.since, frequency),
        )?;
        let matcher = Arc::new(matcher);
        session.source.output.arm(Arc::clone(&matcher));
        if let Some(ending) = session.ending() {
            // The process may have ended just before.
            matcher.ended(ending);
        }
        // The matcher gets later names when they are read.
        for event_type in session.source.output.event_types() {
            matcher.named(event_type.number, &event_type.name);
        }
        let sees_events = matcher.need() != EventNeed::Nothing;
        self.armed.push(Armed {
            key,
            session: Arc::downgrade(session),
            matcher: Arc::downgrade(&matcher),
        });
        Ok(sees_events)
    }

    /// Has events recorded, and makes the drain of a process read its rings now. From then on it
    /// reads them all the time.
    ///
    /// # Errors
    /// The drain hangs.
    pub fn read_all(session: &Session) -> Result<()> {
        session.record_events();
        session.source.control.flush()
    }

    /// Removes sessions that are gone.
    pub fn tidy(&mut self) {
        self.armed.retain(|armed| armed.session.strong_count() > 0);
    }

    /// True if the trigger is or was armed in a session.
    pub fn has(&self, session: &Arc<Session>) -> bool {
        let it = Arc::as_ptr(session);
        self.armed.iter().any(|armed| armed.session.as_ptr() == it)
    }

    /// The sessions in which the trigger is or was armed, each with its number, in ascending order.
    pub fn sessions(&self) -> impl Iterator<Item = (usize, Arc<Session>)> {
        let sessions = self.armed.iter();
        sessions.filter_map(|armed| Some((armed.key, armed.session.upgrade()?)))
    }

    /// True if the trigger is armed in no living process.
    pub fn is_over(&self) -> bool {
        self.sessions().all(|(_, session)| !session.is_living())
    }

    /// Number of functions that the conditions watch.
    pub fn functions(&self) -> usize {
        let matchers = self
            .armed
            .iter()
            .filter_map(|armed| armed.matcher.upgrade());
        matchers.map(|matcher| matcher.watched()).sum()
    }

    /// Converts a duration to ticks of the counter. 0 before the trigger is armed for the first
    /// time.
    pub fn ticks_in(&self, time: Duration) -> u64 {
        let frequency = self.frequency.unwrap_or(0);
        ticks_in(time, frequency)
    }

    /// The time until a moment.
    pub fn time_until(&self, Ticks(then): Ticks) -> Duration {
        let left = u128::from(then.saturating_sub(ticks_now().0));
        let left = left * 1_000_000_000 / u128::from(self.frequency.unwrap_or(1).max(1));
        Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Disarms the trigger in the living processes that are not among these, and forgets them.
    pub(crate) fn disarm_others(&mut self, wanted: &[Arc<Session>]) {
        self.armed.retain(|armed| {
            let Some(session) = armed.session.upgrade() else {
                return true;
            };
            let is_wanted = wanted.iter().any(|wanted| Arc::ptr_eq(wanted, &session));
            if is_wanted || !session.is_living() {
                return true;
            }
            if let Some(matcher) = armed.matcher.upgrade() {
                session.source.output.triggers.disarm(&matcher);
            }
            false
        });
    }

    /// Disarms the trigger in all processes.
    pub fn disarm(&self) {
        for armed in &self.armed {
            if let Some((session, matcher)) = armed.session.upgrade().zip(armed.matcher.upgrade()) {
                session.source.output.triggers.disarm(&matcher);
            }
        }
    }

    /// Fires the trigger now, within its limit.
    pub fn fire(&self) {
        self.limiter.pass(|| Match::on_demand(ticks_now()));
    }

    /// The session with this number, if it is still there.
    pub(crate) fn session(&self, key: usize) -> Option<Arc<Session>> {
        let mut armed = self.armed.iter();
        armed.find(|armed| armed.key == key)?.session.upgrade()
    }

    /// The id of a thread in its process.
    pub(crate) fn tid(&self, place: EventOrigin) -> Option<Tid> {
        let (session, thread) = (self.session(place.key)?, place.thread?);
        let output = &session.source.output;
        let tid = output.with_retained(|retained| Some(retained.thread(thread)?.tid));
        Tid::try_from(tid?).ok()
    }

    /// The way of judged calls to the firings.
    pub(crate) fn limiter(&self) -> Arc<FiringLimiter> {
        Arc::clone(&self.limiter)
    }

    /// Long calls since the last call that could not be judged.
    pub fn take_unjudged(&self) -> u64 {
        self.limiter.take_unjudged()
    }

    /// Allows one more firing.
    pub fn give_back(&self) {
        self.limiter.give_back();
    }

    /// Matches since the last call that exceeded the limit.
    pub fn take_skipped(&self) -> u64 {
        self.limiter.take_skipped()
    }

    /// The firing for a match.
    pub fn describe(&self, hit: &Match) -> Firing {
        let mut sessions = self.sessions();
        let its =
            |(key, _): &(usize, Arc<Session>)| hit.condition.is_some() && *key == hit.place.key;
        let session = sessions.find(its).map(|(_, session)| session);
        let session = session.as_ref();
        // This reads no file of the process, which may not answer.
        let name =
            |session: &Arc<Session>| session.source.tables.functions.name(hit.place.function?);
        let clock = session.map(|session| Clock::new(session.anchors()));
        let clock = clock.unwrap_or_default();
        let now = now_anchor();
        // Without a process the time is now.
        let (monotonic_ns, wall_ns) = match (&now, clock.anchors().is_empty()) {
            (Ok(now), true) => (now.monotonic_ns, now.wall_ns),
            _ => (clock.monotonic_ns(hit.at), clock.wall_ns(hit.at)),
        };
        let now = now.map_or(monotonic_ns, |now| now.monotonic_ns);
        Firing {
            condition: hit.condition,
            pid: session.map(|session| session.pid()),
            thread: session.zip(hit.place.thread).and_then(|(session, thread)| {
                session.source.output.with_retained(|retained| {
                    let thread = retained.thread(thread)?;
                    Some((thread.tid, thread.name.clone()))
                })
            }),
            function: session.and_then(name).map(|(_, name)| name),
            begun: hit.begun,
            at: hit.at,
            monotonic_ns,
            wall_ns,
            noticed_after_ns: now.saturating_sub(monotonic_ns),
            value: match hit.value {
                Value::Duration(ticks) => Value::Duration(nanoseconds(&clock, ticks)),
                value => value,
            },
        }
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// Converts ticks to nanoseconds.
fn nanoseconds(clock: &Clock, ticks: u64) -> u64 {
    let Some(frequency) = clock.frequency() else {
        return ticks;
    };
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(frequency.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Ticks of the counter per second.
fn frequency(session: &Session) -> Result<u64> {
    let cannot = |why: String| Refusal::new(Reason::Io, format!("cannot read the clock: {why}"));
    let mut anchors: Vec<ClockAnchor> = session.anchors();
    // A new session has read the clock once or twice within a moment, which gives the frequency to
    // a ten-thousandth only.
    let now = now_anchor().map_err(|error| cannot(error.to_string()))?;
    let began = anchors
        .first()
        .map_or(now.monotonic_ns, |first| first.monotonic_ns);
    if now.monotonic_ns.saturating_sub(began) < LEAST_SPAN_NS {
        std::thread::sleep(Duration::from_nanos(LEAST_SPAN_NS));
        anchors.insert(0, now);
    }
    anchors.push(now_anchor().map_err(|error| cannot(error.to_string()))?);
    let frequency = Clock::new(anchors).frequency();
    frequency.ok_or_else(|| cannot("the processor's counter stands still".to_owned()))
}
