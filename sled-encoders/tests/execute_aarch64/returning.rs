//! A context that a handler has switched away from in the middle of the slow path. It comes back after the collector has
//! freed the ring, and after other contexts have gone on in it.

use std::collections::BTreeMap;

use shm_ring::{Consumer, Item, layout::control};

use crate::{
    machine::{Function, Machine, site},
    nested::{Before, CALLS, EARLIER, Visits, set_up, set_view, situations},
};

/// Events between two looks of the collector.
const PIECE: u64 = 4 * CALLS;
/// Events behind the return, more than a ring.
const PIECES: u64 = 5;

/// What was read: events by site, and losses.
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
                Item::Data(data) => panic!("{data:?}"),
            }
        }
    }
}

/// Runs `function` once for each of its instructions in the slow path, and makes `events` events before it goes on.
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
        // What the collector does.
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
        reader.lost += machine.untold(&reader.consumer);
        let earlier = reader.events.remove(&site(EARLIER.0, EARLIER.1));
        assert_eq!(earlier.unwrap_or(0), before.undrained);
        let recorded: u64 = reader.events.values().sum();
        let told = format!("{before:?} {function:?} at {pc:#x}: {reader:?}");
        assert_eq!(
            recorded + reader.lost,
            1 + 2 + events + PIECES * PIECE,
            "{told}"
        );
        assert!(reader.lost < 10, "{told}");
        assert_eq!(reader.events.get(&site(Function::Exit, 1)), None, "{told}");
        assert_eq!(machine.control(machine.home(), control::BUSY), 0, "{told}");
        machine.restore(&saved);
        set_view(machine, before);
        machine.gdb.set_registers(&here);
    }
    assert!(returned > 30, "it stepped: {returned}");
}

/// Every event is recorded once or counted once, wherever the context was.
#[test]
fn a_context_that_comes_back_to_the_slow_path_is_harmless() {
    let mut machine = Machine::new();
    let rows = situations(&machine);
    // In the others the hot path has room, or the ring has none.
    let slow = [0, 2, 5, 7, 9].map(|row| rows[row]);
    for before in slow {
        for function in [(Function::Exit, 0), (Function::Argument, 4)] {
            for events in [0, 5, 5 * PIECE + 7] {
                return_at_each(&mut machine, before, function, events);
            }
        }
    }
}
