//! What some processes did up to one moment, as one trace.
//!
//! ```text
//!  since                           asked          until                      all copies are there
//!  ├────────────────── in the trace ─┼─────────────┤                          │
//!                                    │ drain ────► copies of rings, what is retained
//!                                    │ drain ───────► …         at the same time
//! ```
//!
//! The drains of all processes are asked at once, and the counter is one for the machine, so one moment ends the picture of each: that at which the first of
//! them began to copy. What was recorded after it is left out. How long the copies took decides only how far rings that keep the newest by themselves still reach back.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    ops::Deref,
    time::{Duration, Instant},
};

use xray_trace::{
    container::{Block, Excerpt, OpenCall, ThreadEnd},
    model::{Clock, Overwritten, SnapshotWindow, ThreadId, Ticks},
};

use super::{Session, Snapshot, Source, TraceWriter};
use crate::{
    collect::{Moment, OpenByThread, Pictures, room},
    sys::ticks_now,
};

/// A moment before which everything is wanted.
const NO_BEGIN: Ticks = Ticks(0);

/// How far a picture reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// As far back as there is anything, up to now.
    All,
    /// The last so long: up to now, or, if all of the processes have ended, up to the last event.
    Last(Duration),
    /// From one reading of the counter to another one, both included. What is still to come is not waited for.
    Between(Ticks, Ticks),
}

/// The time that a picture shows, by the counter, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    since: Ticks,
    until: Ticks,
}

/// What is known of a thread at the end of that time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ThreadState<'a> {
    /// It had ended.
    Ended,
    /// It was there; these calls were open after its last event, if that is known, outermost first.
    There(Option<&'a [OpenCall]>),
}

/// What was taken of some processes.
#[derive(Debug)]
pub struct Shot<S> {
    taken: Vec<(S, Taken)>,
    extent: Extent,
    within: Duration,
}

#[derive(Debug)]
enum Taken {
    Pictures(Pictures),
    /// Nothing comes any more.
    Retained(Snapshot),
}

// === impl Extent ===

impl Extent {
    /// From one reading of the counter to another one, both included.
    #[cfg(fuzzing)]
    pub(crate) fn between(since: Ticks, until: Ticks) -> Self {
        Self { since, until }
    }

    /// Reduces what is retained to that time. Of each thread, the calls that are open in it are
    /// there from their begin on, however long ago that was, as far as blocks or `open` have it.
    pub(crate) fn cut(self, snapshot: &mut Snapshot, open: &OpenByThread) {
        let mut blocks = BTreeMap::<ThreadId, Vec<Block>>::new();
        for block in std::mem::take(&mut snapshot.blocks) {
            blocks.entry(block.thread).or_default().push(block);
        }
        for thread in open.keys() {
            blocks.entry(*thread).or_default();
        }
        for (thread, blocks) in blocks {
            let state = match snapshot.ended.contains(&thread) {
                true => ThreadState::Ended,
                false => ThreadState::There(open.get(&thread).and_then(Option::as_deref)),
            };
            self.add(snapshot, thread, &blocks, state);
        }
        let Snapshot {
            overwritten,
            evictions,
            ..
        } = snapshot;
        // What was dropped before is as little missing as what else was before.
        overwritten.retain(|overwritten| overwritten.until >= self.since);
        if self.since > NO_BEGIN {
            for overwritten in overwritten {
                overwritten.events = evictions.since(self.since, overwritten.thread);
            }
        }
    }

    /// Adds a thread's blocks, reduced to that time.
    pub(crate) fn add(
        self,
        snapshot: &mut Snapshot,
        thread: ThreadId,
        blocks: &[Block],
        state: ThreadState<'_>,
    ) {
        let first = blocks.first().map(|block| block.first);
        let open = match state {
            ThreadState::There(Some(open)) => open,
            ThreadState::There(None) | ThreadState::Ended => &[],
        };
        // The entries of the others are in the blocks.
        let older = open.partition_point(|call| first.is_none_or(|first| call.start < first));
        let mut excerpt = Excerpt::new(thread, (self.since, self.until), &open[..older]);
        for block in blocks {
            excerpt.add(block);
        }
        let (blocks, lost) = excerpt.finish(match state {
            ThreadState::Ended => ThreadEnd::Ended,
            ThreadState::There(None) => ThreadEnd::There,
            ThreadState::There(Some(open)) => ThreadEnd::Open(open),
        });
        snapshot.blocks.extend(blocks);
        if lost > 0 {
            // They happened nobody knows when: they are counted for the thread.
            snapshot.lost.push((thread, lost));
        }
    }

    /// What is missing of a ring that had been given so many words before the first event which is
    /// there.
    pub(crate) fn overwritten(
        self,
        thread: ThreadId,
        missing: u64,
        first: Ticks,
    ) -> Option<Overwritten> {
        let is_missing = missing > 0 && first > self.since;
        is_missing.then_some(Overwritten {
            thread,
            events: (self.since == NO_BEGIN).then_some(missing),
            until: first,
        })
    }
}

// === impl Shot ===

