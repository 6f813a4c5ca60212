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
    /// True if the clocks were read too late to show the processor time of the interval.
    pub(super) is_late: bool,
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
    /// The events of an interval that takes `elapsed_ns`. The process runs for `cpu_ns` of it.
    /// `tallies` are its events by function. It is the time from the counters `before` to
    /// `sample`, or a part of it.
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
        let mut rings: Vec<Grown> = rings.collect();
        reduce_to_interval(&mut rings);
        rings.retain(|ring| ring.given > 0);
        Self {
            cpu_ns,
            is_late: false,
            rings,
            living: sample.rings.iter().map(|ring| ring.ring.1).collect(),
        }
    }

    /// True if the functions are known that caused the events, or if there were no events; and if
    /// the processor time is known.
    pub(super) fn is_seen(&self) -> bool {
        let mut rings = self.rings.iter();
        !self.is_late && (self.rings.is_empty() || rings.any(|ring| ring.seen().is_some()))
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

/// Reduces the words between two samples to the words of an interval between them.
fn reduce_to_interval(rings: &mut [Grown]) {
    let (mut within, mut all) = (0.0, 0.0);
    for ring in rings.iter_mut() {
        let Some(tally) = &ring.tally else {
            continue;
        };
        let passed = tally.passed.saturating_add(tally.lost);
        if passed > 0 {
            // Where the newest part of a ring stands for all of it, more events are unseen than
            // passed.
            let events = tally.events.saturating_add(tally.unseen);
            let share = (float(events) / float(passed)).min(1.0);
            all += float(ring.given);
            ring.given = part_of(ring.given, share);
            within += float(ring.given);
        }
    }
    if all > 0.0 {
        // Rings whose events are not known got their words at the same times as the others.
        for ring in rings.iter_mut().filter(|ring| ring.tally.is_none()) {
            ring.given = part_of(ring.given, within / all);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of the number, and never below 0"
)]
fn part_of(number: u64, share: f64) -> u64 {
    (float(number) * share).round() as u64
}

pub(super) fn given(sample: &Sample) -> HashMap<RingId, u64> {
    let rings = sample.rings.iter();
    rings.map(|ring| (ring.ring, ring.given)).collect()
}

/// The nearest whole number; 0 for negative ones.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast ends at the bounds of the type"
)]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "what is measured is not exact")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: ThreadId = ThreadId(1);

    fn grown(given: u64, tally: Option<Tally>) -> Grown {
        Grown {
            thread: THREAD,
            given,
            cpu_ns: None,
            tally,
        }
    }

    /// The samples are taken before the interval and after it, and the program goes on meanwhile.
    #[test]
    fn words_outside_of_the_interval_cost_nothing_in_it() {
        let tally = |events, passed, lost| Tally {
            events,
            passed,
            unseen: lost,
            lost,
            ..Tally::default()
        };
        let mut rings = [
            grown(2000, Some(tally(500, 1000, 0))),
            grown(1000, Some(tally(0, 1000, 0))),
            grown(300, Some(tally(100, 200, 100))),
            grown(600, None),
            grown(40, Some(tally(0, 0, 0))),
        ];
        reduce_to_interval(&mut rings);
        let given: Vec<u64> = rings.iter().map(|ring| ring.given).collect();
        // 1,200 of 3,300 words in the rings that were looked at.
        assert_eq!(given, [1000, 0, 200, 218, 40]);
    }
}
