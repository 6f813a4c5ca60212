//! Signal handlers at every instruction: whatever they record, no event is lost uncounted, none comes twice, and no
//! hole is left.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use shm_ring::{
    Consumer, Item,
    layout::{GUARD_BYTES, control},
};

use crate::{
    machine::{Function, Machine, Saved, steady_high},
    step::{Go, Stepper, step_into},
};

/// Calls that fill a chunk.
const CALLS: u64 = 512 - GUARD_BYTES / 8 + 1;

/// What the ring is like before the interrupted event.
#[derive(Debug, Clone, Copy)]
struct Before {
    /// Events recorded before, of which all but the last `undrained` have been drained.
    calls: u64,
    undrained: u64,
    /// The counter's high half seems to be new.
    new_high: bool,
}

/// The interrupted event is of copy 0, those of handlers of copies 1 and 2; arguments number them all.
const FUNCTIONS: [Function; 7] = [
    Function::Entry,
    Function::Argument,
    Function::Arguments(6),
    Function::Custom,
    Function::Exit,
    Function::Result,
    Function::Conditional(4),
];

/// The machine in that state, as often as wanted.
struct Prepared {
    before: Before,
    saved: Saved,
    consumer: Consumer,
    high: u32,
}

// === impl Prepared ===

impl Prepared {
    fn new(machine: &Machine, before: Before) -> Self {
        let high = steady_high();
        machine.reset();
        let home = machine.home();
        let mut consumer = machine.consumer(home);
        for call in 0..before.calls {
            if call == before.calls - before.undrained {
                machine.drain(&mut consumer);
            }
            machine.call(Function::Tail, 0, 0);
        }
        if before.undrained == 0 {
            machine.drain(&mut consumer);
        }
        if before.new_high {
            machine.set_slot_high(home, high.wrapping_sub(1));
        }
        Self {
            before,
            saved: machine.save(),
            consumer,
            high,
        }
    }

    /// Puts the machine into the state.
    fn set_up(&mut self, machine: &Machine) -> Consumer {
        if steady_high() != self.high {
            *self = Self::new(machine, self.before);
        }
        machine.restore(&self.saved);
        self.consumer.clone()
    }
}

/// Every event is there once or counted once; what came first stands first.
fn check(machine: &Machine, consumer: &mut Consumer, before: Before, attempts: &[(u32, u64)]) {
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
            Item::Call { site, .. } if site == machine.site(Function::Tail, 0) => earlier += 1,
            item => {
                let (site, argument) = match item {
                    Item::Call { site, argument, .. } => (site, argument),
                    Item::Data(data) => (data.site, Some(Machine::number_of(&data))),
                    Item::Lost(_) => unreachable!("taken above"),
                };
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
    assert_eq!(earlier, before.undrained, "{before:?}");
    let lost = machine.control(home, control::LOST);
    assert_eq!(
        recorded + lost,
        attempts.len() as u64,
        "{before:?}: {recorded} and {lost} lost"
    );
    assert_eq!(gaps + machine.untold(consumer), lost, "{before:?}");
    assert_eq!(machine.control(home, control::BUSY), 0);
    // And it goes on.
    machine.call(Function::Tail, 1, 0);
    let items = machine.drain(consumer);
    let full = lost > 0 && items.is_empty();
    let site = machine.site(Function::Tail, 1);
    assert!(full || matches!(items.last(), Some(Item::Call { site: s, .. }) if *s == site));
}

fn situations(machine: &Machine) -> Vec<Before> {
    let ring = machine.geometry.chunks() * CALLS;
    let mut situations = vec![
        Before {
            calls: 0,
            undrained: 0,
            new_high: false,
        },
        Before {
            calls: 10,
            undrained: 3,
            new_high: false,
        },
        Before {
            calls: 10,
            undrained: 0,
            new_high: true,
        },
        Before {
            calls: CALLS - 2,
            undrained: 0,
            new_high: true,
        },
        // The next chunk is the ring's first.
        Before {
            calls: ring - 1,
            undrained: 5,
            new_high: false,
        },
        Before {
            calls: ring,
            undrained: 0,
            new_high: false,
        },
        // Full, or nearly.
        Before {
            calls: ring,
            undrained: ring,
            new_high: false,
        },
        Before {
            calls: ring - 1,
            undrained: ring - 1,
            new_high: false,
        },
        Before {
            calls: ring - 3,
            undrained: ring - 3,
            new_high: true,
        },
    ];
    for left in 0..7 {
        situations.push(Before {
            calls: CALLS - left,
            undrained: 2,
            new_high: false,
        });
    }
    situations
}

/// What a handler does.
#[derive(Debug, Clone, Copy)]
struct Burst {
    function: Function,
    events: u64,
}

#[test]
fn a_handler_at_any_one_instruction_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new();
    let bursts = [
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
        // It moves the thread to the chunk after the next.
        Burst {
            function: Function::Exit,
            events: CALLS + 2,
        },
    ];
    for before in situations(&machine) {
        let mut prepared = Prepared::new(&machine, before);
        for function in FUNCTIONS {
            for burst in bursts {
                interrupt_each(&machine, &stepper, &mut prepared, function, burst);
            }
        }
    }
}

