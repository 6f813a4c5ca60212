//! Rings that keep the newest events: a full one takes back its oldest chunk, whatever handlers do
//! meanwhile.

use std::{cell::Cell, ops::Range};

use shm_ring::{
    Item,
    layout::{GUARD_BYTES, control},
};

use crate::{
    function::Function,
    machine::Machine,
    nested::{Prepared, places},
    step::{HandlerStack, Stepper},
};

/// The arguments in a copy of the ring, which has no gap, and the number of lost events.
fn shown(machine: &Machine) -> (Range<u64>, u64) {
    let (mut numbers, mut lost) = (Vec::new(), 0);
    for item in machine.copied_events() {
        match item {
            Item::Call { argument, .. } => numbers.extend(argument),
            Item::Lost(count) => lost += count,
            item => panic!("{item:?}"),
        }
    }
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
fn the_newest_events_are_kept() {
    let machine = Machine::new();
    machine.keep_newest();
    let g = machine.geometry;
    let in_chunk = (g.chunk_bytes() - GUARD_BYTES) / 24;
    let mut recorded = 0;
    for more in [1, 100, 2000, 3000, 20_000] {
        for number in recorded..recorded + more {
            machine.call(Function::Argument, 0, number);
        }
        recorded += more;
        let (numbers, lost) = shown(&machine);
        assert_eq!((numbers.end, lost), (recorded, 0));
        let held = numbers.end - numbers.start;
        assert!(held >= recorded.min((g.chunks() - 2) * in_chunk), "{held}");
    }
    let line = |field| machine.control(machine.home(), field);
    let begun = line(control::STARTED) - line(control::RELEASED);
    assert_eq!((begun, line(control::LOST)), (g.chunks() - 1, 0));
}

/// Rings that were full when the mode began are taken back as well.
#[test]
fn a_full_ring_goes_on() {
    let machine = Machine::new();
    let home = machine.home();
    while machine.control(home, control::LOST) == 0 {
        machine.call(Function::Argument, 0, 0);
    }
    machine.keep_newest();
    for number in 0..1000 {
        machine.call(Function::Argument, 1, number);
    }
    // The first of these calls finds no room yet, and makes it.
    assert_eq!(machine.control(home, control::LOST), 2);
    let site = machine.site(Function::Argument, 1);
    let calls = machine.copied_events();
    let calls = calls.iter().filter_map(|item| match item {
        Item::Call {
            site: s, argument, ..
        } if *s == site => *argument,
        _ => None,
    });
    assert!(calls.eq(1..1000));
}

/// Events that handlers record while the oldest chunk is taken back are there or counted, and the
/// ring goes on.
#[test]
fn a_handler_at_any_instruction_of_it_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let prepared = Prepared::before_the_last_chunk(&machine);
    let home = machine.home();
    machine.keep_newest();
    let chunk = machine.geometry.chunk_bytes() / 8;
    let places = places(&machine, &stepper, &prepared, Function::Exit);
    let taken = Cell::new(0);
    for events in [1, 3, chunk, 3 * chunk] {
        for &place in &places {
            prepared.set_up(&machine);
            let (handled, while_taken) = (Cell::new(0), Cell::new(false));
            stepper.interrupt(&machine, (Function::Exit, 0, 0), place, &|| {
                let taking = machine.control(home, control::RELEASED) >> 63 == 1;
                taken.set(taken.get() + usize::from(taking));
                while_taken.set(taking);
                for _ in 0..events {
                    machine.call(Function::Exit, 1, 0);
                }
                handled.set(events);
            });
            let lost = machine.control(home, control::LOST);
            let items = machine.copied_events();
            let calls = |copy| {
                let site = machine.site(Function::Exit, copy);
                let its = |item: &&Item| matches!(item, Item::Call { site: s, .. } if *s == site);
                items.iter().filter(its).count() as u64
            };
            assert_eq!(calls(0) + calls(1) + lost, handled.get() + 1, "{place:x?}");
            // The chunk under way belongs to handlers meanwhile.
            assert!(lost == 0 || !while_taken.get() || events >= chunk, "{lost}");
            let line = |field| machine.control(home, field);
            assert_eq!((line(control::BUSY), line(control::RELEASED) >> 63), (0, 0));
            // Recording goes on.
            for _ in 0..2 * chunk {
                machine.call(Function::Exit, 2, 0);
            }
            assert!(line(control::LOST) <= lost + 1);
        }
    }
    assert!(taken.get() > 50, "{taken:?}");
}
