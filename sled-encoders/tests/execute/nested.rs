//! Signal handlers at every instruction: whatever they record, no event is lost uncounted, none
//! comes twice, and no hole is left.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use shm_ring::{
    Consumer, Item,
    layout::{GUARD_BYTES, control, slot},
};

use crate::{
    function::Function,
    machine::{Machine, Saved},
    step::{Go, HandlerStack, Place, Stepper, step_into},
};

/// Words of the smallest chunk.
const CHUNK: u64 = 512;
/// The approximate number of calls that fill a chunk.
const CALLS: u64 = CHUNK - GUARD_BYTES / 8 + 1;

/// The state of the ring before the interrupted event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// Chunks begun, words left in the last one, and words that have not been read.
    chunk: u64,
    left: u64,
    undrained: u64,
    /// True if the interrupted event is too late for its view.
    late: bool,
}

/// The interrupted event is of copy 0, the events of handlers are of copies 1 and 2. Arguments
/// number them all.
const FUNCTIONS: [Function; 7] = [
    Function::Entry,
    Function::Argument,
    Function::Arguments(6),
    Function::Custom,
    Function::Exit,
    Function::Result,
    Function::Conditional(4),
];

/// The machine in such a state, as often as a test needs it.
pub(crate) struct Prepared {
    before: Before,
    saved: Saved,
    consumer: Consumer,
    /// Events that have not been read.
    earlier: u64,
}

// === impl Prepared ===

impl Prepared {
    /// A ring whose last chunk but one is full. The next event begins the last chunk.
    pub(crate) fn before_the_last_chunk(machine: &Machine) -> Self {
        let before = Before {
            chunk: machine.geometry.chunks() - 1,
            left: 0,
            undrained: machine.geometry.chunks() * CHUNK,
            late: false,
        };
        Self::new(machine, before)
    }

    pub(crate) fn new(machine: &Machine, before: Before) -> Self {
        let (consumer, earlier) = machine.fill(before.chunk, before.left, before.undrained);
        Self {
            before,
            saved: machine.save(),
            consumer,
            earlier,
        }
    }

    /// The same ring with this base of the latest view.
    pub(crate) fn with_base(self, machine: &Machine, base: u64) -> Self {
        machine.restore(&self.saved);
        machine.set_slot(machine.home(), slot::BASE, base);
        Self {
            saved: machine.save(),
            ..self
        }
    }

    pub(crate) fn before(&self) -> Before {
        self.before
    }

    /// Puts the machine into the state.
    pub(crate) fn set_up(&self, machine: &Machine) -> Consumer {
        machine.restore(&self.saved);
        if self.before.late {
            machine.set_slot(machine.home(), slot::SINCE, 0);
        } else {
            machine.refresh_view();
        }
        self.consumer.clone()
    }
}

/// Checks that every event is there once or counted once, and that all earlier events are there.
fn check(machine: &Machine, consumer: &mut Consumer, prepared: &Prepared, attempts: &[(u32, u64)]) {
    let before = prepared.before;
    let home = machine.home();
    let items = machine.drain(consumer);
    let (mut gaps, mut earlier, mut recorded) = (0, 0, 0);
    let mut missing = BTreeMap::<u32, u64>::new();
    for &(site, _) in attempts {
        *missing.entry(site).or_default() += 1;
    }
    let mut arguments = BTreeSet::new();
    for item in items {
        match item {
            Item::Lost(count) => gaps += count,
            Item::Waited(_) => {}
            Item::Call { site, .. } if site == machine.site(Function::Tail, 0) => earlier += 1,
            item => {
                let (site, sp, argument) = match item {
                    Item::Call {
                        site, sp, argument, ..
                    } => (site, sp, argument),
                    Item::Data(data) => (data.site, data.sp, Some(Machine::number_of(&data))),
                    Item::Lost(_) | Item::Waited(_) => unreachable!("taken above"),
                };
                assert!(machine.was_called(site, sp), "{before:?}: {sp:#x}");
                let left = missing.get_mut(&site).filter(|left| **left > 0);
                *left.unwrap_or_else(|| panic!("{before:?}: {site:#x} once too often")) -= 1;
                if let Some(argument) = argument {
                    assert!(arguments.insert((site, argument)), "{argument} comes twice");
                }
                recorded += 1;
            }
        }
    }
    assert!(arguments.iter().all(|argument| attempts.contains(argument)));
    assert_eq!(earlier, prepared.earlier, "{before:?}");
    let lost = machine.control(home, control::LOST);
    assert_eq!(
        recorded + lost,
        attempts.len() as u64,
        "{before:?}: {recorded} and {lost} lost"
    );
    assert_eq!(gaps + machine.unreported(consumer), lost, "{before:?}");
    assert_eq!(machine.control(home, control::BUSY), 0);
    // Recording goes on.
    machine.call(Function::Tail, 1, 0);
    let items = machine.drain(consumer);
    let full = lost > 0 && items.is_empty();
    let site = machine.site(Function::Tail, 1);
    assert!(full || matches!(items.last(), Some(Item::Call { site: s, .. }) if *s == site));
}