impl<S: Deref<Target = Session>> Shot<S> {
    /// Takes what rings hold and what is retained of all of them, at one moment.
    pub fn take(sessions: Vec<S>, reach: Reach) -> Self {
        let bytes = room(sessions.len());
        // Of several, who copies first ends the pictures of all.
        let moment = match (&reach, sessions.len()) {
            (Reach::All | Reach::Last(_), 1) => Moment::Next,
            _ => Moment::Past,
        };
        let begun = Instant::now();
        let asked = sessions.into_iter().map(|session| {
            let answer = session.control.ask_for_pictures(bytes, moment);
            (session, answer)
        });
        // Everybody is asked before anybody is waited for.
        let asked: Vec<_> = asked.collect();
        let taken = asked.into_iter().map(|(session, answer)| {
            let pictures = answer.and_then(|answer| answer.recv().ok());
            let taken = match pictures {
                Some(pictures) => Taken::Pictures(pictures),
                None => Taken::Retained(session.output.snapshot()),
            };
            (session, taken)
        });
        let taken: Vec<_> = taken.collect();
        let within = begun.elapsed();
        for (session, _) in &taken {
            session.control.name_pictured_types();
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

    /// Writes it as an `.xtrace` file.
    ///
    /// # Errors
    /// What writing to `out` says.
    pub fn write(self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut writer = TraceWriter::new(out)?;
        let Extent { since, until } = self.extent;
        if since > NO_BEGIN {
            writer.snapshot(&SnapshotWindow { since, until })?;
        }
        for (source, (session, taken)) in (0..).map(Source).zip(self.taken) {
            let session: &Session = &session;
            let mut seen = HashSet::new();
            let mut snapshot = match taken {
                Taken::Pictures(pictures) => {
                    let (process, functions) = (session.process.id, session.functions.ids());
                    pictures.develop(process, functions, self.extent, |id| {
                        seen.insert(id);
                    })
                }
                Taken::Retained(mut snapshot) => {
                    self.extent.cut(&mut snapshot, &OpenByThread::new());
                    snapshot
                }
            };
            // They were read after it was taken.
            snapshot.event_types = session.output.event_types();
            session.write_into(source, &snapshot, &seen, &mut writer)?;
            writer.ended(source, session)?;
        }
        writer.end()
    }
}

// === impl Taken ===

impl Taken {
    /// What was recorded by then is in it; `None` if nothing comes any more.
    fn at(&self) -> Option<Ticks> {
        match self {
            Self::Pictures(pictures) => Some(pictures.taken()),
            Self::Retained(_) => None,
        }
    }

    fn copied_bytes(&self) -> u64 {
        match self {
            Self::Pictures(pictures) => pictures.bytes(),
            Self::Retained(_) => 0,
        }
    }
}

/// The extent of what was taken, of everybody as of `now`.
fn extent<S: Deref<Target = Session>>(reach: Reach, now: Ticks, taken: &[(S, Taken)]) -> Extent {
    let ended = taken.iter().map(|(_, taken)| match taken {
        Taken::Pictures(_) => None,
        Taken::Retained(snapshot) => snapshot.blocks.iter().map(|block| block.last).max(),
    });
    let over = taken
        .iter()
        .all(|(_, taken)| matches!(taken, Taken::Retained(_)));
    // What is retained of who has ended is all that there will be.
    let until = match over {
        true => ended.flatten().max().unwrap_or(now),
        false => now,
    };
    match reach {
        Reach::Between(since, until) => Extent { since, until },
        Reach::All => Extent {
            since: NO_BEGIN,
            until,
        },
        Reach::Last(last) => {
            let frequency = frequency(taken.iter().map(|(session, _)| &**session));
            let since = frequency.map_or(NO_BEGIN, |frequency| {
                Ticks(until.0.saturating_sub(ticks_in(last, frequency)))
            });
            Extent { since, until }
        }
    }
}

/// Between two readings of the clocks that tell how fast the counter goes, in nanoseconds.
pub(super) const LEAST_SPAN_NS: u64 = 10_000_000;

/// Ticks of the counter in a second, from the clocks that were read over the longest time.
fn frequency<'a>(sessions: impl Iterator<Item = &'a Session>) -> Option<u64> {
    let clocks = sessions.map(|session| Clock::new(session.anchors()));
    let span = |clock: &Clock| match clock.anchors() {
        [first, .., last] => last.monotonic_ns.saturating_sub(first.monotonic_ns),
        _ => 0,
    };
    clocks.max_by_key(span)?.frequency()
}

/// So much time in ticks.
pub(super) fn ticks_in(time: Duration, frequency: u64) -> u64 {
    let ticks = u128::from(frequency) * time.as_nanos() / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId},
    };

    use super::*;
    use crate::session::{feed::Published, output::Output};

    /// Of a window, what was dropped before it is not missing, and of the rest only what is in it.
    #[test]
    fn of_a_window_only_what_is_missing_in_it_is_overwritten() {
        let output = Output::new(ProcessId(0), 1, 0);
        let [early, late] = ["early", "late"].map(|name| output.new_thread(1, name.to_owned()));
        for (thread, at) in [(early, 100), (late, 200), (late, 300)] {
            let mut encoder = BlockEncoder::new(thread);
            encoder.push_call(Ticks(at), FunctionId(0), CallKind::Enter, None);
            let block = encoder.finish().unwrap();
            output.publish(Published { block, said: 0 });
        }
        let missing = |since| {
            let (since, until) = (Ticks(since), Ticks(1000));
            let mut snapshot = output.snapshot();
            Extent { since, until }.cut(&mut snapshot, &OpenByThread::new());
            assert!(snapshot.lost.is_empty());
            let overwritten = snapshot.overwritten.into_iter();
            let mut missing: Vec<_> = overwritten.map(|its| (its.thread, its.events)).collect();
            missing.sort();
            missing
        };
        assert_eq!(missing(NO_BEGIN.0), [(early, Some(1)), (late, Some(2))]);
        assert_eq!(missing(250), [(late, Some(1))]);
        assert_eq!(missing(301), []);
    }
}
