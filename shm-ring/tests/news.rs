//! A collector that rests compares the words of the header with what they were before its last look
//! at the ring. They differ whenever there is something that the look did not see.
#![cfg(not(any(loom, miri)))]

mod support;

use shm_ring::{
    Consumer, Content, Event, Geometry, Producer, Recording, SharedMemory, Table, Target, layout,
    layout::{control, rings},
};
use support::Words;

/// Events of a thread that are this far apart are all recorded in the slow path.
const FAR: u64 = shm_ring::view::TICKS + 1;

/// A thread, and the collector that looks at its ring.
struct World {
    geometry: Geometry,
    table: Table,
    words: Words,
    consumer: Consumer,
    /// What the collector saw last: the word of the header before its look, and the losses.
    seen: (u64, u64),
    now: u64,
}

// === impl World ===

impl World {
    /// A thread that has recorded these many events, and a collector that has read them.
    fn after(events: u64) -> Self {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).expect("a valid size");
        let words = Words::new(geometry);
        let mut world = Self {
            geometry,
            table: Table::new(geometry),
            consumer: Consumer::resume(&words, geometry, 0),
            words,
            seen: (0, 0),
            now: FAR,
        };
        for _ in 0..events {
            let mut thread = world.context(1 << 40);
            while !thread.is_done() {
                world.step(&mut thread);
            }
            world.now += FAR;
        }
        world.look();
        world
    }

    /// A context of the thread, with its own place on the stack.
    fn context(&self, sp: u64) -> Recording {
        let event = Event {
            site: 1,
            sp,
            content: Content::Nothing,
        };
        Recording::new(self.geometry.slots(), event)
    }

    fn step(&self, context: &mut Recording) {
        let target = Target {
            table: &self.table,
            rings: &self.words,
            geometry: self.geometry,
        };
        context.step(&target, self.now);
    }

    fn losses(&self) -> u64 {
        let line = self.geometry.control_offset(0);
        self.words.load(line + control::LOST)
    }

    fn look(&mut self) {
        self.seen = (self.words.load(rings::ACTIVITY), self.losses());
        self.read();
    }

    /// Reads what there is, and returns the number of words.
    fn read(&mut self) -> u64 {
        let drained = self
            .consumer
            .drain(&self.words, Producer::Alive, 0, u64::MAX, |_| {});
        drained.words
    }

    /// Checks that the word has changed if there is something that the last look did not see.
    fn check(&mut self, what: &str) {
        let is_same = self.words.load(rings::ACTIVITY) == self.seen.0;
        let news = self.read() + (self.losses() - self.seen.1);
        assert!(!is_same || news == 0, "{what}: {news} words or losses");
    }
}

/// The collector looks between any two steps of a thread.
#[test]
fn an_event_that_a_look_did_not_see_changes_the_word() {
    for before in [0, 1, 5] {
        for looks_after in 0_u32.. {
            let mut world = World::after(before);
            let mut thread = world.context(1 << 40);
            let mut steps = 0;
            while !thread.is_done() {
                if steps == looks_after {
                    world.look();
                }
                world.step(&mut thread);
                steps += 1;
            }
            world.check(&format!("a look after {looks_after} of {steps} steps"));
            if looks_after > steps {
                break;
            }
        }
    }
}

/// A signal handler comes between any two steps of the thread, and the collector looks between any
/// two steps of both.
#[test]
fn an_event_of_a_handler_that_a_look_did_not_see_changes_the_word() {
    let world = World::after(1);
    let mut thread = world.context(1 << 40);
    let mut steps = 0;
    while !thread.is_done() {
        world.step(&mut thread);
        steps += 1;
    }
    // The last step follows on the store of the word. An event after it is silent for the time of a
    // view.
    for interrupted_after in 0..steps - 1 {
        for looks_after in 0..3 * steps {
            let mut world = World::after(1);
            let mut thread = world.context(1 << 40);
            let mut handler = world.context((1 << 40) - 512);
            let mut handler_ends = false;
            for step in 0_u32.. {
                if step == looks_after {
                    world.look();
                }
                // Nobody records for the time of a view in between.
                if step == interrupted_after || handler_ends {
                    world.now += FAR;
                }
                handler_ends = false;
                if step >= interrupted_after && !handler.is_done() {
                    world.step(&mut handler);
                    handler_ends = handler.is_done();
                } else if !thread.is_done() {
                    world.step(&mut thread);
                } else {
                    break;
                }
            }
            world.check(&format!(
                "a handler after {interrupted_after} steps, a look after {looks_after}"
            ));
        }
    }
}

/// A thread that fills its ring counts its losses.
#[test]
fn a_loss_that_a_look_did_not_see_changes_the_word() {
    let chunk = |words: &Words| words.load(rings::CHUNK);
    let mut world = World::after(0);
    let (mut chunks, mut begun) = (0, chunk(&world.words));
    while world.losses() == 0 {
        let mut thread = world.context(1 << 40);
        while !thread.is_done() {
            world.step(&mut thread);
        }
        // Only some of the events take the slow path.
        world.now += FAR / 3;
        let now = chunk(&world.words);
        chunks += u64::from(now != begun);
        begun = now;
    }
    assert_eq!(chunks, world.geometry.chunks(), "each chunk is told");
    assert_eq!(world.words.load(rings::ACTIVITY), 1, "so is the first loss");
    world.seen = (world.words.load(rings::ACTIVITY), world.losses());
    world.now += FAR;
    let mut thread = world.context(1 << 40);
    while !thread.is_done() {
        world.step(&mut thread);
    }
    assert_ne!(world.words.load(rings::ACTIVITY), world.seen.0);
    assert_eq!(
        world.words.load(rings::CLAIM),
        u64::from(world.geometry.slots())
    );
    let words = [rings::ACTIVITY, rings::CHUNK, rings::CLAIM, rings::NO_SLOT];
    assert!(words.iter().all(|word| *word < layout::LINE_BYTES));
}
