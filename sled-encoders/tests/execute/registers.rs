//! All general registers, the flags and the red zone: loaded before a call, read after it.

use std::arch::global_asm;

/// A value for each register, as [`Registers::call`] loads and stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Registers {
    /// rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15.
    general: [u64; 15],
    flags: u64,
    /// The 128 bytes below the callee's stack pointer.
    red_zone: [u64; 16],
    /// The place of the callee's return address; only stored.
    stack: u64,
}

// rdi = Registers to load, rsi = Registers to store, rdx = function.
global_asm!(
    ".globl sled_test_call",
    "sled_test_call:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rsi",
    "push rdx",
    // The callee's red zone ends at its stack pointer, 8 below ours at the call.
    "lea rax, [rdi + 128]",
    "lea rbx, [rsp - 136]",
    "mov ecx, 16",
    "2:",
    "mov rdx, [rax]",
    "mov [rbx], rdx",
    "add rax, 8",
    "add rbx, 8",
    "dec ecx",
    "jnz 2b",
    // The place of the return address.
    "push qword ptr [rdi + 120]",
    "mov rax, [rdi]",
    "mov rbx, [rdi + 8]",
    "mov rcx, [rdi + 16]",
    "mov rdx, [rdi + 24]",
    "mov rsi, [rdi + 32]",
    "mov rbp, [rdi + 48]",
    "mov r8, [rdi + 56]",
    "mov r9, [rdi + 64]",
    "mov r10, [rdi + 72]",
    "mov r11, [rdi + 80]",
    "mov r12, [rdi + 88]",
    "mov r13, [rdi + 96]",
    "mov r14, [rdi + 104]",
    "mov r15, [rdi + 112]",
    "mov rdi, [rdi + 40]",
    // The trap flag takes effect after the call.
    "popfq",
    "call qword ptr [rsp]",
    "lea rsp, [rsp - 256]",
    "pushfq",
    "push rdi",
    "mov rdi, [rsp + 280]",
    "mov [rdi], rax",
    "mov [rdi + 8], rbx",
    "mov [rdi + 16], rcx",
    "mov [rdi + 24], rdx",
    "mov [rdi + 32], rsi",
    "mov [rdi + 48], rbp",
    "mov [rdi + 56], r8",
    "mov [rdi + 64], r9",
    "mov [rdi + 72], r10",
    "mov [rdi + 80], r11",
    "mov [rdi + 88], r12",
    "mov [rdi + 96], r13",
    "mov [rdi + 104], r14",
    "mov [rdi + 112], r15",
    "pop rax",
    "mov [rdi + 40], rax",
    "pop rax",
    "mov [rdi + 120], rax",
    "lea rsp, [rsp + 256]",
    "cld",
    "lea rax, [rdi + 128]",
    "lea rbx, [rsp - 136]",
    "mov ecx, 16",
    "3:",
    "mov rdx, [rbx]",
    "mov [rax], rdx",
    "add rax, 8",
    "add rbx, 8",
    "dec ecx",
    "jnz 3b",
    "lea rbx, [rsp - 8]",
    "mov [rax], rbx",
    "pop rdx",
    "pop rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn sled_test_call(load: *const Registers, store: *mut Registers, function: u64);
}

// === impl Registers ===

impl Registers {
    /// Carry, parity, auxiliary carry, zero, sign, overflow.
    pub(crate) const STATUS_FLAGS: u64 = 0x8d5;
    /// The trap flag: a SIGTRAP after every instruction.
    pub(crate) const TRAP: u64 = 0x100;

    /// A different value in every register, and no flag.
    pub(crate) fn arbitrary() -> Self {
        let value = |i: usize| 0x0101_0101_0101_0101u64.wrapping_mul(i as u64 + 1) ^ 0x8000_0001;
        Self {
            general: std::array::from_fn(value),
            flags: 0x202,
            red_zone: std::array::from_fn(|i| !value(i)),
            stack: 0,
        }
    }

    pub(crate) fn with_argument(mut self, argument: u64) -> Self {
        self.general[5] = argument;
        self
    }

    /// Sets rax.
    pub(crate) fn with_result(mut self, result: u64) -> Self {
        self.general[0] = result;
        self
    }

    pub(crate) fn result(&self) -> u64 {
        self.general[0]
    }

    /// rdi, rsi, rdx, rcx, r8, r9.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        [5, 4, 3, 2, 7, 8].map(|register: usize| self.general[register])
    }

    /// Sets the first three arguments: rdi, rsi, rdx.
    pub(crate) fn with_arguments(mut self, first: u64, second: u64, third: u64) -> Self {
        self.general[5] = first;
        self.general[4] = second;
        self.general[3] = third;
        self
    }

    pub(crate) fn with_flags(mut self, flags: u64) -> Self {
        self.flags |= flags;
        self
    }

    /// Calls `function` with these registers and returns the registers after it.
    ///
    /// # Safety
    /// `function` is code that can be called and returns with the stack as it was.
    pub(crate) unsafe fn call(&self, function: u64) -> Self {
        let mut after = Self {
            general: [0; 15],
            flags: 0,
            red_zone: [0; 16],
            stack: 0,
        };
        // SAFETY: the assembly saves the registers that the C calling convention keeps; the caller
        // vouches for the function.
        unsafe { sled_test_call(self, &raw mut after, function) };
        after
    }

    /// The place of the return address of the function that left these registers.
    pub(crate) fn stack(&self) -> u64 {
        self.stack
    }

    /// Fails if a register or one of `flags` has changed.
    pub(crate) fn assert_kept(&self, after: &Self, flags: u64, what: impl std::fmt::Debug) {
        assert_eq!(self.general, after.general, "general registers, {what:?}");
        assert_eq!(self.flags & flags, after.flags & flags, "flags, {what:?}");
    }

    /// Fails if the red zone changed.
    pub(crate) fn assert_red_zone_kept(&self, after: &Self) {
        // A trap after the return may take the lowest word: the red zone of the caller begins
        // there.
        let traps = usize::from(self.flags & Self::TRAP != 0);
        assert_eq!(self.red_zone[traps..], after.red_zone[traps..], "red zone");
    }
}
