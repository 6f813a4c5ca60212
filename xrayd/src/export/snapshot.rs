//! A snapshot: what some processes did up to one moment, as one trace.
//!
//! ```text
//!  since                           asked          until                      all copies are there
//!  ├────────────────── in the trace ─┼─────────────┤                          │
//!                                    │ drain ────► copies of rings, what is retained
//!                                    │ drain ───────► …         at the same time
//! ```
//!
//! All drains are asked before the first answer is awaited. The counter is the same for the whole
//! machine, so one moment ends the snapshot in each process: the moment at which the first drain
//! began to copy. Later events are left out. The time that the copies take only decides how far a
//! ring in flight mode reaches back.

use std::{
    collections::HashSet,
    io,
    ops::Deref,
    time::{Duration, Instant},
};

use xray_trace::container::Redaction;
use xray_trace::model::{Clock, SnapshotWindow, Ticks};

use super::{TraceSource, TraceWriter};
use crate::{
    collect::{Asked, Moment, NO_BEGIN, OpenByThread, RingCopies, TimeRange, room},
    refusal::{Reason, Refusal},
    store::{Snapshot, Source},
    sys::ticks_now,
    types::Reach,
};

/// How long the names of event types may take before later processes go without.
const NAMES_WITHIN: Duration = Duration::from_secs(20);

/// A snapshot that was taken of some processes, and is not written yet.
#[derive(Debug)]
pub struct PendingSnapshot<S> {
    taken: Vec<(S, Taken)>,
    /// Why processes are not in it.
    missing: Vec<Refusal>,
    extent: TimeRange,
    within: Duration,
}

/// The events of one process in a snapshot.
#[derive(Debug)]
enum Taken {
    RingCopies(RingCopies),
    /// The process has ended, so all its events are retained.
    Retained(Snapshot),
}

// === impl PendingSnapshot ===

impl<S> PendingSnapshot<S>
where
    S: Deref,
    S::Target: AsRef<TraceSource>,
{
    /// Takes a snapshot of all sessions at one moment: the events in rings and the retained events.
    /// A session whose drain hangs is left out, which [`Self::write`] reports.
    pub fn take(sessions: Vec<S>, reach: Reach) -> Self {
        let bytes = room(sessions.len());
        // Of several processes, the first drain that copies sets the end of the snapshot for all.
        let moment = match (&reach, sessions.len()) {
            (Reach::All | Reach::Last(_), 1) => Moment::Next,
            _ => Moment::Past,
        };
        let begun = Instant::now();
        let asked = sessions.into_iter().map(|session| {
            let answer = (*session).as_ref().control.ask_for_copies(bytes, moment);
            (session, answer)
        });
        // All drains are asked before the first answer is awaited.
        let asked: Vec<_> = asked.collect();
        let (mut taken, mut missing) = (Vec::new(), Vec::new());
        for (session, answer) in asked {
            let answer = answer.and_then(|answer| answer.map_or(Ok(None), Asked::wait));
            let part = match answer {
                Ok(Some(copies)) => Taken::RingCopies(copies),
                Ok(None) => Taken::Retained((*session).as_ref().output.snapshot()),
                Err(refusal) => {
                    missing.push(refusal);
                    continue;
                }
            };
            taken.push((session, part));
        }
        let within = begun.elapsed();
        for (session, _) in &taken {
            // A controller that hangs takes its time. The types of later processes then have
            // their numbers alone.
            if begun.elapsed() > within + NAMES_WITHIN {
                break;
            }
            (*session).as_ref().control.name_copied_types();
        }
        let copied = taken.iter().map(|(_, taken)| taken.copied_bytes());
        tracing::info!(
            processes = taken.len(),
            copied_bytes = copied.sum::<u64>(),
            within_us = within.as_micros(),
            "snapshot taken"
        );
        let first = taken.iter().filter_map(|(_, taken)| taken.at()).min();
        let extent = extent(reach, first.unwrap_or_else(ticks_now), &taken);
        Self {
            taken,
            missing,
            extent,
            within,
        }
    }

    /// How long the copies took.
    pub fn within(&self) -> Duration {
        self.within
    }

    /// The processes.
    pub fn sessions(&self) -> impl Iterator<Item = &S> {
        self.taken.iter().map(|(session, _)| session)
    }

    /// Writes it as an `.xtrace` file. `redaction` is what is left out of a process's events.
    ///
    /// # Errors
    /// The error of writing to `out`; or a process is not in the file, which is whole otherwise.
    pub fn write(
        self,
        out: &mut dyn io::Write,
        redaction: impl Fn(&S) -> Redaction,
    ) -> io::Result<()> {
        let mut writer = TraceWriter::new(out)?;
        let TimeRange { since, until } = self.extent;
        if since > NO_BEGIN {
            writer.snapshot(&SnapshotWindow { since, until })?;
        }
        for (source, (session, taken)) in (0..).map(Source).zip(self.taken) {
            let source_of = (*session).as_ref();
            let mut seen = HashSet::new();
            let mut snapshot = match taken {
                Taken::RingCopies(copies) => {
                    let (process, functions) = (
                        source_of.tables.process.id,
                        source_of.tables.functions.ids(),
                    );
                    copies.into_snapshot(process, functions, self.extent, |id| {
                        seen.insert(id);
                    })
                }
                Taken::Retained(mut snapshot) => {
                    self.extent.cut(&mut snapshot, &OpenByThread::new());
                    snapshot
                }
            };
            let redaction = redaction(&session);
            if redaction != Redaction::NONE {
                let blocks = std::mem::take(&mut snapshot.blocks).into_iter();
                let redacted = blocks.filter_map(|block| block.redacted(redaction));
                snapshot.blocks = redacted.collect();
            }
            // Names were read after the snapshot was taken.
            snapshot.event_types = source_of.output.event_types();
            source_of.write_snapshot(source, &snapshot, &seen, &mut writer)?;
            writer.ended(source, &*source_of.tables)?;
        }
        writer.end()?;
        match &self.missing[..] {
            [] => Ok(()),
            [first, others @ ..] => {
                let lacking = others.len() + 1;
                let message = format!("the trace lacks {lacking} of the processes: {first}");
                Err(io::Error::other(Refusal::new(Reason::Busy, message)))
            }
        }
    }
}

