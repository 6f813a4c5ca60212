//! A killed collector: the next collector goes on with its ring at once.

use std::cell::Cell;

use shm_ring::{
    Consumer, Content, Event, Geometry, Item, Outcome, Producer, SharedMemory, Table, Target,
};

use support::Words;

mod support;

/// The memory of a collector that dies after it has written `left` words.
struct Dying<'a> {
    memory: &'a Words,
    left: Cell<u64>,
}

// === impl SharedMemory for Dying ===

impl SharedMemory for Dying<'_> {
    fn load(&self, offset: u64) -> u64 {
        self.memory.load(offset)
    }

    fn store(&self, offset: u64, value: u64) {
        if let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            self.memory.store(offset, value);
        }
    }

    fn fill(&self, offset: u64, bytes: u64, word: u64) {
        for at in (offset..offset + bytes).step_by(8) {
            self.store(at, word);
        }
    }
}

fn drain(consumer: &mut Consumer, memory: &impl SharedMemory) -> Vec<u32> {
    let mut sites = Vec::new();
    let drained = consumer.drain(memory, Producer::Alive, 0, u64::MAX, |item| match item {
        Item::Call { site, .. } => sites.push(site),
        other => panic!("{other:?}"),
    });
    assert!(drained.at_end && !drained.at_hole, "{drained:?}");
    sites
}

/// Wherever the collector dies, the next one waits for nothing, loses no event that the first has
/// not read, and leaves the ring as large as before.
#[test]
fn the_collector_after_a_killed_one_goes_on_at_once() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    let in_chunk = u32::try_from(geometry.chunk_bytes() / 8).unwrap();
    let event = |number: u32| Event {
        site: number << 1 | 1,
        sp: 0x7fff_0000,
        content: Content::Nothing,
    };
    // Two chunks, which are given back, and the start of a third.
    let before = 2 * in_chunk;
    let mut died = 0;
    for writes in 0.. {
        let words = Words::new(geometry);
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &words,
            geometry,
        };
        let record = |number| assert_eq!(target.record(64, event(number), 5), Outcome::Recorded);
        (0..before).for_each(record);
        let dying = Dying {
            memory: &words,
            left: Cell::new(writes),
        };
        let first = drain(&mut Consumer::resume(&dying, geometry, 0), &dying);
        assert_eq!(first.len() as u64, u64::from(before));
        let mut next = Consumer::resume(&words, geometry, 0);
        let mut read = drain(&mut next, &words);
        // Now and then the events fill a whole ring, but for the chunk under way.
        let chunks = u32::try_from(geometry.chunks()).unwrap();
        let more = if writes % 61 == 0 { chunks - 2 } else { 1 } * (in_chunk - 64);
        (before..before + more).for_each(record);
        read.extend(drain(&mut next, &words));
        let all: Vec<u32> = (0..before + more).map(|number| number << 1 | 1).collect();
        assert!(all.ends_with(&read), "{} of {}", read.len(), all.len());
        assert!(read.len() >= more as usize);
        if dying.left.get() > 0 {
            break;
        }
        died += 1;
    }
    assert!(died > 2 * in_chunk);
}
