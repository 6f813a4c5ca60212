//! The sleds of `__xray_customevent` and `__xray_typedevent`: the places of their arguments, and
//! the stub that reads them. The trampoline copies the payload.
//!
//! ```text
//!  custom  eb 0f  jmp +15        typed  eb 14  jmp +20         custom, LLVM 5  eb 14  jmp +20
//!          57     push %rdi             57     push %rdi                       50     push %rax
//!          56     push %rsi             56     push %rsi                       …      mov  …, %rdi
//!          …      mov  …, %rdi          52     push %rdx                       …      mov  …, %rsi
//!          …      mov  …, %rsi          …      mov  …, %rdi                    48 b8  mov $…, %rax
//!          e8     call __xray_…         …      mov  …, %rsi                    ff d0  call *%rax
//!          5e     pop  %rsi             …      mov  …, %rdx                    58     pop  %rax
//!          5f     pop  %rdi             e8     call __xray_…
//!                                       5a 5e 5f
//! ```
//!
//! An argument that is in its place already has a 4-byte nop for its push and move (3 bytes in LLVM
//! 5), and a nop for its pop. The sled makes the moves one after the other. Where one of them
//! overwrites the source of a later one, LLVM's call gets a wrong argument (`X86MCInstLower.cpp`,
//! "This doesn't work if one of the later SrcRegs is equal to an earlier DestReg", LLVM 11 to 22).
//! The value meant by each argument is the one in its source *before* the sled. The stub reads that
//! one:
//!
//! ```text
//!  sled:   eb 00  e9 <stub>  …    stub:  lea  -128(%rsp),%rsp    step over the red zone
//!                                        push type               or 0
//!                                        push size
//!                                        push pointer
//!                                        push $site              the name in the record
//!                                        call trampoline         the flavour for events; keeps all
//!                                        lea  160(%rsp),%rsp
//!                                        jmp  behind the sled
//! ```
//!
//! No instruction of the stub touches a flag.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register,
    code_asm::{AsmRegister64, CodeAssembler, qword_ptr, registers as asm, rsp},
};

use super::{
    encode::{call_site, reach, sled_bytes, switch},
    stub::{RED_ZONE, STUB_BYTES, Stub},
};
use crate::{EncodeError, SledKind};

/// The places of an event's arguments when its sled is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventArguments {
    pointer: AsmRegister64,
    size: AsmRegister64,
    /// `None` for custom events.
    kind: Option<AsmRegister64>,
}

// === impl EventArguments ===

impl EventArguments {
    /// Reads them from an event's sled as compiled. `None` unless these are the instructions that a
    /// compiler writes there, to the last byte.
    pub fn decode(kind: SledKind, sled: &[u8]) -> Option<Self> {
        let body = sled.get(2..sled_bytes(kind))?;
        if sled.get(..2)? != [0xeb, switch(kind).off] {
            return None;
        }
        let instructions: Vec<Instruction> = Decoder::with_ip(64, body, 0, DecoderOptions::NONE)
            .into_iter()
            .filter(|instruction| instruction.mnemonic() != Mnemonic::Nop)
            .collect();
        match kind {
            SledKind::CustomEvent => {
                let [pointer, size] = pushed(&instructions, [Register::RDI, Register::RSI])?;
                Some(Self {
                    pointer,
                    size,
                    kind: None,
                })
            }
            SledKind::TypedEvent => {
                let places = [Register::RDI, Register::RSI, Register::RDX];
                let [event_type, pointer, size] = pushed(&instructions, places)?;
                Some(Self {
                    pointer,
                    size,
                    kind: Some(event_type),
                })
            }
            SledKind::CustomEventV0 => {
                let [push, moves @ .., address, call, pop] = instructions.as_slice() else {
                    return None;
                };
                let fits = is_one(push, Code::Push_r64, Register::RAX)
                    && is_one(address, Code::Mov_r64_imm64, Register::RAX)
                    && is_one(call, Code::Call_rm64, Register::RAX)
                    && is_one(pop, Code::Pop_r64, Register::RAX);
                let [pointer, size] = moved(moves, [Register::RDI, Register::RSI])?;
                fits.then_some(Self {
                    pointer,
                    size,
                    kind: None,
                })
            }
            SledKind::Entry | SledKind::Exit | SledKind::TailExit | SledKind::EntryArgument => None,
        }
    }
}

