//! The archive of a session: files in which retained events outlive the daemon.
//!
//! It is implemented in `export`, which knows how traces are written.

use std::{collections::HashMap, fmt, sync::Arc};

use xray_trace::{
    container::{Block, ClosedBlock},
    model::{ClockAnchor, EventType, FunctionId, Overwritten, Thread},
};

/// The part of the limit on retained bytes that one segment takes, and its least and most bytes.
/// A segment is removed as a whole, once all its blocks were dropped.
const PARTS: u64 = 8;
const LEAST_SEGMENT: u64 = 256 << 10;
const MOST_SEGMENT: u64 = 16 << 20;

/// The archive of one session.
pub(crate) trait Archive: fmt::Debug + Send {
    /// Writes a block, and returns it as it is in the archive. `None`: it cannot be written, and
    /// stays in memory. A segment that gets longer than `segment_bytes` gets no more blocks.
    /// `overwritten` is asked for if a segment begins.
    fn keep(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        segment_bytes: u64,
        overwritten: &dyn Fn() -> Vec<Overwritten>,
    ) -> Option<ArchivedBlock>;

    /// Notes that a block of this segment was dropped. `overwritten` is asked for if it was the
    /// last one.
    fn drop_block(&mut self, segment: u32, overwritten: &dyn Fn() -> Vec<Overwritten>);

    /// Adds a clock anchor.
    fn add_anchor(&mut self, anchor: ClockAnchor);

    /// Adds the name of a type of typed events, or its new name.
    fn add_event_type(&mut self, event_type: &EventType);
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
}

/// The ids of functions in blocks of an earlier daemon, and the ids of this one.
#[derive(Debug, Default)]
pub(crate) struct FunctionNumbers {
    numbers: HashMap<FunctionId, FunctionId>,
    /// True if each function has the same id as before.
    is_same: bool,
}

/// The bytes of a segment, for a limit on retained bytes.
pub(super) fn segment_bytes(retain_bytes: u64) -> u64 {
    (retain_bytes / PARTS).clamp(LEAST_SEGMENT, MOST_SEGMENT)
}

// === impl FunctionNumbers ===

impl FunctionNumbers {
    /// The ids of functions that are loaded now, by their ids before.
    pub(crate) fn new(numbers: HashMap<FunctionId, FunctionId>) -> Self {
        let is_same = numbers.iter().all(|(before, now)| before == now);
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
