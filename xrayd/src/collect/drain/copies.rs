//! Copies of rings, taken while the target's threads go on: for snapshots, and for samples of what
//! tracing costs. Decoding the copies is not done here.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Instant};

use shm_ring::newest::{self, CopyBuffer, EventShare, RingCopy};
use xray_trace::model::ThreadId;

use super::{Drain, rings::Rings};
use crate::{
    collect::{
        ring_copies::{Moment, RingCopies},
        sample::{self, Counting, Look, RingSample, Sample, Seen},
    },
    sys::{PriorityBoost, ticks_now},
    target::cpu_time,
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

    /// Samples how much was written to each ring, and the contents of the rings with the most new
    /// words.
    pub(super) fn sample(&mut self, look: &Look) -> Sample {
        self.settle_mode();
        match look {
            Look::Begin(_) | Look::All(_) if !self.owners.rings.newest => self.flush(),
            _ => self.owners.discover(),
        }
        sample_of(&mut self.owners.rings, look)
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

fn sample_of(rings: &mut Rings, look: &Look) -> Sample {
    let geometry = rings.geometry();
    let samples = rings.order.iter().filter_map(|index| {
        let ring = rings.by_slot.get(index).filter(|ring| !ring.is_left())?;
        let thread = rings.decoders.get(ring.owner)?.thread;
        let words = newest::Words::of(&rings.slots.rings, geometry, *index).begun;
        Some(RingSample {
            ring: (*index, thread),
            given: words.saturating_add(rings.slots.lost(*index)),
            ran: None,
            seen: None,
        })
    });
    let mut samples: Vec<RingSample> = samples.collect();
    // Before the copies, which take longer. Newer events in the copies do not count.
    let (taken, ran) = (
        (Instant::now(), ticks_now()),
        cpu_time::of_process(rings.pid),
    );
    // A new ring has no increase before its second sample.
    let more = |sample: &RingSample| {
        let before = match look {
            Look::Newest(before) | Look::All(before) => before.get(&sample.ring)?,
            Look::Begin(_) => return None,
        };
        Some(sample.given.saturating_sub(*before)).filter(|more| *more > 0)
    };
    samples.sort_by_cached_key(|sample| Reverse(more(sample)));
    for sample in samples.iter_mut().take(sample::MOST_COPIES) {
        let index = sample.ring.0;
        sample.seen = more(sample).and_then(|more| match look {
            Look::All(_) if !rings.newest => None,
            Look::All(_) => {
                let chunk = geometry.chunk_bytes();
                let most = (sample::MOST_COPIED / chunk).max(sample::CHUNKS);
                let chunks = (sample::CHUNKS + more / (chunk / 8)).min(most);
                let copy = RingCopy::take(&rings.slots.rings, geometry, index, chunks);
                Some(seen(rings, copy, sample, more))
            }
            _ => {
                let copy = RingCopy::take(&rings.slots.rings, geometry, index, sample::CHUNKS);
                Some(seen(rings, copy, sample, more))
            }
        });
        // Threads that record nothing now are included: their functions may be suppressed.
        let thread = sample.ring.1;
        let tid = rings
            .output
            .with_retained(|retained| Some(retained.thread(thread)?.tid));
        sample.ran = tid.and_then(|tid| cpu_time::of_thread(rings.pid, tid));
    }
    for sample in &mut samples {
        let owner = rings.by_slot.get(&sample.ring.0).map(|ring| ring.owner);
        let decoder = owner.and_then(|owner| rings.decoders.get_mut(owner));
        let lost = rings.slots.lost(sample.ring.0);
        let counting = match look {
            Look::Begin(window) => Some(Counting::within(window, lost)),
            Look::Newest(_) | Look::All(_) => None,
        };
        let counted = decoder.and_then(|decoder| decoder.count_events(counting));
        // Rings that are not read are not counted either.
        if let (Look::All(_), Some(counted), false) = (look, counted, rings.newest) {
            sample.seen = Some(Seen::Counted(counted.with_lost(lost)));
        }
    }
    Sample {
        sites: Arc::clone(&rings.sites),
        taken,
        ran,
        rings: samples,
    }
}

/// A copy of a ring that was given `more` words since the last sample.
fn seen(rings: &Rings, copy: RingCopy, sample: &RingSample, more: u64) -> Seen {
    let index = sample.ring.0;
    // Events that the ring had no room for are no words of it.
    let lost = rings.slots.lost(index);
    let missing = copy.words().overwritten;
    let is_whole = missing <= sample.given.saturating_sub(more).saturating_sub(lost);
    let should_have = (!is_whole)
        .then(|| EventShare::of(&rings.slots.rings, rings.geometry(), index, more).events_in(more));
    Seen::Copy(copy, should_have)
}