// === impl Taken ===

impl Taken {
    /// The moment up to which it has all events. `None` for a process that has ended.
    fn at(&self) -> Option<Ticks> {
        match self {
            Self::RingCopies(copies) => Some(copies.taken()),
            Self::Retained(_) => None,
        }
    }

    fn copied_bytes(&self) -> u64 {
        match self {
            Self::RingCopies(copies) => copies.bytes(),
            Self::Retained(_) => 0,
        }
    }
}

/// The time that the snapshot covers, if it was taken `now`.
fn extent<S>(reach: Reach, now: Ticks, taken: &[(S, Taken)]) -> TimeRange
where
    S: Deref,
    S::Target: AsRef<TraceSource>,
{
    let ended = taken.iter().map(|(_, taken)| match taken {
        Taken::RingCopies(_) => None,
        Taken::Retained(snapshot) => snapshot.blocks.iter().map(|block| block.last).max(),
    });
    let over = taken
        .iter()
        .all(|(_, taken)| matches!(taken, Taken::Retained(_)));
    // Processes that have ended record nothing more.
    let until = match over {
        true => ended.flatten().max().unwrap_or(now),
        false => now,
    };
    match reach {
        Reach::Between(since, until) => TimeRange { since, until },
        Reach::All => TimeRange {
            since: NO_BEGIN,
            until,
        },
        Reach::Last(last) => {
            let frequency = frequency(taken.iter().map(|(session, _)| (*session).as_ref()));
            let since = frequency.map_or(NO_BEGIN, |frequency| {
                Ticks(until.0.saturating_sub(ticks_in(last, frequency)))
            });
            TimeRange { since, until }
        }
    }
}

/// Shortest time between two readings of the clocks that gives the frequency of the counter, in
/// nanoseconds.
pub(crate) const LEAST_SPAN_NS: u64 = 10_000_000;

/// Ticks of the counter per second, from the clocks that were read over the longest time.
fn frequency<'a>(sources: impl Iterator<Item = &'a TraceSource>) -> Option<u64> {
    let clocks = sources.map(|source| Clock::new(source.anchors()));
    let span = |clock: &Clock| match clock.anchors() {
        [first, .., last] => last.monotonic_ns.saturating_sub(first.monotonic_ns),
        _ => 0,
    };
    clocks.max_by_key(span)?.frequency()
}

/// Converts a duration to ticks.
pub(crate) fn ticks_in(time: Duration, frequency: u64) -> u64 {
    let ticks = u128::from(frequency) * time.as_nanos() / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
