//! P58: a handler forks between any two instructions. The child goes on with a wiped table, and
//! with its parent's rings.

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
    function::Function,
    machine::{Machine, Saved},
    nested::{Prepared, places, situations},
    step::{HandlerStack, Place, Stepper},
};

/// The exit code of a child that has come through. A child that panics has another one, since its
/// last thread ends.
const FINISHED: i32 = 77;

/// Forks within a handler, and waits for the end of the child, whose table is wiped. Returns true
/// in the child.
pub(crate) fn fork_and_wipe(machine: &Machine) -> bool {
    // SAFETY: the handler interrupts the machine's code, which holds no lock; the child ends after
    // that code, see `end_child`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            machine.wipe();
            true
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).unwrap();
            assert_eq!(ended, WaitStatus::Exited(child, FINISHED));
            false
        }
    }
}

/// Ends a child that has come through.
pub(crate) fn end_child() -> ! {
    // SAFETY: ends the process, whatever the harness' other threads were doing.
    unsafe { nix::libc::_exit(FINISHED) }
}

/// Stores of a child that its parent does not make as well.
#[derive(Debug, Clone, Copy, Default)]
struct Alone {
    /// The child has counted a loss.
    counted: bool,
    /// The child has left the ring marked busy.
    marked: bool,
    /// The child has left the oldest chunk marked as being taken back.
    taking: bool,
}

/// The parent stores everything that the child stores, in the same places.
#[test]
fn a_child_that_is_forked_at_any_instruction_leaves_its_parents_ring_alone() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    // A few words more or less to a chunk's end make no difference here.
    for before in situations(&machine).into_iter().take(9) {
        let prepared = Prepared::new(&machine, before);
        for (function, lost) in [
            (Function::Exit, 0),
            (Function::Argument, 3),
            (Function::Custom, 0),
        ] {
            let places = places(&machine, &stepper, &prepared, function);
            let fork_at = |place| fork_at(&machine, &stepper, &prepared, (function, lost), place);
            let (mut counted, mut marked) = (BTreeSet::new(), BTreeSet::new());
            for (address, alone) in places.into_iter().filter_map(fork_at) {
                counted.extend(alone.counted.then_some(address));
                marked.extend(alone.marked.then_some(address));
            }
            // Between a look at the table and the store behind it: at the jump and at the store.
            // One look is before the ring is marked busy, one before the loss is counted.
            assert!(
                counted.len() <= 2 && marked.len() <= 2,
                "{before:?} {function:?}: counted at {counted:x?}, marked at {marked:x?}"
            );
        }
    }
}

/// The same in a ring that keeps the newest events, while its oldest chunk is taken back.
#[test]
fn a_child_that_is_forked_while_a_chunk_is_taken_back_leaves_the_ring_alone() {
    let machine = Machine::new();
    let stepper = Stepper::new(HandlerStack::Same);
    let prepared = Prepared::before_the_last_chunk(&machine);
    machine.keep_newest();
    let function = Function::Exit;
    let places = places(&machine, &stepper, &prepared, function);
    let fork_at = |place| fork_at(&machine, &stepper, &prepared, (function, 0), place);
    let taking = places.into_iter().filter_map(fork_at);
    let taking: BTreeSet<u64> = taking
        .filter_map(|(address, alone)| alone.taking.then_some(address))
        .collect();
    assert!(taking.len() <= 2, "marked at {taking:x?}");
}

/// Forks at this place, with `lost` losses that no gap word has reported. Returns the address of
/// the next instruction, and the stores that only the child has made.
fn fork_at(
    machine: &Machine,
    stepper: &Stepper,
    prepared: &Prepared,
    (function, lost): (Function, u64),
    place: Place,
) -> Option<(u64, Alone)> {
    prepared.set_up(machine);
    let home = machine.home();
    let losses = machine.control(home, control::LOST) + lost;
    machine.set_control(home, control::LOST, losses);
    let in_child = Cell::new(false);
    let seen = RefCell::new(None);
    stepper.interrupt(machine, (function, 0, u64::MAX), place, &|| {
        let before = machine.save();
        in_child.set(fork_and_wipe(machine));
        if !in_child.get() {
            let after = machine.save();
            machine.restore_ring(&before);
            *seen.borrow_mut() = Some((before, after));
        }
    });
    if in_child.get() {
        end_child();
    }
    // The way may be shorter this time.
    let (before, after) = seen.into_inner()?;
    Some((place.address, compare(&before, &after, &machine.save())))
}

/// The stores that only the child has made. Anything but counting a loss and marking the ring is a
/// failure.
fn compare(before: &Saved, child: &Saved, parent: &Saved) -> Alone {
    let mut alone = Alone::default();
    if child.is_same_ring(before) {
        return alone;
    }
    let words = before.words().zip(child.words()).zip(parent.words());
    for (at, ((before, child), parent)) in (0u64..).step_by(8).zip(words) {
        match at {
            control::BUSY => alone.marked |= before == 0 && child != 0,
            control::RELEASED if child == before | control::TAKING => {
                alone.taking |= before & control::TAKING == 0;
            }
            control::LOST if child == before + 1 => alone.counted = true,
            _ => assert!(
                child == before || child == parent,
                "at {at:#x}: {before:#x}, by the child {child:#x}, by its parent {parent:#x}"
            ),
        }
    }
    alone
}
