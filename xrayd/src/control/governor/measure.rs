//! The events between two looks, and their cost by thread and function. Nothing is decided here.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use xray_trace::model::{FunctionId, ThreadId, Ticks};

use super::cost_model::{ALL, Measured, Time};
use crate::collect::{RingId, RingSample, Sample, Tally};

/// Events of a ring that suffice to represent all of its events.
const ENOUGH_EVENTS: u64 = 1000;
/// Threads that use less than this share of a processor need no budget of their own.
pub(super) const WORKING: f64 = 0.05;

/// Clocks and ring counters at one moment.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The moment by both clocks. `None` before the first reading.
    pub(super) at: Option<(Instant, Ticks)>,
    pub(super) given: HashMap<RingId, u64>,
    pub(super) cpu: Duration,
    pub(super) threads: HashMap<ThreadId, Duration>,
    /// Processor use of the process and of its threads until then, as shares of one processor.
    pub(super) running: f64,
    pub(super) threads_running: HashMap<ThreadId, f64>,
}

/// The events of an interval.
#[derive(Debug, Default)]
pub(super) struct Interval {
    /// Processor time of the process, in nanoseconds.
    pub(super) cpu_ns: f64,
    pub(super) rings: Vec<Grown>,
    /// Threads that have a ring at the end of the interval.
    pub(super) living: HashSet<ThreadId>,
}

/// The part of one ring in an interval.
#[derive(Debug)]
pub(super) struct Grown {
    pub(super) thread: ThreadId,
    pub(super) given: u64,
    /// Processor time of its thread, in nanoseconds. `None` if the thread works less than
    /// [`WORKING`].
    pub(super) cpu_ns: Option<f64>,
    pub(super) tally: Option<Tally>,
}

/// The cost of an interval.
#[derive(Debug, Default)]
pub(super) struct Costs {
    pub(super) measured: Measured,
    pub(super) time: Time,
}

// === impl Reading ===

impl Reading {
    pub(super) fn of(sample: &Sample) -> Self {
        Self {
            at: Some(sample.taken),
            given: given(sample),
            cpu: sample.ran.unwrap_or_default(),
            threads: sample
                .rings
                .iter()
                .filter_map(|ring| Some((ring.ring.1, ring.ran?)))
                .collect(),
            ..Self::default()
        }
    }

    /// Computes the processor use since `before`, which was read at `at`. Returns the nanoseconds
    /// since then.
    pub(super) fn run_since(&mut self, before: &Self, at: Instant) -> f64 {
        let elapsed = self
            .at
            .map_or(Duration::ZERO, |(now, _)| now.duration_since(at));
        let elapsed = elapsed.as_secs_f64().max(1e-9);
        let share =
            |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64() / elapsed;
        self.running = share(self.cpu, before.cpu);
        for (thread, cpu) in &self.threads {
            if let Some(earlier) = before.threads.get(thread) {
                self.threads_running.insert(*thread, share(*cpu, *earlier));
            }
        }
        elapsed * 1e9
    }
}

// === impl Interval ===

impl Interval {
    /// The events from the counters `before` to `sample`. The interval takes `elapsed_ns`, and the
    /// process runs for `cpu_ns` of it. `tallies` are the events by function in the same time.
    pub(super) fn new(
        sample: &Sample,
        before: &HashMap<RingId, u64>,
        mut tallies: HashMap<RingId, Tally>,
        (elapsed_ns, cpu_ns): (f64, f64),
        running: &Reading,
    ) -> Self {
        let rings = sample.rings.iter().filter_map(|ring| {
            let given = ring.given.saturating_sub(*before.get(&ring.ring)?);
            let tally = tallies.remove(&ring.ring);
            Some(Grown::new(ring, given, tally, elapsed_ns, running))
        });
        Self {
            cpu_ns,
            rings: rings.filter(|ring| ring.given > 0).collect(),
            living: sample.rings.iter().map(|ring| ring.ring.1).collect(),
        }
    }

