//! Triggers: conditions on calls, user events and the end of processes, and the matches of them.
//!
//! ```text
//!  ring ─► decoder ──► Watch ──► TriggerMatcher ──► FiringLimiter ──► Matches
//!                      thread    trigger, process   trigger
//!  controller: the process has ended ──► TriggerMatcher
//!
//!  a call whose time on or off the processor decides: TriggerMatcher ──► LongCalls
//! ```
//!
//! The thread that reads the rings judges the events. It never waits: only a match that the limiter
//! lets through leaves it, and a condition that is met a million times costs a counter.

mod condition;
mod limiter;
mod matcher;
mod rate;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use xray_trace::model::{EventType, FunctionId, Ticks};

pub use condition::{CallTime, Condition, DeathWanted, MOST_CONDITIONS};
pub(crate) use limiter::{EventOrigin, FiringLimiter, limiter};
pub use limiter::{LongCalls, MOST_FIRINGS, Match, Matches, Value};
pub(crate) use matcher::{ConditionMask, TriggerMatcher};

use crate::{lock::lock, target::Ending};

/// Limit on the time of a snapshot after the moment that it is about.
pub const LONGEST_AFTER: Duration = Duration::from_secs(60);

/// What is armed in one process.
#[derive(Debug)]
pub(crate) struct Triggers {
    armed: Mutex<Vec<Arc<TriggerMatcher>>>,
    /// Raised when that changes, for the drain.
    version: AtomicU64,
    /// What they need, as [`EventNeed::to_word`].
    need: AtomicU64,
}

/// What triggers need to know of what a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventNeed {
    /// Nothing.
    Nothing,
    /// Calls that take at least so many ticks, once they have ended. The program can note them.
    LongCalls(u64),
    /// Each event.
    Events,
}

/// The armed triggers that have to see events, and the functions that they wait for.
#[derive(Debug)]
pub(crate) struct Awaited(Vec<(Arc<TriggerMatcher>, Arc<ConditionMask>)>);

// === impl Awaited ===

impl Awaited {
    /// True if a trigger waits for calls of this function.
    pub(crate) fn contains(&self, function: FunctionId) -> bool {
        self.waiting_for(function).next().is_some()
    }

    /// A call that began and ended at these moments is over.
    pub(crate) fn exits(&self, origin: EventOrigin, call: (Ticks, Ticks)) {
        let Some(function) = origin.function else {
            return;
        };
        for (armed, bits) in self.waiting_for(function) {
            armed.exits(bits, origin, call);
        }
    }

    /// So many calls of this function were not recorded.
    pub(crate) fn miss(&self, function: FunctionId, calls: u64) {
        for (armed, _) in self.waiting_for(function) {
            armed.miss(calls);
        }
    }

    /// So many long calls of any function were not recorded.
    pub(crate) fn miss_any(&self, calls: u64) {
        for (armed, _) in &self.0 {
            armed.miss(calls);
        }
    }

    fn waiting_for(&self, function: FunctionId) -> impl Iterator<Item = (&TriggerMatcher, u8)> {
        self.0.iter().filter_map(move |(armed, marks)| {
            let bits = marks.of(function).unwrap_or(0);
            (bits != 0).then_some((&**armed, bits))
        })
    }
}

// === impl EventNeed ===

impl EventNeed {
    const EVENTS: u64 = 0;
    const NOTHING: u64 = u64::MAX;

    /// What triggers with one of these needs each need together.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Events, _) | (_, Self::Events) => Self::Events,
            (Self::Nothing, need) | (need, Self::Nothing) => need,
            (Self::LongCalls(one), Self::LongCalls(other)) => Self::LongCalls(one.min(other)),
        }
    }

    fn to_word(self) -> u64 {
        match self {
            Self::Events => Self::EVENTS,
            Self::LongCalls(ticks) => ticks.clamp(Self::EVENTS + 1, Self::NOTHING - 1),
            Self::Nothing => Self::NOTHING,
        }
    }

    fn of_word(word: u64) -> Self {
        match word {
            Self::EVENTS => Self::Events,
            Self::NOTHING => Self::Nothing,
            ticks => Self::LongCalls(ticks),
        }
    }
}

// === impl Triggers ===

impl Default for Triggers {
    fn default() -> Self {
        Self {
            armed: Mutex::default(),
            version: AtomicU64::new(0),
            need: AtomicU64::new(EventNeed::Nothing.to_word()),
        }
    }
}

impl Triggers {
    /// Arms one more.
    pub(crate) fn arm(&self, armed: Arc<TriggerMatcher>) {
        let mut all = lock(&self.armed);
        all.push(armed);
        self.changed(&all);
    }

    /// Forgets one.
    pub(crate) fn disarm(&self, armed: &Arc<TriggerMatcher>) {
        let mut all = lock(&self.armed);
        all.retain(|other| !Arc::ptr_eq(other, armed));
        self.changed(&all);
    }

    fn changed(&self, all: &[Arc<TriggerMatcher>]) {
        let needs = all.iter().map(|armed| armed.need());
        let need = needs.fold(EventNeed::Nothing, EventNeed::and);
        self.need.store(need.to_word(), Relaxed);
        self.version.fetch_add(1, Relaxed);
    }

    /// What they need to know.
    pub(crate) fn need(&self) -> EventNeed {
        EventNeed::of_word(self.need.load(Relaxed))
    }

    /// Grows whenever something else is armed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Those that have to see events.
    pub(crate) fn seeing(&self) -> Vec<Arc<TriggerMatcher>> {
        let all = lock(&self.armed);
        let seeing = all
            .iter()
            .filter(|armed| armed.need() != EventNeed::Nothing);
        seeing.cloned().collect()
    }

    /// Those, and the functions that they wait for now.
    pub(crate) fn awaited(&self) -> Awaited {
        let armed = self.seeing().into_iter().map(|armed| {
            let marks = armed.marks();
            (armed, marks)
        });
        Awaited(armed.collect())
    }

    /// How many are armed.
    pub(crate) fn count(&self) -> usize {
        lock(&self.armed).len()
    }

    /// The process has ended, and everything that it recorded was read.
    pub(crate) fn ended(&self, ending: Ending) {
        for armed in lock(&self.armed).iter() {
            armed.ended(ending);
        }
    }

    /// A number of event types has this name.
    pub(crate) fn named(&self, event_type: &EventType) {
        for armed in lock(&self.armed).iter() {
            armed.named(event_type.number, &event_type.name);
        }
    }
}
