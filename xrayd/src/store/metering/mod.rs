//! The numbers of all sessions, for who reads them again and again: counters never go down, and what has ended is told for a while.
//!
//! | file | holds |
//! |---|---|
//! | `figures` | the numbers of one session |
//! | `latencies` | how long a function's calls were |
//! | `meter` | the calls of chosen functions of one process |
//!
//! Reading asks nobody: all numbers are ones that are kept anyway, or that the drains hand over about once a second.

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
    store::metering::meter::{Choice, Names},
    sys::now_anchor,
    target::Functions,
    types::Phase,
};

/// For how long what has ended is told, from when that was told first: Prometheus looks back for 5 minutes.
const LINGER: Duration = Duration::from_secs(300);
/// Sessions that are over of which the numbers are kept; the oldest go first.
const MOST_PAST: usize = 256;

/// The books of a daemon.
#[derive(Debug)]
pub(crate) struct Metering {
    /// The functions whose calls are measured, if any are to be.
    choice: Option<Arc<Choice>>,
    books: Mutex<Books>,
}

/// Holds a session's place in the books, for as long as the session lives.
#[derive(Debug)]
pub(crate) struct Metered {
    metering: Arc<Metering>,
    number: u64,
}

/// What is known of a session from its begin.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) pid: Pid,
    pub(crate) uid: u32,
    /// The program's name, which it chooses itself.
    pub(crate) process: String,
    /// When it was attached, in nanoseconds since the Unix epoch.
    pub(crate) attached_wall_ns: u64,
}

/// All there is to tell.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// The sessions, one for a pid at most: those that live first, the latest first.
    pub(crate) sessions: Vec<Reading>,
    /// Events and losses of all sessions that there ever were, and how many there were.
    pub(crate) totals: Totals,
    /// If calls are measured: of how many functions at most, and how many that were called are not.
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

/// Whether a session still is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is in this phase.
    Is(Phase),
    /// It was detached from, or what it retained was dropped.
    Past,
}

#[derive(Debug, Default)]
struct Books {
    next: u64,
    /// By number.
    living: BTreeMap<u64, Living>,
    /// The latest last.
    past: VecDeque<Told>,
    /// Of sessions that are past, told or not.
    totals: Totals,
}

/// A session that somebody has.
#[derive(Debug)]
struct Living {
    subject: Subject,
    numbers: Box<dyn Numbers>,
    /// The most events that were ever told: in flight the number is about right only, and may
    /// become less. And those that were overwritten.
    events: u64,
    overwritten: u64,
    /// When it was first told that it has ended.
    ended: Option<Instant>,
}

/// A session that is past.
#[derive(Debug)]
struct Told {
    reading: Reading,
    /// When it was told first.
    since: Option<Instant>,
}

// === impl Metering ===

impl Metering {
    /// Empty books. Of the functions that `selection` means, at most so many are measured at a time.
    ///
    /// # Errors
    /// The clocks cannot be read.
    pub(crate) fn new(selection: Option<CompiledSelection>, most: u32) -> io::Result<Self> {
        let choice = match selection {
            Some(selection) => Some(Arc::new(Choice::new(selection, most, now_anchor()?))),
            None => None,
        };
        Ok(Self {
            choice,
            books: Mutex::default(),
        })
    }

    /// A meter for a process, if any functions are to be measured. It has not chosen among the process's functions.
    pub(crate) fn meter(&self, functions: &Arc<Functions>) -> Option<Arc<Meter>> {
        let names: Arc<dyn Names> = Arc::clone(functions) as Arc<dyn Names>;
        let choice = Arc::clone(self.choice.as_ref()?);
        Some(Arc::new(Meter::new(choice, names)))
    }

    /// Takes a session into the books.
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

    /// What there is to tell now.
    pub(crate) fn read(&self) -> Readings {
        let now = Instant::now();
        let mut books = lock(&self.books);
        let mut totals = books.totals;
        let mut sessions = Vec::with_capacity(books.living.len());
        // Those that have ended are told after those that live, which may be of the same pid.
        let mut ended = Vec::new();
        for living in books.living.values_mut().rev() {
            let reading = living.read();
            totals.add(&reading);
            if reading.standing != Standing::Is(Phase::Exited) {
                sessions.push(reading);
            } else if is_told(&mut living.ended, now) {
                ended.push(reading);
            }
        }
        books.past.retain_mut(|told| is_told(&mut told.since, now));
        let past = books.past.iter().rev();
        ended.extend(past.map(|told| told.reading.clone()));
        drop(books);
        sessions.append(&mut ended);
        let mut pids = HashSet::new();
        sessions.retain(|reading| pids.insert(reading.subject.pid));
        // Those that live have no more than that.
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

    /// Functions that are told at most.
    fn most(&self) -> usize {
        let choice = self.choice.as_ref();
        choice.map_or(0, |choice| choice.most() as usize)
    }

    fn leave(&self, number: u64) {
        let mut books = lock(&self.books);
        let Some(mut living) = books.living.remove(&number) else {
            return;
        };
        let mut reading = living.told(living.numbers.last_figures());
        reading.standing = Standing::Past;
        // It goes with the session.
        reading.figures.retained_bytes = 0;
        reading.figures.retained_events = 0;
        books.totals.add(&reading);
        let seen = living.ended;
        if books.past.len() == MOST_PAST {
            books.past.pop_front();
        }
        books.past.push_back(Told {
            reading,
            since: seen,
        });
        // All of them together have no more functions than all that live.
        let mut room = self.most();
        for told in books.past.iter_mut().rev() {
            let series = &mut told.reading.figures.series;
            series.truncate(room);
            room -= series.len();
        }
        drop(books);
        // What it retains may be large, and is not let go under the lock.
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
    fn read(&mut self) -> Reading {
        self.told(self.numbers.figures())
    }

    /// Counters are what was told before at least.
    fn told(&mut self, mut figures: Figures) -> Reading {
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

/// Whether what has ended is still told, since it was not told for long.
fn is_told(since: &mut Option<Instant>, now: Instant) -> bool {
    now.duration_since(*since.get_or_insert(now)) < LINGER
}

#[cfg(test)]
mod tests;
