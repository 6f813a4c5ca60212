//! The time that a snapshot covers, and cutting what was taken to it.

use std::collections::BTreeMap;

use xray_trace::{
    container::{Block, Excerpt, OpenCall, ThreadEnd},
    model::{Overwritten, ThreadId, Ticks},
};

use super::OpenByThread;
use crate::store::Snapshot;

/// A moment before which everything is wanted.
pub(crate) const NO_BEGIN: Ticks = Ticks(0);

/// The time that a picture shows, by the counter, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeRange {
    pub(crate) since: Ticks,
    pub(crate) until: Ticks,
}

/// What is known of a thread at the end of that time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ThreadState<'a> {
    /// It had ended.
    Ended,
    /// It was there; these calls were open after its last event, if that is known, outermost first.
    There(Option<&'a [OpenCall]>),
}

// === impl TimeRange ===

impl TimeRange {
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
            // Their time is not known: they are counted for the thread.
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

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId},
    };

    use super::*;
    use crate::store::{EventStore, Published};

    /// Of a window, what was dropped before it is not missing, and of the rest only what is in it.
    #[test]
    fn of_a_window_only_what_is_missing_in_it_is_overwritten() {
        let output = EventStore::new(ProcessId(0), 1, 0);
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
