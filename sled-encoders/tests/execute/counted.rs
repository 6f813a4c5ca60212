//! Counting: each call of a thread counts once, and nothing is recorded.

use std::collections::BTreeMap;

use shm_ring::layout::slot;
use sled_encoders::x86_64::DispatchMode;

use crate::{
    function::Function,
    machine::{COPIES, Machine},
    step::{Go, HandlerStack, Stepper},
};

const ENTRIES: [Function; 4] = [
    Function::Entry,
    Function::Argument,
    Function::Arguments(1),
    Function::Arguments(6),
];
const OTHERS: [Function; 5] = [
    Function::Exit,
    Function::Result,
    Function::Tail,
    Function::Conditional(4),
    Function::Custom,
];

fn counting() -> Machine {
    let machine = Machine::new();
    machine.set_dispatch_mode(DispatchMode::Count);
    machine
}

#[test]
fn entries_count_and_nothing_is_recorded() {
    let machine = counting();
    let mut expected = BTreeMap::new();
    for round in 0..3 {
        for function in ENTRIES {
            for copy in 0..COPIES {
                for _ in 0..=copy + round {
                    machine.call(function, copy, 7);
                    *expected.entry(machine.site(function, copy)).or_default() += 1;
                }
            }
        }
        for function in OTHERS {
            machine.call(function, 0, 7);
        }
        assert_eq!(machine.counted(machine.home()), expected);
    }
    assert!(
        machine
            .drain(&mut machine.consumer(machine.home()))
            .is_empty()
    );
    // Without a dispatch mode, events are recorded again.
    machine.set_dispatch_mode(DispatchMode::None);
    machine.call(Function::Entry, 0, 0);
    assert_eq!(
        machine.drain(&mut machine.consumer(machine.home())).len(),
        1
    );
    assert_eq!(machine.counted(machine.home()), expected);
}

#[test]
fn a_thread_counts_where_its_slot_is_and_what_finds_none_is_lost() {
    let machine = counting();
    let home = machine.home();
    let next = (home + 1) % machine.geometry.slots();
    machine.set_slot_owner(home, 1);
    machine.call(Function::Entry, 0, 0);
    machine.call(Function::Entry, 0, 0);
    assert_eq!(
        machine.slot(next, slot::TID) & 0xffff_ffff,
        u64::from(machine.tid())
    );
    assert_eq!(
        machine.counted(next),
        BTreeMap::from([(machine.site(Function::Entry, 0), 2)])
    );
    assert!(machine.counted(home).is_empty());
    for index in 0..machine.geometry.slots() {
        machine.set_slot_owner(index, 1);
    }
    machine.call(Function::Entry, 0, 0);
    assert_eq!(machine.buckets_taken(), 1);
    assert_eq!(machine.counted(next).len(), 1);
}

#[test]
fn sites_without_a_number_count_together() {
    let machine = counting();
    machine.call(Function::Entry, 0, 0);
    machine.set_numbered(machine.geometry.count_region().ids() - 1);
    for copy in 1..4 {
        machine.call(Function::Entry, copy, 0);
    }
    machine.call(Function::Entry, 0, 0);
    let known = machine.site(Function::Entry, 0);
    assert_eq!(
        machine.counted(machine.home()),
        BTreeMap::from([(known, 2), (0, 3)])
    );
}

#[test]
fn a_wiped_table_counts_nothing() {
    let machine = counting();
    machine.wipe();
    machine.call(Function::Entry, 0, 0);
    assert!(machine.counted(machine.home()).is_empty());
}

#[test]
fn handlers_at_every_instruction_count_as_well() {
    let machine = counting();
    let stepper = Stepper::new(HandlerStack::Same);
    for known in [false, true] {
        for function in ENTRIES {
            machine.reset();
            if known {
                machine.call(function, 0, 0);
            }
            let steps = stepper.call(&machine, (function, 0, 7), &|_| {
                machine.call(Function::Entry, 1, 7);
                Go::Step
            });
            assert!(steps > 15, "it stepped");
            let expected = BTreeMap::from([
                (machine.site(function, 0), 1 + u64::from(known)),
                (machine.site(Function::Entry, 1), steps),
            ]);
            assert_eq!(
                machine.counted(machine.home()),
                expected,
                "{function:?} {known}"
            );
        }
    }
}
