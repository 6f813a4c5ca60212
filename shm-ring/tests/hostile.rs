//! A producer that writes any words in any place, also while the consumer reads: reading ends, its
//! work is bounded by the request, and it stays within its own ring and control line.
// Safe code, and too much of it for miri.
#![cfg(not(any(loom, miri)))]

mod support;

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use shm_ring::{Consumer, Geometry, Producer, SharedMemory};

const INDEX: u32 = 5;

/// Memory that returns another value for each read.
struct Scribble {
    geometry: Geometry,
    state: Cell<u64>,
    /// Empty words among 256.
    empty: u64,
    accesses: Cell<u64>,
    /// The started chunks in the control line, where they are to stay the same.
    started: Option<u64>,
    stores: RefCell<Vec<u64>>,
}

// === impl Scribble ===

impl Scribble {
    fn next(&self) -> u64 {
        // xorshift64*: any sequence will do.
        let mut x = self.state.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.state.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn check(&self, offset: u64, bytes: u64) {
        assert_eq!(offset % 8, 0, "{offset:#x}");
        let g = self.geometry;
        let line = g.control_offset(INDEX)..=g.control_offset(INDEX) + 64 - bytes.min(64);
        let mark = g.mark_offset(INDEX)..=g.mark_offset(INDEX) + 24;
        let ring = g.ring_offset(INDEX)..=g.ring_offset(INDEX) + g.ring_bytes() - bytes;
        assert!(
            line.contains(&offset) && bytes <= 64
                || mark.contains(&offset) && bytes == 8
                || ring.contains(&offset),
            "{offset:#x} {bytes}"
        );
        self.accesses.set(self.accesses.get() + bytes / 8);
    }
}

impl SharedMemory for Scribble {
    fn load(&self, offset: u64) -> u64 {
        self.check(offset, 8);
        let line = self.geometry.control_offset(INDEX);
        match (offset, self.started) {
            (o, Some(started)) if o == line + shm_ring::layout::control::STARTED => started,
            (o, _) if o < line + 64 => match self.next() % 8 {
                0 => 0,
                1 => u64::MAX,
                2 => self.next() % 64,
                3 => u64::MAX - self.next() % (1 << 20),
                4 => (1 << 62) - self.next() % (1 << 20),
                _ => self.next() % (1 << 34),
            },
            _ if self.next() % 256 < self.empty => self.next() << 32,
            _ => match self.next() % 4 {
                0 => (self.next() << 32) | (self.next() % 20),
                _ => self.next(),
            },
        }
    }

    fn store(&self, offset: u64, value: u64) {
        self.check(offset, 8);
        self.stores.borrow_mut().push(value);
    }

    fn fill(&self, offset: u64, bytes: u64, _: u64) {
        self.check(offset, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reading_ends_and_stays_in_the_ring(
        seed in 1..u64::MAX,
        empty in prop_oneof![Just(0), Just(255), Just(256), 1..256u64],
        started in proptest::option::of(any::<u64>()),
        gone in any::<bool>(),
        holds in any::<bool>(),
        was_kept in any::<bool>(),
        rounds in proptest::collection::vec((0..5000u64, any::<u64>()), 1..6),
    ) {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let memory = Scribble {
            geometry,
            state: Cell::new(seed),
            empty,
            accesses: Cell::new(0),
            started,
            stores: RefCell::default(),
        };
        let producer = if gone { Producer::Gone } else { Producer::Alive };
        let mut consumer = Consumer::resume(&memory, geometry, INDEX);
        if seed.is_multiple_of(2) {
            consumer = consumer.with_payloads();
        }
        consumer.skip_kept(&memory, |_| was_kept);
        if holds {
            consumer = consumer.holding();
        }
        for (max, now) in rounds {
            memory.accesses.set(0);
            let mut items = 0u64;
            let done = consumer.drain(&memory, producer, now, max, |_| items += 1);
            // A chunk may be begun with the last word. Each word is read, looked for and zeroed.
            let chunk = geometry.chunk_bytes() / 8;
            let bound = 8 * (max + 3 * chunk) + 64;
            prop_assert!(memory.accesses.get() <= bound, "{} of {bound}", memory.accesses.get());
            prop_assert!(items <= done.words + max + 1 && done.words <= max + chunk);
            prop_assert!(consumer.backlog(&memory) <= geometry.ring_bytes());
            consumer.unreported_losses(&memory);
            consumer.tell_losses(&memory, |_| {});
            consumer.mark(&memory, seed);
            consumer.release(&memory);
            prop_assert!(consumer.is_saved());
        }
    }

    #[test]
    fn arbitrary_memory_that_stays_still_is_read_to_its_end(
        words in proptest::collection::vec(any::<u64>(), 1..2000),
        line in any::<[u64; 8]>(),
        payloads in any::<bool>(),
    ) {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let memory = support::Words::new(geometry);
        for (i, &word) in words.iter().enumerate() {
            memory.store(geometry.ring_offset(0) + 8 * i as u64, word);
        }
        for (i, &field) in line.iter().enumerate() {
            memory.store(geometry.control_offset(0) + 8 * i as u64, field);
        }
        let mut consumer = Consumer::resume(&memory, geometry, 0);
        if payloads {
            consumer.expect_payloads();
        }
        // The words that were read are zeroed chunk by chunk. So a ring's length is the most there
        // can be, and the same once more after a start in the middle.
        let mut read = 0;
        for _ in 0..64 {
            read += consumer.drain(&memory, Producer::Gone, 0, 1 << 16, |_| {}).words;
        }
        prop_assert!(read <= 2 * geometry.ring_bytes() / 8, "{read}");
    }
}
