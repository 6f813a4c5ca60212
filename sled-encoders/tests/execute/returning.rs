//! A context that a handler has switched away from in the middle of the slow path. It comes back
//! after the collector has freed the ring, and after other contexts have gone on in it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use shm_ring::{
    Consumer, Item,
    layout::{control, slot},
};

use crate::{
    function::Function,
    machine::Machine,
    nested::{Prepared, places, situations},
    step::{Go, HandlerStack, Place, Stepper},
};

/// A few more events of [`OTHERS`], of six words each, than fill a ring.
const MORE_THAN_A_RING: u64 = 1300;
/// The events of other contexts, with a number each.
const OTHERS: Function = Function::Custom;

/// Recorded events by function, and lost ones.
#[derive(Debug, Default)]
struct Read {
    /// By site and argument.
    recorded: BTreeMap<(u32, u64), u64>,
    lost: u64,
}

// === impl Read ===

impl Read {
    /// Reads all events, and does not wait at holes.
    fn drain(&mut self, machine: &Machine, consumer: &mut Consumer) {
        for item in machine.drain_past_holes(consumer) {
            let (site, argument) = match item {
                Item::Lost(count) => {
                    self.lost += count;
                    continue;
                }
                Item::Call { site, argument, .. } => (site, argument.unwrap_or(0)),
                Item::Data(data) => (data.site, Machine::number_of(&data)),
                Item::Waited(ticks) => panic!("waited {ticks}"),
            };
            *self.recorded.entry((site, argument)).or_default() += 1;
        }
    }
}

/// Makes `events` events of `copy`, and reads along.
fn go_on(machine: &Machine, (consumer, read): &mut (Consumer, Read), copy: u32, events: u64) {
    for number in 0..events {
        machine.call(OTHERS, copy, number);
        if number % 50 == 49 {
            read.drain(machine, consumer);
        }
    }
}

/// Interrupts the function at a place, and makes `events` events before it goes on. Returns true if
/// the place was in the slow path.
fn return_at(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    (function, events, later): (Function, u64, u64),
    place: Place,
) -> bool {
    let home = machine.home();
    let state = RefCell::new((prepared.set_up(machine), Read::default()));
    let was_busy = Cell::new(false);
    stepper.interrupt(machine, (function, 0, u64::MAX), place, &|| {
        let end = machine.ring_address(home) + machine.geometry.ring_bytes();
        let parked = machine.slot(home, slot::HEAD) >= end;
        if !parked || machine.control(home, control::BUSY) == 0 {
            return;
        }
        was_busy.set(true);
        let mut state = state.borrow_mut();
        go_on(machine, &mut state, 1, 3);
        // As the collector does.
        machine.set_control(home, control::BUSY, 0);
        go_on(machine, &mut state, 2, events);
    });
    if !was_busy.get() {
        return false;
    }
    let (mut consumer, mut read) = state.into_inner();
    read.drain(machine, &mut consumer);
    let mut state = (consumer, read);
    go_on(machine, &mut state, 3, later);
    let (mut consumer, mut read) = state;
    read.drain(machine, &mut consumer);
    for item in machine.tell_losses(&mut consumer) {
        if let Item::Lost(count) = item {
            read.lost += count;
        }
    }
    let earlier = machine.site(Function::Tail, 0);
    read.recorded.retain(|(site, _), _| *site != earlier);
    let reported = format!(
        "{function:?} at {place:x?} of {:?}, {events} events",
        prepared.before()
    );
    let twice = read.recorded.iter().find(|(_, count)| **count > 1);
    assert_eq!(twice, None, "{reported}");
    let sites = (1..4).map(|copy| machine.site(OTHERS, copy));
    let sites: Vec<u32> = sites.chain([machine.site(function, 0)]).collect();
    assert!(
        read.recorded.keys().all(|(site, _)| sites.contains(site)),
        "{reported}"
    );
    let made = 1 + 3 + events + later;
    let recorded = read.recorded.len() as u64;
    assert_eq!(
        recorded + read.lost,
        made,
        "{recorded} and {} lost: {reported}",
        read.lost
    );
    assert!(read.lost < 10, "{} lost: {reported}", read.lost);
    assert_eq!(machine.control(home, control::BUSY), 0, "{reported}");
    true
}

