//! What all rings of a target hold at one moment, taken while its threads go on.
//!
//! Rings are copied one after the other, in a fraction of a second; whoever asked says up to which moment, before the first copy was begun, all of them count. Making
//! events of the copies takes longer, and is done by whoever wants them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use shm_ring::{
    Item, Mapping, Producer, Sink,
    newest::{Blank, Picture},
};
use xray_trace::model::{FunctionId, ProcessId, ThreadId, Ticks};

use super::{Keep, SiteTable, lane::Lane, room::Room, switches::Switches};
use crate::session::{Extent, Output, Snapshot};

/// What all copies in this process together may take. Where there is no room, rings show their newest part only, a chunk at least.
const MOST_BYTES: u64 = 4 << 30;
/// What they take now.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Copies of rings, and what the output retained at the same moment.
#[derive(Debug)]
pub(crate) struct Pictures {
    sites: Arc<SiteTable>,
    switches: Arc<Switches>,
    /// Which events are kept; `None` for all.
    keep: Option<Arc<Keep>>,
    /// What was recorded by then is in it, as far as rings reach back.
    taken: Ticks,
    rings: Vec<(ThreadId, Picture, Held)>,
    retained: Snapshot,
}

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

// === impl Pictures ===

impl Pictures {
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
        }
    }

    /// Copies a ring, of this thread.
    pub(super) fn take(&mut self, thread: ThreadId, memory: &Mapping, blank: Blank) {
        let picture = blank.expose(memory);
        let held = Held(picture.bytes());
        HELD.fetch_add(held.0, Relaxed);
        self.rings.push((thread, picture, held));
    }

    /// With what the output retains.
    pub(super) fn retained(self, retained: Snapshot) -> Self {
        Self { retained, ..self }
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

    /// Makes events of it: of rings, those of the extent; of what is retained, everything. `was_seen` is told which functions the rings have events of.
    pub(crate) fn develop(
        self,
        process: ProcessId,
        functions: usize,
        extent: Extent,
        mut was_seen: impl FnMut(FunctionId),
    ) -> Snapshot {
        let Self {
            sites,
            switches,
            keep,
            taken: _,
            rings,
            mut retained,
        } = self;
        // Blocks go where those go that are read along, but of this picture alone.
        let output = Output::new(process, functions, u64::MAX);
        let room = Room::new();
        for (thread, picture, _held) in rings {
            let mut lane = Lane::new(thread, Ticks(0), &room, Arc::clone(&switches));
            lane.filter(keep.clone(), false);
            let mut consumer = picture.consumer();
            if sites.has_events() {
                consumer.expect_payloads();
            }
            // A loss has no time; it comes before the event behind it.
            let mut at = 0;
            let take = |item| {
                at = match &item {
                    Item::Call { ticks, .. } => *ticks,
                    Item::Data(data) => data.ticks,
                    Item::Lost(_) => at,
                };
                if extent.has(Ticks(at)) {
                    lane.intake(&sites, &output).take(item);
                }
            };
            consumer.drain(&picture, Producer::Gone, 0, u64::MAX, take);
            lane.publish(&output);
        }
        for id in (0..functions).filter_map(|id| u32::try_from(id).ok()) {
            if output.was_seen(FunctionId(id)) {
                was_seen(FunctionId(id));
            }
        }
        retained.blocks.extend(output.snapshot().blocks);
        retained
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Relaxed);
    }
}