#[test]
fn a_handler_that_fills_the_ring_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new();
    let events = machine.geometry.chunks() * CALLS + 10;
    let before = Before {
        calls: CALLS,
        undrained: 2,
        new_high: false,
    };
    let mut prepared = Prepared::new(&machine, before);
    for function in FUNCTIONS {
        let burst = Burst {
            function: Function::Exit,
            events,
        };
        interrupt_each(&machine, &stepper, &mut prepared, function, burst);
    }
}

/// Runs `function` once for each of its instructions, with a handler there. Of loops, only the first two rounds count.
fn interrupt_each(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &mut Prepared,
    function: Function,
    burst: Burst,
) {
    let places = RefCell::new(Vec::<(u64, u64)>::new());
    prepared.set_up(machine);
    stepper.call(machine, (function, 0, u64::MAX), &|step| {
        let mut places = places.borrow_mut();
        if places
            .iter()
            .filter(|&&(_, address)| address == step.address)
            .count()
            < 2
        {
            places.push((step.number, step.address));
        }
        Go::Step
    });
    let mut attempts = vec![(machine.site(function, 0), u64::MAX)];
    attempts.extend((0..burst.events).map(|i| (machine.site(burst.function, 1), i)));
    let places = places.into_inner();
    assert!(places.len() > 15, "it stepped: {places:x?}");
    for (at, _) in places {
        let mut consumer = prepared.set_up(machine);
        stepper.call(machine, (function, 0, u64::MAX), &|step| {
            if step.number < at {
                return Go::Step;
            }
            for i in 0..burst.events {
                machine.call(burst.function, 1, i);
            }
            Go::Free
        });
        check(machine, &mut consumer, prepared.before, &attempts);
    }
}

#[test]
fn handlers_at_every_instruction_at_once_are_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new();
    for before in situations(&machine) {
        let mut prepared = Prepared::new(&machine, before);
        for function in FUNCTIONS {
            for inner in [Function::Entry, Function::Argument, Function::Custom] {
                let mut consumer = prepared.set_up(&machine);
                let steps = stepper.call(&machine, (function, 0, u64::MAX), &|step| {
                    machine.call(inner, 1, step.number);
                    Go::Step
                });
                let mut attempts = vec![(machine.site(function, 0), u64::MAX)];
                attempts.extend((0..steps).map(|i| (machine.site(inner, 1), i)));
                check(&machine, &mut consumer, before, &attempts);
            }
        }
    }
}

#[test]
fn handlers_of_handlers_at_every_instruction_are_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new();
    for before in situations(&machine) {
        let mut prepared = Prepared::new(&machine, before);
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
            check(&machine, &mut consumer, before, &attempts.into_inner());
        }
    }
}
