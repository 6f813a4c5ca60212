//! How often a trigger may still fire, and the way of matches from the threads that read rings to
//! the trigger's task.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tokio::sync::mpsc;
use xray_trace::model::{FunctionId, ThreadId, Ticks};

/// So often a trigger may fire, at most.
pub const MOST_FIRINGS: u32 = 1000;

/// The most calls that wait to be judged by their time on or off the processor.
const MOST_LONG_CALLS: usize = 1024;

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
    /// The duration of the call: in ticks in a match, in nanoseconds in a firing.
    Duration(u64),
    /// The time of the call in which its thread had a processor, in nanoseconds.
    OnCpu(u64),
    /// The time of the call in which its thread had no processor, in nanoseconds.
    OffCpu(u64),
    /// Calls within a second.
    Calls(u64),
    /// The number of an event's type.
    Type(u16),
}

/// What comes through a limiter.
#[derive(Debug)]
pub struct Matches(mpsc::Receiver<Match>);

/// Calls that took long enough: matches without values. Whether they meet their conditions depends
/// on the time in which their threads had a processor.
#[derive(Debug)]
pub struct LongCalls(mpsc::Receiver<Match>);

/// Lets so many hits through as the limit allows.
#[derive(Debug)]
pub(crate) struct FiringLimiter {
    /// Matches that may still pass.
    left: AtomicU32,
    /// Those that did not.
    skipped: AtomicU64,
    /// Has room for all that may pass.
    hits: mpsc::Sender<Match>,
    long_calls: mpsc::Sender<Match>,
    /// Long calls of which it is not known whether they meet their conditions.
    unjudged: AtomicU64,
}

pub(crate) fn limiter(limit: u32) -> (FiringLimiter, Matches, LongCalls) {
    let (sender, receiver) = mpsc::channel(limit.clamp(1, MOST_FIRINGS) as usize);
    let (long_calls, to_judge) = mpsc::channel(MOST_LONG_CALLS);
    let limiter = FiringLimiter {
        left: AtomicU32::new(limit),
        skipped: AtomicU64::new(0),
        hits: sender,
        long_calls,
        unjudged: AtomicU64::new(0),
    };
    (limiter, Matches(receiver), LongCalls(to_judge))
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

// === impl LongCalls ===

impl LongCalls {
    /// Waits for a call, and returns all that are there then, at most [`MOST_LONG_CALLS`]. Without
    /// any, the trigger is gone.
    pub async fn next(&mut self) -> Vec<Match> {
        let mut calls = Vec::new();
        self.0.recv_many(&mut calls, MOST_LONG_CALLS).await;
        calls
    }

    /// The calls that are there already.
    pub fn next_now(&mut self) -> Vec<Match> {
        std::iter::from_fn(|| self.0.try_recv().ok())
            .take(MOST_LONG_CALLS)
            .collect()
    }
}

// === impl FiringLimiter ===

impl FiringLimiter {
    /// A condition was met.
    pub(crate) fn pass(&self, hit: impl FnOnce() -> Match) {
        let one_less = |left: u32| left.checked_sub(1);
        match self.left.fetch_update(Relaxed, Relaxed, one_less) {
            // There is room for it. The match is dropped if the trigger's task has ended.
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

    /// A call has to be judged by its time on or off the processor. If too many wait for that, it
    /// counts as unjudged.
    pub(crate) fn judge_later(&self, call: Match) {
        if self.long_calls.try_send(call).is_err() {
            self.count_unjudged(1);
        }
    }

    /// It is not known whether so many calls meet their conditions.
    pub(crate) fn count_unjudged(&self, calls: u64) {
        self.unjudged.fetch_add(calls, Relaxed);
    }

    pub(crate) fn take_unjudged(&self) -> u64 {
        self.unjudged.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_as_the_limit_says_and_the_rest_is_counted() {
        for limit in [1, 3, MOST_FIRINGS] {
            let (limiter, mut hits, _long_calls) = limiter(limit);
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

    #[test]
    fn long_calls_beyond_the_queue_are_counted() {
        let (limiter, _hits, mut long_calls) = limiter(1);
        let call = |at: usize| Match::on_demand(Ticks(at as u64));
        for at in 0..MOST_LONG_CALLS + 3 {
            limiter.judge_later(call(at));
        }
        assert_eq!((limiter.take_unjudged(), limiter.take_unjudged()), (3, 0));
        let waiting = long_calls.next_now();
        assert_eq!(waiting.len(), MOST_LONG_CALLS);
        assert_eq!(waiting[0], call(0));
        assert_eq!(long_calls.next_now(), []);
        drop(long_calls);
        limiter.judge_later(call(1));
        assert_eq!(limiter.take_unjudged(), 1);
    }
}
