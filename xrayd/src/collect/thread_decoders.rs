//! The threads of one target, as the trace shows them. Each is one thread of the trace for as long
//! as it has a ring, or a bucket for losses without a ring.
//!
//! The settings that hold for all decoders are kept here, for threads that come later.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use shm_ring::{Item, Sink};
use xray_trace::model::{ThreadId, Ticks};

use super::{
    EventFilter, SiteTable,
    frame_budget::FrameBudget,
    names::Names,
    switches::Switches,
    thread_decoder::{BLOCK_AGE, ThreadDecoder},
    time_range::OpenByThread,
};
use crate::{
    store::{EventStore, EventUses},
    triggers::TriggerMatcher,
};

/// The decoders of a target's threads, by the threads' ids in the target.
#[derive(Debug)]
pub(super) struct ThreadDecoders {
    threads: HashMap<u32, Recorder>,
    /// The room for their open calls.
    room: FrameBudget,
    switches: Arc<Switches>,
    /// What becomes of their events.
    keeps: EventUses,
    /// The age at which their blocks are closed.
    block_age: Duration,
    /// The filter on their events; `None` for all.
    filter: Option<Arc<EventFilter>>,
    /// The triggers that watch them, and the version of that set.
    armed: Vec<Arc<TriggerMatcher>>,
    armed_version: u64,
}

#[derive(Debug)]
struct Recorder {
    thread: ThreadId,
    /// The decoder, while the thread has rings.
    decoder: Option<ThreadDecoder>,
    /// The number of its rings. A thread that has gone on to another ring keeps the earlier one for
    /// as long as it lives.
    rings: u32,
    /// The slot of the ring that it writes to.
    latest: u32,
    /// True if it has a bucket.
    in_bucket: bool,
    /// The time at which its losses without a ring were last reported; 0 if never.
    reported: Ticks,
}

// === impl ThreadDecoders ===

impl ThreadDecoders {
    pub(super) fn new(switches: Arc<Switches>, keeps: EventUses) -> Self {
        Self {
            threads: HashMap::new(),
            room: FrameBudget::new(),
            switches,
            keeps,
            block_age: BLOCK_AGE,
            filter: None,
            armed: Vec::new(),
            armed_version: 0,
        }
    }

    /// The decoder of a thread that has a ring.
    pub(super) fn get(&self, owner: u32) -> Option<&ThreadDecoder> {
        self.threads.get(&owner)?.decoder.as_ref()
    }

    /// The same, mutable.
    pub(super) fn get_mut(&mut self, owner: u32) -> Option<&mut ThreadDecoder> {
        self.threads.get_mut(&owner)?.decoder.as_mut()
    }

    /// The slot of the ring that a thread writes to.
    pub(super) fn latest(&self, owner: u32) -> Option<u32> {
        self.threads.get(&owner).map(|known| known.latest)
    }

    /// The record of when functions were switched.
    pub(super) fn switches(&self) -> &Arc<Switches> {
        &self.switches
    }

    /// What becomes of the events of all threads.
    pub(super) fn keeps(&self) -> EventUses {
        self.keeps
    }

    /// Sets what becomes of the events of all threads, present and future.
    pub(super) fn keep(&mut self, keeps: EventUses, output: &EventStore) {
        if keeps != self.keeps {
            self.keeps = keeps;
            self.iter_mut()
                .for_each(|decoder| decoder.keep(keeps, output));
        }
    }

    /// Sets the age at which blocks of all threads are closed.
    pub(super) fn close_blocks_at(&mut self, age: Duration) {
        if age != self.block_age {
            self.block_age = age;
            self.iter_mut().for_each(|decoder| decoder.block_age = age);
        }
    }

    /// True while a block of some thread is under way.
    pub(super) fn have_block(&self) -> bool {
        let mut decoders = self.threads.values();
        decoders.any(|known| known.decoder.as_ref().is_some_and(ThreadDecoder::has_block))
    }

    /// Sets the filter for the next events; `None` keeps all.
    pub(super) fn filter(&mut self, keep: Option<Arc<EventFilter>>) {
        for decoder in self.iter_mut().filter(|decoder| !decoder.muted) {
            decoder.filter(keep.clone());
        }
        self.filter = keep;
    }

    /// Mutes or unmutes a thread that has a ring, from now on.
    pub(super) fn set_muted(&mut self, owner: u32, muted: bool) {
        let keep = self.filter.clone();
        if let Some(decoder) = self.get_mut(owner)
            && decoder.muted != muted
        {
            decoder.muted = muted;
            decoder.filter(match muted {
                true => Some(Arc::new(EventFilter::nothing())),
                false => keep,
            });
        }
    }