pub(crate) fn situations(machine: &Machine) -> Vec<Before> {
    let chunks = machine.geometry.chunks();
    let ring = chunks * CHUNK;
    let rows = [
        (0, 0, 0, false),
        (1, 400, 3, false),
        (1, 400, 0, true),
        (1, 2, 0, true),
        // The next chunk is the ring's first.
        (chunks, 1, 5, false),
        (chunks, 0, 0, false),
        // Full, or nearly.
        (chunks, 0, ring, false),
        (chunks, 1, ring, false),
        (chunks, 3, ring, true),
    ];
    let lefts = (0..8).map(|left| (1, left, 2, false));
    let rows = rows.into_iter().chain(lefts);
    rows.map(|(chunk, left, undrained, late)| Before {
        chunk,
        left,
        undrained,
        late,
    })
    .collect()
}

/// The events of a handler.
#[derive(Debug, Clone, Copy)]
struct Burst {
    function: Function,
    events: u64,
}

#[test]
fn a_handler_at_any_one_instruction_is_harmless() {
    interrupt_everything(&[
        Burst {
            function: Function::Exit,
            events: 1,
        },
        Burst {
            function: Function::Argument,
            events: 3,
        },
        Burst {
            function: Function::Custom,
            events: 2,
        },
    ]);
}

#[test]
fn a_handler_that_moves_the_thread_to_the_chunk_after_the_next_is_harmless() {
    interrupt_everything(&[Burst {
        function: Function::Exit,
        events: CALLS + 2,
    }]);
}

fn interrupt_everything(bursts: &[Burst]) {
    let machine = Machine::new();
    // A handler on another stack begins a view of its own.
    let others = [Function::Argument, Function::Custom];
    for (stack, functions) in [
        (HandlerStack::Other, &others[..]),
        (HandlerStack::Same, &FUNCTIONS[..]),
    ] {
        let stepper = Stepper::new(stack);
        for before in situations(&machine) {
            let prepared = Prepared::new(&machine, before);
            for function in functions {
                for burst in bursts {
                    interrupt_each(&machine, &stepper, &prepared, *function, *burst);
                }
            }
        }
    }
}

#[test]
fn a_handler_that_fills_the_ring_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let events = machine.geometry.chunks() * CALLS + 10;
    let before = Before {
        chunk: 1,
        left: 0,
        undrained: 2,
        late: false,
    };
    let prepared = Prepared::new(&machine, before);
    for function in FUNCTIONS {
        let burst = Burst {
            function: Function::Exit,
            events,
        };
        interrupt_each(&machine, &stepper, &prepared, function, burst);
    }
}

/// The steps of `function`; of loops only the first two rounds.
pub(crate) fn places(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    function: Function,
) -> Vec<Place> {
    prepared.set_up(machine);
    stepper.places(machine, (function, 0, u64::MAX), 2)
}

/// Runs `function` once for each of its instructions, with a handler there.
fn interrupt_each(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    function: Function,
    burst: Burst,
) {
    let places = places(machine, stepper, prepared, function);
    let mut reached = 0;
    for &place in &places {
        let mut consumer = prepared.set_up(machine);
        // This time the way may be shorter, since less time has passed.
        let handled = Cell::new(0);
        stepper.interrupt(machine, (function, 0, u64::MAX), place, &|| {
            for i in 0..burst.events {
                machine.call(burst.function, 1, i);
            }
            handled.set(burst.events);
        });
        let mut attempts = vec![(machine.site(function, 0), u64::MAX)];
        attempts.extend((0..handled.get()).map(|i| (machine.site(burst.function, 1), i)));
        check(machine, &mut consumer, prepared, &attempts);
        reached += usize::from(handled.get() > 0);
    }
    assert!(reached > 15, "{reached} of {places:x?}");
}

#[test]
fn handlers_at_every_instruction_at_once_are_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    for before in situations(&machine) {
        let prepared = Prepared::new(&machine, before);
        for function in FUNCTIONS {
            for inner in [Function::Entry, Function::Argument, Function::Custom] {
                let mut consumer = prepared.set_up(&machine);
                let steps = stepper.call(&machine, (function, 0, u64::MAX), &|step| {
                    machine.call(inner, 1, step.number);
                    Go::Step
                });
                let mut attempts = vec![(machine.site(function, 0), u64::MAX)];
                attempts.extend((0..steps).map(|i| (machine.site(inner, 1), i)));
                check(&machine, &mut consumer, &prepared, &attempts);
            }
        }
    }
}

#[test]
fn handlers_of_handlers_at_every_instruction_are_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    for before in situations(&machine) {
        let prepared = Prepared::new(&machine, before);
        for function in [
            Function::Exit,
            Function::Argument,
            Function::Custom,
            Function::Arguments(3),
        ] {
            let attempts = RefCell::new(vec![(machine.site(function, 0), u64::MAX)]);
            let attempt = |function, copy, number| {
                attempts
                    .borrow_mut()
                    .push((machine.site(function, copy), number));
            };
            let mut consumer = prepared.set_up(&machine);
            stepper.call(&machine, (function, 0, u64::MAX), &|step| {
                match step.depth {
                    1 => {
                        attempt(Function::Argument, 1, step.number);
                        step_into(&machine, (Function::Argument, 1, step.number));
                    }
                    2 => {
                        attempt(Function::Exit, 2, step.number);
                        machine.call(Function::Exit, 2, step.number);
                    }
                    _ => {}
                }
                Go::Step
            });
            check(&machine, &mut consumer, &prepared, &attempts.into_inner());
        }
    }
}
