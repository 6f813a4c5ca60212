//! Retention: the blocks, threads and clock anchors that a session keeps within its limit. What is
//! dropped is counted, by thread. The event store holds it behind a lock.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use xray_trace::{
    container::{Block, ClosedBlock},
    model::{
        ClockAnchor, ClockFault, EventBody, EventType, Overwritten, ProcessId, Thread, ThreadId,
        ThreadWait, Ticks,
    },
};

use super::{
    archive::{Archive, ArchivedBlock, EarlierEvents, FunctionNumbers, NotArchived, segment_bytes},
    clock_watch::ClockWatch,
    evictions::Evictions,
    position::{Numbering, Position},
    subscription::{PublishedBlock, RetainedItem},
};
use crate::{sys::ticks_now, types::ThreadLoss};

/// The most clock anchors that are kept. When there are more, every second one is dropped.
const MAX_ANCHORS: usize = 4096;
/// The most threads in the list of losses.
pub(super) const MOST_LOSERS: usize = 16;
/// The cost of a block beside its bytes, and the cost of a thread, in bytes: their entries, with
/// the allocator's overhead.
const BLOCK_COST: u64 = 128;
pub(super) const THREAD_COST: u64 = 256;
/// The time after a failed write to the archive in which there is no further one.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Blocks that could not be archived, and are tried again with the next one. The drain waits
/// meanwhile.
const RETRIED_AT_ONCE: usize = 8;
/// The thread that stands for dropped events of forgotten threads. No thread has this id.
pub(crate) const FORGOTTEN: ThreadId = ThreadId(u32::MAX - 1);

/// Everything that is retained, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) threads: Vec<Thread>,
    pub(crate) event_types: Vec<EventType>,
    pub(crate) anchors: Vec<ClockAnchor>,
    pub(crate) blocks: Vec<Block>,
    /// Waits of threads in their full rings, before these blocks.
    pub(crate) waits: Vec<ThreadWait>,
    /// Threads that had ended.
    pub(crate) ended: HashSet<ThreadId>,
    /// Events that were retained and dropped, by thread.
    pub(crate) overwritten: Vec<Overwritten>,
    /// The newest of them, block by block.
    pub(crate) evictions: Evictions,
    /// Losses that were reported after the time of the snapshot, by thread.
    pub(crate) lost: Vec<(ThreadId, u64)>,
}

/// The retained blocks of a session. They never exceed the session's limit, except for threads that
/// have a ring. The number of those is bounded.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    blocks: VecDeque<RetainedBlock>,
    /// The numbers of `blocks`, and of those before them.
    numbering: Numbering,
    /// The cost of `blocks` and `threads`.
    bytes: u64,
    events: u64,
    /// The events of dropped blocks, without the losses that these blocks report.
    evicted: u64,
    /// The newest dropped blocks.
    evictions: Evictions,
    /// The time of the last event that an earlier daemon had dropped.
    evicted_before: Option<Ticks>,
    anchors: Vec<ClockAnchor>,
    /// The counter's faults that the anchors show.
    clock: ClockWatch,
    /// The threads that have a ring or a block.
    threads: BTreeMap<ThreadId, Known>,
    /// The number of threads described so far, which is the next id.
    described: u32,
    /// Dropped events of forgotten threads, and the time of the last of them.
    forgotten: u64,
    forgotten_until: Option<Ticks>,
    /// Where blocks outlive the daemon. `None`: nowhere.
    archive: Option<Box<dyn Archive>>,
    /// The number of blocks that wait for the archive.
    waiting: usize,
    /// When the archive is tried again, after a failure.
    retry_at: Option<Instant>,
}

/// A retained block. A snapshot cuts blocks to its window and unpacks them for that, so the facts
/// about a block are not retained.
#[derive(Debug)]
struct RetainedBlock {
    block: Block,
    /// The number of its events of calls and user events. Without the user events for a block of an
    /// earlier daemon.
    events: u64,
    /// The waits of its thread before these events.
    wait: Option<ThreadWait>,
    /// The time of the latest event of all blocks up to this one.
    latest: Ticks,
    place: Place,
    /// The ids of its functions, for a block of an earlier daemon.
    earlier: Option<Arc<FunctionNumbers>>,
}

