//! The collector frees the memory of unused chunks while the thread goes on: the thread rushes
//! through its ring between any two accesses of the collector, and no event is lost uncounted.
#![cfg(not(any(loom, miri)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::cell::{Cell, RefCell};

use shm_ring::{
    Consumer, Content, Event, Geometry, Item, Outcome, Producer, Recording, SharedMemory, Table,
    Target, layout::control,
};

use crate::support::Words;

const TID: u32 = 4096;
/// Events that fill a chunk.
const CALLS: u64 = 512 - 64 + 1;

fn geometry() -> Geometry {
    let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
    geometry.without_profiles()
}

/// A thread, and the ring that it writes.
struct Thread {
    table: Table,
    words: Words,
    /// Events that the thread has recorded and lost.
    recorded: Cell<u64>,
    lost: Cell<u64>,
    under_way: RefCell<Option<Recording>>,
}

/// The ring as the collector sees it. Before the access `rushes_at`, the thread ends its event
/// under way, and makes `rush` more.
struct Rushing<'a> {
    thread: &'a Thread,
    access: Cell<u64>,
    rushes_at: u64,
    rush: u64,
}

// === impl Thread ===

impl Thread {
    fn new() -> Self {
        Self {
            table: Table::new(geometry()),
            words: Words::new(geometry()),
            recorded: Cell::new(0),
            lost: Cell::new(0),
            under_way: RefCell::new(None),
        }
    }

    /// Makes up to `most` steps of the next event.
    fn begin(&self, most: u64) {
        let target = self.target();
        let mut recording = Recording::new(TID, event());
        for _ in 0..most {
            if !recording.is_done() {
                recording.step(&target, 1 << 40);
            }
        }
        *self.under_way.borrow_mut() = Some(recording);
    }

    /// Ends the event under way, and makes `more` events.
    fn go_on(&self, more: u64) {
        let target = self.target();
        if let Some(mut recording) = self.under_way.take() {
            while !recording.is_done() {
                recording.step(&target, 1 << 40);
            }
            self.count(recording.outcome());
        }
        for _ in 0..more {
            self.count(target.record(TID, event(), 1 << 40));
        }
    }

    fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Recorded => &self.recorded,
            Outcome::Lost => &self.lost,
            other => panic!("{other:?}"),
        };
        counter.set(counter.get() + 1);
    }

    fn target(&self) -> Target<'_, Words> {
        Target {
            table: &self.table,
            rings: &self.words,
            geometry: geometry(),
        }
    }
}

fn event() -> Event {
    Event {
        site: 1,
        sp: 0x7ffd_0000_8008,
        content: Content::Nothing,
    }
}

// === impl Rushing ===

impl Rushing<'_> {
    fn before_access(&self) {
        let access = self.access.replace(self.access.get() + 1);
        if access == self.rushes_at {
            self.thread.go_on(self.rush);
        }
    }
}

impl SharedMemory for Rushing<'_> {
    fn load(&self, offset: u64) -> u64 {
        self.before_access();
        self.thread.words.load(offset)
    }

    fn store(&self, offset: u64, value: u64) {
        self.before_access();
        self.thread.words.store(offset, value);
    }

    fn fill(&self, offset: u64, bytes: u64, word: u64) {
        self.before_access();
        self.thread.words.fill(offset, bytes, word);
    }
}

/// Reads the ring, and counts the calls and the losses in it.
fn read(thread: &Thread, consumer: &mut Consumer, read: &mut (u64, u64)) {
    consumer.drain(
        &thread.words,
        Producer::Alive,
        0,
        u64::MAX,
        |item| match item {
            Item::Call { .. } => read.0 += 1,
            Item::Lost(lost) => read.1 += lost,
            other => panic!("{other:?}"),
        },
    );
}

#[test]
fn a_thread_rushes_while_memory_is_freed() {
    let (mut freed, mut refused) = (0, 0);
    for before in [20 * CALLS, 20 * CALLS - 1, 29 * CALLS + 7] {
        for steps in [0, 5, 12, 20, 30, 40, 60] {
            for rush in [0, 1, CALLS, 3 * CALLS + 100, 4 * CALLS + 1, 40 * CALLS] {
                // The longest way of the collector has fewer accesses.
                for rushes_at in 0..9 {
                    let thread = Thread::new();
                    let mut consumer = Consumer::resume(&thread.words, geometry(), 0);
                    let mut all = (0, 0);
                    for _ in 0..before {
                        thread.go_on(1);
                        if thread.recorded.get().is_multiple_of(1000) {
                            read(&thread, &mut consumer, &mut all);
                        }
                    }
                    read(&thread, &mut consumer, &mut all);
                    assert_eq!(all, (before, 0));
                    thread.begin(steps);
                    let rushing = Rushing {
                        thread: &thread,
                        access: Cell::new(0),
                        rushes_at,
                        rush,
                    };
                    let is_freed = consumer
                        .free_unused(&rushing, |offset, bytes| rushing.fill(offset, bytes, 0));
                    freed += u64::from(is_freed);
                    refused += u64::from(!is_freed);
                    thread.go_on(1);
                    read(&thread, &mut consumer, &mut all);
                    thread.go_on(20 * CALLS);
                    read(&thread, &mut consumer, &mut all);
                    consumer.tell_losses(&thread.words, |item| match item {
                        Item::Lost(lost) => all.1 += lost,
                        other => panic!("{other:?}"),
                    });
                    let made = (thread.recorded.get(), thread.lost.get());
                    assert_eq!(all, made, "{before} {steps} {rush} {rushes_at}");
                }
            }
        }
    }
    assert!(freed > 100 && refused > 100, "{freed}, {refused}");
}

/// A collector that dies while it frees memory leaves a ring in which the next one goes on.
#[test]
fn the_next_collector_goes_on() {
    let thread = Thread::new();
    let mut consumer = Consumer::resume(&thread.words, geometry(), 0);
    let mut all = (0, 0);
    for _ in 0..20 {
        thread.go_on(CALLS);
        read(&thread, &mut consumer, &mut all);
    }
    let released = geometry().control_offset(0) + control::RELEASED;
    let whole = thread.words.load(released);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        consumer.free_unused(&thread.words, |offset, bytes| {
            thread.words.fill(offset, bytes / 2, 0);
            panic!("the collector dies");
        })
    }));
    assert!(died.is_err() && thread.words.load(released) < whole);
    // The thread records on meanwhile, and loses what has no room.
    thread.go_on(10 * CALLS);
    assert!(thread.lost.get() > 0);
    let mut consumer = Consumer::resume(&thread.words, geometry(), 0);
    read(&thread, &mut consumer, &mut all);
    assert_eq!(
        thread.words.load(released),
        consumer.chunks_read(),
        "all chunks are the thread's again"
    );
    thread.go_on(12 * CALLS);
    read(&thread, &mut consumer, &mut all);
    assert_eq!(all, (thread.recorded.get(), thread.lost.get()));
}
