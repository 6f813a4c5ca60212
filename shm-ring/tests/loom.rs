//! Memory ordering: the producer and the consumer under every execution that C11 allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shm-ring --test loom --release`
//!
//! Each model explores one race, and has only the words of the ring that take part in it:
//!
//! ```text
//! word     0     1    2    3   4 … 62  63   64   65   66   67   68   69    70   71
//!        ┌────┬─────┬────┬────┬──────┬────┬────┬────┬────┬────┬────┬────┬─────┬────┐
//!        │sync│stack│fill│fill│fill …│call│call│size│type│data│call│sync│stack│call│
//!        └────┴─────┴────┴────┴──────┴────┴────┴────┴────┴────┴────┴────┴─────┴────┘
//! event   0: slow path, new chunk, guard   1    2: hot path         3: slow path, new view
//! ```
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::{collections::BTreeSet, ops::Range, sync::Mutex};

use loom::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
use shm_ring::{
    Consumer, Content, Data, Event, Geometry, Half, Item, LOAD, Outcome, Producer, STORE,
    SharedMemory, Table, Target,
    layout::{GUARD_BYTES, rings},
};

/// Words of the ring that the four events touch.
const WORDS: u64 = GUARD_BYTES / 8 + 8;

/// The guard's fillers without the first two. They differ in nothing from those, so their order is
/// not explored.
const ALIKE: Range<u64> = 4..GUARD_BYTES / 8 - 1;

/// The place on the stack.
const SP: u64 = 0x7ffd_0000_8008;

/// A word of the header, the first control line and the beginning of the first ring.
struct Few {
    geometry: Geometry,
    /// The word that tells of events. Other words of the header do not take part.
    activity: AtomicU64,
    line: Vec<AtomicU64>,
    ring: Vec<Word>,
}

/// A word of the ring.
enum Word {
    /// A word in the halves that trampolines store.
    Explored { low: AtomicU32, high: AtomicU32 },
    /// A word that is written and read at once.
    Alike(std::sync::atomic::AtomicU32),
}

impl Few {
    fn new(geometry: Geometry) -> Self {
        let word = |i| match i {
            i if ALIKE.contains(&i) => Word::Alike(0.into()),
            _ => Word::Explored {
                low: AtomicU32::new(0),
                high: AtomicU32::new(0),
            },
        };
        Self {
            geometry,
            activity: AtomicU64::new(0),
            line: (0..8).map(|_| AtomicU64::new(0)).collect(),
            ring: (0..WORDS).map(word).collect(),
        }
    }

    fn line(&self, offset: u64) -> Option<&AtomicU64> {
        let words = offset.checked_sub(self.geometry.control_offset(0))? / 8;
        self.line.get(usize::try_from(words).unwrap())
    }

    fn word(&self, offset: u64) -> Option<&Word> {
        let words = offset.checked_sub(self.geometry.ring_offset(0))? / 8;
        self.ring.get(usize::try_from(words).unwrap())
    }
}

impl SharedMemory for Few {
    fn load(&self, offset: u64) -> u64 {
        if offset == rings::ACTIVITY {
            return self.activity.load(LOAD);
        }
        if let Some(word) = self.line(offset) {
            return word.load(LOAD);
        }
        match self.word(offset) {
            Some(Word::Explored { low, high }) => match low.load(LOAD) {
                0 => 0,
                // Only the publication by the low half makes this the half that belongs to it.
                whole => u64::from(high.load(Ordering::Relaxed)) << 32 | u64::from(whole),
            },
            Some(Word::Alike(low)) => low.load(Ordering::Relaxed).into(),
            None => 0,
        }
    }

    /// Stores a word. A word that is stored whole is whole at once; storing its low half last is as
    /// good.
    fn store(&self, offset: u64, value: u64) {
        match offset {
            rings::ACTIVITY => return self.activity.store(value, STORE),
            rings::CHUNK | rings::CLAIM => return,
            _ => {}
        }
        if let Some(word) = self.line(offset) {
            word.store(value, STORE);
            return;
        }
        let half = |shift: u32| u32::try_from(value >> shift & 0xffff_ffff).unwrap();
        if matches!(self.word(offset), Some(Word::Explored { .. })) {
            self.store_half(offset, Half::High, half(32));
        }
        self.store_half(offset, Half::Low, half(0));
    }

