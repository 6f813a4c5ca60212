//! The times of calls on and off the processor, for conditions about them.
//!
//! ```text
//!  TriggerMatcher ──► LongCalls ──► CallTimes ──► FiringLimiter ──► Matches
//!                                       ▲
//!             the kernel's records of context switches, one ring for each thread
//! ```
//!
//! The kernel has written all switches of a thread before the thread can record the end of a call.
//! So they are there when that end was read.
//!
//! The daemon records the threads of a process from the beginning, as long as there are not too
//! many. It records other threads from their first long call on, in the place of threads without
//! one.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use xray_trace::model::Clock;

use crate::{
    lock::lock,
    pid::{Pid, Tid},
    process::Session,
    rpc::{
        admission::{Admission, Admitted},
        run_records::{PERF_EVENTS_OF_USER, Pace, Unrecorded, admit, is_gone},
    },
    sys::now_anchor,
    target::{RunHistory, Threads},
    triggers::{CallTime, Condition, FiringLimiter, Match, Value},
};

/// Threads that a trigger records without a long call of them. The other places of the user are for
/// threads with long calls, and for streams.
const MOST_AT_FIRST: usize = PERF_EVENTS_OF_USER as usize / 2;
/// The longest time between two looks at the kernel's rings.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The switches of an ended thread are kept for this time, because its last calls may still have to
/// be judged.
const ENDED_TIME: Duration = Duration::from_secs(5);
/// Ended threads whose switches are kept.
const MOST_ENDED: usize = 4096;
/// Bytes of packed switches that are kept for all threads of a trigger together, beside up to 4 KiB
/// for each thread. That is about a million switches. The oldest ones are dropped first.
const MOST_BYTES: usize = 4 << 20;
/// The time between two questions to the kernel whether a thread has ended. Usually, the ring shows
/// that.
const POLL_TIME: Duration = Duration::from_secs(1);
/// After a failure, threads of the process are tried again after this time.
const RETRY_TIME: Duration = Duration::from_secs(5);
/// Calls that are judged before the rings can be read again.
const CALLS_AT_ONCE: usize = 32;

/// The switches of the threads of a trigger's processes.
#[derive(Debug)]
pub(super) struct CallTimes {
    conditions: Vec<Condition>,
    admission: Arc<Admission>,
    uid: u32,
    records: Mutex<Records>,
}

/// A call that took long enough, and its thread.
#[derive(Debug)]
pub(super) struct CallToJudge {
    pub(super) call: Match,
    /// `None` if the process or the thread is not there any more.
    pub(super) thread: Option<(Arc<Session>, Tid)>,
}

#[derive(Debug)]
struct Records {
    threads: HashMap<(Pid, Tid), Record>,
    /// Processes with threads that cannot be recorded.
    failures: HashMap<Pid, Failure>,
    pace: Pace,
    /// True once the trigger has ended. Nothing is recorded then.
    is_over: bool,
}

#[derive(Debug)]
struct Record {
    history: RunHistory,
    /// The thread has had a long call.
    is_used: bool,
    /// The time at which the thread was seen to have ended.
    ended: Option<Instant>,
    polled: Instant,
    /// `None` once the thread has ended.
    place: Option<Admitted>,
}

/// Threads of a process that cannot be recorded.
#[derive(Debug)]
struct Failure {
    at: Instant,
    threads: u32,
    reason: String,
}

/// The result for a call whose whole time is known.
enum Judged {
    Met(Value),
    TooShort,
}

// === impl CallTimes ===

impl CallTimes {
    /// Records of no thread so far. Threads take places of the user. `None` if no condition needs
    /// them.
    pub(super) fn new(
        conditions: &[Condition],
        admission: Arc<Admission>,
        uid: u32,
    ) -> Option<Self> {
        let needs = conditions.iter().any(Condition::needs_run_times);
        needs.then(|| Self {
            conditions: conditions.to_vec(),
            admission,
            uid,
            records: Mutex::new(Records {
                threads: HashMap::new(),
                failures: HashMap::new(),
                pace: Pace::new(LONGEST_PAUSE),
                is_over: false,
            }),
        })
    }