    /// The filter on events; `None` for all.
    pub(super) fn filtered_by(&self) -> Option<Arc<EventFilter>> {
        self.filter.clone()
    }

    /// Has all threads, present and future, watched by the triggers that are armed now.
    pub(super) fn watch(&mut self, output: &EventStore) {
        let version = output.triggers.version();
        if version == self.armed_version {
            return;
        }
        self.armed_version = version;
        let armed = output.triggers.seeing();
        self.iter_mut().for_each(|decoder| decoder.watch(&armed));
        self.armed = armed;
    }

    /// All decoders.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ThreadDecoder> {
        let threads = self.threads.values_mut();
        threads.filter_map(|known| known.decoder.as_mut())
    }

    /// The open calls of each thread that has a ring, as of `now`.
    pub(super) fn open_calls(&self, now: Ticks) -> OpenByThread {
        let decoders = self
            .threads
            .values()
            .filter_map(|known| known.decoder.as_ref());
        decoders
            .map(|decoder| (decoder.thread, decoder.open_calls(now)))
            .collect()
    }

    /// Notes that the thread has the ring at `index`. Returns the slot of the ring that it has left
    /// for that.
    pub(super) fn open(
        &mut self,
        owner: u32,
        index: u32,
        names: &mut Names,
        output: &EventStore,
    ) -> Option<u32> {
        let (room, switches) = (self.room.clone(), Arc::clone(&self.switches));
        let (keeps, filter) = (self.keeps, self.filter.clone());
        let block_age = self.block_age;
        let armed = self.armed.clone();
        let known = self.known(owner, names, output);
        let left = (known.rings > 0).then_some(known.latest);
        known.rings += 1;
        known.latest = index;
        let (thread, reported) = (known.thread, known.reported);
        known
            .decoder
            .get_or_insert_with(|| {
                let mut decoder = ThreadDecoder::new(thread, reported, &room, switches);
                decoder.filter(filter);
                decoder.block_age = block_age;
                if !armed.is_empty() {
                    decoder.watch(&armed);
                }
                decoder
            })
            .keep(keeps, output);
        left
    }

    /// Ends the decoder of a thread. All its rings were read to the end.
    pub(super) fn close(&mut self, owner: u32, output: &EventStore) {
        let Some(known) = self.threads.get_mut(&owner) else {
            return;
        };
        known.rings = 0;
        if let Some(mut decoder) = known.decoder.take() {
            decoder.end(output);
        }
        if !known.in_bucket {
            self.forget(owner, output);
        }
    }

    /// Reports the losses that buckets show. `losses` has all buckets.
    pub(super) fn lost_in_buckets(
        &mut self,
        losses: &[(u32, u64)],
        names: &mut Names,
        sites: &SiteTable,
        output: &EventStore,
    ) {
        for &(owner, lost) in losses {
            if lost == 0 && !self.threads.contains_key(&owner) {
                continue;
            }
            let known = self.known(owner, names, output);
            known.in_bucket = true;
            match &mut known.decoder {
                _ if lost == 0 => {}
                Some(decoder) => decoder.sink(sites, output).take(Item::Lost(lost)),
                None => known.reported = output.lost_by(known.thread, lost),
            }
        }
        let owners: HashSet<u32> = losses.iter().map(|(owner, _)| *owner).collect();
        let freed = |(owner, known): (&u32, &mut Recorder)| {
            let freed = known.in_bucket && !owners.contains(owner);
            known.in_bucket &= !freed;
            (freed && known.rings == 0).then_some(*owner)
        };
        let ended: Vec<u32> = self.threads.iter_mut().filter_map(freed).collect();
        for owner in ended {
            self.forget(owner, output);
        }
    }

    fn known(&mut self, owner: u32, names: &mut Names, output: &EventStore) -> &mut Recorder {
        self.threads.entry(owner).or_insert_with(|| {
            let (tid, name) = names.describe(owner);
            Recorder {
                thread: output.new_thread(tid, name),
                decoder: None,
                rings: 0,
                latest: 0,
                in_bucket: false,
                reported: Ticks(0),
            }
        })
    }

    /// Removes a thread that has ended. Its id belongs to another thread from now on.
    pub(super) fn forget(&mut self, owner: u32, output: &EventStore) {
        if let Some(known) = self.threads.remove(&owner) {
            output.thread_ended(known.thread);
        }
    }
}
