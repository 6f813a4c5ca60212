//! Disabled trampolines: sleds that are on do nothing, whatever the dispatch mode is.

use shm_ring::layout::slot;
use sled_encoders::x86_64::{DispatchMode, Enable};

use crate::{
    function::Function,
    machine::Machine,
    step::{Go, HandlerStack, Stepper},
};

const FUNCTIONS: [Function; 9] = [
    Function::Entry,
    Function::Argument,
    Function::Arguments(1),
    Function::Arguments(6),
    Function::Exit,
    Function::Result,
    Function::Tail,
    Function::Conditional(4),
    Function::Custom,
];

fn records(machine: &Machine) -> usize {
    machine.drain(&mut machine.consumer(machine.home())).len()
}

#[test]
fn behind_a_closed_door_nothing_is_recorded_nor_counted() {
    for dispatch_mode in [
        DispatchMode::None,
        DispatchMode::Count,
        DispatchMode::Filter,
    ] {
        let machine = Machine::new();
        machine.set_dispatch_mode(dispatch_mode);
        machine.set_enable(dispatch_mode, Enable::Off);
        for function in FUNCTIONS {
            machine.call(function, 0, 7);
        }
        let home = machine.home();
        assert_eq!(
            machine.slot(home, slot::TID) & 0xffff_ffff,
            0,
            "{dispatch_mode:?}"
        );
        assert!(machine.counted(home).is_empty(), "{dispatch_mode:?}");
        assert_eq!(machine.buckets_taken(), 0);
        machine.set_enable(dispatch_mode, Enable::On);
        machine.call(Function::Entry, 0, 0);
        assert_ne!(
            machine.slot(home, slot::TID) & 0xffff_ffff,
            0,
            "{dispatch_mode:?}"
        );
        assert_eq!(
            machine.counted(home).len(),
            usize::from(dispatch_mode == DispatchMode::Count)
        );
        if dispatch_mode == DispatchMode::None {
            assert_eq!(records(&machine), 1);
        }
    }
}

/// A thread that is in a flavour goes on in it, and a thread that comes meanwhile does not enter.
#[test]
fn a_door_is_closed_and_opened_around_threads_at_every_instruction() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    for dispatch_mode in [DispatchMode::None, DispatchMode::Count] {
        for function in FUNCTIONS {
            machine.reset();
            machine.set_dispatch_mode(dispatch_mode);
            let steps = stepper.call(&machine, (function, 0, 7), &|_| {
                machine.set_enable(dispatch_mode, Enable::Off);
                machine.call(Function::Entry, 1, 7);
                machine.set_enable(dispatch_mode, Enable::On);
                Go::Step
            });
            assert!(steps > 0, "it stepped");
            let home = machine.home();
            let counted = machine.counted(home);
            assert!(!counted.contains_key(&machine.site(Function::Entry, 1)));
        }
    }
}
