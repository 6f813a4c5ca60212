//! The numbers of all sessions, for metrics, which are read again and again. Counters never go
//! down, and ended sessions are reported for a while.
//!
//! | file | holds |
//! |---|---|
//! | `figures` | the numbers of one session |
//! | `latencies` | the durations of a function's calls |
//! | `meter` | the calls of chosen functions of one process |
//!
//! A reading requests nothing from other threads. All numbers are kept anyway, or handed over by
//! the drains about once a second.

mod figures;
mod latencies;
mod meter;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use xray_trace::instr_map::CompiledSelection;

pub(crate) use figures::{Figures, Numbers};
pub(crate) use latencies::Latencies;
pub(crate) use meter::Meter;
#[cfg(test)]
pub(crate) use meter::Series;

use crate::{
    lock::lock,
    pid::Pid,
    store::metering::meter::{MeteredFunctions, Names},
    sys::now_anchor,
    target::Functions,
    types::Phase,
};

/// The time for which an ended session is reported, from its first report on. Prometheus looks back
/// for 5 minutes.
const LINGER: Duration = Duration::from_secs(300);
/// The most ended sessions whose numbers are kept. The oldest are dropped first.
const MOST_PAST: usize = 256;

/// The numbers of all sessions of a daemon.
#[derive(Debug)]
pub(crate) struct Metering {
    /// The functions whose calls are measured; `None` for none.
    choice: Option<Arc<MeteredFunctions>>,
    books: Mutex<Books>,
}

/// Keeps a session among the living ones, until it is dropped.
#[derive(Debug)]
pub(crate) struct Metered {
    metering: Arc<Metering>,
    number: u64,
}

/// Facts about a session from its begin.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) pid: Pid,
    pub(crate) uid: u32,
    /// The program's name, which it chooses itself.
    pub(crate) process: String,
    /// The time of the attach, in nanoseconds since the Unix epoch.
    pub(crate) attached_wall_ns: u64,
}

/// One reading of all numbers.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// The sessions, one for a pid at most. Living sessions come first, and the latest first among
    /// them.
    pub(crate) sessions: Vec<Reading>,
    /// Events and losses of all sessions there ever were, and the number of sessions.
    pub(crate) totals: Totals,
    /// The limit on measured functions, and the number of called functions beyond it. `None` if no
    /// calls are measured.
    pub(crate) measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) sessions: u64,
    pub(crate) events: u64,
    pub(crate) lost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) most: u32,
    pub(crate) left_out: u32,
}

/// A session, and its numbers.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) subject: Subject,
    pub(crate) standing: Standing,
    pub(crate) figures: Figures,
}

/// The state of a session in a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The session exists, in this phase.
    Is(Phase),
    /// The process was detached, or its retained events were dropped.
    Past,
}

#[derive(Debug, Default)]
struct Books {
    next: u64,
    /// Living sessions, by number.
    living: BTreeMap<u64, Living>,
    /// Ended sessions, the latest last.
    past: VecDeque<EndedSession>,
    /// The sums of ended sessions, whether they were reported or not.
    totals: Totals,
}

/// A session that exists.
#[derive(Debug)]
struct Living {
    subject: Subject,
    numbers: Box<dyn Numbers>,
    /// The most events and the most overwritten events that were ever reported. In mode `flight`
    /// the numbers are estimates, and may go down.
    events: u64,
    overwritten: u64,
    /// The time of the first report that the process has ended.
    ended: Option<Instant>,
}

/// A session that is over.
#[derive(Debug)]
struct EndedSession {
    reading: Reading,
    /// The time of its first report.
    since: Option<Instant>,
}

// === impl Metering ===

impl Metering {
    /// Numbers without sessions. Of the functions that `selection` matches, at most `most` are
    /// measured at a time.
    ///
    /// # Errors
    /// The clocks cannot be read.
    pub(crate) fn new(selection: Option<CompiledSelection>, most: u32) -> io::Result<Self> {
        let choice = match selection {
            Some(selection) => Some(Arc::new(MeteredFunctions::new(
                selection,
                most,
                now_anchor()?,
            ))),
            None => None,
        };
        Ok(Self {
            choice,
            books: Mutex::default(),
        })
    }

