//! Single steps: a signal handler runs code of the test's choice after each instruction of the
//! machine's code.

use std::{
    cell::{Cell, RefCell},
    ptr,
};

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};

use crate::{area::Area, function::Function, machine::Machine, registers::Registers};

/// Code that runs between instructions.
type Between<'a> = &'a dyn Fn(Step) -> Go;

/// The place between two instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The number of the step, from 0, whatever the depth.
    pub(crate) number: u64,
    /// The nesting depth of the handler, from 1.
    pub(crate) depth: u32,
    /// The next instruction.
    pub(crate) address: u64,
}

/// The way to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Go {
    /// To the next instruction.
    Step,
    /// To the end, without further steps.
    Free,
}

/// An instruction that a call of a function reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The number of the step before it.
    pub(crate) number: u64,
    pub(crate) address: u64,
    /// How often the call has been there before.
    pub(crate) round: usize,
}

/// The meaning of a SIGTRAP for a thread that calls a function of the machine.
enum Trap<'a> {
    /// A step is done.
    Step {
        code: std::ops::Range<u64>,
        between: Between<'a>,
        steps: &'a Cell<u64>,
        depth: Cell<u32>,
    },
    /// The breakpoint was reached, or the instruction at it was done.
    Breakpoint {
        breakpoint: &'a Breakpoint<'a>,
        /// How often the breakpoint is passed before `at` runs.
        rounds: Cell<usize>,
        at: &'a dyn Fn(),
    },
}

/// A breakpoint in place of an instruction's first byte. Dropping it removes it.
struct Breakpoint<'a> {
    machine: &'a Machine,
    address: u64,
    /// The byte that it replaces, while it is set.
    byte: Cell<Option<u8>>,
}

/// The flags of calls that are interrupted.
const FLAGS: u64 = 0x8d5;
const INT3: u8 = 0xcc;

thread_local! {
    /// Without a destructor, so that a handler can read it.
    static TRAP: Cell<*const libc::c_void> = const { Cell::new(ptr::null()) };
}

/// The stack of handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerStack {
    /// The stack that they interrupt, below the red zone.
    Same,
    /// A stack far away from it.
    Other,
}

/// The handler of this thread. Its traps are its own, so every thread can have one.
pub(crate) struct Stepper {
    /// The thread's signal stack before.
    before: libc::stack_t,
    _stack: Area,
}

// === impl Stepper ===

impl Stepper {
    pub(crate) fn new(handlers: HandlerStack) -> Self {
        let stack = Area::private(4 << 20);
        let description = libc::stack_t {
            ss_sp: ptr::with_exposed_provenance_mut(usize::try_from(stack.address()).unwrap()),
            ss_flags: match handlers {
                HandlerStack::Same => libc::SS_DISABLE,
                HandlerStack::Other => 0,
            },
            ss_size: 4 << 20,
        };
        let before = set_signal_stack(&description);
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER | SaFlags::SA_ONSTACK;
        let action = SigAction::new(SigHandler::SigAction(on_trap), flags, SigSet::empty());
        // SAFETY: the handler interrupts the machine's code only, which holds no lock and no
        // allocation.
        unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
        Self {
            before,
            _stack: stack,
        }
    }

    /// Calls a function of the machine with `between` after each of its instructions, and returns
    /// the number of instructions.
    pub(crate) fn call(
        &self,
        machine: &Machine,
        call: (Function, u32, u64),
        between: Between<'_>,
    ) -> u64 {
        let steps = Cell::new(0);
        let trap = Trap::Step {
            code: machine.code(),
            between,
            steps: &steps,
            depth: Cell::new(0),
        };
        trap.during(|| step_into(machine, call));
        steps.get()
    }

    /// Calls a function of the machine, and returns the places that the call reaches. Of a loop,
    /// only the first `rounds` rounds count.
    pub(crate) fn places(
        &self,
        machine: &Machine,
        call: (Function, u32, u64),
        rounds: usize,
    ) -> Vec<Place> {
        let places = RefCell::new(Vec::<Place>::new());
        self.call(machine, call, &|step| {
            let mut places = places.borrow_mut();
            let before = places.iter().filter(|place| place.address == step.address);
            let before = before.count();
            if before < rounds {
                places.push(Place {
                    number: step.number,
                    address: step.address,
                    round: before,
                });
            }
            Go::Step
        });
        let places = places.into_inner();
        assert!(places.len() > 15, "it stepped: {places:x?}");
        places
    }

