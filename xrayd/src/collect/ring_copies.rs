//! Copies of all rings of a target at one moment, taken while its threads go on.
//!
//! Rings are copied one after the other, within a fraction of a second. The caller gives the moment
//! up to which all of them count. It lies before the first copy began. Decoding the copies takes
//! longer, and is done when the caller wants it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use shm_ring::{
    Mapping, Producer,
    newest::{CopyBuffer, EventShare, RingCopy},
};
use xray_trace::{
    container::Block,
    model::{FunctionId, ProcessId, ThreadId, Ticks},
};

use super::{
    EventFilter, SiteTable,
    frame_budget::FrameBudget,
    switches::Switches,
    thread_decoder::ThreadDecoder,
    time_range::{OpenByThread, ThreadState, TimeRange},
};
use crate::store::{EventStore, Snapshot};

/// The most bytes of all copies in this process together. Beyond that, copies have the newest part
/// of a ring only, a chunk at least.
const MOST_BYTES: u64 = 4 << 30;
/// The bytes of the present copies.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Copies of rings, and what the event store retained at the same moment.
#[derive(Debug)]
pub(crate) struct RingCopies {
    sites: Arc<SiteTable>,
    switches: Arc<Switches>,
    /// The filter on events; `None` for all.
    keep: Option<Arc<EventFilter>>,
    /// The copies have everything that was recorded by this time, as far as rings reach back.
    taken: Ticks,
    rings: Vec<(ThreadId, RingCopy, Held)>,
    retained: Snapshot,
    /// The open calls of threads whose rings are read, as of a moment after `taken`.
    open: OpenByThread,
}

/// The moment that copies are to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A past moment. Rings wrap around meanwhile, so copying begins at once.
    Past,
    /// The moment at which copying begins. The memory that it needs is prepared before.
    Next,
}

/// A share, in bytes, of what all copies may take.
#[derive(Debug)]
struct Held(u64);

/// The limit on the copies of one of `processes` processes, in bytes. All of them get half of the
/// free room, since others may need some.
pub(crate) fn room(processes: usize) -> u64 {
    let left = MOST_BYTES.saturating_sub(HELD.load(Relaxed));
    left / 2 / (processes.max(1) as u64)
}

// === impl RingCopies ===

impl RingCopies {
    /// No copies so far. They will have everything that was recorded by `taken`.
    pub(super) fn new(
        taken: Ticks,
        sites: Arc<SiteTable>,
        (switches, keep): (&Switches, Option<Arc<EventFilter>>),
    ) -> Self {
        Self {
            sites,
            switches: Arc::new(switches.freeze()),
            keep,
            taken,
            rings: Vec::new(),
            retained: Snapshot::default(),
            open: HashMap::new(),
        }
    }

    /// Copies the events of a thread's ring that were not read so far.
    pub(super) fn take(&mut self, thread: ThreadId, memory: &Mapping, buffer: CopyBuffer) {
        let mut copy = buffer.copy_ring(memory);
        copy.leave_out_read();
        let held = Held(copy.bytes());
        HELD.fetch_add(held.0, Relaxed);
        self.rings.push((thread, copy, held));
    }

    /// Adds what the event store retains, and the open calls of threads whose rings are read.
    pub(super) fn retained(self, retained: Snapshot, open: OpenByThread) -> Self {
        Self {
            retained,
            open,
            ..self
        }
    }

    /// The copies have everything that was recorded by this time, as far as rings reach back.
    pub(crate) fn taken(&self) -> Ticks {
        self.taken
    }

    /// Bytes of rings that were copied.
    pub(crate) fn bytes(&self) -> u64 {
        self.rings.iter().map(|(_, copy, _)| copy.bytes()).sum()
    }

    /// Decodes the copies: events within `extent`, and the calls that are open there. Calls
    /// `was_seen` with each function that has events in the rings.
    pub(crate) fn into_snapshot(
        self,
        process: ProcessId,
        functions: usize,
        extent: TimeRange,
        mut was_seen: impl FnMut(FunctionId),
    ) -> Snapshot {
        let Self {
            sites,
            switches,
            keep,
            taken,
            rings,
            mut retained,
            open,
        } = self;
        // In threads whose rings were copied, the retained blocks come before the events of the
        // rings.
        let mut before = HashMap::<ThreadId, Vec<Block>>::new();
        for (thread, _, _) in &rings {
            before.insert(*thread, Vec::new());
        }
        retained
            .blocks
            .retain(|block| match before.get_mut(&block.thread) {
                Some(blocks) => {
                    blocks.push(block.clone());
                    false
                }
                None => true,
            });
        extent.cut(&mut retained, &open);
        // Blocks go into an event store, as in normal reading. This one has the blocks of this copy
        // only.
        let output = EventStore::new(process, functions, u64::MAX);
        let room = FrameBudget::new();
        for (thread, copy, _held) in rings {
            let mut decoder = ThreadDecoder::new(thread, Ticks(0), &room, Arc::clone(&switches));
            decoder.filter(keep.clone());
            let mut consumer = copy.consumer();
            if sites.has_events() {
                consumer.expect_payloads();
            }
            // Events before `extent` are decoded as well: their calls may be open.
            let sink = decoder.sink(&sites, &output);
            let words = copy.words();
            consumer.drain(&copy, Producer::Gone, 0, u64::MAX, sink);
            decoder.publish(&output);
            let ring = output.with_retained(|retained| retained.take_blocks());
            if let Some(first) = ring.first() {
                // The share of events in the overwritten words is that in the words that are there.
                let events = ring.iter().map(|block| u64::from(block.calls)).sum();
                let share = EventShare {
                    words: words.begun.saturating_sub(words.overwritten),
                    events,
                };
                let missing = share.events_in(words.overwritten);
                retained
                    .overwritten
                    .extend(extent.overwritten(thread, missing, first.first));
            }
            let mut blocks = before.remove(&thread).unwrap_or_default();
            blocks.extend(ring);
            let open = decoder.open_calls(taken);
            let end = ThreadState::There(open.as_deref());
            extent.add(&mut retained, thread, &blocks, end);
        }
        for id in (0..functions).filter_map(|id| u32::try_from(id).ok()) {
            if output.counts.was_seen(FunctionId(id)) {
                was_seen(FunctionId(id));
            }
        }
        retained
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Relaxed);
    }
}
