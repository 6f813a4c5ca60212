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
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use xray_trace::model::EventType;

pub use condition::{CallTime, Condition, DeathWanted, MOST_CONDITIONS};
pub(crate) use limiter::{EventOrigin, FiringLimiter, limiter};
pub use limiter::{LongCalls, MOST_FIRINGS, Match, Matches, Value};
pub(crate) use matcher::{ConditionMask, TriggerMatcher};

use crate::{lock::lock, target::Ending};

/// Limit on the time of a snapshot after the moment that it is about.
pub const LONGEST_AFTER: Duration = Duration::from_secs(60);

/// What is armed in one process.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    armed: Mutex<Vec<Arc<TriggerMatcher>>>,
    /// Raised when that changes, for the drain.
    version: AtomicU64,
    /// One of them has to see events.
    sees_events: AtomicBool,
}

// === impl Triggers ===

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
        let sees_events = all.iter().any(|armed| armed.sees_events());
        self.sees_events.store(sees_events, Relaxed);
        self.version.fetch_add(1, Relaxed);
    }

    /// Events have to be read along.
    pub(crate) fn see_events(&self) -> bool {
        self.sees_events.load(Relaxed)
    }

    /// Grows whenever something else is armed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Those that have to see events.
    pub(crate) fn seeing(&self) -> Vec<Arc<TriggerMatcher>> {
        let all = lock(&self.armed);
        let seeing = all.iter().filter(|armed| armed.sees_events());
        seeing.cloned().collect()
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
