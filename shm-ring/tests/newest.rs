//! Rings that keep the newest events, and copies of them. The interleavings of single accesses are
//! tested in `interleavings/`.
// Safe code, and too much of it for miri.
#![cfg(not(any(loom, miri)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use shm_ring::{
    Consumer, Content, Event, Geometry, Item, Outcome, Producer, Recording, SharedMemory, Table,
    Target,
    layout::control,
    newest::{self, CopyBuffer, RingCopy},
};

use support::Words;

mod support;

const TID: u32 = 64;

struct World {
    geometry: Geometry,
    words: Words,
    table: Table,
}

// === impl World ===

impl World {
    fn new() -> Self {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let world = Self {
            geometry,
            words: Words::new(geometry),
            table: Table::new(geometry),
        };
        newest::keep_newest(&world.words);
        world
    }

    fn target(&self) -> Target<'_, Words> {
        Target {
            table: &self.table,
            rings: &self.words,
            geometry: self.geometry,
        }
    }

    fn record(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let outcome = self.target().record(TID, event(number), number.into());
            assert_eq!(outcome, Outcome::Recorded, "{number}");
        }
    }

    /// The events in a copy, which has no gap, and the number of lost ones.
    fn copy(&self, most: u64) -> (std::ops::Range<u32>, u64) {
        let copy = RingCopy::take(&self.words, self.geometry, 0, most);
        read(&mut copy.consumer(), &copy)
    }

    /// The number of events that fill all chunks of a ring but `free`. Each chunk holds as many.
    fn held(&self, free: u64) -> u32 {
        let words = self.geometry.chunk_bytes() / 8 - 64;
        u32::try_from((self.geometry.chunks() - free) * (words + 1)).unwrap()
    }

    /// A full ring, an event that takes back its oldest chunk and has made `steps` steps, and that
    /// event's number.
    fn interrupted(steps: usize) -> (Self, Recording, u32) {
        let world = Self::new();
        let number = world.held(1);
        world.record(0..number);
        let mut recording = Recording::new(TID, event(number));
        for _ in 0..steps {
            recording.step(&world.target(), number.into());
        }
        (world, recording, number)
    }

    fn is_taken(&self) -> bool {
        newest::is_taken(&self.words, self.geometry, 0)
    }

    fn released(&self) -> u64 {
        self.words
            .load(self.geometry.control_offset(0) + control::RELEASED)
    }
}

fn length(numbers: &std::ops::Range<u32>) -> u32 {
    numbers.end - numbers.start
}

fn event(number: u32) -> Event {
    Event {
        site: number << 1 | 1,
        sp: 0x7fff_0000,
        content: Content::Nothing,
    }
}

fn read(consumer: &mut Consumer, memory: &impl SharedMemory) -> (std::ops::Range<u32>, u64) {
    let (mut numbers, mut lost): (Vec<u32>, u64) = (Vec::new(), 0);
    let drained = consumer.drain(memory, Producer::Gone, 0, u64::MAX, |item| match item {
        Item::Call { site, ticks, .. } => {
            assert_eq!(u64::from(site >> 1), ticks);
            numbers.push(site >> 1);
        }
        Item::Lost(count) => lost += count,
        item => panic!("{item:?}"),
    });
    assert!(drained.at_end, "{drained:?}");
    assert!(
        numbers
            .iter()
            .zip(numbers.iter().skip(1))
            .all(|(one, next)| one + 1 == *next)
    );
    let range = match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) => *first..last + 1,
        _ => 0..0,
    };
    (range, lost)
}

#[test]
fn the_newest_events_are_kept_and_none_is_lost() {
    let world = World::new();
    let mut recorded = 0;
    for more in [1, 100, 448, 449, 7000, 7184, 100_000] {
        world.record(recorded..recorded + more);
        recorded += more;
        let (shown, lost) = world.copy(u64::MAX);
        assert_eq!((shown.end, lost), (recorded, 0));
        assert!(length(&shown) >= recorded.min(world.held(2)), "{shown:?}");
        let (few, _) = world.copy(2);
        assert!(few.end == recorded && few.len() < 2 * 449 + 1, "{few:?}");
    }
}

/// A copy holds events that were recorded after its memory was made ready, also where the ring had
/// fewer chunks then.
#[test]
fn a_copy_is_of_the_moment_when_it_is_copied() {
    for before in [0, 10, 3000, 100_000] {
        let world = World::new();
        world.record(0..before);
        let buffer = CopyBuffer::new(&world.words, world.geometry, 0, u64::MAX);
        let recorded = before + 100_000;
        world.record(before..recorded);
        let copy = buffer.copy_ring(&world.words);
        let (shown, lost) = read(&mut copy.consumer(), &copy);
        assert_eq!((shown.end, lost), (recorded, 0));
        assert!(length(&shown) >= world.held(2), "{shown:?}");
    }
}