    /// A meter for a process, if any functions are to be measured. It has not chosen functions of
    /// the process so far.
    pub(crate) fn meter(&self, functions: &Arc<Functions>) -> Option<Arc<Meter>> {
        let names: Arc<dyn Names> = Arc::clone(functions) as Arc<dyn Names>;
        let choice = Arc::clone(self.choice.as_ref()?);
        Some(Arc::new(Meter::new(choice, names)))
    }

    /// Adds a session.
    pub(crate) fn enter(
        self: &Arc<Self>,
        subject: Subject,
        numbers: impl Numbers + 'static,
    ) -> Metered {
        let mut books = lock(&self.books);
        let number = books.next;
        books.next += 1;
        books.totals.sessions += 1;
        let living = Living {
            subject,
            numbers: Box::new(numbers),
            events: 0,
            overwritten: 0,
            ended: None,
        };
        books.living.insert(number, living);
        Metered {
            metering: Arc::clone(self),
            number,
        }
    }

    /// A reading of all numbers.
    pub(crate) fn read(&self) -> Readings {
        let now = Instant::now();
        let mut books = lock(&self.books);
        let mut totals = books.totals;
        let mut sessions = Vec::with_capacity(books.living.len());
        // Ended sessions come after living ones, which may have the same pid.
        let mut ended = Vec::new();
        for living in books.living.values_mut().rev() {
            let reading = living.reported(living.numbers.figures());
            totals.add(&reading);
            if reading.standing != Standing::Is(Phase::Exited) {
                sessions.push(reading);
            } else if is_reported(&mut living.ended, now) {
                ended.push(reading);
            }
        }
        books
            .past
            .retain_mut(|reported| is_reported(&mut reported.since, now));
        let past = books.past.iter().rev();
        ended.extend(past.map(|reported| reported.reading.clone()));
        drop(books);
        sessions.append(&mut ended);
        let mut pids = HashSet::new();
        sessions.retain(|reading| pids.insert(reading.subject.pid));
        // Living sessions have no more functions than that.
        let mut room = self.most();
        for reading in &mut sessions {
            reading.figures.series.truncate(room);
            room -= reading.figures.series.len();
        }
        Readings {
            sessions,
            totals,
            measured: self.choice.as_ref().map(|choice| Measured {
                most: choice.most(),
                left_out: choice.left_out(),
            }),
        }
    }

    /// The most functions that are reported.
    fn most(&self) -> usize {
        let choice = self.choice.as_ref();
        choice.map_or(0, |choice| choice.most() as usize)
    }

    fn leave(&self, number: u64) {
        let mut books = lock(&self.books);
        let Some(mut living) = books.living.remove(&number) else {
            return;
        };
        let mut reading = living.reported(living.numbers.last_figures());
        reading.standing = Standing::Past;
        // Retained events go with the session.
        reading.figures.retained_bytes = 0;
        reading.figures.retained_events = 0;
        books.totals.add(&reading);
        let seen = living.ended;
        if books.past.len() == MOST_PAST {
            books.past.pop_front();
        }
        books.past.push_back(EndedSession {
            reading,
            since: seen,
        });
        // All ended sessions together have no more functions than all living ones.
        let mut room = self.most();
        for reported in books.past.iter_mut().rev() {
            let series = &mut reported.reading.figures.series;
            series.truncate(room);
            room -= series.len();
        }
        drop(books);
        // The retained events may be large, and are not freed under the lock.
        drop(living);
    }
}

// === impl Metered ===

impl Drop for Metered {
    fn drop(&mut self) {
        self.metering.leave(self.number);
    }
}

// === impl Totals ===

impl Totals {
    fn add(&mut self, reading: &Reading) {
        self.events = self.events.saturating_add(reading.figures.events);
        self.lost = self.lost.saturating_add(reading.figures.lost);
    }
}

// === impl Living ===

impl Living {
    /// Raises counters to what was reported before.
    fn reported(&mut self, mut figures: Figures) -> Reading {
        figures.events = figures.events.max(self.events);
        figures.overwritten = figures.overwritten.max(self.overwritten);
        (self.events, self.overwritten) = (figures.events, figures.overwritten);
        Reading {
            subject: self.subject.clone(),
            standing: Standing::Is(figures.phase),
            figures,
        }
    }
}

/// True if an ended session is still reported. `since` is the time of its first report.
fn is_reported(since: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*since.get_or_insert(now)) < LINGER
}

#[cfg(test)]
mod tests;
