//! What all rings of a target hold at one moment, taken while its threads go on.
//!
//! Rings are copied one after the other, in a fraction of a second; whoever asked says up to which moment, before the first copy was begun, all of them count. Making
//! events of the copies takes longer, and is done by whoever wants them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use shm_ring::{
    Mapping, Producer,
    newest::{Blank, EventShare, Picture},
};
use xray_trace::{
    container::{Block, OpenCall},
    model::{FunctionId, ProcessId, ThreadId, Ticks},
};

use super::{
    Keep, SiteTable, room::Room, switches::Switches, thread_decoder::ThreadDecoder,
    time_range::TimeRange,
};
use crate::{
    collect::time_range::ThreadState,
    store::{EventStore, Snapshot},
};

/// What all copies in this process together may take. Where there is no room, rings show their newest part only, a chunk at least.
const MOST_BYTES: u64 = 4 << 30;
/// What they take now.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Copies of rings, and what the output retained at the same moment.
#[derive(Debug)]
pub(crate) struct RingCopies {
    sites: Arc<SiteTable>,
    switches: Arc<Switches>,
    /// Which events are kept; `None` for all.
    keep: Option<Arc<Keep>>,
    /// What was recorded by then is in it, as far as rings reach back.
    taken: Ticks,
    rings: Vec<(ThreadId, Picture, Held)>,
    retained: Snapshot,
    /// The calls that are open in threads whose rings are read, as of a moment after `taken`.
    open: OpenByThread,
}

/// The open calls of each thread; `None` where there was no room to follow them.
pub(crate) type OpenByThread = HashMap<ThreadId, Option<Vec<OpenCall>>>;

/// What moment pictures are wanted of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// One that has passed: rings go round meanwhile, so copying begins at once.
    Past,
    /// That at which copying begins: what it needs is made ready before.
    Next,
}

/// So many bytes of what all copies may take.
#[derive(Debug)]
struct Held(u64);

/// What each of so many processes may have for the copies of its rings: half of what is left, since others may want some.
pub(crate) fn room(processes: usize) -> u64 {
    let left = MOST_BYTES.saturating_sub(HELD.load(Relaxed));
    left / 2 / (processes.max(1) as u64)
}

// === impl RingCopies ===

impl RingCopies {
    /// None so far. Everything is there that was recorded by `taken`.
    pub(super) fn new(
        taken: Ticks,
        sites: Arc<SiteTable>,
        (switches, keep): (&Switches, Option<Arc<Keep>>),
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

    /// Copies a ring, of this thread.
    pub(super) fn take(&mut self, thread: ThreadId, memory: &Mapping, blank: Blank) {
        let picture = blank.expose(memory);
        let held = Held(picture.bytes());
        HELD.fetch_add(held.0, Relaxed);
        self.rings.push((thread, picture, held));
    }

    /// With what the output retains, and the calls that are open in the threads whose rings are
    /// read.
    pub(super) fn retained(self, retained: Snapshot, open: OpenByThread) -> Self {
        Self {
            retained,
            open,
            ..self
        }
    }

    /// What was recorded by then is in it, as far as rings reach back.
    pub(crate) fn taken(&self) -> Ticks {
        self.taken
    }

    /// Bytes of rings that were copied.
    pub(crate) fn bytes(&self) -> u64 {
        self.rings
            .iter()
            .map(|(_, picture, _)| picture.bytes())
            .sum()
    }

    /// Makes events of it: those of the extent, and the calls that are open there. `was_seen` is
    /// told which functions the rings have events of.
    pub(crate) fn develop(
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
        // Of threads whose rings were copied, what is retained comes before what is there.
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
        // Blocks go where those go that are read along, but of this picture alone.
        let output = EventStore::new(process, functions, u64::MAX);
        let room = Room::new();
        for (thread, picture, _held) in rings {
            let mut decoder = ThreadDecoder::new(thread, Ticks(0), &room, Arc::clone(&switches));
            decoder.filter(keep.clone(), false);
            let mut consumer = picture.consumer();
            if sites.has_events() {
                consumer.expect_payloads();
            }
            // Also what was before: calls that began there may be open.
            let sink = decoder.sink(&sites, &output);
            let read = consumer.drain(&picture, Producer::Gone, 0, u64::MAX, sink);
            decoder.publish(&output);
            let ring = output.take_blocks();
            if let Some(first) = ring.first() {
                // As many events to a word as in what is there.
                let events = ring.iter().map(|block| u64::from(block.calls)).sum();
                let share = EventShare {
                    words: read.words,
                    events,
                };
                let missing = share.events_in(picture.missing());
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
            if output.was_seen(FunctionId(id)) {
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