/// Where the events of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In this segment.
    Segment(u32),
    /// In memory, until they can be archived.
    Waiting,
    /// In memory.
    Memory,
}

/// Retained blocks after a position.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) blocks: Vec<RetainedItem>,
    /// Events and losses after the position that were dropped, before these blocks, and the place
    /// behind them.
    pub(super) dropped: u64,
    pub(super) begin: Position,
    /// The place behind the last of the blocks.
    pub(super) end: Position,
    /// True if the newest block is among them.
    pub(super) is_last: bool,
}

/// A thread, until nothing of it is retained.
#[derive(Debug)]
struct Known {
    thread: Thread,
    /// Its retained blocks.
    blocks: u32,
    /// Its events that were retained and dropped, with the losses that their blocks report, and the
    /// time of the last of them.
    evicted: u64,
    evicted_until: Ticks,
    /// Events that it has lost itself.
    lost: u64,
    /// True if it has no ring any more.
    ended: bool,
    /// True if an earlier daemon has recorded it. The thread may go on as another one.
    is_earlier: bool,
}

// === impl Retained ===

impl Retained {
    /// Adds a thread of a process, and returns it with its id.
    pub(super) fn add_thread(&mut self, process: ProcessId, tid: u32, name: String) -> Thread {
        // After four thousand million threads, the rest share an id.
        let id = ThreadId(self.described.min(FORGOTTEN.0 - 1));
        self.described = id.0 + 1;
        let thread = Thread {
            id,
            process,
            tid,
            name,
        };
        let known = Known {
            thread: thread.clone(),
            blocks: 0,
            evicted: 0,
            evicted_until: Ticks(0),
            lost: 0,
            ended: false,
            is_earlier: false,
        };
        if self.threads.insert(id, known).is_none() {
            self.bytes += THREAD_COST;
        }
        thread
    }

    /// Notes that a thread has no ring any more.
    pub(super) fn end_thread(&mut self, thread: ThreadId) {
        if let Some(known) = self.threads.get_mut(&thread) {
            known.ended = true;
        }
        self.forget_if_done(thread);
    }

