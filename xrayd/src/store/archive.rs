//! The archive of a session: files in which retained events outlive the daemon.
//!
//! It is implemented in `export`, which knows how traces are written.

use std::{collections::HashMap, fmt, sync::Arc};

use xray_trace::{
    container::{Block, ClosedBlock},
    model::{ClockAnchor, EventType, FunctionId, Overwritten, Thread, ThreadId},
};

/// The part of the limit on retained bytes that one segment takes, and its least and most bytes.
/// A segment is removed as a whole, once all its blocks were dropped.
const PARTS: u64 = 8;
const LEAST_SEGMENT: u64 = 256 << 10;
const MOST_SEGMENT: u64 = 16 << 20;

/// The archive of one session.
pub(crate) trait Archive: fmt::Debug + Send {
    /// Writes a block, and returns it as it is in the archive. A segment that gets longer than
    /// `segment_bytes` gets no more blocks. `overwritten` is asked for if a segment begins.
    ///
    /// # Errors
    /// The block stays in memory.
    fn keep(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        segment_bytes: u64,
        overwritten: &dyn Fn() -> Vec<Overwritten>,
    ) -> Result<ArchivedBlock, NotArchived>;

    /// Notes that a block of this segment was dropped. `overwritten` is asked for if it was the
    /// last one. The last row of that list is the row of [`FORGOTTEN`](super::FORGOTTEN).
    fn drop_block(&mut self, segment: u32, overwritten: &dyn Fn() -> Vec<Overwritten>);

    /// Adds a clock anchor.
    fn add_anchor(&mut self, anchor: ClockAnchor);

    /// Adds the name of a type of typed events, or its new name.
    fn add_event_type(&mut self, event_type: &EventType);

    /// Leaves all segments to the next daemon.
    fn leave(self: Box<Self>);
}

/// The reason why a block is not in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotArchived {
    /// It cannot be written now: the disk is full, or there are too many segments.
    Now,
    /// It cannot be unpacked.
    Ever,
}

/// A block whose events are in a segment.
#[derive(Debug)]
pub(crate) struct ArchivedBlock {
    pub(crate) block: Block,
    /// The number of the segment.
    pub(crate) segment: u32,
}

/// What an earlier daemon has retained of a process.
#[derive(Debug, Default)]
pub(crate) struct EarlierEvents {
    pub(crate) threads: Vec<Thread>,
    /// In the order of their segments. Function ids are those of the earlier daemon.
    pub(crate) blocks: Vec<(ArchivedBlock, Arc<FunctionNumbers>)>,
    pub(crate) anchors: Vec<ClockAnchor>,
    pub(crate) event_types: Vec<EventType>,
    /// The events that the earlier daemon has dropped, by thread.
    pub(crate) overwritten: Vec<Overwritten>,
    /// The fingerprint of the last block of each thread, dropped or not.
    pub(crate) last_blocks: HashMap<ThreadId, u64>,
}

/// The ids of functions in blocks of an earlier daemon, and the ids of this one.
#[derive(Debug, Default)]
pub(crate) struct FunctionNumbers {
    numbers: HashMap<FunctionId, FunctionId>,
    /// True if each function is loaded and has the same id as before.
    is_same: bool,
}

/// The bytes of a segment, for a limit on retained bytes.
pub(super) fn segment_bytes(retain_bytes: u64) -> u64 {
    (retain_bytes / PARTS).clamp(LEAST_SEGMENT, MOST_SEGMENT)
}

/// Names a block among those of its session. Never 0.
pub(crate) fn fingerprint(block: &Block) -> u64 {
    let facts = [
        u64::from(block.thread.0),
        block.first.0,
        block.last.0,
        u64::from(block.calls),
        block.lost,
    ];
    // FNV-1a, word by word: the next daemon may have another version of this program.
    let hash = |hash: u64, fact: u64| (hash ^ fact).wrapping_mul(0x100_0000_01b3);
    facts.into_iter().fold(0xcbf2_9ce4_8422_2325, hash).max(1)
}

// === impl FunctionNumbers ===

impl FunctionNumbers {
    /// The ids of functions that are loaded now, by their ids before. There were `all` functions.
    pub(crate) fn new(numbers: HashMap<FunctionId, FunctionId>, all: usize) -> Self {
        let is_same = numbers.len() == all && numbers.iter().all(|(before, now)| before == now);
        Self { numbers, is_same }
    }

    /// The ids of this daemon.
    pub(crate) fn now(&self) -> impl Iterator<Item = FunctionId> {
        self.numbers.values().copied()
    }

    /// The id of a function. `FunctionId(u32::MAX)` for a function that is not loaded any more.
    pub(crate) fn of(&self, before: FunctionId) -> FunctionId {
        let now = self.numbers.get(&before).copied();
        now.unwrap_or(FunctionId(u32::MAX))
    }

    /// The block with the ids of this daemon, up to the first event that cannot be unpacked. `None`
    /// if there is no such event.
    pub(crate) fn apply(&self, block: Block) -> Option<Block> {
        match self.is_same {
            true => Some(block),
            false => block.renumbered(block.thread, |before| self.of(before)),
        }
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, EventBody, Ticks},
    };

    use super::*;

    fn block() -> Block {
        let mut encoder = BlockEncoder::new(ThreadId(1));
        for id in [5, 7, 9] {
            let function = FunctionId(id);
            encoder.push_call(Ticks(id.into()), function, CallKind::Enter, None);
        }
        encoder.finish().unwrap()
    }

    fn functions(block: &Block) -> Vec<u32> {
        let events = block.events().map(|event| match event.unwrap().body {
            EventBody::Call { function, .. } => function.0,
            other => panic!("{other:?}"),
        });
        events.collect()
    }

    #[test]
    fn blocks_get_the_ids_of_this_daemon() {
        let numbers = |pairs: &[(u32, u32)], all| {
            let pairs = pairs.iter();
            let numbers = pairs.map(|&(before, now)| (FunctionId(before), FunctionId(now)));
            FunctionNumbers::new(numbers.collect(), all)
        };
        let gone = u32::MAX;
        for (pairs, all, ids) in [
            (&[(5, 5), (7, 7), (9, 9)][..], 3, [5, 7, 9]),
            (&[(5, 9), (7, 5), (9, 7)], 3, [9, 5, 7]),
            // A library was unloaded, and another one may have its ids.
            (&[(5, 5), (9, 9)], 3, [5, gone, 9]),
            (&[], 3, [gone; 3]),
        ] {
            let numbers = numbers(pairs, all);
            assert_eq!(functions(&numbers.apply(block()).unwrap()), ids);
        }
    }

    #[test]
    fn a_fingerprint_differs_with_each_fact() {
        let of = |change: fn(&mut Block)| {
            let mut block = block();
            change(&mut block);
            fingerprint(&block)
        };
        let all = [
            of(|_| ()),
            of(|block| block.thread.0 += 1),
            of(|block| block.first.0 -= 1),
            of(|block| block.last.0 += 1),
            of(|block| block.calls += 1),
            of(|block| block.lost += 1),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(of(|_| ()), all[0]);
    }
}
