//! The recovery frame of a borrowed thread. With it the thread restores itself if its tracer dies,
//! or gives it up because it does not stop any more (P15).
//!
//! The kernel lets the threads of an ended tracer go on as they are. A borrowed thread then has our
//! registers and our signal mask. So it makes its calls at a `syscall; ret`, on a stack whose top
//! is the address of `rt_sigreturn` and a signal frame with its whole former state. Without a
//! tracer, it returns to that address and gets everything back:
//!
//! ```text
//!   its stack  … │ red zone, 128 bytes │ extended state │ siginfo │ ucontext │ &rt_sigreturn
//!                ▲                                                           ▲
//!                its own stack pointer                stack pointer while it is borrowed
//! ```
//!
//! While the tracer lives, the frame is not used: ptrace restores registers and mask, and the
//! tracer writes back the bytes that lay at its place.
//!
//! Layouts: arch/x86/include/uapi/asm/sigcontext.h, arch/x86/include/asm/sigframe.h,
//! arch/x86/kernel/fpu/signal.c.

use std::io;

use crate::{
    pid::TargetAddr,
    sys::{
        Memory, XstateSizes,
        ptrace::{Registers, Stopped, TraceError},
    },
    target::Maps,
};

const RED_ZONE: u64 = 128;
/// Offsets in the frame, from the return address on.
const FLAGS_AT: usize = 8;
const STACK_FLAGS_AT: usize = 32;
const CONTEXT_AT: usize = 48;
const EXTENDED_POINTER_AT: usize = CONTEXT_AT + 184;
const MASK_AT: usize = 304;
/// Bytes of return address, ucontext and siginfo.
const FIXED_BYTES: u64 = 8 + 304 + 128;

/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
const FLAGS: u64 = 7;
/// Not a valid `ss_flags`, so that the kernel leaves the alternate signal stack as it is.
const STACK_FLAGS: u32 = 4;

/// Offsets in the extended state.
const SOFTWARE_AT: usize = 464;
const FEATURES_AT: usize = 512;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// x87 and SSE: always present.
const LEGACY: u64 = 3;
/// Alignment that XSAVE needs.
const ALIGNMENT: u64 = 64;

/// A recovery frame in the stack of a stopped thread.
#[derive(Debug)]
pub(super) struct RecoveryFrame {
    stack: u64,
    /// The bytes that lay at its place.
    under: Vec<u8>,
}

/// The reason why there is no recovery frame.
#[derive(Debug)]
pub(super) enum NoRecoveryFrame {
    /// The thread is not on its own stack with room below, but on a signal stack or a coroutine's
    /// stack. Other code may use the memory below such a stack.
    StackRoom,
    /// The thread has a shadow stack, which a `ret` to our address would not agree with.
    ShadowStack,
    /// The thread's state cannot be read.
    Trace(TraceError),
}

// === impl RecoveryFrame ===

impl RecoveryFrame {
    /// Puts a frame below the used part of the stopped thread's stack.
    pub(super) fn push(
        thread: &Stopped,
        memory: &Memory,
        maps: &Maps,
        way_back: u64,
        sizes: &XstateSizes,
    ) -> Result<Self, NoRecoveryFrame> {
        if thread.has_shadow_stack() {
            return Err(NoRecoveryFrame::ShadowStack);
        }
        let mut extended = thread.extended_state().map_err(NoRecoveryFrame::Trace)?;
        seal(&mut extended, sizes).ok_or(NoRecoveryFrame::StackRoom)?;
        let registers = thread.registers();
        let lowest = own_stack(maps, registers).ok_or(NoRecoveryFrame::StackRoom)?;
        let length = extended.len() as u64;
        let place = (|| {
            let top = registers.rsp.checked_sub(RED_ZONE + length)?;
            let extended_at = top & !(ALIGNMENT - 1);
            // Aligned as at the entry of a signal handler.
            let stack = (extended_at.checked_sub(FIXED_BYTES)? & !15).checked_sub(8)?;
            (stack >= lowest).then_some((stack, extended_at))
        })();
        let (stack, extended_at) = place.ok_or(NoRecoveryFrame::StackRoom)?;
        let mut bytes = frame(&resumed(registers), thread.mask(), way_back, extended_at);
        bytes.resize(usize::try_from(extended_at - stack).unwrap_or(0), 0);
        bytes.extend(extended);
        let mut under = vec![0; bytes.len()];
        let swapped = memory
            .read(TargetAddr(stack), &mut under)
            .and_then(|()| memory.write(TargetAddr(stack), &bytes));
        swapped.map_err(|_| NoRecoveryFrame::StackRoom)?;
        Ok(Self { stack, under })
    }

