//! The memory of one schedule, as its producers and as its consumer see it.

use std::cell::Cell;

use shm_ring::{SharedMemory, layout::rings};

use super::{Bounds, Next, World};

/// The memory as the producer sees it. The producer never leaves it.
pub(super) struct Producers<'w, 'c>(pub(super) &'w World<'c>);

/// The memory as the consumer sees it. Before each access the thread may go on.
pub(super) struct Consumers<'w, 'c>(pub(super) &'w World<'c>);

// === impl SharedMemory for Producers ===

impl Producers<'_, '_> {
    /// The word at an offset that this thread may touch: in its control line, its ring,
    /// its bucket, or a word of the header that it reads or by which it tells of news.
    fn word(&self, offset: u64) -> &Cell<u64> {
        let geometry = self.0.geometry;
        let line = geometry.control_offset(0)..geometry.control_offset(1);
        let ring = geometry.ring_offset(0)..geometry.ring_offset(1);
        let bucket = geometry.bucket_offset(0)..geometry.bucket_offset(1);
        let shared = [
            rings::BUCKETS_TAKEN,
            rings::KEEP_NEWEST,
            rings::ACTIVITY,
            rings::CHUNK,
            rings::CLAIM,
            rings::DEADLINE,
            rings::WAIT,
        ];
        assert!(
            [line, ring, bucket].iter().any(|own| own.contains(&offset))
                || shared.contains(&offset),
            "{offset:#x} is not its own"
        );
        &self.0.words[usize::try_from(offset / 8).unwrap()]
    }
}

impl SharedMemory for Producers<'_, '_> {
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).get()
    }

    fn store(&self, offset: u64, value: u64) {
        self.word(offset).set(value);
    }

    fn fill(&self, _: u64, _: u64, _: u64) {
        panic!("producers fill nothing");
    }
}

// === impl SharedMemory for Consumers ===

impl Consumers<'_, '_> {
    /// Lets the thread go on here, if the choice is so.
    fn between(&self) {
        let left = self.0.left.get();
        if left.switches == 0
            || self.0.contexts.borrow().is_empty()
            || self.0.choices.choose(2) == 0
        {
            return;
        }
        self.0.left.set(Bounds {
            switches: left.switches - 1,
            ..left
        });
        while !self.0.contexts.borrow().is_empty() && self.0.go_on() == Next::Again {}
    }

    fn word(&self, offset: u64) -> Option<&Cell<u64>> {
        self.0.words.get(usize::try_from(offset / 8).unwrap())
    }
}

impl SharedMemory for Consumers<'_, '_> {
    fn load(&self, offset: u64) -> u64 {
        self.between();
        self.word(offset).map_or(0, Cell::get)
    }

    fn store(&self, offset: u64, value: u64) {
        self.between();
        if let Some(word) = self.word(offset) {
            word.set(value);
        }
    }

    /// Copies a chunk of a ring in one step.
    fn copy_words(&self, offset: u64, into: &mut [u64]) {
        self.between();
        for (at, word) in (offset..).step_by(8).zip(into) {
            *word = self.word(at).map_or(0, Cell::get);
        }
    }

    fn fill(&self, offset: u64, bytes: u64, value: u64) {
        self.between();
        for at in (offset..offset + bytes).step_by(8) {
            if let Some(word) = self.word(at) {
                word.set(value);
            }
        }
    }
}
