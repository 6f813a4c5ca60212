//! A killed collector: the next collector goes on with its ring at once.

use std::cell::Cell;

use shm_ring::{
    Consumer, Content, Event, Geometry, Item, Outcome, Producer, SharedMemory, Table, Target,
    layout::mark,
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

fn event(number: u32) -> Event {
    Event {
        site: number << 1 | 1,
        sp: 0x7fff_0000,
        content: Content::Nothing,
    }
}

/// Wherever the collector dies, the next one waits for nothing, loses no event that the first has
/// not read, and leaves the ring as large as before.
#[test]
fn the_collector_after_a_killed_one_goes_on_at_once() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    let in_chunk = u32::try_from(geometry.chunk_bytes() / 8).unwrap();
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

/// A collector that keeps blocks of events. Wherever it dies, each event is in a block that it has
/// kept, or is read by the next collector, and never both.
#[test]
fn the_next_collector_reads_what_a_killed_one_has_not_kept() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    let in_chunk = u32::try_from(geometry.chunk_bytes() / 8).unwrap();
    let all = 2 * in_chunk + 100;
    let mut died = 0;
    for writes in 0.. {
        let words = Words::new(geometry);
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &words,
            geometry,
        };
        for number in 0..all {
            assert_eq!(target.record(64, event(number), 5), Outcome::Recorded);
        }
        let dying = Dying {
            memory: &words,
            left: Cell::new(writes),
        };
        // To keep a block is a step like a write.
        let keeps = || {
            let left = dying.left.get().checked_sub(1);
            dying.left.set(left.unwrap_or(0));
            left.is_some()
        };
        let mut consumer = Consumer::resume(&dying, geometry, 0).holding();
        let mut kept: Vec<Vec<u32>> = Vec::new();
        loop {
            let mut block = Vec::new();
            let drained = consumer.drain(&dying, Producer::Alive, 0, 300, |item| match item {
                Item::Call { site, .. } => block.push(site),
                other => panic!("{other:?}"),
            });
            if block.is_empty() {
                assert!(drained.at_end);
                break;
            }
            consumer.mark(&dying, kept.len() as u64 + 1);
            if !keeps() {
                break;
            }
            kept.push(block);
            consumer.release(&dying);
            assert!(consumer.is_saved() && consumer.held() == 0);
            if dying.left.get() == 0 {
                break;
            }
        }
        let is_last = |block| block == kept.len() as u64;
        let mut next = Consumer::resume(&words, geometry, 0);
        next.skip_kept(&words, is_last);
        let read = drain(&mut next, &words);
        let sites: Vec<u32> = kept.concat().into_iter().chain(read).collect();
        let expected: Vec<u32> = (0..all).map(|number| number << 1 | 1).collect();
        assert!(sites == expected, "{writes} writes: {} events", sites.len());
        if dying.left.get() > 0 {
            break;
        }
        died += 1;
    }
    assert!(died > 2 * in_chunk);
}

/// A collector that holds all words of a ring reads no word twice, and the ring is as large as
/// before once it gives them back.
#[test]
fn a_full_ring_that_is_held_has_nothing_more_to_read() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    let words = Words::new(geometry);
    let table = Table::new(geometry);
    let target = Target {
        table: &table,
        rings: &words,
        geometry,
    };
    let record = || target.record(64, event(0), 5);
    let fill = || (0..).take_while(|_| record() == Outcome::Recorded).count();
    let mut consumer = Consumer::resume(&words, geometry, 0).holding();
    let read = |consumer: &mut Consumer| {
        let mut calls = 0;
        let drained = consumer.drain(&words, Producer::Alive, 0, u64::MAX, |item| {
            calls += usize::from(matches!(item, Item::Call { .. }));
        });
        (calls, drained.words)
    };
    let first = fill();
    assert_eq!(read(&mut consumer).0, first);
    assert_eq!(read(&mut consumer), (0, 0));
    assert_eq!(consumer.held(), geometry.ring_bytes());
    assert_eq!(record(), Outcome::Lost);
    consumer.release(&words);
    assert!(fill() >= first - 1);
    assert!(read(&mut consumer).0 >= first - 1);
}

/// The words of another thread, in the ring of a thread that has ended, are not skipped by its
/// mark.
#[test]
fn a_mark_holds_once_and_for_words_that_are_there() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    let words = Words::new(geometry);
    let table = Table::new(geometry);
    let target = Target {
        table: &table,
        rings: &words,
        geometry,
    };
    let record = |number| assert_eq!(target.record(64, event(number), 5), Outcome::Recorded);
    let place = geometry.mark_offset(0);
    let next = |was_kept: bool| {
        let mut next = Consumer::resume(&words, geometry, 0);
        next.skip_kept(&words, |block| block == 7 && was_kept);
        assert_eq!(words.load(place + mark::BLOCK), 0);
        drain(&mut next, &words)
    };
    (0..100).for_each(record);
    // Beyond the chunks that were begun.
    words.store(place + mark::CURSOR, 2 * geometry.chunk_bytes());
    words.store(place + mark::BLOCK, 7);
    assert_eq!(next(true).len(), 100);
    (0..100).for_each(record);
    let mut consumer = Consumer::resume(&words, geometry, 0).holding();
    drain(&mut consumer, &words);
    consumer.mark(&words, 7);
    assert_eq!(next(false).len(), 100);
    (0..100).for_each(record);
    let mut consumer = Consumer::resume(&words, geometry, 0).holding();
    drain(&mut consumer, &words);
    consumer.mark(&words, 7);
    assert_eq!(next(true).len(), 0);
    (0..100).for_each(record);
    assert_eq!(next(true).len(), 100);
}
