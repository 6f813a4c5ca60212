//! Copies of rings, taken while the target's threads go on: for snapshots, and for samples of what
//! tracing costs. Decoding the copies is not done here.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Instant};

use shm_ring::newest::{self, Blank, EventShare, Picture};
use xray_trace::model::ThreadId;

use super::Drain;
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
    pub(super) fn pictures(&mut self, bytes: u64, moment: Moment) -> RingCopies {
        self.settle_mode();
        // Threads that use every processor would overwrite their rings before these are copied. A
        // copy of 1 GiB takes 0.2 s of processor time, or 3 s for one thread among 16 that compete.
        let _urgent = self.newest.then(PriorityBoost::begin);
        if self.newest {
            self.discover();
        }
        // The most chunks of one ring.
        let each = bytes / (self.order.len().max(1) as u64);
        let most = (each / self.layout().geometry.chunk_bytes()).max(1);
        let mut blanks = HashMap::new();
        let taken = if self.newest {
            if moment == Moment::Next {
                blanks = self.blanks(most);
                // Threads that came meanwhile.
                self.discover();
            }
            self.anchor();
            // As late as possible: a ring wraps around within a millisecond.
            ticks_now()
        } else {
            let taken = ticks_now();
            self.flush();
            taken
        };
        let mut pictures = RingCopies::new(
            taken,
            Arc::clone(&self.sites),
            (self.decoders.switches(), self.decoders.filtered_by()),
        );
        if self.newest {
            for index in &self.order {
                let Some(thread) = self.pictured(*index) else {
                    continue;
                };
                let blank = blanks.remove(index);
                let blank = blank.unwrap_or_else(|| self.blank(*index, most));
                pictures.take(thread, &self.slots.rings, blank);
            }
        }
        let open = match self.newest {
            true => HashMap::new(),
            // Calls of functions that were switched by then may have ended unseen.
            false => self.decoders.open_calls(ticks_now()),
        };
        pictures.retained(self.output.snapshot(), open)
    }

    /// Memory for the copies of all rings that are to be copied, by slot index. `most` limits the
    /// chunks of each.
    fn blanks(&self, most: u64) -> HashMap<u32, Blank> {
        let order = self.order.iter().copied();
        let rings = order.filter(|index| self.pictured(*index).is_some());
        rings
            .map(|index| (index, self.blank(index, most)))
            .collect()
    }

    fn blank(&self, index: u32, most: u64) -> Blank {
        Blank::new(&self.slots.rings, self.layout().geometry, index, most)
    }

    /// The thread that owns the ring. `None` if the ring is not to be copied: its thread has left
    /// it, or is not recorded.
    fn pictured(&self, index: u32) -> Option<ThreadId> {
        let ring = self.rings.get(&index).filter(|ring| !ring.is_left())?;
        let decoder = self.decoders.get(ring.owner)?;
        (!decoder.muted).then_some(decoder.thread)
    }

    /// Samples how much was written to each ring, and the contents of the rings with the most new
    /// words.
    pub(super) fn sample(&mut self, look: &Look) -> Sample {
        self.settle_mode();
        match look {
            Look::Begin(_) | Look::All(_) if !self.newest => self.flush(),
            _ => self.discover(),
        }
        let geometry = self.layout().geometry;
        let rings = self.order.iter().filter_map(|index| {
            let ring = self.rings.get(index).filter(|ring| !ring.is_left())?;
            let thread = self.decoders.get(ring.owner)?.thread;
            let words = newest::Words::of(&self.slots.rings, geometry, *index).begun;
            Some(RingSample {
                ring: (*index, thread),
                given: words.saturating_add(self.slots.lost(*index)),
                ran: None,
                seen: None,
            })
        });
        let mut rings: Vec<RingSample> = rings.collect();
        // Before the copies, which take longer. Newer events in the copies do not count.
        let (taken, ran) = (
            (Instant::now(), ticks_now()),
            cpu_time::of_process(self.pid),
        );
        // A new ring has no increase before its second sample.
        let more = |ring: &RingSample| {
            let before = match look {
                Look::Newest(before) | Look::All(before) => before.get(&ring.ring)?,
                Look::Begin(_) => return None,
            };
            Some(ring.given.saturating_sub(*before)).filter(|more| *more > 0)
        };
        rings.sort_by_cached_key(|ring| Reverse(more(ring)));
        for ring in rings.iter_mut().take(sample::MOST_PICTURES) {
            let index = ring.ring.0;
            ring.seen = more(ring).and_then(|more| match look {
                Look::All(_) if !self.newest => None,
                Look::All(_) => {
                    let chunk = geometry.chunk_bytes();
                    let most = (sample::MOST_COPIED / chunk).max(sample::CHUNKS);
                    let chunks = (sample::CHUNKS + more / (chunk / 8)).min(most);
                    let picture = Picture::take(&self.slots.rings, geometry, index, chunks);
                    Some(self.seen(picture, ring, more))
                }
                _ => {
                    let picture = Picture::take(&self.slots.rings, geometry, index, sample::CHUNKS);
                    Some(self.seen(picture, ring, more))
                }
            });
            // Threads that record nothing now are included: their functions may be suppressed.
            let thread = ring.ring.1;
            let tid = self
                .output
                .with_retained(|retained| Some(retained.thread(thread)?.tid));
            ring.ran = tid.and_then(|tid| cpu_time::of_thread(self.pid, tid));
        }
        for ring in &mut rings {
            let owner = self.rings.get(&ring.ring.0).map(|ring| ring.owner);
            let decoder = owner.and_then(|owner| self.decoders.get_mut(owner));
            let lost = self.slots.lost(ring.ring.0);
            let counting = match look {
                Look::Begin(window) => Some(Counting::within(window, lost)),
                Look::Newest(_) | Look::All(_) => None,
            };
            let counted = decoder.and_then(|decoder| decoder.count_events(counting));
            // Rings that are not read are not counted either.
            if let (Look::All(_), Some(counted), false) = (look, counted, self.newest) {
                ring.seen = Some(Seen::Counted(counted.with_lost(lost)));
            }
        }
        Sample {
            sites: Arc::clone(&self.sites),
            taken,
            ran,
            rings,
        }
    }

    /// A copy of a ring that was given `more` words since the last sample.
    fn seen(&self, picture: Picture, ring: &RingSample, more: u64) -> Seen {
        // Events that the ring had no room for are no words of it.
        let lost = self.slots.lost(ring.ring.0);
        let is_whole = picture.missing() <= ring.given.saturating_sub(more).saturating_sub(lost);
        let should_have = (!is_whole).then(|| {
            let geometry = self.layout().geometry;
            EventShare::of(&self.slots.rings, geometry, ring.ring.0).events_in(more)
        });
        Seen::Picture(picture, should_have)
    }
}
