//! The cost of an idle ring for its collector, in words that the collector reads.
#![cfg(not(any(loom, miri)))]

mod support;

use std::cell::Cell;

use shm_ring::{Consumer, Geometry, Item, Producer, SharedMemory, layout, word};
use support::Words;

/// Memory that counts its reads.
struct Counting {
    words: Words,
    loads: Cell<u64>,
}

// === impl Counting ===

impl SharedMemory for Counting {
    fn load(&self, offset: u64) -> u64 {
        self.loads.set(self.loads.get() + 1);
        self.words.load(offset)
    }

    fn store(&self, offset: u64, value: u64) {
        self.words.store(offset, value);
    }

    fn fill(&self, offset: u64, bytes: u64, word: u64) {
        self.words.fill(offset, bytes, word);
    }
}

/// A ring with a chunk under way: its guard is filled, and nothing stands behind that.
fn begun(geometry: Geometry) -> (Counting, Consumer) {
    let words = Words::new(geometry);
    words.store(geometry.control_offset(0) + layout::control::STARTED, 1);
    for at in (0..layout::GUARD_BYTES).step_by(8) {
        words.store(geometry.ring_offset(0) + at, word::FILLER.into());
    }
    let memory = Counting {
        words,
        loads: Cell::new(0),
    };
    let mut consumer = Consumer::resume(&memory, geometry, 0).with_payloads();
    consumer.drain(&memory, Producer::Alive, 0, u64::MAX, |_| {});
    memory.loads.set(0);
    (memory, consumer)
}

/// The longest event has 589 words. A poll does not read all of them.
#[test]
fn an_idle_ring_costs_a_few_words_for_each_poll() {
    let geometry = Geometry::new(1 << 20, 1).unwrap();
    let (memory, mut consumer) = begun(geometry);
    let polls = 10_000;
    for poll in 1..=polls {
        let done = consumer.drain(&memory, Producer::Alive, poll, u64::MAX, |_| {});
        assert!(done.at_end && done.words == 0);
    }
    let each = memory.loads.get() / polls;
    assert!(each < 30, "{each} words");
}

/// The consumer notices an event of which only the last word was written, and does not wait for it
/// much longer than for others.
#[test]
fn a_hole_as_long_as_a_payload_is_found_in_a_while() {
    let geometry = Geometry::new(1 << 20, 1).unwrap();
    let (memory, mut consumer) = begun(geometry);
    let last = layout::GUARD_BYTES + 8 * (geometry.longest_event() - 1);
    memory.store(geometry.ring_offset(0) + last, word::FILLER.into());
    let (mut found, mut left) = (None, None);
    for now in 1..5000 {
        let mut items = Vec::new();
        let done = consumer.drain(&memory, Producer::Alive, now, u64::MAX, |item| {
            items.push(item)
        });
        if done.at_hole {
            found.get_or_insert(now);
        }
        if !items.is_empty() {
            assert_eq!(items, [Item::Lost(1)]);
            left.get_or_insert(now);
        }
    }
    assert_eq!(found, Some(100));
    assert_eq!(left, Some(100 + Consumer::HOLE_PATIENCE_MS));
}

/// A child that was forked in the slow path may write there late. The consumer has read all events
/// before that word, so it stands behind no hole.
#[test]
fn a_chunk_that_was_not_begun_is_left_alone() {
    let geometry = Geometry::new(1 << 20, 1).unwrap();
    let (memory, mut consumer) = begun(geometry);
    let store = |at, word| memory.words.store(geometry.ring_offset(0) + at, word);
    for at in (layout::GUARD_BYTES..geometry.chunk_bytes()).step_by(8) {
        store(at, word::FILLER.into());
    }
    consumer.drain(&memory, Producer::Alive, 0, u64::MAX, |_| {});
    assert_eq!(consumer.cursor(), geometry.chunk_bytes());
    store(geometry.chunk_bytes() + 24, word::FILLER.into());
    let mut lost = 0;
    let mut read = |producer, now| {
        let sink = |item| lost += u64::from(matches!(item, Item::Lost(_)));
        consumer.drain(&memory, producer, now, u64::MAX, sink).words
    };
    for producer in [Producer::Alive, Producer::Gone] {
        assert_eq!((read(producer, 1), read(producer, 1 << 20)), (0, 0));
    }
    let started = geometry.control_offset(0) + layout::control::STARTED;
    memory.words.store(started, 2);
    read(Producer::Gone, 1 << 20);
    assert_eq!(lost, 1);
    assert_eq!(consumer.cursor(), geometry.chunk_bytes() + 32);
}