    /// A thread, until nothing of it is retained.
    pub(crate) fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(&id).map(|known| &known.thread)
    }

    /// The threads that may have a ring.
    pub(super) fn living_threads(&self) -> impl Iterator<Item = &Thread> {
        let living = self.threads.values().filter(|known| !known.ended);
        living.map(|known| &known.thread)
    }

    /// Adds losses of a thread.
    pub(super) fn add_lost(&mut self, thread: ThreadId, lost: u64) {
        if let Some(known) = self.threads.get_mut(&thread) {
            known.lost = known.lost.saturating_add(lost);
        }
    }

    /// The threads that lost the most events, in descending order; [`MOST_LOSERS`] at most.
    pub(crate) fn losses(&self) -> Vec<ThreadLoss> {
        let losers = self.threads.values().filter(|known| known.lost > 0);
        let mut losers: Vec<&Known> = losers.collect();
        losers.sort_unstable_by_key(|known| (Reverse(known.lost), known.thread.id));
        let most = losers.into_iter().take(MOST_LOSERS);
        most.map(|known| ThreadLoss {
            tid: known.thread.tid,
            name: known.thread.name.clone(),
            lost: known.lost,
        })
        .collect()
    }

    /// Gives the session and this store their numbers, which positions have.
    pub(super) fn identify(&mut self, session: u64, store: u64) {
        self.numbering.identify(session, store);
    }

    /// Adds a block, and drops the oldest blocks until the rest costs no more than `bytes`. Returns
    /// the place behind the block.
    pub(super) fn push(&mut self, published: &PublishedBlock, bytes: u64) -> Position {
        let may_archive = self.retry_at.is_none_or(|at| Instant::now() >= at);
        if may_archive && self.waiting > 0 {
            self.archive_waiting(bytes);
        }
        // The order of a thread's blocks is that of the archive.
        let kept = match may_archive && self.waiting == 0 {
            true => self.archived(&published.closed, bytes),
            false => Err(NotArchived::Now),
        };
        let (block, place) = match kept {
            Ok(ArchivedBlock { block, segment }) => (block, Place::Segment(segment)),
            Err(NotArchived::Now) => (published.closed.block.clone(), Place::Waiting),
            Err(NotArchived::Ever) => (published.closed.block.clone(), Place::Memory),
        };
        self.add(RetainedBlock {
            block,
            events: published.events(),
            wait: published.wait,
            latest: Ticks(0),
            place,
            earlier: None,
        });
        let position = self.newest();
        self.shrink_to(bytes);
        position
    }

    fn add(&mut self, mut retained: RetainedBlock) {
        let events = retained.all_events();
        retained.latest = self.numbering.publish(events, retained.block.last);
        self.bytes += cost(&retained.block);
        self.events += retained.events;
        self.waiting += usize::from(retained.place == Place::Waiting);
        if let Some(known) = self.threads.get_mut(&retained.block.thread) {
            known.blocks += 1;
        }
        self.blocks.push_back(retained);
    }

    /// The block as it is in the archive, once it is there.
    fn archived(&mut self, closed: &ClosedBlock, bytes: u64) -> Result<ArchivedBlock, NotArchived> {
        let Some(known) = self.threads.get(&closed.block.thread) else {
            return Err(NotArchived::Ever);
        };
        let Some(mut archive) = self.archive.take() else {
            return Err(NotArchived::Ever);
        };
        let kept = archive.keep(closed, &known.thread, segment_bytes(bytes), &|| {
            self.overwritten_for_archive()
        });
        self.archive = Some(archive);
        self.retry_at = match kept {
            Err(NotArchived::Now) => Some(Instant::now() + RETRY_AFTER),
            Ok(_) | Err(NotArchived::Ever) => None,
        };
        kept
    }

    /// Archives some of the blocks that could not be written before.
    fn archive_waiting(&mut self, bytes: u64) {
        let mut blocks = std::mem::take(&mut self.blocks);
        let waiting = blocks.iter_mut();
        let waiting = waiting.filter(|retained| retained.place == Place::Waiting);
        for retained in waiting.take(RETRIED_AT_ONCE) {
            let closed = ClosedBlock::unpacked(retained.block.clone());
            match self.archived(&closed, bytes) {
                Ok(ArchivedBlock { block, segment }) => {
                    (retained.block, retained.place) = (block, Place::Segment(segment));
                }
                Err(NotArchived::Ever) => retained.place = Place::Memory,
                Err(NotArchived::Now) => break,
            }
            self.waiting -= 1;
        }
        self.blocks = blocks;
    }

    /// Has all blocks from now on outlive the daemon.
    pub(super) fn archive_in(&mut self, mut archive: Box<dyn Archive>) {
        for anchor in &self.anchors {
            archive.add_anchor(*anchor);
        }
        self.archive = Some(archive);
    }

    /// Leaves everything in the archive to the next daemon.
    pub(super) fn leave_archive(&mut self) {
        if let Some(archive) = self.archive.take() {
            archive.leave();
        }
    }

    /// Adds what an earlier daemon has retained. To be called before anything else is added.
    pub(super) fn adopt(&mut self, earlier: EarlierEvents, bytes: u64) {
        let EarlierEvents {
            threads,
            blocks,
            anchors,
            event_types: _,
            overwritten,
            last_blocks: _,
        } = earlier;
        for thread in threads {
            // The last two ids are for threads that stand for others.
            if thread.id >= FORGOTTEN {
                continue;
            }
            self.described = self.described.max(thread.id.0 + 1);
            let known = Known {
                thread,
                blocks: 0,
                evicted: 0,
                evicted_until: Ticks(0),
                lost: 0,
                ended: true,
                is_earlier: true,
            };
            if self.threads.insert(known.thread.id, known).is_none() {
                self.bytes += THREAD_COST;
            }
        }
        for Overwritten {
            thread,
            events,
            until,
        } in overwritten
        {
            let events = events.unwrap_or(0);
            self.evicted = self.evicted.saturating_add(events);
            match self.threads.get_mut(&thread) {
                Some(known) => (known.evicted, known.evicted_until) = (events, until),
                // No segment describes it any more.
                None => {
                    self.forgotten = self.forgotten.saturating_add(events);
                    self.forgotten_until = self.forgotten_until.max(Some(until));
                }
            }
        }
        if self.evicted > 0 {
            // They stand for one block.
            let until = self.threads.values().map(|known| known.evicted_until);
            self.evicted_before = until.chain(self.forgotten_until).max();
            let last = self.evicted_before.unwrap_or(Ticks(0));
            self.numbering.publish(self.evicted, last);
            self.numbering.drop_oldest(self.evicted);
        }
        for (ArchivedBlock { block, segment }, numbers) in blocks {
            let events = u64::from(block.calls);
            self.add_lost(block.thread, block.lost);
            self.add(RetainedBlock {
                block,
                events,
                wait: None,
                latest: Ticks(0),
                place: Place::Segment(segment),
                earlier: Some(numbers),
            });
        }
        let ids: Vec<_> = self.threads.keys().copied().collect();
        for id in ids {
            self.forget_if_done(id);
        }
        for anchor in anchors {
            self.add_anchor(anchor);
        }
        self.shrink_to(bytes);
    }

    /// The blocks of an earlier daemon.
    pub(super) fn earlier_blocks(&self) -> Vec<Block> {
        let earlier = self.blocks.iter().filter(|one| one.earlier.is_some());
        earlier.map(|one| one.block.clone()).collect()
    }

    /// Drops these blocks of an earlier daemon, without counting their events.
    pub(super) fn drop_earlier(&mut self, dropped: &[Block]) {
        let name = |block: &Block| (block.thread, block.first, block.last, block.calls);
        let names: HashSet<_> = dropped.iter().map(name).collect();
        let blocks = std::mem::take(&mut self.blocks).into_iter();
        let (dropped, kept): (VecDeque<_>, VecDeque<_>) =
            blocks.partition(|one| one.earlier.is_some() && names.contains(&name(&one.block)));
        self.blocks = kept;
        for RetainedBlock {
            block,
            events,
            place,
            ..
        } in dropped
        {
            self.bytes -= cost(&block);
            self.events -= events;
            self.evict_from(block.thread, 0, Ticks(0));
            self.leave_place(place);
        }
        let retained = self.blocks.iter().map(RetainedBlock::all_events);
        self.numbering.begin_anew(retained);
    }

    /// The place behind the newest block.
    pub(super) fn newest(&self) -> Position {
        self.numbering
            .newest(self.blocks.back().map(|retained| &retained.block))
    }

    /// The place before what happened since this moment.
    pub(super) fn since(&self, since: Ticks) -> Position {
        let dropped = match self.evictions.all_since(since) {
            Some(events) if self.evicted_before < Some(since) => events,
            // At most so many.
            _ => {
                let all = self.overwritten().into_iter();
                let late = all.filter(|row| row.until >= since);
                late.filter_map(|row| row.events)
                    .fold(0, u64::saturating_add)
            }
        };
        self.numbering.before_oldest(dropped).leaving_out(since)
    }

    /// The place after a position that this daemon or an earlier one has given out. False if it is
    /// not known which blocks come after the position.
    pub(super) fn find(&self, position: &Position) -> (Position, bool) {
        let retained = self.blocks.iter();
        let retained =
            retained.map(|retained| (&retained.block, retained.all_events(), retained.latest));
        match self.numbering.find(position, retained) {
            Some(at) => (at, true),
            None => (self.numbering.not_found(position, ticks_now()), false),
        }
    }

    /// True if an earlier daemon has given out the position.
    pub(super) fn is_earlier(&self, position: &Position) -> bool {
        self.numbering.is_earlier(position)
    }

    /// The first blocks after a place of this store, `most` at most.
    pub(super) fn after(&self, position: &Position, most: usize) -> Piece {
        let gone = self.numbering.dropped;
        let mut place = *position;
        let mut dropped = 0;
        if place.before.blocks < gone.blocks {
            dropped = gone.events.saturating_sub(place.before.events);
            place = self.numbering.oldest().leaving_out(place.later_than);
        }
        let first = place;
        let mut before = place.before;
        let begin = usize::try_from(before.blocks - gone.blocks).unwrap_or(usize::MAX);
        let begin = begin.min(self.blocks.len());
        let end = begin.saturating_add(most).min(self.blocks.len());
        let blocks = self.blocks.range(begin..end);
        let blocks = blocks.map(|retained| {
            before.blocks += 1;
            before.events = before.events.saturating_add(retained.all_events());
            RetainedItem {
                block: retained.block.clone(),
                events: retained.events,
                wait: retained.wait,
                earlier: retained.earlier.clone(),
                position: self
                    .numbering
                    .behind(&retained.block, before, retained.latest)
                    .leaving_out(place.later_than),
            }
        });
        let blocks: Vec<_> = blocks.collect();
        Piece {
            end: blocks.last().map_or(place, |last| last.position),
            blocks,
            dropped,
            begin: first,
            is_last: end == self.blocks.len(),
        }
    }

    /// Takes out the blocks, if there are no threads.
    pub(crate) fn take_blocks(&mut self) -> Vec<Block> {
        self.bytes = 0;
        self.events = 0;
        self.waiting = 0;
        self.numbering.drop_all();
        let blocks = std::mem::take(&mut self.blocks);
        blocks.into_iter().map(|retained| retained.block).collect()
    }

    /// Adds an anchor, and returns the faults of the counter that it shows.
    pub(super) fn add_anchor(&mut self, anchor: ClockAnchor) -> Vec<ClockFault> {
        let faults = self.clock.meet(anchor);
        if self.anchors.len() >= MAX_ANCHORS {
            let mut index = 0usize;
            self.anchors.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.anchors.push(anchor);
        if let Some(archive) = &mut self.archive {
            archive.add_anchor(anchor);
        }
        faults
    }

    pub(crate) fn anchors(&self) -> &[ClockAnchor] {
        &self.anchors
    }

    /// The newest faults of the counter.
    pub(crate) fn clock_faults(&self) -> Vec<ClockFault> {
        self.clock.faults()
    }

    /// The cost of everything in it, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of events in it.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The number of events that were dropped.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Adds the name of a type of typed events.
    pub(super) fn add_event_type(&mut self, event_type: &EventType) {
        if let Some(archive) = &mut self.archive {
            archive.add_event_type(event_type);
        }
    }

    /// The same for an archive. The row of forgotten threads is the last one, and is always there.
    /// So a reader sees where a list ends.
    fn overwritten_for_archive(&self) -> Vec<Overwritten> {
        let mut all = self.overwritten();
        if self.forgotten == 0 {
            all.push(Overwritten {
                thread: FORGOTTEN,
                events: Some(0),
                until: Ticks(0),
            });
        }
        all
    }

    /// The events that were retained and dropped, by thread, with the losses that their blocks
    /// report.
    fn overwritten(&self) -> Vec<Overwritten> {
        let threads = self.threads.iter().filter(|(_, known)| known.evicted > 0);
        let threads = threads.map(|(&thread, known)| Overwritten {
            thread,
            events: Some(known.evicted),
            until: known.evicted_until,
        });
        let forgotten = (self.forgotten > 0).then(|| Overwritten {
            thread: FORGOTTEN,
            events: Some(self.forgotten),
            until: self.forgotten_until.unwrap_or(Ticks(0)),
        });
        threads.chain(forgotten).collect()
    }

    /// Everything that is retained of a process, without its event types. Some blocks need the ids
    /// of their functions: these are returned by their index.
    pub(super) fn snapshot(
        &self,
        process: ProcessId,
    ) -> (Snapshot, HashMap<usize, Arc<FunctionNumbers>>) {
        let all = self.threads.values();
        let mut threads: Vec<Thread> = all.map(|known| known.thread.clone()).collect();
        let ended = self.threads.iter();
        let ended = ended.filter(|(_, known)| known.ended && !known.is_earlier);
        if self.forgotten > 0 {
            threads.push(Thread {
                id: FORGOTTEN,
                process,
                tid: 0,
                name: "(threads that are forgotten)".to_owned(),
            });
        }
        let blocks = self.blocks.iter();
        let waits = blocks.clone().filter_map(|retained| retained.wait);
        let snapshot = Snapshot {
            threads,
            event_types: Vec::new(),
            anchors: self.anchors.clone(),
            blocks: blocks.map(|retained| retained.block.clone()).collect(),
            waits: waits.collect(),
            ended: ended.map(|(&id, _)| id).collect(),
            overwritten: self.overwritten(),
            evictions: self.evictions.clone(),
            lost: Vec::new(),
        };
        let earlier = self.blocks.iter().enumerate();
        let earlier = earlier.filter_map(|(at, one)| Some((at, one.earlier.clone()?)));
        (snapshot, earlier.collect())
    }

    /// Drops the oldest blocks until the rest costs no more than `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        // The first segment may have blocks that were dropped already.
        let bytes = match self.archive {
            Some(_) => bytes.saturating_sub(segment_bytes(bytes)),
            None => bytes,
        };
        while self.bytes > bytes {
            let Some(oldest) = self.blocks.pop_front() else {
                break;
            };
            self.numbering.drop_oldest(oldest.all_events());
            self.bytes -= cost(&oldest.block);
            self.events -= oldest.events;
            let events = match oldest.earlier {
                Some(_) => events_in(&oldest.block),
                None => oldest.events,
            };
            self.evicted = self.evicted.saturating_add(events);
            let events = events.saturating_add(oldest.block.lost);
            self.evictions
                .add(oldest.block.thread, events, oldest.block.last);
            self.evict_from(oldest.block.thread, events, oldest.block.last);
            self.leave_place(oldest.place);
        }
    }

    /// Notes that a block was dropped there.
    fn leave_place(&mut self, place: Place) {
        match place {
            Place::Segment(segment) => {
                if let Some(mut archive) = self.archive.take() {
                    archive.drop_block(segment, &|| self.overwritten_for_archive());
                    self.archive = Some(archive);
                }
            }
            Place::Waiting => self.waiting -= 1,
            Place::Memory => {}
        }
    }

    /// Counts the events of a dropped block of `thread`.
    fn evict_from(&mut self, thread: ThreadId, events: u64, last: Ticks) {
        match self.threads.get_mut(&thread) {
            Some(known) => {
                known.blocks = known.blocks.saturating_sub(1);
                known.evicted = known.evicted.saturating_add(events);
                known.evicted_until = known.evicted_until.max(last);
            }
            None => {
                self.forgotten = self.forgotten.saturating_add(events);
                self.forgotten_until = self.forgotten_until.max(Some(last));
            }
        }
        self.forget_if_done(thread);
    }

    /// Forgets a thread that has no ring and no block.
    fn forget_if_done(&mut self, thread: ThreadId) {
        let done = |known: &Known| known.ended && known.blocks == 0;
        if self.threads.get(&thread).is_some_and(done)
            && let Some(known) = self.threads.remove(&thread)
        {
            self.forgotten = self.forgotten.saturating_add(known.evicted);
            self.forgotten_until = self.forgotten_until.max(Some(known.evicted_until));
            self.bytes -= THREAD_COST;
        }
    }
}

// === impl RetainedBlock ===

impl RetainedBlock {
    /// Its events, and the losses that it reports.
    fn all_events(&self) -> u64 {
        self.events.saturating_add(self.block.lost)
    }
}

/// The number of events of calls and of user events that can be unpacked.
fn events_in(block: &Block) -> u64 {
    let events = block.events().map_while(Result::ok);
    let counted = events
        .filter(|event| matches!(event.body, EventBody::Call { .. } | EventBody::Data { .. }));
    counted.count() as u64
}

pub(super) fn cost(block: &Block) -> u64 {
    block.encoded_len() as u64 + BLOCK_COST
}
