//! Memory ordering: the producer and the consumer under every execution that C11 allows, within loom's bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shm-ring --test loom --release`
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use shm_ring::{
    Consumer, Content, Data, Event, Geometry, Item, Outcome, Producer, SharedMemory, Table, Target,
};

/// Words of the first ring that a few events touch: the guard and some more.
const WORDS: u64 = 80;

/// Where the stack stands.
const SP: u64 = 0x7ffd_0000_8008;

/// The first control line and the beginning of the first ring.
struct Few {
    geometry: Geometry,
    line: Vec<AtomicU64>,
    ring: Vec<AtomicU64>,
}

impl Few {
    fn new(geometry: Geometry) -> Self {
        let words = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            geometry,
            line: words(8),
            ring: words(WORDS),
        }
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let (line, ring) = (
            self.geometry.control_offset(0),
            self.geometry.ring_offset(0),
        );
        if offset >= ring {
            self.ring.get(usize::try_from((offset - ring) / 8).unwrap())
        } else {
            self.line.get(usize::try_from((offset - line) / 8).unwrap())
        }
    }
}

impl SharedMemory for Few {
    fn load(&self, offset: u64) -> u64 {
        self.word(offset)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) {
        self.word(offset).unwrap().store(value, Ordering::Release);
    }

    fn zero(&self, _: u64, _: u64) {
        panic!("no chunk ends here");
    }
}

#[test]
fn a_word_that_is_seen_is_whole() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 100_000;
    // How many items were there before the thread was over: every number must occur.
    let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let seen_in_model = std::sync::Arc::clone(&seen);
    model.check(move || {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let memory = Arc::new(Few::new(geometry));
        let shared = Arc::clone(&memory);
        let reader = loom::thread::spawn(move || {
            let mut consumer = Consumer::resume(&*shared, geometry, 0);
            let mut items = Vec::new();
            consumer.drain(&*shared, Producer::Alive, 0, 1000, |item| items.push(item));
            (consumer, items)
        });
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &*memory,
            geometry,
        };
        for number in 0..3u64 {
            // As an argument takes, and a word more.
            let content = match number {
                2 => Content::Payload {
                    kind: 3,
                    size: 7,
                    bytes: b"1234567".to_vec(),
                },
                _ => Content::Nothing,
            };
            let event = Event {
                site: 2 * u32::try_from(number).unwrap() + 1,
                sp: SP,
                content,
            };
            let outcome = target.record(geometry.slots(), event, (number + 7) << 32 | number);
            assert_eq!(outcome, Outcome::Recorded);
        }
        let (mut consumer, mut items) = reader.join().unwrap();
        let early = items.len();
        consumer.drain(&*memory, Producer::Alive, 0, 1000, |item| items.push(item));
        let expected = [0u64, 1, 2].map(|number| {
            let site = 2 * u32::try_from(number).unwrap() + 1;
            let ticks = (number + 7) << 32 | number;
            match number {
                2 => Item::Data(Box::new(Data {
                    site,
                    ticks,
                    sp: SP,
                    kind: 3,
                    size: 7,
                    bytes: b"1234567".to_vec(),
                })),
                _ => Item::Call {
                    site,
                    ticks,
                    sp: SP,
                    argument: None,
                },
            }
        });
        assert_eq!(items, expected, "{early} of them early");
        seen_in_model.lock().unwrap().insert(early);
    });
    assert_eq!(*seen.lock().unwrap(), (0..=3).collect());
}
