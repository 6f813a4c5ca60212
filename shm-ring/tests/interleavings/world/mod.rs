//! The world of one schedule: a thread, its handlers and the consumer. `memory.rs` has the accesses
//! between which they take turns, and `check.rs` what must hold at the end. `choices.rs` chooses
//! the schedule.

use std::cell::{Cell, RefCell};

use shm_ring::{
    Consumer, Content, Drained, Event, Geometry, Item, Outcome, Producer, Recording, SharedMemory,
    Table, Target,
    layout::{control, rings},
    newest::{self, RingCopy},
    view::{SINCE_STEP, TICKS},
};

use self::memory::{Consumers, Producers};
use crate::choices::Choices;

mod check;
mod memory;

/// The place on the stack of the events before.
const SP: u64 = 0x7ffd_0000_8008;
/// The counter at the first event: nothing is relative to 0.
const BEGIN: u64 = 1 << 40;
/// Ticks of an absence. They begin another view, and the previous one still lasts.
const AWAY: u64 = 4 * SINCE_STEP;
/// A thread whose home is slot 0.
const TID: u32 = 4096;

/// The state in which a schedule begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Events that were recorded. All but the last `undrained` of them were drained.
    pub(crate) calls: u64,
    pub(crate) undrained: u64,
    /// Steps until the view of the events before ends.
    pub(crate) to_new_view: u64,
    /// True if handlers run on a stack of their own, and their own handlers on the first one.
    pub(crate) far: bool,
    /// The content of the first event. The others go on from there.
    pub(crate) first: Carried,
    /// True if the ring keeps the newest events, and is read through copies.
    pub(crate) newest: bool,
    /// Events of another stack in each absence.
    pub(crate) while_away: u64,
    /// True if the collector has not moved the deadline.
    pub(crate) deadline_over: bool,
    /// True if the thread has paused its slot, and recording is open again.
    pub(crate) paused: bool,
    /// Steps for which the thread waits for room in a full ring.
    pub(crate) wait: u64,
    /// True if the collector also frees the memory of unused chunks whenever it reads.
    pub(crate) frees: bool,
}

impl Start {
    /// Nothing was recorded. The view lasts.
    pub(crate) const PLAIN: Self = Self {
        calls: 0,
        undrained: 0,
        to_new_view: 1 << 18,
        far: false,
        first: Carried::Argument,
        newest: false,
        while_away: 0,
        deadline_over: false,
        paused: false,
        wait: 0,
        frees: false,
    };
}

/// The content of an event beside place and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    Argument,
    Nothing,
    Payload,
}

/// The bounds of a schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Events recorded by signal handlers.
    pub(crate) handlers: u32,
    /// Times that the thread gives way to the consumer, or a draining consumer to the thread.
    pub(crate) switches: u32,
    /// Times that a handler leaves by `longjmp`, over all contexts below it.
    pub(crate) jumps: u32,
    /// Times that a handler in the slow path switches to another stack. It comes back after the
    /// collector has freed the ring.
    pub(crate) absences: u32,
}

impl Bounds {
    /// Only steps.
    pub(crate) const NONE: Self = Self {
        handlers: 0,
        switches: 0,
        jumps: 0,
        absences: 0,
    };
}

/// One event that was tried.
#[derive(Debug, Clone)]
struct Attempt {
    begun: u64,
    ended: u64,
    sp: u64,
    content: Content,
    outcome: Outcome,
    waited: u64,
}

struct World<'c> {
    geometry: Geometry,
    choices: &'c Choices,
    /// The rings' memory up to the end of ring 0.
    words: Vec<Cell<u64>>,
    table: Table,
    clock: Cell<u64>,
    first: Carried,
    far: bool,
    newest: bool,
    while_away: u64,
    frees: bool,
    /// The number of times that memory was freed.
    freed: Cell<u64>,
    /// The time of the consumer, in milliseconds.
    now: Cell<u64>,
    left: Cell<Bounds>,
    /// Contexts under way, the innermost last, with the number of their attempt.
    contexts: RefCell<Vec<(Recording, usize)>>,
    attempts: RefCell<Vec<Attempt>>,
    items: RefCell<Vec<Item>>,
}

