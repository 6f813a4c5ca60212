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
    process::{Session, Trigger},
    rpc::{
        admission::{Admission, Admitted},
        run_records::{Pace, Unrecorded, admit, is_gone},
    },
    sys::now_anchor,
    target::{RunHistory, Threads},
    triggers::{CallTime, Condition, Match, Value},
};

/// The longest time between two looks at the kernel's rings. A thread that has just begun to switch
/// often fills a ring in 80 ms or more.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The switches of an ended thread are kept for this time, because its last calls may still have to
/// be judged.
const ENDED_TIME: Duration = Duration::from_secs(5);
/// Bytes of packed switches that are kept for all threads of a trigger together, beside up to 4 KiB
/// for each thread. That is about a million switches. The oldest ones are dropped first.
const MOST_BYTES: usize = 4 << 20;
/// The time between two questions to the kernel whether a thread has ended. Usually, the ring shows
/// that.
const POLL_TIME: Duration = Duration::from_secs(1);

/// The switches of the threads of a trigger's processes.
#[derive(Debug)]
pub(super) struct CallTimes {
    admission: Arc<Admission>,
    uid: u32,
    records: Mutex<Records>,
}

#[derive(Debug)]
struct Records {
    threads: HashMap<(Pid, Tid), Record>,
    /// Threads that cannot be recorded. The daemon tries each of them once.
    refused: HashSet<(Pid, Tid)>,
    unrecorded: Unrecorded,
    pace: Pace,
}

#[derive(Debug)]
struct Record {
    history: RunHistory,
    /// The time at which the thread was seen to have ended.
    ended: Option<Instant>,
    polled: Instant,
    _place: Admitted,
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
        let mut conditions = conditions.iter();
        conditions.any(Condition::needs_run_times).then(|| Self {
            admission,
            uid,
            records: Mutex::new(Records {
                threads: HashMap::new(),
                refused: HashSet::new(),
                unrecorded: Unrecorded::default(),
                pace: Pace::new(LONGEST_PAUSE),
            }),
        })
    }

    /// Begins to record those threads of a process that are not recorded yet.
    pub(super) fn begin(&self, session: &Session) {
        let pid = session.pid();
        let all = Threads::of(pid);
        let mut records = lock(&self.records);
        records
            .refused
            .retain(|(of, tid)| *of != pid || all.contains(tid));
        let mut new = all;
        new.retain(|tid| records.is_new((pid, *tid)));
        drop(records);
        // The kernel may wait for the process here, so nothing is locked.
        for tid in new {
            let begun = self.begin_thread(session, tid);
            let mut records = lock(&self.records);
            match begun {
                Ok(record) => {
                    records.threads.insert((pid, tid), record);
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    records.refused.insert((pid, tid));
                    records.unrecorded.add(&error);
                }
            }
        }
    }

    fn begin_thread(&self, session: &Session, tid: Tid) -> io::Result<Record> {
        let place = admit(&self.admission, self.uid)?;
        let start_time = session.process().start_time_ticks;
        Ok(Record {
            history: RunHistory::begin(session.pid(), start_time, tid)?,
            ended: None,
            polled: Instant::now(),
            _place: place,
        })
    }

    /// The threads so far that cannot be recorded.
    pub(super) fn unrecorded(&self) -> Unrecorded {
        lock(&self.records).unrecorded.clone()
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
            records.pace.end_look(passed, most);
        }
        records.pace.pause()
    }

    /// Judges calls that took long enough. Those that meet their conditions fire the trigger.
    pub(super) fn judge(&self, trigger: &Trigger, calls: Vec<Match>) {
        let conditions = trigger.conditions();
        let mut clocks = HashMap::new();
        let mut updated = HashSet::new();
        let mut records = lock(&self.records);
        for call in calls {
            let clock = clocks.entry(call.place.key).or_insert_with(|| {
                let session = trigger.session(call.place.key)?;
                let mut anchors = session.anchors();
                // The calls have ended before now, so no time is extrapolated.
                anchors.push(now_anchor().ok()?);
                Some((session.pid(), Clock::new(anchors)))
            });
            let judged = clock.as_ref().and_then(|(pid, clock)| {
                let thread = (*pid, trigger.tid(call.place)?);
                let history = &mut records.threads.get_mut(&thread)?.history;
                if updated.insert(thread) {
                    history.update().ok()?;
                }
                judged(conditions.get(call.condition?)?, &call, clock, history)
            });
            match judged {
                Some(Judged::Met(value)) => trigger.pass(Match { value, ..call }),
                Some(Judged::TooShort) => {}
                None => trigger.count_unjudged(),
            }
        }
    }
}

/// The result for a call whose whole time is known.
enum Judged {
    Met(Value),
    TooShort,
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
        match self.threads.get(&thread) {
            Some(record) => record.ended.is_some(),
            None => !self.refused.contains(&thread),
        }
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
            self.ended = Some(Instant::now());
        }
        true
    }
}
