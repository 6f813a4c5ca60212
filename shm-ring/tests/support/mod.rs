//! Rings in ordinary memory, without a target.

use std::sync::atomic::{AtomicU64, Ordering};

use shm_ring::{Geometry, SharedMemory};

/// The rings' memory up to the end of the first ring. There is nothing behind it.
#[derive(Debug)]
pub(crate) struct Words(Vec<AtomicU64>);

// === impl Words ===

impl Words {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let words = geometry.ring_offset(1) / 8;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        assert_eq!(offset % 8, 0, "{offset:#x} is a word's place");
        self.0.get(usize::try_from(offset / 8).ok()?)
    }
}

// === impl SharedMemory for Words ===

impl SharedMemory for Words {
    fn load(&self, offset: u64) -> u64 {
        self.word(offset)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    fn fill(&self, offset: u64, bytes: u64, word: u64) {
        for at in (offset..offset + bytes).step_by(8) {
            self.store(at, word);
        }
    }
}