    /// The stack pointer of the thread while it is borrowed.
    pub(super) fn stack(&self) -> u64 {
        self.stack
    }

    /// Restores the bytes that lay there. The thread must have its own stack pointer again.
    pub(super) fn remove(self, memory: &Memory) -> io::Result<()> {
        memory.write(TargetAddr(self.stack), &self.under)
    }
}

/// Start of the thread's own stack, if the thread is on it. Own stacks are the main thread's, and a
/// mapping with the thread's control block at its upper end (glibc, musl) and nothing writable
/// directly below.
fn own_stack(maps: &Maps, registers: &Registers) -> Option<u64> {
    let entry = maps.at(registers.rsp.checked_sub(1)?)?;
    if entry.permissions[..2] != *b"rw" || entry.permissions[3] != b'p' {
        return None;
    }
    let below = maps.at(entry.range.start.checked_sub(1)?);
    let has_control_block = entry.range.contains(&registers.fs_base)
        && registers.rsp < registers.fs_base
        && below.is_none_or(|below| below.permissions[1] != b'w');
    (entry.name == "[stack]" || has_control_block).then_some(entry.range.start)
}

/// The registers of the thread after the kernel has restarted the system call that our stop
/// interrupted. `restart_syscall` is an exception: `rt_sigreturn` drops the state that it would go
/// on with, and the program sees EINTR.
fn resumed(registers: &Registers) -> Registers {
    // include/linux/errno.h: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    let mut resumed = *registers;
    if registers.orig_rax.cast_signed() >= 0 && RESTARTS.contains(&registers.rax.cast_signed()) {
        resumed.rax = registers.orig_rax;
        resumed.rip = registers.rip.wrapping_sub(2);
    }
    resumed
}

fn frame(registers: &Registers, mask: u64, way_back: u64, extended_at: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(FIXED_BYTES).unwrap_or(0)];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, way_back);
    put(FLAGS_AT, FLAGS);
    put(STACK_FLAGS_AT, u64::from(STACK_FLAGS));
    let segments = (registers.cs & 0xffff) | (registers.ss & 0xffff) << 48;
    let context = [
        registers.r8,
        registers.r9,
        registers.r10,
        registers.r11,
        registers.r12,
        registers.r13,
        registers.r14,
        registers.r15,
        registers.rdi,
        registers.rsi,
        registers.rbp,
        registers.rbx,
        registers.rdx,
        registers.rax,
        registers.rcx,
        registers.rsp,
        registers.rip,
        registers.eflags,
        segments,
    ];
    for (index, value) in context.into_iter().enumerate() {
        put(CONTEXT_AT + 8 * index, value);
    }
    put(EXTENDED_POINTER_AT, extended_at);
    put(MASK_AT, mask);
    bytes
}

