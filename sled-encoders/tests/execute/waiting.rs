//! A thread waits for room in a full ring: until there is some, or for as long as the collector
//! allows.

use std::cell::Cell;

use shm_ring::{
    Consumer, Item,
    layout::{control, rings, slot},
};

use crate::{
    forks::{end_child, fork_and_wipe},
    function::Function,
    machine::{Machine, now},
    step::{Go, HandlerStack, Stepper},
};

/// More ticks than any test takes.
const LONG: u64 = 1 << 45;

/// A machine whose home ring is full, with nothing lost so far.
fn full(machine: &Machine) -> Consumer {
    let (chunks, words) = (machine.geometry.chunks(), machine.geometry.ring_bytes() / 8);
    let (consumer, _) = machine.fill(chunks, 0, words);
    assert_eq!(machine.control(machine.home(), control::LOST), 0);
    consumer
}

/// The ticks in the slot that no word reports, and its mark of a vain wait.
fn waits(machine: &Machine) -> (u64, u64) {
    let word = machine.slot(machine.home(), slot::WAITED);
    (word & 0xffff_ffff, word >> 32)
}

/// The last items that were read: losses, ticks of waits, and sites of events of `Exit`.
fn last(machine: &Machine, items: &[Item]) -> (u64, u64, Vec<u32>) {
    let (mut lost, mut waited, mut sites) = (0, 0, Vec::new());
    for item in items {
        match item {
            Item::Lost(count) => lost += count,
            Item::Waited(ticks) => waited += u64::from(*ticks),
            Item::Call { site, .. } if *site == machine.site(Function::Tail, 0) => {}
            Item::Call { site, .. } => sites.push(*site),
            Item::Data(data) => panic!("{data:?}"),
        }
    }
    (lost, waited, sites)
}

#[test]
fn a_vain_wait_is_made_once() {
    const WAIT: u64 = 1_000_000;
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = full(&machine);
    machine.set_rings_word(rings::WAIT, WAIT);
    let begun = now();
    machine.call(Function::Exit, 0, 0);
    assert!(now() - begun >= WAIT, "it waits");
    let (waited, expired) = waits(&machine);
    let released = machine.control(home, control::RELEASED);
    assert!((WAIT..=now() - begun).contains(&waited), "{waited}");
    assert_eq!(expired, released + 1);
    for lost in 2..1000 {
        machine.call(Function::Exit, 0, 0);
        assert_eq!(machine.control(home, control::LOST), lost);
    }
    assert_eq!(waits(&machine), (waited, expired), "it waits no more");
    assert_eq!(machine.control(home, control::BUSY), 0);
    machine.drain(&mut consumer);
    machine.call(Function::Exit, 1, 0);
    let site = machine.site(Function::Exit, 1);
    let items = machine.drain(&mut consumer);
    assert_eq!(last(&machine, &items), (999, waited, vec![site]));
    assert_eq!(waits(&machine), (0, expired));
    // The number of chunks given back has changed, so the thread waits again.
    while machine.control(home, control::LOST) == 999 {
        machine.call(Function::Exit, 0, 0);
    }
    assert!(waits(&machine).0 >= WAIT);
}

/// The word of a wait has 32 bits, and so has the slot.
#[test]
fn a_wait_that_is_too_long_for_its_field_stays_at_the_most() {
    let machine = Machine::new();
    let mut consumer = full(&machine);
    machine.set_rings_word(rings::WAIT, 1000);
    machine.set_slot(machine.home(), slot::WAITED, 0xffff_ffff);
    machine.call(Function::Exit, 0, 0);
    machine.drain(&mut consumer);
    machine.call(Function::Exit, 0, 0);
    let items = machine.drain(&mut consumer);
    assert_eq!(last(&machine, &items).1, 0xffff_ffff);
}

/// The collector gives chunks back at some point of the wait.
#[test]
fn an_event_is_recorded_once_there_is_room() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    for function in [Function::Exit, Function::Argument] {
        for turns in 1..60 {
            let consumer = Cell::new(Some(full(&machine)));
            machine.set_rings_word(rings::WAIT, LONG);
            let read = Cell::new(0);
            let steps = stepper.call(&machine, (function, 0, 7), &|step| {
                if step.number == 200 + turns {
                    let mut reader = consumer.take().unwrap();
                    read.set(machine.drain(&mut reader).len());
                    consumer.set(Some(reader));
                }
                Go::Step
            });
            assert!(steps > 200 + turns, "it waited for {steps} steps");
            assert!(read.get() > 1000);
            let items = machine.drain(&mut consumer.take().unwrap());
            let (lost, waited, sites) = last(&machine, &items);
            assert_eq!((lost, sites), (0, vec![machine.site(function, 0)]));
            assert!(waited > 0);
            assert!(matches!(items[0], Item::Waited(_)), "{items:?}");
        }
    }
}

