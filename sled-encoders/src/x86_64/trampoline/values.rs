//! The flavours that record values of registers: arguments at entries, the result at exits.
//!
//! They put the registers onto the stack, as the payload of an event whose name is the sled's. Then
//! they call the flavour for events, which keeps all registers and the status flags. Nothing is
//! alive below the stack pointer at a function's first instruction, nor at its `ret`. The flags are
//! dead.
//!
//! ```text
//!  stack             entry, n arguments               exit
//!  +0 … +24          the event's frame: site, pointer to +32, size, type
//!  +32               rdi, rsi, rdx, rcx, r8, r9       rax
//!  +32 + 8 * count   return address into the sled
//! ```

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, ptr, qword_ptr, r8, r9, rax, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::word;

use super::{Result, gate::emit_skipped};

/// The registers of integer arguments, first to last: x86-64 System V ABI, §3.2.3.
const ARGUMENTS: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];
/// Bytes of a frame as the stubs of events make it.
const FRAME: i32 = 32;
/// The end of size and type, which is the start of the values.
const VALUES: i32 = 16;

/// The flavour for entries with `count` arguments.
pub(super) fn emit_entry(a: &mut CodeAssembler, count: u8, event: CodeLabel) -> Result<()> {
    let bytes = 8 * i32::from(count);
    emit_skipped(a)?;
    let registers = ARGUMENTS.into_iter().take(count.into());
    for register in registers.rev() {
        a.push(register)?;
    }
    a.push(word::VALUES.cast_signed())?;
    a.push(bytes)?;
    a.push(rsp)?;
    a.add(qword_ptr(rsp), VALUES)?;
    a.push(qword_ptr(rsp + (FRAME - 8 + bytes)))?;
    a.call(event)?;
    a.lea(rsp, ptr(rsp + (FRAME + bytes)))?;
    a.ret()
}

/// The flavour for exits.
pub(super) fn emit_exit(a: &mut CodeAssembler, event: CodeLabel) -> Result<()> {
    emit_skipped(a)?;
    a.push(rax)?;
    a.push(word::VALUES.cast_signed())?;
    a.push(8)?;
    a.lea(rax, ptr(rsp + VALUES))?;
    a.push(rax)?;
    a.push(qword_ptr(rsp + (FRAME - 8 + 8)))?;
    a.call(event)?;
    a.lea(rsp, ptr(rsp + FRAME))?;
    a.pop(rax)?;
    a.ret()
}