/// Turns the extended state as ptrace returns it into the form that `rt_sigreturn` takes: cut
/// behind the last component in use, with the kernel's marks.
fn seal(state: &mut Vec<u8>, sizes: &XstateSizes) -> Option<()> {
    let features = state.get(FEATURES_AT..)?.first_chunk::<8>()?;
    let features = u64::from_le_bytes(*features) | LEGACY;
    let bytes = sizes.bytes(features)?;
    if bytes > state.len() {
        return None;
    }
    state.truncate(bytes);
    let size = u32::try_from(bytes).ok()?;
    let mut put = |at: usize, value: &[u8]| state[at..at + value.len()].copy_from_slice(value);
    put(SOFTWARE_AT, &MAGIC1.to_le_bytes());
    put(SOFTWARE_AT + 4, &(size + 4).to_le_bytes());
    put(SOFTWARE_AT + 8, &features.to_le_bytes());
    put(SOFTWARE_AT + 16, &size.to_le_bytes());
    state.extend(MAGIC2.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    fn registers(rsp: u64, fs_base: u64) -> Registers {
        let mut registers = zeroed();
        registers.rsp = rsp;
        registers.fs_base = fs_base;
        registers.orig_rax = u64::MAX;
        registers
    }

    fn zeroed() -> Registers {
        Registers {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rax: 0,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            orig_rax: 0,
            rip: 0,
            cs: 0,
            eflags: 0,
            rsp: 0,
            ss: 0,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        }
    }

    #[test]
    fn only_a_thread_s_own_stack_is_used() {
        let maps = Maps::parse(
            b"10000-20000 ---p 0 0:0 0\n\
              20000-40000 rw-p 0 0:0 0\n\
              50000-60000 rw-p 0 0:0 0\n\
              60000-80000 rw-p 0 0:0 0\n\
              7ff000-800000 rw-p 0 0:0 0 [stack]\n",
        );
        let rows = [
            // Above a guard, with the control block at its end.
            (0x30000, 0x3f000, Some(0x20000)),
            // A coroutine's stack: the control block is elsewhere.
            (0x30000, 0x70000, None),
            (0x3fff0, 0x21000, None),
            // A writable mapping lies directly below.
            (0x68000, 0x7f000, None),
            (0x7ff800, 0x3f000, Some(0x7ff000)),
            (0x90000, 0x3f000, None),
        ];
        for (rsp, fs_base, expected) in rows {
            let found = own_stack(&maps, &registers(rsp, fs_base));
            assert_eq!(found, expected, "{rsp:#x} {fs_base:#x}");
        }
    }

    #[test]
    fn an_interrupted_call_begins_anew() {
        let mut stopped = registers(0, 0);
        stopped.rip = 0x1002;
        stopped.rax = (-516i64).cast_unsigned();
        assert_eq!(resumed(&stopped).rip, 0x1002);
        stopped.orig_rax = 35;
        let again = resumed(&stopped);
        assert_eq!((again.rip, again.rax), (0x1000, 35));
        stopped.rax = (-4i64).cast_unsigned();
        assert_eq!(resumed(&stopped).rip, 0x1002);
    }

    /// Checks the offsets against the C library's.
    #[test]
    fn the_frame_is_laid_out_as_the_kernel_s() {
        use std::mem::offset_of;
        let context = offset_of!(libc::ucontext_t, uc_mcontext);
        let gregs = context + offset_of!(libc::mcontext_t, gregs);
        assert_eq!(CONTEXT_AT, 8 + gregs);
        assert_eq!(
            EXTENDED_POINTER_AT,
            8 + context + offset_of!(libc::mcontext_t, fpregs)
        );
        assert_eq!(MASK_AT, 8 + offset_of!(libc::ucontext_t, uc_sigmask));
        assert_eq!(
            STACK_FLAGS_AT,
            8 + offset_of!(libc::ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_flags)
        );
        let mut given = registers(0x7000, 0);
        given.rip = 0x1234;
        let bytes = frame(&given, 0xff, 0x42, 0x9000);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let register = |name: i32| word(8 + gregs + 8 * usize::try_from(name).unwrap());
        assert_eq!(register(libc::REG_RIP), 0x1234);
        assert_eq!(register(libc::REG_RSP), 0x7000);
        assert_eq!((word(0), word(MASK_AT)), (0x42, 0xff));
    }
}
