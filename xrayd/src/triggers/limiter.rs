//! How often a trigger may still fire, and the way from the threads that read rings to whoever
//! waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc;
use xray_trace::model::{FunctionId, ThreadId, Ticks};

/// So often a trigger may fire, at most.
pub const MOST_FIRINGS: u32 = 1000;

/// A condition was met, and the trigger fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// `None` if nothing was met but somebody wants it to fire.
    pub(crate) condition: Option<usize>,
    pub(crate) place: EventOrigin,
    pub(crate) begun: Ticks,
    pub(crate) at: Ticks,
    pub(crate) value: Value,
}

/// Where something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EventOrigin {
    /// The process, by the number that its trigger gave it.
    pub(crate) key: usize,
    pub(crate) thread: Option<ThreadId>,
    pub(crate) function: Option<FunctionId>,
}

/// What was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Nothing that can be measured.
    None,
    /// How long the call took: in a hit in ticks, as it is told in nanoseconds.
    Duration(u64),
    /// Calls within a second.
    Calls(u64),
    /// The number of an event's type.
    Type(u16),
}

/// What comes through a limiter.
#[derive(Debug)]
pub struct Matches(mpsc::Receiver<Match>);

/// Lets so many hits through as the limit allows.
#[derive(Debug)]
pub(crate) struct FiringLimiter {
    /// Matches that may still pass.
    left: AtomicU32,
    /// Those that did not.
    skipped: AtomicU64,
    /// Has room for all that may pass.
    hits: mpsc::Sender<Match>,
}

pub(crate) fn limiter(limit: u32) -> (FiringLimiter, Matches) {
    let (sender, receiver) = mpsc::channel(limit.clamp(1, MOST_FIRINGS) as usize);
    let limiter = FiringLimiter {
        left: AtomicU32::new(limit),
        skipped: AtomicU64::new(0),
        hits: sender,
    };
    (limiter, Matches(receiver))
}

// === impl Match ===

impl Match {
    pub(crate) fn on_demand(now: Ticks) -> Self {
        Self {
            condition: None,
            place: EventOrigin::default(),
            begun: now,
            at: now,
            value: Value::None,
        }
    }
}

#[cfg(test)]
impl Match {
    /// Of which function a call lasted from when to when.
    pub(crate) fn call(&self) -> (Option<FunctionId>, Ticks, Ticks) {
        (self.place.function, self.begun, self.at)
    }
}

// === impl EventOrigin ===

impl EventOrigin {
    /// In a thread, at a function.
    pub(crate) fn new(thread: ThreadId, function: FunctionId) -> Self {
        Self {
            key: 0,
            thread: Some(thread),
            function: Some(function),
        }
    }
}

// === impl Matches ===

impl Matches {
    /// The next one.
    pub async fn next(&mut self) -> Option<Match> {
        self.0.recv().await
    }

    /// One that is there already.
    pub fn next_now(&mut self) -> Option<Match> {
        self.0.try_recv().ok()
    }
}

// === impl FiringLimiter ===

impl FiringLimiter {
    /// A condition was met.
    pub(crate) fn pass(&self, hit: impl FnOnce() -> Match) {
        let one_less = |left: u32| left.checked_sub(1);
        match self.left.fetch_update(Relaxed, Relaxed, one_less) {
            // There is room for it. If nobody waits any more, nobody is to be told.
            Ok(_) => drop(self.hits.try_send(hit())),
            Err(_) => {
                self.skipped.fetch_add(1, Relaxed);
            }
        }
    }

    /// One more may pass: of one that has passed, its time is over.
    pub(crate) fn give_back(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    pub(crate) fn take_skipped(&self) -> u64 {
        self.skipped.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_as_the_limit_says_and_the_rest_is_counted() {
        for limit in [1, 3, MOST_FIRINGS] {
            let (limiter, mut hits) = limiter(limit);
            for at in 0..u64::from(limit) + 10 {
                limiter.pass(|| Match::on_demand(Ticks(at)));
            }
            let mut passed = Vec::new();
            while let Some(hit) = hits.next_now() {
                passed.push(hit.at.0);
            }
            let expected: Vec<u64> = (0..u64::from(limit)).collect();
            assert_eq!(passed, expected, "the first ones");
            assert_eq!((limiter.take_skipped(), limiter.take_skipped()), (10, 0));
            limiter.give_back();
            for at in 5000..5010 {
                limiter.pass(|| Match::on_demand(Ticks(at)));
            }
            assert_eq!(hits.next_now().map(|hit| hit.at.0), Some(5000));
            assert_eq!(hits.next_now(), None);
            assert_eq!(limiter.take_skipped(), 9);
        }
    }
}