/// `since` and `base` of the home slot.
fn view(machine: &Machine) -> (u64, u64) {
    let field = |field| machine.slot(machine.home(), field);
    (field(slot::SINCE), field(slot::BASE))
}

/// True if a context has parked the head of the home slot.
fn is_parked(machine: &Machine) -> bool {
    machine.slot(machine.home(), slot::HEAD) & slot::PARKED != 0
}

/// Interrupts the function at a place, begins a view on the handler's stack, and lets the function
/// go on. Fails if the function replaces that view after any instruction. Returns the view's base,
/// or `None` if the place is not in the slow path.
fn return_over_another_view(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    function: Function,
    place: Place,
) -> Option<u64> {
    let home = machine.home();
    let others = Cell::new(None);
    let wrong = Cell::new(None);
    prepared.set_up(machine);
    stepper.call(machine, (function, 0, u64::MAX), &|step| {
        if step.number < place.number {
            return Go::Step;
        }
        if let Some(theirs) = others.get() {
            let (since, base) = view(machine);
            // The hot path takes no view with a 0 in it.
            if since != 0 && base != 0 && (since, base) != theirs {
                wrong.set(wrong.get().or(Some((step.address, since, base))));
            }
            return Go::Step;
        }
        if !is_parked(machine) {
            return Go::Free;
        }
        machine.call(OTHERS, 1, 0);
        // As the collector does.
        machine.set_control(home, control::BUSY, 0);
        machine.call(OTHERS, 2, 0);
        others.set(Some(view(machine)));
        Go::Step
    });
    let theirs = others.get();
    assert_eq!(
        wrong.get(),
        None,
        "{function:?} at {place:x?} of {:?} over {theirs:x?}",
        prepared.before()
    );
    theirs.map(|(_, base)| base)
}

/// Handlers that interrupt a context after it has come back record events relative to the view that
/// the ring's words begin.
#[test]
fn a_context_that_comes_back_leaves_the_view_of_another() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Other);
    // A new slot; a late event.
    let rows = situations(&machine);
    for before in [0, 2].map(|row| rows[row]) {
        for function in [Function::Exit, Function::Argument, Function::Custom] {
            let prepared = Prepared::new(&machine, before);
            let base = return_at_each(&machine, &stepper, &prepared, function);
            // The other context restores the base that the first one has read.
            let prepared = prepared.with_base(&machine, base);
            return_at_each(&machine, &stepper, &prepared, function);
        }
    }
}

/// Returns over another view at each instruction. The result is the base of that view.
fn return_at_each(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    function: Function,
) -> u64 {
    let places = places(machine, stepper, prepared, function);
    let bases = places
        .iter()
        .filter_map(|place| return_over_another_view(machine, stepper, prepared, function, *place));
    let bases: Vec<u64> = bases.collect();
    assert!(bases.len() >= 60, "{function:?}: {}", bases.len());
    assert!(bases.iter().all(|base| *base == bases[0]), "{bases:x?}");
    bases[0]
}

/// Every event is recorded once or counted once, at whatever instruction the context was.
#[test]
fn a_context_that_comes_back_to_the_slow_path_is_harmless() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    // A new slot; a late event; one that comes too late for its chunk; the ring's first chunk.
    let common = [0, 2, 3, 5];
    let rows = situations(&machine);
    for (function, too_short) in [
        // One word. Nothing is left.
        (Function::Exit, 9),
        // Three words, and more. Two are left.
        (Function::Argument, 11),
        (Function::Custom, 11),
    ] {
        for row in common.into_iter().chain([too_short]) {
            let before = rows[row];
            let prepared = Prepared::new(&machine, before);
            let mut busy = 0;
            for place in places(&machine, &stepper, &prepared, function) {
                let around = MORE_THAN_A_RING + place.number * 7 % 100;
                for (events, later) in [(0, 3), (3, MORE_THAN_A_RING), (around, 100)] {
                    let what = (function, events, later);
                    busy += u64::from(return_at(&machine, &stepper, &prepared, what, place));
                }
            }
            assert!(busy >= 60, "{before:?} {function:?}: {busy}");
        }
    }
}