    /// Begins to record those threads of a process that are not recorded yet, if there are not too
    /// many.
    pub(super) fn begin(&self, session: &Session) {
        let pid = session.pid();
        let mut new = Threads::of(pid);
        let records = lock(&self.records);
        if records.has_failed(pid) {
            return;
        }
        new.retain(|tid| records.is_new((pid, *tid)));
        new.truncate(MOST_AT_FIRST.saturating_sub(records.living()));
        drop(records);
        let mut left = u32::try_from(new.len()).unwrap_or(u32::MAX);
        for tid in new {
            match self.begin_thread(session, tid, false) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => {}
                // The other threads would fail likewise.
                Err(error) => return lock(&self.records).fail(pid, left, &error),
            }
            left = left.saturating_sub(1);
        }
        lock(&self.records).failures.remove(&pid);
    }

    /// Drops what is known of the failures of other processes.
    pub(super) fn keep_failures_of(&self, living: &HashSet<Pid>) {
        let failures = &mut lock(&self.records).failures;
        failures.retain(|pid, _| living.contains(pid));
    }

    /// The kernel may wait for the process here, so nothing is locked meanwhile.
    fn begin_thread(&self, session: &Session, tid: Tid, is_used: bool) -> io::Result<()> {
        let (pid, start_time) = (session.pid(), session.process().start_time_ticks);
        let place = admit(&self.admission, self.uid)?;
        let record = Record {
            history: RunHistory::begin(pid, start_time, tid)?,
            is_used,
            ended: None,
            polled: Instant::now(),
            place: Some(place),
        };
        let mut records = lock(&self.records);
        if !records.is_over {
            records.threads.insert((pid, tid), record);
        }
        Ok(())
    }

    /// Begins to record a thread that has had a long call, in the place of a thread without one if
    /// there is no other place.
    fn begin_used(&self, session: &Session, tid: Tid) {
        let mut begun = self.begin_thread(session, tid, true);
        if begun.as_ref().is_err_and(|error| !is_gone(error)) {
            let unused = lock(&self.records).take_unused();
            if unused.is_some() {
                drop(unused);
                begun = self.begin_thread(session, tid, true);
            }
        }
        if let Err(error) = begun
            && !is_gone(&error)
        {
            lock(&self.records).fail(session.pid(), 1, &error);
        }
    }

    /// The threads that cannot be recorded now.
    pub(super) fn unrecorded(&self) -> Unrecorded {
        let records = lock(&self.records);
        let failures = records.failures.values();
        failures.fold(Unrecorded::default(), |all, failure| Unrecorded {
            threads: all.threads.saturating_add(failure.threads),
            reason: failure.reason.clone(),
        })
    }

    /// Reads the kernel's rings, if it is time. Returns the time until the next call.
    pub(super) fn read(&self) -> Duration {
        let mut records = lock(&self.records);
        if let Some(passed) = records.pace.begin_look() {
            let mut most = 0;
            records.threads.retain(|_, record| {
                most = most.max(record.history.read());
                record.is_needed()
            });
            records.drop_oldest(MOST_BYTES);
            records.drop_ended(MOST_ENDED);
            records.pace.end_look(passed, most);
        }
        records.pace.pause()
    }

    /// Judges calls that took long enough. Those that meet their conditions fire the trigger.
    pub(super) fn judge(&self, limiter: &FiringLimiter, calls: Vec<CallToJudge>) {
        let (mut clocks, mut updated, mut unknown) = (HashMap::new(), HashSet::new(), Vec::new());
        for calls in calls.chunks(CALLS_AT_ONCE) {
            // `read` gets in between.
            let mut records = lock(&self.records);
            for CallToJudge { call, thread } in calls {
                let judged = thread.as_ref().and_then(|(session, tid)| {
                    let thread = (session.pid(), *tid);
                    let Some(record) = records.threads.get_mut(&thread) else {
                        unknown.push((session, *tid));
                        return None;
                    };
                    record.is_used = true;
                    if updated.insert(thread) {
                        record.history.update().ok()?;
                    }
                    let clock = clocks
                        .entry(session.pid())
                        .or_insert_with(|| clock_of(session));
                    let condition = self.conditions.get(call.condition?)?;
                    judged(condition, call, clock.as_ref()?, &record.history)
                });
                match judged {
                    Some(Judged::Met(value)) => limiter.pass(|| Match {
                        value,
                        ..call.clone()
                    }),
                    Some(Judged::TooShort) => {}
                    None => limiter.count_unjudged(1),
                }
            }
        }
        let mut begun = HashSet::new();
        for (session, tid) in unknown {
            if begun.insert((session.pid(), tid)) {
                self.begin_used(session, tid);
            }
        }
    }

    /// Ends all records.
    pub(super) fn end(&self) {
        let mut records = lock(&self.records);
        records.is_over = true;
        let threads = std::mem::take(&mut records.threads);
        drop(records);
        // This unmaps the rings.
        drop(threads);
    }
}