/// The sources of the arguments for `places`. The instructions must be pushes of the places that
/// are written, moves, a call, and pops.
fn pushed<const N: usize>(
    instructions: &[Instruction],
    places: [Register; N],
) -> Option<[AsmRegister64; N]> {
    // Equal numbers of pushes, moves and pops.
    let count = instructions.len().checked_sub(1)? / 3;
    let (pushes, rest) = instructions.split_at_checked(count)?;
    let (moves, rest) = rest.split_at_checked(count)?;
    let (call, pops) = rest.split_first()?;
    let sources = moved(moves, places)?;
    let written: Vec<Register> = moves.iter().map(Instruction::op0_register).collect();
    let are = |made: &[Instruction], code, registers: &mut dyn Iterator<Item = &Register>| {
        made.iter()
            .zip(registers)
            .all(|(instruction, register)| is_one(instruction, code, *register))
    };
    let fits = pops.len() == count
        && call.code() == Code::Call_rel32_64
        && are(pushes, Code::Push_r64, &mut written.iter())
        && are(pops, Code::Pop_r64, &mut written.iter().rev());
    fits.then_some(sources)
}

/// The source of each of `places`: itself, or the register that is moved into it. The moves must be
/// in order, at most one for a place, and nothing else.
fn moved<const N: usize>(
    moves: &[Instruction],
    places: [Register; N],
) -> Option<[AsmRegister64; N]> {
    let mut moves = moves.iter().peekable();
    let mut sources = [asm::rax; N];
    for (source, place) in sources.iter_mut().zip(places) {
        let register = moves
            .next_if(|instruction| {
                matches!(instruction.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64)
                    && instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register
                    && instruction.op0_register() == place
            })
            .map_or(place, Instruction::op1_register);
        *source = asm::gpr64::get_gpr64(register)?;
    }
    moves.next().is_none().then_some(sources)
}

/// True for the instruction of this code with this register first.
fn is_one(instruction: &Instruction, code: Code, register: Register) -> bool {
    instruction.code() == code && instruction.op0_register() == register
}

// === impl Stub ===

impl Stub {
    /// The stub at `stub` for the event's sled of `kind` at `sled`. It calls `trampoline` (the
    /// flavour for events).
    ///
    /// # Errors
    /// If one of the three is out of reach of another, or if the arguments are in places that take
    /// more code than a stub has.
    pub fn for_event(
        kind: SledKind,
        sled: u64,
        arguments: EventArguments,
        stub: u64,
        trampoline: u64,
    ) -> Result<Self, EncodeError> {
        let code = code(kind, sled, arguments, stub, trampoline)
            .map_err(|error| EncodeError::Assembler(error.to_string()))?;
        if code.len() > STUB_BYTES {
            let problem = format!("{} bytes for the stub of an event", code.len());
            return Err(EncodeError::Assembler(problem));
        }
        let staging = super::encode::stage(kind, sled, stub)?;
        reach(stub, trampoline)?;
        Ok(Self { code, staging })
    }
}

fn code(
    kind: SledKind,
    sled: u64,
    arguments: EventArguments,
    stub: u64,
    trampoline: u64,
) -> Result<Vec<u8>, iced_x86::IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
    match arguments.kind {
        Some(register) => push(&mut a, register, 0)?,
        None => a.push(0)?,
    }
    push(&mut a, arguments.size, 1)?;
    push(&mut a, arguments.pointer, 2)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low 32 bits are the record"
    )]
    let site = (call_site(kind, sled) as u32).cast_signed();
    a.push(site)?;
    a.call(trampoline)?;
    a.lea(rsp, qword_ptr(rsp + (RED_ZONE + 4 * 8)))?;
    a.jmp(sled + sled_bytes(kind) as u64)?;
    a.assemble(stub)
}

/// Pushes the value that `register` had at the sled, after `words` other pushes.
fn push(
    a: &mut CodeAssembler,
    register: AsmRegister64,
    words: i32,
) -> Result<(), iced_x86::IcedError> {
    if register == rsp {
        // The stack pointer has moved by now.
        a.push(asm::rax)?;
        a.lea(asm::rax, qword_ptr(rsp + (RED_ZONE + 8 * (words + 1))))?;
        return a.xchg(qword_ptr(rsp), asm::rax);
    }
    a.push(register)
}
