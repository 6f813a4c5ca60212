//! Handlers at every instruction: whatever they record, no event is lost uncounted, none comes
//! twice, and no hole is left.

use std::collections::{BTreeMap, BTreeSet};

use shm_ring::{
    Consumer, Item,
    layout::{GUARD_BYTES, control, slot},
};

use crate::{
    gdb::Registers,
    machine::{Function, Machine, OTHER_STACK, SP, site},
};

/// Calls that fill a chunk.
pub(crate) const CALLS: u64 = 512 - GUARD_BYTES / 8 + 1;

/// The state of the ring before the interrupted event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// Events recorded before. All but the last `undrained` of them have been drained.
    calls: u64,
    pub(crate) undrained: u64,
    /// True if the interrupted event is too late for its view.
    late: bool,
}

/// The events of a handler.
#[derive(Debug, Clone, Copy)]
struct Burst {
    function: Function,
    events: u64,
    /// The distance from the interrupted stack to its own; 0 for the same.
    above: u64,
}

pub(crate) const EARLIER: (Function, u32) = (Function::Tail(9), 0);

pub(crate) fn situations(machine: &Machine) -> Vec<Before> {
    let ring = machine.geometry.chunks() * CALLS;
    let rows = [
        (0, 0, false),
        (10, 3, false),
        (10, 0, true),
        (CALLS - 6, 2, false),
        (CALLS - 3, 2, false),
        (CALLS - 2, 0, true),
        (CALLS - 1, 2, false),
        (CALLS, 2, false),
        // The next chunk is the ring's first; the ring is full, or nearly.
        (ring - 1, 5, false),
        (ring, 0, false),
        (ring, ring, false),
        (ring - 1, ring - 1, false),
        (ring - 3, ring - 3, true),
    ];
    let rows = rows.into_iter();
    rows.map(|(calls, undrained, late)| Before {
        calls,
        undrained,
        late,
    })
    .collect()
}

/// Brings the machine into the state.
pub(crate) fn set_up(machine: &mut Machine, before: Before) -> Consumer {
    let home = machine.home();
    let drained = before.calls - before.undrained;
    loop {
        machine.reset();
        let mut consumer = machine.consumer(home);
        for calls in [drained, before.undrained] {
            machine.drain(&mut consumer);
            if calls > 0 {
                machine.refresh_view();
                machine.burst(EARLIER, calls);
            }
        }
        if before.undrained == 0 {
            machine.drain(&mut consumer);
        }
        // A view that was begun within a chunk, since time has passed, leads past the place, or
        // finds a full ring.
        let views = machine.slot(home, slot::TID) >> 32;
        if views == machine.control(home, control::STARTED) {
            set_view(machine, before);
            return consumer;
        }
    }
}

/// Makes the next event too late for its view, or not.
pub(crate) fn set_view(machine: &mut Machine, before: Before) {
    if before.late {
        machine.set_slot(machine.home(), slot::SINCE, 0);
    } else {
        machine.refresh_view();
    }
}

/// Checks that every event is there once or counted once, that all earlier events are there, and
/// that recording goes on.
fn check(
    machine: &mut Machine,
    consumer: &mut Consumer,
    before: Before,
    attempts: &[(u32, u64)],
    stacks: &BTreeSet<u64>,
) {
    let items = machine.drain(consumer);
    let (mut gaps, mut earlier, mut recorded) = (0, 0, 0);
    let mut missing = BTreeMap::<u32, u64>::new();
    for &(site, count) in attempts {
        *missing.entry(site).or_default() += count;
    }
    for item in items {
        match item {
            Item::Lost(count) => gaps += count,
            Item::Call { site: s, .. } if s == site(EARLIER.0, EARLIER.1) => earlier += 1,
            Item::Call { site, sp, .. } => {
                assert!(stacks.contains(&sp), "{before:?}: {sp:#x}");
                let left = missing.get_mut(&site).filter(|left| **left > 0);
                *left.unwrap_or_else(|| panic!("{before:?}: {site:#x} once too often")) -= 1;
                recorded += 1;
            }
            Item::Waited(_) => {}
            Item::Data(data) => panic!("{before:?}: {data:?}"),
        }
    }
    assert_eq!(earlier, before.undrained, "{before:?}");
    let lost = machine.lost();
    let all: u64 = attempts.iter().map(|(_, count)| count).sum();
    assert_eq!(recorded + lost, all, "{before:?}: {recorded}, {lost} lost");
    assert_eq!(gaps + machine.unreported(consumer), lost, "{before:?}");
    assert_eq!(machine.control(machine.home(), control::BUSY), 0);
    machine.call(Function::Entry, 1, 0);
    let items = machine.drain(consumer);
    let full = lost > 0 && items.is_empty();
    let expected = site(Function::Entry, 1);
    assert!(full || matches!(items.last(), Some(Item::Call { site, .. }) if *site == expected));
}