/// The clock of a process, for calls that have ended. `None` if the clock cannot be read.
fn clock_of(session: &Session) -> Option<Clock> {
    let mut anchors = session.anchors();
    // The calls have ended before now, so no time is extrapolated.
    anchors.push(now_anchor().ok()?);
    Some(Clock::new(anchors))
}

/// Judges a call. `None` if its times on and off the processor are not known.
fn judged(
    condition: &Condition,
    call: &Match,
    clock: &Clock,
    history: &RunHistory,
) -> Option<Judged> {
    let Condition::Duration { time, at_least, .. } = condition else {
        return None;
    };
    let (from, until) = (clock.monotonic_ns(call.begun), clock.monotonic_ns(call.at));
    let off = history.off_between(from, until)?;
    let (measured, value) = match time {
        CallTime::Duration => return None,
        CallTime::OnCpu => {
            let on = until.saturating_sub(from).saturating_sub(off);
            (on, Value::OnCpu(on))
        }
        CallTime::OffCpu => (off, Value::OffCpu(off)),
    };
    Some(match u128::from(measured) >= at_least.as_nanos() {
        true => Judged::Met(value),
        false => Judged::TooShort,
    })
}

// === impl Records ===

impl Records {
    /// True if a thread is not recorded, or if the recorded one has ended and another one has its
    /// id.
    fn is_new(&self, thread: (Pid, Tid)) -> bool {
        let record = self.threads.get(&thread);
        record.is_none_or(|record| record.ended.is_some())
    }

    /// The number of recorded threads that have not ended.
    fn living(&self) -> usize {
        let records = self.threads.values();
        records.filter(|record| record.ended.is_none()).count()
    }

    /// True if threads of a process have failed lately.
    fn has_failed(&self, pid: Pid) -> bool {
        let failure = self.failures.get(&pid);
        failure.is_some_and(|failure| failure.at.elapsed() < RETRY_TIME)
    }

    fn fail(&mut self, pid: Pid, threads: u32, error: &io::Error) {
        let failure = Failure {
            at: Instant::now(),
            threads,
            reason: error.to_string(),
        };
        self.failures.insert(pid, failure);
    }

    /// Takes out a thread without a long call so far.
    fn take_unused(&mut self) -> Option<Record> {
        let mut threads = self.threads.iter();
        let unused = |record: &Record| !record.is_used && record.place.is_some();
        let (thread, _) = threads.find(|(_, record)| unused(record))?;
        let thread = *thread;
        self.threads.remove(&thread)
    }

    /// Drops the oldest switches of all threads until no more than `most` bytes are left.
    fn drop_oldest(&mut self, most: usize) {
        let histories = self.threads.values().map(|record| &record.history);
        let mut bytes: usize = histories.map(RunHistory::bytes).sum();
        while bytes > most {
            let histories = self.threads.values_mut().map(|record| &mut record.history);
            let oldest = histories.filter_map(|history| Some((history.oldest()?, history)));
            let Some(((_, dropped), history)) = oldest.min_by_key(|((from, _), _)| *from) else {
                return;
            };
            history.drop_oldest();
            bytes = bytes.saturating_sub(dropped);
        }
    }

    /// Drops the threads that ended first, until no more than `most` ended ones are left.
    fn drop_ended(&mut self, most: usize) {
        let mut ended: Vec<_> = self
            .threads
            .values()
            .filter_map(|record| record.ended)
            .collect();
        let Some(dropped) = ended.len().checked_sub(most + 1) else {
            return;
        };
        let (_, last, _) = ended.select_nth_unstable(dropped);
        let last = *last;
        self.threads
            .retain(|_, record| record.ended.is_none_or(|ended| ended > last));
    }
}

// === impl Record ===

impl Record {
    /// False once the thread has ended long enough ago.
    fn is_needed(&mut self) -> bool {
        if let Some(ended) = self.ended {
            return ended.elapsed() < ENDED_TIME;
        }
        let polls = self.polled.elapsed() >= POLL_TIME;
        if polls {
            self.polled = Instant::now();
        }
        if self.history.is_over() || polls && self.history.has_ended() {
            self.history.close();
            self.place = None;
            self.ended = Some(Instant::now());
        }
        true
    }
}
