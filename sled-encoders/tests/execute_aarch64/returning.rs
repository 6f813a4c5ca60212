//! A context that a handler has switched away from in the middle of the slow path. It comes back
//! after the collector has freed the ring, and after other contexts have gone on in it.

use std::collections::BTreeMap;

use shm_ring::{
    Consumer, Item,
    layout::{control, slot},
};

use crate::{
    machine::{Function, Machine, OTHER_STACK, site},
    nested::{Before, CALLS, EARLIER, Visits, set_up, set_view, situations},
};

/// Events between two looks of the collector.
const PIECE: u64 = 4 * CALLS;
/// Pieces of events behind the return, together more than a ring.
const PIECES: u64 = 5;

/// The events read, by site, and losses.
#[derive(Debug)]
struct Reader {
    consumer: Consumer,
    events: BTreeMap<u32, u64>,
    lost: u64,
}

// === impl Reader ===

impl Reader {
    fn drain(&mut self, machine: &Machine) {
        for item in machine.drain_past_holes(&mut self.consumer) {
            match item {
                Item::Call { site, .. } => *self.events.entry(site).or_default() += 1,
                Item::Lost(count) => self.lost += count,
                item => panic!("{item:?}"),
            }
        }
    }
}

/// Runs `function` once for each of its instructions in the slow path, and makes `events` events
/// before it goes on.
fn return_at_each(machine: &mut Machine, before: Before, function: (Function, u32), events: u64) {
    let consumer = set_up(machine, before);
    let start = machine.at(function.0, function.1, u64::MAX);
    machine.gdb.set_registers(&start);
    let mut visits = Visits::default();
    let (mut returned, mut pc) = (0, start.pc);
    loop {
        let (here, new) = visits.step(machine, pc);
        pc = here.pc;
        if machine.is_over(&here) {
            break;
        }
        if !new || !machine.is_parked() {
            continue;
        }
        returned += 1;
        let saved = machine.save();
        let mut reader = Reader {
            consumer: consumer.clone(),
            events: BTreeMap::new(),
            lost: 0,
        };
        machine.handle((&here, 0), (Function::Exit, 1), 0, 2);
        // As the collector does.
        machine.set_control(machine.home(), control::BUSY, 0);
        for piece in (0..events).step_by(usize::try_from(PIECE).unwrap()) {
            let count = PIECE.min(events - piece);
            machine.handle((&here, 0), (Function::Exit, 2), 0, count);
            reader.drain(machine);
        }
        machine.gdb.go();
        machine.assert_returned(start.clone());
        for _ in 0..PIECES {
            reader.drain(machine);
            machine.burst((Function::Exit, 3), PIECE);
        }
        reader.drain(machine);
        reader.lost += machine.unreported(&reader.consumer);
        let earlier = reader.events.remove(&site(EARLIER.0, EARLIER.1));
        assert_eq!(earlier.unwrap_or(0), before.undrained);
        let recorded: u64 = reader.events.values().sum();
        let reported = format!("{before:?} {function:?} at {pc:#x}: {reader:?}");
        assert_eq!(
            recorded + reader.lost,
            1 + 2 + events + PIECES * PIECE,
            "{reported}"
        );
        assert!(reader.lost < 10, "{reported}");
        assert_eq!(
            reader.events.get(&site(Function::Exit, 1)),
            None,
            "{reported}"
        );
        assert_eq!(
            machine.control(machine.home(), control::BUSY),
            0,
            "{reported}"
        );
        machine.restore(&saved);
        set_view(machine, before);
        machine.gdb.set_registers(&here);
    }
    assert!(returned > 30, "it stepped: {returned}");
}

/// `since` and `base` of the home slot.
fn view(machine: &Machine) -> (u64, u64) {
    let field = |field| machine.slot(machine.home(), field);
    (field(slot::SINCE), field(slot::BASE))
}

/// Runs `function` once for each of its instructions in the slow path. Begins a view on another
/// stack there, and lets the function go on. Fails if the function replaces that view after any
/// instruction. `base` is the base of the view before, if it matters. Returns the other view's
/// base.
fn return_over_another_view(
    machine: &mut Machine,
    before: Before,
    function: (Function, u32),
    base: Option<u64>,
) -> u64 {
    set_up(machine, before);
    let home = machine.home();
    if let Some(base) = base {
        machine.set_slot(home, slot::BASE, base);
    }
    let start = machine.at(function.0, function.1, u64::MAX);
    machine.gdb.set_registers(&start);
    let mut visits = Visits::default();
    let (mut bases, mut pc) = (Vec::new(), start.pc);
    loop {
        let (here, new) = visits.step(machine, pc);
        pc = here.pc;
        if machine.is_over(&here) {
            break;
        }
        if !new || !machine.is_parked() {
            continue;
        }
        let saved = machine.save();
        machine.handle((&here, OTHER_STACK), (Function::Exit, 1), 0, 1);
        // As the collector does.
        machine.set_control(home, control::BUSY, 0);
        machine.handle((&here, OTHER_STACK), (Function::Exit, 2), 0, 1);
        let theirs = view(machine);
        let mut now = here.clone();
        while !machine.is_over(&now) {
            // An exclusive store in single steps fails, and would never come late.
            match machine.loop_end(now.pc) {
                Some(end) => machine.gdb.go_to(end),
                None => machine.gdb.step(),
            }
            now = machine.gdb.registers();
            let (since, base) = view(machine);
            // The hot path takes no view with a 0 in it.
            assert!(
                since == 0 || base == 0 || (since, base) == theirs,
                "{before:?} {function:?} left at {pc:#x}: ({since:#x}, {base:#x}) over {theirs:x?} before {:#x}",
                now.pc
            );
        }
        machine.assert_returned(start.clone());
        bases.push(theirs.1);
        machine.restore(&saved);
        machine.gdb.set_registers(&here);
    }
    assert!(bases.len() > 30, "it stepped: {}", bases.len());
    assert!(bases.iter().all(|base| *base == bases[0]), "{bases:x?}");
    bases[0]
}

/// Handlers that interrupt a context after it has come back record events relative to the view that
/// the ring's words begin.
#[test]
fn a_context_that_comes_back_leaves_the_view_of_another() {
    let mut machine = Machine::new();
    let rows = situations(&machine);
    // A new slot; a late event.
    for before in [0, 2].map(|row| rows[row]) {
        for function in [(Function::Exit, 0), (Function::Argument, 4)] {
            let base = return_over_another_view(&mut machine, before, function, None);
            // The other context restores the base that the first one has read.
            return_over_another_view(&mut machine, before, function, Some(base));
        }
    }
}

#[test]
fn a_context_that_comes_back_to_the_slow_path_of_an_exit_is_harmless() {
    come_back_to_the_slow_path((Function::Exit, 0));
}

#[test]
fn a_context_that_comes_back_to_the_slow_path_of_an_argument_is_harmless() {
    come_back_to_the_slow_path((Function::Argument, 4));
}

/// Every event is recorded once or counted once, at whatever instruction the context was.
fn come_back_to_the_slow_path(function: (Function, u32)) {
    let mut machine = Machine::new();
    let rows = situations(&machine);
    // In the others the hot path has room, or the ring has none.
    let slow = [0, 2, 5, 7, 9].map(|row| rows[row]);
    for before in slow {
        for events in [0, 5, 5 * PIECE + 7] {
            return_at_each(&mut machine, before, function, events);
        }
    }
}