/// A copy has all chunks asked for, at any step of the event that takes the oldest chunk back.
#[test]
fn a_copy_taken_at_any_moment_has_no_gap() {
    let (world, mut recording, before) = World::interrupted(0);
    let mut taken = 0;
    while !recording.is_done() {
        recording.step(&world.target(), before.into());
        if world.is_taken() {
            taken += 1;
        }
        let (shown, lost) = world.copy(u64::MAX);
        assert!(
            [before, before + 1].contains(&shown.end) && lost == 0,
            "{shown:?}"
        );
        assert!(length(&shown) >= world.held(2));
    }
    assert!(taken > 512, "{taken}");
    assert_eq!(world.released(), 1);
}

/// A consumer that reads on from any step of the event that takes the oldest chunk back gets all
/// events that are in the ring, and all later ones.
#[test]
fn a_consumer_takes_over_at_any_moment() {
    let mut waited = 0;
    for steps in (0..).step_by(3) {
        let (world, mut recording, before) = World::interrupted(steps);
        newest::keep_unread(&world.words);
        let over = recording.is_done();
        let mut waits = 0;
        while world.is_taken() {
            recording.step(&world.target(), before.into());
            waits += 1;
        }
        assert!(waits < 600 && world.released() <= 1);
        waited += usize::from(waits > 0);
        let mut consumer = Consumer::resume(&world.words, world.geometry, 0);
        let (first, lost) = read(&mut consumer, &world.words);
        assert!(lost == 0 && length(&first) >= world.held(2));
        while !recording.is_done() {
            recording.step(&world.target(), before.into());
        }
        let more = before + 1..before + 5000;
        world.record(more.clone());
        let (rest, lost) = read(&mut consumer, &world.words);
        assert_eq!((rest.end, lost), (more.end, 0));
        assert!(rest.start == first.end, "{first:?} {rest:?}");
        if over {
            break;
        }
    }
    assert!(waited > 100, "{waited}");
}

/// A thread that was killed has left a chunk that is partly zeroed.
#[test]
fn the_last_event_of_a_killed_thread_is_finished() {
    let mut taken = 0;
    for steps in (0..700).step_by(7) {
        let (world, _, before) = World::interrupted(steps);
        taken += usize::from(world.is_taken());
        newest::keep_unread(&world.words);
        newest::finish_taking(&world.words, world.geometry, 0);
        assert!(!world.is_taken());
        let (shown, _) = read(
            &mut Consumer::resume(&world.words, world.geometry, 0),
            &world.words,
        );
        assert!([before, before + 1].contains(&shown.end), "{shown:?}");
        assert!(length(&shown) >= world.held(2));
    }
    assert!(taken > 50, "{taken}");
}

#[test]
fn recorded_bytes_are_known_without_a_read() {
    let world = World::new();
    let mut recorded = 0;
    let now = || newest::Words::of(&world.words, world.geometry, 0);
    assert_eq!(now(), newest::Words::default());
    for more in [1, 2, 446, 1, 1, 30_000] {
        world.record(recorded..recorded + more);
        recorded += more;
        // One event of each chunk stands in the guard.
        let words = u64::from(recorded) - u64::from(recorded.div_ceil(449));
        assert_eq!(now().begun, words);
        let overwritten = world.released() * 448;
        assert_eq!(now().overwritten, overwritten);
    }
    let before = now();
    world.record(recorded..recorded + 100_000);
    let since = now().since(before);
    assert!((99_000..100_000).contains(&since.begun), "{since:?}");
    assert!(since.begun - since.overwritten < 16 * 448);
}

/// A session that ends has read the words of a ring and given its memory back, in the middle of a
/// chunk or at a chunk's end. The next session counts from there.
#[test]
fn events_that_an_earlier_session_read_are_not_counted_again() {
    const MORE: u32 = 2000;
    let full = World::new().held(0);
    for recorded in [1, 449, 450, 1000, full - 1, full] {
        let world = World::new();
        newest::keep_unread(&world.words);
        world.record(0..recorded);
        let mut consumer = Consumer::resume(&world.words, world.geometry, 0);
        let (read, lost) = read(&mut consumer, &world.words);
        assert_eq!((read, lost), (0..recorded, 0));
        let ring = world.geometry.ring_offset(0);
        world.words.zero(ring, world.geometry.ring_bytes());
        consumer.leave_view(&world.words);

        let words = |events: u32| u64::from(events) - u64::from(events.div_ceil(449));
        let now = || newest::Words::of(&world.words, world.geometry, 0);
        let before = now();
        assert_eq!(before.begun, words(recorded), "{recorded}");
        world.record(recorded..recorded + MORE);
        let since = now().since(before);
        let expected = newest::Words {
            begun: words(recorded + MORE) - words(recorded),
            overwritten: 0,
        };
        assert_eq!(since, expected, "{recorded}");
    }
}