/// Handlers at every instruction of the wait record as well: they wait as long as there is no room,
/// and the interrupted event goes on after them.
#[test]
fn a_handler_at_any_instruction_of_a_wait_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let home = machine.home();
    for reads in [false, true] {
        for at in 0..320 {
            let consumer = Cell::new(Some(full(&machine)));
            machine.set_rings_word(rings::WAIT, if reads { LONG } else { 1000 });
            let drain = || {
                let mut reader = consumer.take().unwrap();
                machine.drain(&mut reader);
                consumer.set(Some(reader));
            };
            let handled = Cell::new(0);
            stepper.call(&machine, (Function::Exit, 0, 0), &|step| {
                if step.depth == 1 && step.number >= at && handled.get() == 0 {
                    handled.set(3);
                    if reads {
                        drain();
                    }
                    for _ in 0..3 {
                        machine.call(Function::Exit, 1, 0);
                    }
                    return Go::Free;
                }
                Go::Step
            });
            let lost = machine.control(home, control::LOST);
            let mut reader = consumer.take().unwrap();
            let items = machine.drain(&mut reader);
            let (_, _, sites) = last(&machine, &items);
            assert_eq!(sites.len() as u64 + lost, handled.get() + 1, "{at}");
            // Where the interrupted event parks the head, handlers lose theirs.
            assert!(!reads || sites.len() == 4 || lost <= 3, "{at}: {lost}");
            assert_eq!(machine.control(home, control::BUSY), 0, "{at}");
            machine.call(Function::Exit, 2, 0);
            let items = machine.drain(&mut reader);
            let (_, _, sites) = last(&machine, &items);
            assert_eq!(sites, [machine.site(Function::Exit, 2)], "{at}");
            assert_eq!(machine.control(home, control::LOST), lost);
        }
    }
}

/// Handlers of the loop itself lose nothing: no context holds the slow path there.
#[test]
fn the_wait_leaves_the_slow_path_to_handlers() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let consumer = Cell::new(Some(full(&machine)));
    machine.set_rings_word(rings::WAIT, LONG);
    stepper.call(&machine, (Function::Exit, 0, 0), &|step| {
        if step.depth == 1 && step.number == 400 {
            let mut reader = consumer.take().unwrap();
            machine.drain(&mut reader);
            consumer.set(Some(reader));
            for _ in 0..1000 {
                machine.call(Function::Exit, 1, 0);
            }
            return Go::Free;
        }
        Go::Step
    });
    let items = machine.drain(&mut consumer.take().unwrap());
    let (lost, _, sites) = last(&machine, &items);
    assert_eq!((lost, sites.len()), (0, 1001));
    assert_eq!(sites.last(), Some(&machine.site(Function::Exit, 0)));
}

/// The wait ends as soon as recording does, or the collector's time is over.
#[test]
fn a_wait_ends_with_recording() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let home = machine.home();
    let ends: [&dyn Fn(); 3] = [
        &|| machine.set_live(0),
        &|| machine.set_rings_word(rings::DEADLINE, now()),
        &|| machine.set_rings_word(rings::WAIT, 0),
    ];
    for end in ends {
        full(&machine);
        machine.set_live(1);
        machine.set_rings_word(rings::DEADLINE, 0);
        machine.set_rings_word(rings::WAIT, LONG);
        let steps = stepper.call(&machine, (Function::Exit, 0, 0), &|step| {
            if step.number == 400 {
                end();
            }
            Go::Step
        });
        assert!((401..600).contains(&steps), "{steps}");
        assert_eq!(machine.control(home, control::LOST), 1);
        assert_eq!(machine.control(home, control::BUSY), 0);
    }
}

/// A child that is forked in the wait leaves at once. It has its parent's rings, and changes
/// nothing in them.
#[test]
fn a_child_that_is_forked_in_a_wait_leaves() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let home = machine.home();
    for at in 140..260 {
        full(&machine);
        machine.set_rings_word(rings::WAIT, LONG);
        let is_child = Cell::new(false);
        stepper.call(&machine, (Function::Exit, 0, 0), &|step| {
            if step.number == at {
                let before = machine.control(home, control::LOST);
                is_child.set(fork_and_wipe(&machine));
                if !is_child.get() {
                    assert_eq!(machine.control(home, control::LOST), before, "{at}");
                    machine.set_rings_word(rings::WAIT, 0);
                }
            }
            Go::Step
        });
        if is_child.get() {
            end_child();
        }
        assert_eq!(machine.control(home, control::LOST), 1, "{at}");
    }
}