/// Counts the visits of each instruction. A stop between `ldxr` and `stxr` sends the loop round.
#[derive(Debug, Default)]
pub(crate) struct Visits(BTreeMap<u64, u32>);

// === impl Visits ===

impl Visits {
    /// Makes one step. At an instruction with more than two visits it goes to the end of a loop of
    /// exclusive accesses. Returns the registers there, and true for the first two visits, in which
    /// a handler should come.
    pub(crate) fn step(&mut self, machine: &mut Machine, pc: u64) -> (Registers, bool) {
        match machine.loop_end(pc) {
            Some(end) if self.0.get(&pc).is_some_and(|visits| *visits > 2) => {
                machine.gdb.go_to(end);
            }
            _ => machine.gdb.step(),
        }
        let here = machine.gdb.registers();
        let visits = self.0.entry(here.pc).or_default();
        *visits += 1;
        let new = *visits <= 2;
        (here, new)
    }
}

/// Runs `function` once for each of its instructions, with a handler there.
fn interrupt_each(machine: &mut Machine, before: Before, function: (Function, u32), burst: Burst) {
    let consumer = set_up(machine, before);
    let start = machine.at(function.0, function.1, u64::MAX);
    machine.gdb.set_registers(&start);
    let attempts = [
        (site(function.0, function.1), 1),
        (site(burst.function, 1), burst.events),
    ];
    let mut visits = Visits::default();
    let (mut interrupted, mut pc) = (0, start.pc);
    loop {
        let (here, new) = visits.step(machine, pc);
        pc = here.pc;
        if machine.is_over(&here) {
            break;
        }
        if !new {
            continue;
        }
        interrupted += 1;
        let saved = machine.save();
        let what = (burst.function, 1);
        let sp = machine.handle((&here, burst.above), what, 0, burst.events);
        machine.gdb.go();
        machine.assert_returned(start.clone());
        let stacks = [SP, sp].into();
        check(machine, &mut consumer.clone(), before, &attempts, &stacks);
        machine.restore(&saved);
        if !before.late {
            machine.refresh_view();
        }
        machine.gdb.set_registers(&here);
    }
    assert!(interrupted > 30, "it stepped: {interrupted}");
}

#[test]
fn a_handler_at_any_one_instruction_is_harmless() {
    interrupt_everything(&[
        Burst {
            function: Function::Argument,
            events: 3,
            above: 0,
        },
        Burst {
            function: Function::Exit,
            events: 2,
            above: OTHER_STACK,
        },
    ]);
}

#[test]
fn a_handler_that_moves_the_thread_to_the_chunk_after_the_next_is_harmless() {
    interrupt_everything(&[Burst {
        function: Function::Exit,
        events: CALLS + 2,
        above: 0,
    }]);
}

fn interrupt_everything(bursts: &[Burst]) {
    let mut machine = Machine::new();
    for before in situations(&machine) {
        for function in [(Function::Exit, 0), (Function::Argument, 4)] {
            for &burst in bursts {
                interrupt_each(&mut machine, before, function, burst);
            }
        }
    }
}

#[test]
fn handlers_at_every_instruction_at_once_are_harmless() {
    let mut machine = Machine::new();
    for before in situations(&machine) {
        for function in [(Function::Exit, 0), (Function::Argument, 4)] {
            let mut consumer = set_up(&mut machine, before);
            let start = machine.at(function.0, function.1, u64::MAX);
            machine.gdb.set_registers(&start);
            let mut visits = Visits::default();
            let (mut handled, mut pc) = (0, start.pc);
            let mut stacks = BTreeSet::from([SP]);
            loop {
                let (here, new) = visits.step(&mut machine, pc);
                pc = here.pc;
                if machine.is_over(&here) {
                    break;
                }
                if new {
                    let above = OTHER_STACK * (handled % 2);
                    let what = (Function::Argument, 1);
                    stacks.insert(machine.handle((&here, above), what, handled, 1));
                    handled += 1;
                }
            }
            machine.assert_returned(start);
            let attempts = [
                (site(function.0, function.1), 1),
                (site(Function::Argument, 1), handled),
            ];
            check(&mut machine, &mut consumer, before, &attempts, &stacks);
        }
    }
}