    fn store_half(&self, offset: u64, half: Half, value: u32) {
        match (self.word(offset).unwrap(), half) {
            (Word::Explored { high, .. }, Half::High) => high.store(value, Ordering::Relaxed),
            (Word::Explored { low, .. }, Half::Low) => low.store(value, STORE),
            (Word::Alike(low), Half::Low) => low.store(value, Ordering::Relaxed),
            (Word::Alike(_), Half::High) => panic!("a filler has no high half"),
        }
    }

    fn fill(&self, _: u64, _: u64, _: u64) {
        panic!("no chunk ends here");
    }
}

fn event(number: u64) -> Event {
    Event {
        site: site(number),
        sp: SP,
        // As many words as an argument takes, and one more.
        content: match number {
            2 => Content::Payload {
                kind: 3,
                size: 7,
                bytes: b"1234567".to_vec(),
            },
            _ => Content::Nothing,
        },
    }
}

fn item(number: u64) -> Item {
    let (site, ticks, sp) = (site(number), ticks(number), SP);
    match number {
        2 => Item::Data(Box::new(Data {
            site,
            ticks,
            sp,
            kind: 3,
            size: 7,
            bytes: b"1234567".to_vec(),
        })),
        _ => Item::Call {
            site,
            ticks,
            sp,
            argument: None,
        },
    }
}

fn site(number: u64) -> u32 {
    2 * u32::try_from(number).unwrap() + 1
}

/// The counter of an event. A view reaches 2^19 ticks: only the last event is outside of the first
/// one's view.
fn ticks(number: u64) -> u64 {
    let high = if number == 3 { 9 } else { 7 };
    high << 32 | (number + 5)
}

/// Runs a reader while the events `race` are recorded. Earlier events are recorded and read
/// already. The reader must meet every number of events in some execution, and all events that it
/// meets must be whole.
fn check(race: Range<u64>) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let (seen_in_model, all) = (std::sync::Arc::clone(&seen), race.clone());
    model.check(move || {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let memory = Arc::new(Few::new(geometry));
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &*memory,
            geometry,
        };
        let record = |number| {
            let outcome = target.record(geometry.slots(), event(number), ticks(number));
            assert_eq!(outcome, Outcome::Recorded);
        };
        let mut consumer = Consumer::resume(&*memory, geometry, 0);
        let mut items = Vec::new();
        (0..race.start).for_each(record);
        consumer.drain(&*memory, Producer::Alive, 0, 1000, |item| items.push(item));
        let shared = Arc::clone(&memory);
        let reader = loom::thread::spawn(move || {
            consumer.drain(&*shared, Producer::Alive, 0, 1000, |item| items.push(item));
            (consumer, items)
        });
        race.clone().for_each(record);
        let (mut consumer, mut items) = reader.join().unwrap();
        let early = items.len() as u64;
        consumer.drain(&*memory, Producer::Alive, 0, 1000, |item| items.push(item));
        let expected: Vec<_> = (0..race.end).map(item).collect();
        assert_eq!(items, expected, "{early} of them early");
        seen_in_model.lock().unwrap().insert(early);
    });
    assert_eq!(*seen.lock().unwrap(), (all.start..=all.end).collect());
}

#[test]
fn a_word_of_a_new_chunk_that_is_seen_is_whole() {
    check(0..2);
}

#[test]
fn a_word_of_the_hot_path_and_of_a_new_view_that_is_seen_is_whole() {
    check(1..4);
}

/// A collector that sees the word of an event sees the event.
#[test]
fn an_event_whose_word_in_the_header_is_seen_is_there() {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
    let seen_in_model = std::sync::Arc::clone(&seen);
    model.check(move || {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let memory = Arc::new(Few::new(geometry));
        let shared = Arc::clone(&memory);
        let reader = loom::thread::spawn(move || {
            let has_news = shared.load(rings::ACTIVITY) != 0;
            let mut events = 0;
            if has_news {
                let mut consumer = Consumer::resume(&*shared, geometry, 0);
                consumer.drain(&*shared, Producer::Alive, 0, 1000, |_| events += 1);
            }
            (has_news, events)
        });
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &*memory,
            geometry,
        };
        let outcome = target.record(geometry.slots(), event(0), ticks(0));
        assert_eq!(outcome, Outcome::Recorded);
        let (has_news, events) = reader.join().unwrap();
        assert_eq!(events, u32::from(has_news));
        seen_in_model.lock().unwrap().insert(has_news);
    });
    assert_eq!(seen.lock().unwrap().len(), 2, "both were met");
}
