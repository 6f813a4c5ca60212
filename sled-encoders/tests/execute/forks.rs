//! P58: a handler forks between any two instructions. The child goes on with a table that is wiped, and with rings that are its parent's.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use shm_ring::layout::control;

use crate::{
    machine::{Function, Machine, Saved},
    nested::{Prepared, places, situations},
    step::{Go, HandlerStack, Stepper},
};

/// How a child ends that came through; one that panics has another code, since its last thread ends.
const FINISHED: i32 = 77;

/// Whatever the child stores, its parent stores there as well.
#[test]
fn a_child_that_is_forked_at_any_instruction_leaves_its_parents_ring_alone() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    // A few words more or less to a chunk's end are all alike here.
    for before in situations(&machine).into_iter().take(9) {
        let prepared = Prepared::new(&machine, before);
        for (function, lost) in [
            (Function::Exit, 0),
            (Function::Argument, 3),
            (Function::Custom, 0),
        ] {
            let places = places(&machine, &stepper, &prepared, function);
            let fork_at = |at| fork_at(&machine, &stepper, &prepared, (function, lost), at);
            let alone: BTreeSet<u64> = places.into_iter().filter_map(fork_at).collect();
            // Between a look at the table and what follows it: at the jump and at the store. One look is before the ring is marked
            // busy, one before the loss is counted.
            assert!(
                alone.len() <= 4,
                "{before:?} {function:?}: marked or counted at {alone:x?}"
            );
        }
    }
}

/// Forks before the step of this number, with so many losses that no gap word has told. If the child has marked the ring busy for good or counted a loss, says which instruction was next.
fn fork_at(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    (function, lost): (Function, u64),
    at: u64,
) -> Option<u64> {
    prepared.set_up(machine);
    let home = machine.home();
    let losses = machine.control(home, control::LOST) + lost;
    machine.set_control(home, control::LOST, losses);
    let in_child = Cell::new(false);
    let seen = RefCell::new(None);
    stepper.call(machine, (function, 0, u64::MAX), &|step| {
        if step.number < at {
            return Go::Step;
        }
        let before = machine.save();
        // SAFETY: the handler interrupts the machine's code, which holds no lock; the child ends below, after that code.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                machine.wipe();
                in_child.set(true);
            }
            ForkResult::Parent { child } => {
                let ended = waitpid(child, None).unwrap();
                assert_eq!(ended, WaitStatus::Exited(child, FINISHED));
                let after = machine.save();
                machine.restore_ring(&before);
                *seen.borrow_mut() = Some((step.address, before, after));
            }
        }
        Go::Free
    });
    if in_child.get() {
        // SAFETY: ends the process, whatever the harness' other threads were doing.
        unsafe { nix::libc::_exit(FINISHED) };
    }
    // The way may be shorter this time.
    let (address, before, after) = seen.into_inner()?;
    compare(&before, &after, &machine.save()).then_some(address)
}

/// Whether the child has counted a loss or left the ring marked busy. That is all that it may do alone.
fn compare(before: &Saved, child: &Saved, parent: &Saved) -> bool {
    let mut alone = false;
    if child.is_same_ring(before) {
        return alone;
    }
    let words = before.words().zip(child.words()).zip(parent.words());
    for (at, ((before, child), parent)) in (0u64..).step_by(8).zip(words) {
        match at {
            control::BUSY => {
                assert!(child <= 1);
                alone |= child > before;
            }
            control::LOST if child == before + 1 => alone = true,
            _ => assert!(
                child == before || child == parent,
                "at {at:#x}: {before:#x}, by the child {child:#x}, by its parent {parent:#x}"
            ),
        }
    }
    alone
}