    /// Calls a function of the machine with `at` before the instruction at this place, if the call
    /// reaches it.
    pub(crate) fn interrupt(
        &self,
        machine: &Machine,
        (function, copy, argument): (Function, u32, u64),
        place: Place,
        at: &dyn Fn(),
    ) {
        let breakpoint = Breakpoint {
            machine,
            address: place.address,
            byte: Cell::new(None),
        };
        breakpoint.set();
        let trap = Trap::Breakpoint {
            breakpoint: &breakpoint,
            rounds: Cell::new(place.round),
            at,
        };
        let registers = machine.registers(function, argument).with_flags(FLAGS);
        trap.during(|| machine.call_with(function, copy, registers));
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        set_signal_stack(&self.before);
    }
}

/// Sets the signal stack, and returns the one before.
fn set_signal_stack(stack: &libc::stack_t) -> libc::stack_t {
    let mut before = *stack;
    // SAFETY: the stack's memory belongs to its owner alone and outlives this setting; nothing runs
    // on a signal stack meanwhile.
    let set = unsafe { libc::sigaltstack(&raw const *stack, &raw mut before) };
    assert_eq!(set, 0);
    before
}

// === impl Trap ===

impl Trap<'_> {
    /// Makes a call that may trap.
    fn during<T>(&self, call: impl FnOnce() -> T) {
        TRAP.set((&raw const *self).cast());
        call();
        TRAP.set(ptr::null());
    }
}

// === impl Breakpoint ===

impl Breakpoint<'_> {
    fn set(&self) {
        let byte = self.machine.exchange_code(self.address, INT3);
        self.byte.set(Some(byte));
    }

    /// Removes it. Returns false if it is not set.
    fn remove(&self) -> bool {
        let byte = self.byte.take();
        if let Some(byte) = byte {
            self.machine.exchange_code(self.address, byte);
        }
        byte.is_some()
    }
}

impl Drop for Breakpoint<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Calls a function under the trap flag; also from within a handler.
pub(crate) fn step_into(machine: &Machine, (function, copy, argument): (Function, u32, u64)) {
    let registers = machine
        .registers(function, argument)
        .with_flags(Registers::TRAP | FLAGS);
    machine.call_with(function, copy, registers);
}

extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands the interrupted context to a SA_SIGINFO handler, and nothing else
    // refers to it.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    // SAFETY: set by `Trap::during`, which borrows it until the call is over; only shared
    // references are made.
    let trap = unsafe { TRAP.get().cast::<Trap<'_>>().as_ref() };
    let at = registers[libc::REG_RIP as usize].cast_unsigned();
    match trap {
        Some(Trap::Step {
            code,
            between,
            steps,
            depth,
        }) if code.contains(&at) => {
            let number = steps.replace(steps.get() + 1);
            let deep = depth.replace(depth.get() + 1) + 1;
            let go = between(Step {
                number,
                depth: deep,
                address: at,
            });
            if go == Go::Free {
                registers[libc::REG_EFL as usize] &= !Registers::TRAP.cast_signed();
            }
            depth.set(deep - 1);
        }
        Some(Trap::Breakpoint {
            breakpoint,
            rounds,
            at: handler,
        }) => {
            let trap_flag = Registers::TRAP.cast_signed();
            if !breakpoint.remove() {
                // The instruction was done, and another round may follow.
                registers[libc::REG_EFL as usize] &= !trap_flag;
                breakpoint.set();
                return;
            }
            assert_eq!(at, breakpoint.address + 1, "behind the breakpoint");
            registers[libc::REG_RIP as usize] = breakpoint.address.cast_signed();
            match rounds.get().checked_sub(1) {
                Some(more) => {
                    rounds.set(more);
                    registers[libc::REG_EFL as usize] |= trap_flag;
                }
                None => handler(),
            }
        }
        // Back in the test.
        _ => registers[libc::REG_EFL as usize] &= !Registers::TRAP.cast_signed(),
    }
}