    /// True if the functions are known that caused the events, or if there were no events.
    pub(super) fn is_seen(&self) -> bool {
        self.rings.is_empty() || self.rings.iter().any(|ring| ring.seen().is_some())
    }

    /// The share of the events for which the rings had no room. Lost events are mostly those of the
    /// functions that are called most, so the others do not represent them.
    pub(super) fn lost_share(&self) -> f64 {
        let tallies = self.rings.iter().filter_map(|ring| ring.tally.as_ref());
        let (seen, lost) = tallies.fold((0.0, 0.0), |(seen, lost), tally| {
            (seen + float(tally.events), lost + float(tally.lost))
        });
        lost / (seen + lost).max(1.0)
    }

    pub(super) fn costs(&self, event_ns: f64, tick_ns: f64) -> Costs {
        let time = |cpu_ns: f64, events: f64| Time {
            cpu_ns,
            spent_ns: events * event_ns,
        };
        let given: f64 = self.rings.iter().map(|ring| float(ring.given)).sum();
        let seen = self.rings.iter().filter(|ring| ring.seen().is_some());
        let seen: f64 = seen.map(|ring| float(ring.given)).sum();
        let mut measured = Measured {
            living: self.living.clone(),
            ..Measured::default()
        };
        measured.threads.insert(ALL, time(self.cpu_ns, given));
        // Threads whose rings were not sampled are taken to do what the others do.
        let scale = if seen > 0.0 { given / seen } else { 0.0 };
        let mut times = HashMap::<FunctionId, (f64, f64)>::new();
        for ring in &self.rings {
            let Some(tally) = ring.seen() else {
                continue;
            };
            // An event may have several words, and each of them has a cost.
            let words_each = float(ring.given) / float(tally.events);
            let all = tally.events.saturating_add(tally.unseen);
            let all_by_seen = float(all) / float(tally.events);
            if let Some(cpu_ns) = ring.cpu_ns {
                let own = time(cpu_ns, float(ring.given));
                measured.threads.insert(Some(ring.thread), own);
            }
            for (&id, part) in &tally.functions {
                let cost_ns = float(part.events) * words_each * event_ns;
                let share = measured.functions.entry(id).or_default();
                let mut add = |thread, cost| *share.costs_ns.entry(thread).or_default() += cost;
                add(ALL, cost_ns * scale);
                if ring.cpu_ns.is_some() {
                    add(Some(ring.thread), cost_ns);
                }
                share.calls += float(part.calls) * all_by_seen * scale;
                let times = times.entry(id).or_default();
                times.0 += float(part.ticks) * tick_ns;
                times.1 += float(part.calls);
            }
        }
        for (id, (time, calls)) in times {
            if let Some(share) = measured.functions.get_mut(&id) {
                share.mean = Some(time / calls.max(1.0));
            }
        }
        Costs {
            time: time(self.cpu_ns, given),
            measured,
        }
    }
}

// === impl Grown ===

impl Grown {
    fn new(
        ring: &RingSample,
        given: u64,
        tally: Option<Tally>,
        elapsed_ns: f64,
        running: &Reading,
    ) -> Self {
        let thread = ring.ring.1;
        let runs = running.threads_running.get(&thread).copied();
        let works = runs.filter(|runs| *runs >= WORKING);
        Self {
            thread,
            given,
            cpu_ns: works.map(|runs| runs * elapsed_ns),
            tally,
        }
    }

    /// The tally of the newest events, if there are enough of them to represent all. Of a ring that
    /// is read along, only the words since the begin of a chunk are there.
    fn seen(&self) -> Option<&Tally> {
        let enough = (self.given / 8).clamp(1, ENOUGH_EVENTS);
        self.tally.as_ref().filter(|tally| tally.events >= enough)
    }
}

pub(super) fn given(sample: &Sample) -> HashMap<RingId, u64> {
    let rings = sample.rings.iter();
    rings.map(|ring| (ring.ring, ring.given)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "what is measured is not exact")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