/// What the schedules of a start came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Explored {
    pub(crate) schedules: u64,
    /// Those in which an event waited for room and was recorded.
    pub(crate) waited: u64,
    /// Those in which the collector freed memory.
    pub(crate) freed: u64,
}

/// Runs every schedule.
pub(crate) fn explore(start: Start, bounds: Bounds) -> Explored {
    let choices = Choices::default();
    let (words, table, consumer) = prepare(start);
    let mut explored = Explored::default();
    loop {
        let world = World {
            geometry: geometry(),
            choices: &choices,
            words: words.clone(),
            table: table.clone(),
            clock: Cell::new(BEGIN + TICKS - start.to_new_view),
            first: start.first,
            far: start.far,
            newest: start.newest,
            while_away: start.while_away,
            frees: start.frees,
            freed: Cell::new(0),
            now: Cell::new(0),
            left: Cell::new(bounds),
            contexts: RefCell::default(),
            attempts: RefCell::default(),
            items: RefCell::default(),
        };
        world.run(start, consumer.clone());
        explored.schedules += 1;
        explored.waited += u64::from(world.has_waited());
        explored.freed += u64::from(world.freed.get() > 0);
        if !choices.next() {
            return explored;
        }
    }
}

fn geometry() -> Geometry {
    // Without profiles, for worlds are made and copied all the time.
    Geometry::new(Geometry::MIN_RING_BYTES, 1)
        .unwrap()
        .without_profiles()
}

/// The state of `start`, made by events without interruption.
fn prepare(start: Start) -> (Vec<Cell<u64>>, Table, Consumer) {
    let geometry = geometry();
    let choices = Choices::default();
    let size = usize::try_from(geometry.ring_offset(1) / 8).unwrap();
    let world = World {
        geometry,
        choices: &choices,
        words: vec![Cell::new(0); size],
        table: Table::new(geometry),
        clock: Cell::new(0),
        first: start.first,
        far: false,
        newest: start.newest,
        while_away: 0,
        frees: false,
        freed: Cell::new(0),
        now: Cell::new(0),
        left: Cell::new(Bounds::NONE),
        contexts: RefCell::default(),
        attempts: RefCell::default(),
        items: RefCell::default(),
    };
    let mut consumer = Consumer::resume(&Consumers(&world), geometry, 0).with_payloads();
    match start.newest {
        true => newest::keep_newest(&Consumers(&world)),
        false => newest::keep_unread(&Consumers(&world)),
    }
    for call in 0..start.calls {
        let drained = start.calls - start.undrained;
        // Now and then before, for more than a ring.
        if call == drained || call < drained && call % 1000 == 999 {
            world.drain(&mut consumer, Producer::Alive);
        }
        let target = Target {
            table: &world.table,
            rings: &Producers(&world),
            geometry,
        };
        target.record(
            TID,
            Event {
                site: 1,
                sp: SP,
                content: Content::Nothing,
            },
            BEGIN,
        );
    }
    if start.undrained == 0 {
        world.drain(&mut consumer, Producer::Alive);
    }
    (world.words, world.table, consumer)
}

// === impl World ===

