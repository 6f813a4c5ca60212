//! The time that a snapshot covers, and the reduction of a snapshot to it.
//!
//! Events are not decoded here; [`Excerpt`] cuts blocks.

use std::collections::{BTreeMap, HashMap};

use xray_trace::{
    container::{Block, Excerpt, OpenCall, ThreadEnd},
    model::{Overwritten, ThreadId, Ticks},
};

use crate::store::Snapshot;

/// The begin of a range without a begin.
pub(crate) const NO_BEGIN: Ticks = Ticks(0);

/// The time that a snapshot covers, by the counter, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeRange {
    pub(crate) since: Ticks,
    pub(crate) until: Ticks,
}

/// The open calls of each thread; `None` where there was no room to follow them.
pub(crate) type OpenByThread = HashMap<ThreadId, Option<Vec<OpenCall>>>;

/// The state of a thread at the end of that time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ThreadState<'a> {
    /// It had ended.
    Ended,
    /// It was there. These calls were open after its last event, outermost first; `None` if that is
    /// not known.
    There(Option<&'a [OpenCall]>),
}

// === impl TimeRange ===

impl TimeRange {
    /// From one reading of the counter to another one, both included.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn between(since: Ticks, until: Ticks) -> Self {
        Self { since, until }
    }

    /// Reduces the retained events to that time. Calls that are open in it are kept from their
    /// begin on, however long ago that was, as far as blocks or `open` have it.
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
        // Events that were dropped before that time are no more missing than other events from
        // before it.
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
        // The entries of the other calls are in the blocks.
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
            // The time of these losses is not known, so they count for the thread.
            snapshot.lost.push((thread, lost));
        }
    }

    /// The missing events of a ring with `missing` events before `first`, the time of the first
    /// event that is there. `None` if none of them belongs to the range.
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

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId},
    };

    use super::*;
    use crate::store::{EventStore, PublishedBlock};

    /// Events that were dropped before a window are not missing in it. Of the others, those in the
    /// window are.
    #[test]
    fn a_window_reports_only_its_own_overwritten_events() {
        let output = EventStore::new(ProcessId(0), 1, 0);
        let [early, late] = ["early", "late"].map(|name| output.new_thread(1, name.to_owned()));
        for (thread, at) in [(early, 100), (late, 200), (late, 300)] {
            let mut encoder = BlockEncoder::new(thread);
            encoder.push_call(Ticks(at), FunctionId(0), CallKind::Enter, None);
            let block = encoder.finish().unwrap();
            output.publish(PublishedBlock::unpacked(block));
        }
        let missing = |since| {
            let (since, until) = (Ticks(since), Ticks(1000));
            let mut snapshot = output.snapshot();
            TimeRange { since, until }.cut(&mut snapshot, &OpenByThread::new());
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
