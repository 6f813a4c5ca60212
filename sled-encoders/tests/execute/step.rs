//! Single steps: something of the test's choice runs in a signal handler after each instruction of the machine's code.

use std::{
    cell::Cell,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicPtr, Ordering},
    },
};

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
};

use crate::{
    area::Area,
    machine::{Function, Machine},
    registers::Registers,
};

/// What runs between instructions.
type Between<'a> = &'a dyn Fn(Step) -> Go;

/// Where the machine stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Number of the step, from 0, whatever the depth.
    pub(crate) number: u64,
    /// How deep the handler is nested, from 1.
    pub(crate) depth: u32,
    /// The next instruction.
    pub(crate) address: u64,
}

/// How to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Go {
    /// To the next instruction.
    Step,
    /// To the end, without further steps.
    Free,
}

struct Stepped<'a> {
    code: std::ops::Range<u64>,
    between: Between<'a>,
    steps: Cell<u64>,
    depth: Cell<u32>,
}

static STEPPED: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Where handlers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandlerStack {
    /// On the stack that they interrupt, below the red zone.
    Same,
    /// Far away from it.
    Other,
}

/// The handler is one for the process: one stepping test at a time. Its stack is the thread's.
pub(crate) struct Stepper {
    _alone: MutexGuard<'static, ()>,
    _stack: Area,
}

// === impl Stepper ===

impl Stepper {
    pub(crate) fn new(handlers: HandlerStack) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let stack = Area::private(4 << 20);
        let description = libc::stack_t {
            ss_sp: std::ptr::with_exposed_provenance_mut(usize::try_from(stack.address()).unwrap()),
            ss_flags: 0,
            ss_size: 4 << 20,
        };
        // SAFETY: the memory is the stack's alone; the thread ends with the test, before or after it without a signal.
        let set = unsafe { libc::sigaltstack(&raw const description, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        let mut flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER;
        flags.set(SaFlags::SA_ONSTACK, handlers == HandlerStack::Other);
        let action = SigAction::new(SigHandler::SigAction(on_trap), flags, SigSet::empty());
        // SAFETY: the handler interrupts the machine's code only, which holds no lock and no allocation.
        unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
        Self {
            _alone: alone,
            _stack: stack,
        }
    }

    /// Calls a function of the machine with `between` after each of its instructions; says how many there were.
    pub(crate) fn call(
        &self,
        machine: &Machine,
        (function, copy, argument): (Function, u32, u64),
        between: Between<'_>,
    ) -> u64 {
        let stepped = Stepped {
            code: machine.code(),
            between,
            steps: Cell::new(0),
            depth: Cell::new(0),
        };
        STEPPED.store((&raw const stepped).cast_mut().cast(), Ordering::Relaxed);
        step_into(machine, (function, copy, argument));
        STEPPED.store(std::ptr::null_mut(), Ordering::Relaxed);
        stepped.steps.get()
    }
}

/// A call under the trap flag; also from within a handler.
pub(crate) fn step_into(machine: &Machine, (function, copy, argument): (Function, u32, u64)) {
    let registers = machine
        .registers(function, argument)
        .with_flags(Registers::TRAP | 0x8d5);
    machine.call_with(function, copy, registers);
}

extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands the interrupted context to a SA_SIGINFO handler; nobody else refers to it.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let stepped = STEPPED.load(Ordering::Relaxed).cast::<Stepped<'_>>();
    // SAFETY: set by `Stepper::call`, on whose stack it lives until the call is over; only shared references are made.
    let stepped = unsafe { stepped.as_ref() };
    let at = registers[libc::REG_RIP as usize].cast_unsigned();
    match stepped {
        Some(stepped) if stepped.code.contains(&at) => {
            let number = stepped.steps.replace(stepped.steps.get() + 1);
            let depth = stepped.depth.replace(stepped.depth.get() + 1) + 1;
            if (stepped.between)(Step {
                number,
                depth,
                address: at,
            }) == Go::Free
            {
                registers[libc::REG_EFL as usize] &= !Registers::TRAP.cast_signed();
            }
            stepped.depth.set(depth - 1);
        }
        // Back in the test.
        _ => registers[libc::REG_EFL as usize] &= !Registers::TRAP.cast_signed(),
    }
}
