//! The losses of threads without a slot. Such a thread counts them in a bucket of its own, or in
//! one counter with the others if it finds no bucket.

use std::collections::HashSet;

use shm_ring::{Geometry, Mapping, SharedMemory, layout};

/// The buckets of a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buckets<'a> {
    rings: &'a Mapping,
    geometry: Geometry,
}

// === impl Buckets ===

impl<'a> Buckets<'a> {
    pub(super) fn new(rings: &'a Mapping, geometry: Geometry) -> Self {
        Self { rings, geometry }
    }

    /// How often threads that found no slot began to take a bucket.
    pub(super) fn taken(self) -> u64 {
        self.rings.load(layout::rings::BUCKETS_TAKEN)
    }

    /// All buckets with their owners, 0 for none; no buckets if none was ever taken.
    fn all(self) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let Self { rings, geometry } = self;
        let buckets = match self.taken() {
            0 => 0,
            _ => geometry.buckets(),
        };
        let places = (0..buckets).map(move |index| geometry.bucket_offset(index));
        places.map(move |place| {
            let owner = rings.load(place + layout::bucket::TID);
            (place, u32::try_from(owner).unwrap_or(0))
        })
    }

    /// The buckets that threads have taken, and those threads' ids in the target.
    fn owned(self) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        self.all().filter(|(_, owner)| *owner != 0)
    }

    /// The threads that have a bucket, by their ids in the target.
    pub(super) fn owners(self) -> impl Iterator<Item = u32> + use<'a> {
        self.owned().map(|(_, owner)| owner)
    }

    /// Events that threads without a slot have lost since the last call, and that no bucket with an
    /// owner counts. Such a thread found no bucket either, or its bucket was freed while it counted
    /// there. The losses count as reported from now on, also for the next collector.
    pub(super) fn take_ownerless(self) -> u64 {
        let lost = self.rings.load(layout::rings::NO_SLOT);
        let reported = self.rings.load(layout::rings::NO_SLOT_REPORTED);
        self.rings.store(layout::rings::NO_SLOT_REPORTED, lost);
        let ownerless = self.all().filter(|(_, owner)| *owner == 0);
        let ownerless = ownerless.map(|(place, _)| self.take_lost(place));
        ownerless.fold(lost.saturating_sub(reported), u64::saturating_add)
    }

    /// The unreported losses of each thread that has a bucket. They count as reported from now on,
    /// as above.
    pub(super) fn take_owned(self) -> impl Iterator<Item = (u32, u64)> + use<'a> {
        self.owned()
            .map(move |(place, owner)| (owner, self.take_lost(place)))
    }

    fn take_lost(self, place: u64) -> u64 {
        let lost = self.rings.load(place + layout::bucket::LOST);
        let reported = self.rings.load(place + layout::bucket::REPORTED);
        if lost != reported {
            self.rings.store(place + layout::bucket::REPORTED, lost);
        }
        lost.saturating_sub(reported)
    }

    /// Frees the buckets of ended threads. Both counts of a bucket stay: another thread with the
    /// same id may have counted there since the losses were taken, and may still. Its losses are
    /// taken as losses of no thread, or with the losses of the bucket's next thread.
    pub(super) fn free(self, gone: &HashSet<u32>) {
        for (place, _) in self.owned().filter(|(_, owner)| gone.contains(owner)) {
            self.rings.store(place + layout::bucket::TID, 0);
        }
    }
}