impl World<'_> {
    fn run(&self, start: Start, mut consumer: Consumer) {
        if start.deadline_over {
            self.words[usize::try_from(rings::DEADLINE / 8).unwrap()].set(BEGIN);
            // A context may look for a slot after another one has withdrawn the slot.
            self.table.close(1);
        }
        self.words[usize::try_from(rings::WAIT / 8).unwrap()].set(start.wait);
        if start.paused {
            self.table.pause(0);
            self.table.close(1);
        }
        self.begin();
        while !self.contexts.borrow().is_empty() {
            match self.go_on() {
                Next::Again => {}
                Next::GiveWay => self.drain(&mut consumer, Producer::Alive),
                Next::Leave => self.stay_away(&mut consumer),
            }
        }
        let jumped =
            self.left.get().jumps == 0 && self.attempts.borrow().iter().any(|a| a.ended == 0);
        let producer = if jumped {
            Producer::Gone
        } else {
            Producer::Alive
        };
        self.left.set(Bounds::NONE);
        self.drain_past_holes(&mut consumer, producer);
        if self.newest {
            self.read_copy();
            // A copy of the ring reports losses where their gap words stand. Losses without a gap
            // word are added here.
            let line = self.geometry.control_offset(0);
            let lost = Consumers(self).load(line + control::LOST);
            let reported = |item: &Item| match item {
                Item::Lost(count) => *count,
                _ => 0,
            };
            let reported: u64 = self.items.borrow().iter().map(reported).sum();
            let unreported = lost.saturating_sub(reported);
            self.items.borrow_mut().push(Item::Lost(unreported));
        } else {
            consumer.tell_losses(&Consumers(self), |item| self.items.borrow_mut().push(item));
        }
        self.check(start);
    }

    /// True if an event waited for room and was recorded.
    fn has_waited(&self) -> bool {
        let attempts = self.attempts.borrow();
        let mut waited = attempts.iter().filter(|attempt| attempt.waited > 0);
        waited.any(|attempt| attempt.outcome == Outcome::Recorded)
    }

    /// Lets a context enter the trampoline, with the next content in turn.
    fn begin(&self) {
        let mut attempts = self.attempts.borrow_mut();
        let number = attempts.len();
        let content = match (number + self.first as usize) % 3 {
            0 => Content::Argument(0xaaaa_bbbb_cccc_0000 + number as u64),
            1 => Content::Nothing,
            // Two words; the second one is not full.
            _ => Content::Payload {
                kind: 7,
                size: 9,
                bytes: vec![u8::try_from(number % 256).unwrap(); 9],
            },
        };
        let site = 2 * u32::try_from(number).unwrap() + 101;
        let far = self.far && number % 2 == 1;
        let sp = SP - 64 * number as u64 - if far { 1 << 40 } else { 0 };
        let outcome = Outcome::UnderWay;
        attempts.push(Attempt {
            begun: self.clock.get(),
            ended: 0,
            sp,
            content: content.clone(),
            outcome,
            waited: 0,
        });
        let recording = Recording::new(TID, Event { site, sp, content });
        self.contexts.borrow_mut().push((recording, number));
    }

    /// Makes one step of the thread, or lets another context run.
    fn go_on(&self) -> Next {
        let Some((mut recording, number)) = self.contexts.borrow_mut().pop() else {
            return Next::GiveWay;
        };
        let mut options = vec![Choice::Step];
        let left = self.left.get();
        if left.absences > 0 && self.can_stay_away(&recording) {
            options.push(Choice::Leave);
        }
        if !recording.is_filling() && !recording.is_putting() {
            if left.handlers > 0 {
                options.push(Choice::Handler);
            }
            if left.switches > 0 {
                options.push(Choice::GiveWay);
            }
            if left.jumps > 0 && !self.contexts.borrow().is_empty() {
                options.push(Choice::Jump);
            }
        }
        let option =
            options[usize::from(self.choices.choose(u8::try_from(options.len()).unwrap()))];
        match option {
            Choice::Step => {
                self.clock.set(self.clock.get() + 1);
                let rings = Producers(self);
                let target = Target {
                    table: &self.table,
                    rings: &rings,
                    geometry: self.geometry,
                };
                recording.step(&target, self.clock.get());
                self.attempts.borrow_mut()[number].waited = recording.waited();
                if recording.is_done() {
                    let attempt = &mut self.attempts.borrow_mut()[number];
                    (attempt.ended, attempt.outcome) = (self.clock.get(), recording.outcome());
                    return Next::Again;
                }
                self.contexts.borrow_mut().push((recording, number));
                Next::Again
            }
            Choice::Handler => {
                self.contexts.borrow_mut().push((recording, number));
                self.left.set(Bounds {
                    handlers: left.handlers - 1,
                    ..left
                });
                self.begin();
                Next::Again
            }
            Choice::GiveWay => {
                self.contexts.borrow_mut().push((recording, number));
                self.left.set(Bounds {
                    switches: left.switches - 1,
                    ..left
                });
                Next::GiveWay
            }
            Choice::Leave => {
                self.contexts.borrow_mut().push((recording, number));
                self.left.set(Bounds {
                    absences: left.absences - 1,
                    ..left
                });
                Next::Leave
            }
            Choice::Jump => {
                self.left.set(Bounds {
                    jumps: left.jumps - 1,
                    ..left
                });
                self.contexts.borrow_mut().clear();
                // The thread goes on with another event, or two.
                for _ in 0..2 {
                    self.begin();
                    while !self.contexts.borrow().is_empty() {
                        self.go_on();
                    }
                }
                Next::Again
            }
        }
    }

    /// True if a context is in the slow path, and no context has a place in the ring that it may
    /// lose.
    fn can_stay_away(&self, recording: &Recording) -> bool {
        let contexts = self.contexts.borrow();
        let mut contexts = contexts.iter().map(|(context, _)| context);
        self.table.is_parked(0)
            && !recording.is_filling()
            && !recording.has_reserved()
            && !contexts.any(Recording::has_reserved)
    }

    /// Keeps the contexts away: the thread goes on with other contexts, and the collector frees the
    /// ring.
    fn stay_away(&self, consumer: &mut Consumer) {
        let away = self.contexts.take();
        let left = self.left.replace(Bounds::NONE);
        let record = || {
            self.begin();
            while !self.contexts.borrow().is_empty() {
                self.go_on();
            }
        };
        for _ in 0..2 {
            record();
        }
        let line = self.geometry.control_offset(0);
        Consumers(self).store(line + control::BUSY, 0);
        // The view of a context that comes back is not the one that others have begun meanwhile.
        self.clock.set(self.clock.get() + AWAY);
        for number in 0..self.while_away {
            record();
            if number % 50 == 0 {
                self.drain_past_holes(consumer, Producer::Alive);
            }
        }
        self.contexts.replace(away);
        self.left.set(left);
    }

    /// Reads a copy of the ring as it is now, in place of the previous items.
    fn read_copy(&self) {
        let most = self.geometry.chunks();
        let copy = RingCopy::take(&Consumers(self), self.geometry, 0, most);
        let mut consumer = copy.consumer().with_payloads();
        self.items.borrow_mut().clear();
        let take = |item| self.items.borrow_mut().push(item);
        let drained = consumer.drain(&copy, Producer::Gone, 0, u64::MAX, take);
        assert!(drained.at_end);
    }

    fn drain(&self, consumer: &mut Consumer, producer: Producer) {
        if self.newest {
            self.read_copy();
            return;
        }
        self.drain_once(consumer, producer);
        if self.frees {
            let view = Consumers(self);
            let free = |offset, bytes| {
                view.fill(offset, bytes, 0);
                self.freed.set(self.freed.get() + 1);
            };
            consumer.free_unused(&view, free);
        }
    }

    fn drain_once(&self, consumer: &mut Consumer, producer: Producer) -> Drained {
        let (view, now) = (Consumers(self), self.now.get());
        let drained = consumer.drain(&view, producer, now, u64::MAX, |item| {
            self.items.borrow_mut().push(item)
        });
        assert!(drained.at_end);
        drained
    }

    /// Drains the ring, past words that stay unwritten for long.
    fn drain_past_holes(&self, consumer: &mut Consumer, producer: Producer) {
        if self.newest {
            self.read_copy();
            return;
        }
        while self.drain_once(consumer, producer).at_hole {
            self.now.set(self.now.get() + Consumer::HOLE_PATIENCE_MS);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Again,
    GiveWay,
    Leave,
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Step,
    Handler,
    GiveWay,
    Jump,
    Leave,
}
