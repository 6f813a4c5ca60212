//! Copies of rings for snapshots, taken while the target's threads go on. Decoding the copies is
//! not done here.

use std::{collections::HashMap, sync::Arc};

use shm_ring::newest::CopyBuffer;
use xray_trace::model::ThreadId;

use super::{Drain, rings::Rings};
use crate::{
    collect::ring_copies::{Moment, RingCopies},
    sys::{PriorityBoost, ticks_now},
};

impl Drain {
    /// Copies the contents of the rings and of the event store at one moment.
    pub(super) fn copy_rings(&mut self, bytes: u64, moment: Moment) -> RingCopies {
        self.settle_mode();
        // Threads that use every processor would overwrite their rings before these are copied. A
        // copy of 1 GiB takes 0.2 s of processor time, or 3 s for one thread among 16 that compete.
        let _urgent = self.owners.rings.newest.then(PriorityBoost::begin);
        if self.owners.rings.newest {
            self.owners.discover();
        }
        // The most chunks of one ring.
        let rings = &self.owners.rings;
        let each = bytes / (rings.order.len().max(1) as u64);
        let most = (each / rings.geometry().chunk_bytes()).max(1);
        let mut buffers = HashMap::new();
        let taken = if rings.newest {
            if moment == Moment::Next {
                buffers = buffers_of(rings, most);
                // Threads that came meanwhile.
                self.owners.discover();
            }
            self.anchor();
            // As late as possible: a ring wraps around within a millisecond.
            ticks_now()
        } else {
            let taken = ticks_now();
            self.flush();
            taken
        };
        let rings = &self.owners.rings;
        let mut copies = RingCopies::new(
            taken,
            Arc::clone(&rings.sites),
            (rings.decoders.switches(), rings.decoders.filtered_by()),
        );
        if rings.newest {
            for index in &rings.order {
                let Some(thread) = copied_thread(rings, *index) else {
                    continue;
                };
                let buffer = buffers.remove(index);
                let buffer = buffer.unwrap_or_else(|| buffer_of(rings, *index, most));
                copies.take(thread, &rings.slots.rings, buffer);
            }
        }
        let open = match rings.newest {
            true => HashMap::new(),
            // Calls of functions that were switched by then may have ended unseen.
            false => rings.decoders.open_calls(ticks_now()),
        };
        copies.retained(rings.output.snapshot(), open)
    }
}

/// Memory for the copies of all rings that are to be copied, by slot index. `most` limits the
/// chunks of each.
fn buffers_of(rings: &Rings, most: u64) -> HashMap<u32, CopyBuffer> {
    let order = rings.order.iter().copied();
    let copied = order.filter(|index| copied_thread(rings, *index).is_some());
    copied
        .map(|index| (index, buffer_of(rings, index, most)))
        .collect()
}

fn buffer_of(rings: &Rings, index: u32, most: u64) -> CopyBuffer {
    CopyBuffer::new(&rings.slots.rings, rings.geometry(), index, most)
}

/// The thread that owns the ring. `None` if the ring is not to be copied: its thread has left it,
/// or is not recorded.
fn copied_thread(rings: &Rings, index: u32) -> Option<ThreadId> {
    let ring = rings.by_slot.get(&index).filter(|ring| !ring.is_left())?;
    let decoder = rings.decoders.get(ring.owner)?;
    (!decoder.muted).then_some(decoder.thread)
}
