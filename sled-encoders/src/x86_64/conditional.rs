//! The stub of a tail sled where a call is not safe.
//!
//! clang up to 18 puts tail sleds in front of *conditional* jumps. Flags and the red zone are live
//! across such a sled, so a call there corrupts the program, and an event is only true if the jump
//! is taken. A tail jump through memory below the stack pointer has the same need. The body of the
//! staged sled is a jump to the stub, which leaves the stack alone:
//!
//! ```text
//!  sled:     eb 00  e9 <stub>  nop  stub:  jncc  over             not taken: no event
//!  sled+11:  jcc    target                 lea   -128(%rsp),%rsp  step over the red zone
//!                                          push  $site            the name in the record
//!                                          call  trampoline       the flavour for stubs; keeps all
//!                                          lea   136(%rsp),%rsp
//!                                   over:  jmp   sled+11
//! ```
//!
//! `lea` and `push` touch no flags.

use iced_x86::code_asm::{CodeAssembler, qword_ptr, rsp};

use super::{
    decode::TailJump,
    encode::{SLED_BYTES, call_site, reach},
    stub::{RED_ZONE, Stub},
};
use crate::{EncodeError, SledKind};

// === impl Stub ===

impl Stub {
    /// The stub at `stub` for the tail sled at `sled` before `jump`. It calls `trampoline` (the
    /// flavour for stubs).
    ///
    /// # Errors
    /// If one of the three is out of reach of another, or the jump needs no stub.
    pub fn for_jump(
        sled: u64,
        jump: TailJump,
        stub: u64,
        trampoline: u64,
    ) -> Result<Self, EncodeError> {
        let code = code(sled, jump, stub, trampoline)
            .map_err(|error| EncodeError::Assembler(error.to_string()))?;
        let mut staging = super::encode::stage(SledKind::TailExit, sled, stub)?;
        staging.make_jump();
        reach(stub, trampoline)?;
        Ok(Self { code, staging })
    }
}

fn code(
    sled: u64,
    jump: TailJump,
    stub: u64,
    trampoline: u64,
) -> Result<Vec<u8>, iced_x86::IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let back = sled + SLED_BYTES as u64;
    let mut over = a.create_label();
    if let TailJump::Conditional { condition } = jump {
        inverted_jump(&mut a, condition, over)?;
    }
    a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    // The trampoline for stubs reads it there: above its own return address.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low 32 bits are the record"
    )]
    let site = (call_site(SledKind::TailExit, sled) as u32).cast_signed();
    a.push(site)?;
    a.call(trampoline)?;
    a.lea(rsp, qword_ptr(rsp + (RED_ZONE + 8)))?;
    a.set_label(&mut over)?;
    a.jmp(back)?;
    a.assemble(stub)
}

fn inverted_jump(
    a: &mut CodeAssembler,
    condition: u8,
    over: iced_x86::code_asm::CodeLabel,
) -> Result<(), iced_x86::IcedError> {
    match condition ^ 1 {
        0x0 => a.jo(over),
        0x1 => a.jno(over),
        0x2 => a.jb(over),
        0x3 => a.jae(over),
        0x4 => a.je(over),
        0x5 => a.jne(over),
        0x6 => a.jbe(over),
        0x7 => a.ja(over),
        0x8 => a.js(over),
        0x9 => a.jns(over),
        0xa => a.jp(over),
        0xb => a.jnp(over),
        0xc => a.jl(over),
        0xd => a.jge(over),
        0xe => a.jle(over),
        _ => a.jg(over),
    }
}
