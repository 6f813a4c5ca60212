//! Reading the bytes of a sled: as compiled, staged, on, or foreign. It also reads the jump behind
//! a tail sled.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use super::{
    encode::{SLED_BYTES, call_site, sled_bytes, switch},
    event::EventArguments,
};
use crate::{SledKind, state::State};

/// The jump behind a tail sled, which decides whether a call in the sled is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailJump {
    /// An unconditional jump that does not read below the stack pointer: a call is safe.
    Plain,
    /// A conditional jump (clang up to 18). Flags and red zone are live, and the event is only true
    /// if the jump is taken.
    Conditional {
        /// Low 4 bits of the opcode: the condition.
        condition: u8,
    },
    /// An unconditional jump through memory below the stack pointer, which a call would overwrite.
    BelowStack,
    /// No jump.
    Other,
}

const ENTRY_NOP: [u8; 9] = [0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00];
const EXIT_NOP: [u8; 10] = [0x2e, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00];
const STAGED_NOP: [u8; 4] = [0x0f, 0x1f, 0x40, 0x00];

/// The state that the bytes of a sled of `kind` at `address` show. Bytes behind the sled are not
/// read.
pub fn classify(kind: SledKind, address: u64, bytes: &[u8]) -> State {
    match kind {
        SledKind::Entry | SledKind::Exit | SledKind::TailExit | SledKind::EntryArgument => {
            bytes.first_chunk().map_or(State::Foreign, |bytes| {
                classify_function(kind, address, bytes)
            })
        }
        SledKind::CustomEvent | SledKind::TypedEvent | SledKind::CustomEventV0 => bytes
            .get(..sled_bytes(kind))
            .map_or(State::Foreign, |bytes| classify_event(kind, address, bytes)),
    }
}

/// The address that the call or jump before `call_site` leads to.
fn target(kind: SledKind, address: u64, relative: [u8; 4]) -> u64 {
    call_site(kind, address).wrapping_add_signed(i64::from(i32::from_le_bytes(relative)))
}

fn classify_event(kind: SledKind, address: u64, bytes: &[u8]) -> State {
    let off = switch(kind).off;
    match *bytes {
        [0xcc, ..] => State::Breakpoint,
        // The runtime's unpatch puts back the compiler's bytes.
        [0x66, 0x90, ..] => State::Runtime,
        // No compiler's body begins with a jump.
        [0xeb, head, 0xe9, a, b, c, d, ..] => {
            let target = target(kind, address, [a, b, c, d]);
            match head {
                0x00 => State::On { target },
                _ if head == off => State::Staged { target },
                _ => State::Foreign,
            }
        }
        _ if EventArguments::decode(kind, bytes).is_some() => State::Compiled,
        _ => State::Foreign,
    }
}

fn classify_function(kind: SledKind, address: u64, bytes: &[u8; SLED_BYTES]) -> State {
    let switch = switch(kind);
    let target = |relative| target(kind, address, relative);
    match (kind, *bytes) {
        (_, [0xcc, ..]) => State::Breakpoint,
        (_, [0x41, 0xba, ..]) => State::Runtime,
        (SledKind::Exit, [0xc3, rest @ ..]) if rest == EXIT_NOP => State::Compiled,
        // The runtime's unpatch puts back one byte and leaves its id and jump behind.
        (SledKind::Exit, [0xc3, 0xba, _, _, _, _, 0xe9, ..]) => State::Runtime,
        (SledKind::Exit, [head, a, b, c, d, 0xc3, tail @ ..]) if tail == EXIT_NOP[5..] => {
            match head {
                0xc3 => State::Staged {
                    target: target([a, b, c, d]),
                },
                0xe8 => State::On {
                    target: target([a, b, c, d]),
                },
                _ => State::Foreign,
            }
        }
        (SledKind::Exit, _) => State::Foreign,
        (_, [0xeb, 0x09, rest @ ..]) if rest == ENTRY_NOP => State::Compiled,
        (_, [0xeb, 0x09, 0xe8 | 0xe9, a, b, c, d, tail @ ..]) if tail == STAGED_NOP => {
            State::Staged {
                target: target([a, b, c, d]),
            }
        }
        // Behind the arms for our own sleds: a trampoline some 400 MiB below has that byte in its
        // distance, too.
        (_, [0xeb, 0x09, _, _, _, _, 0xe8, ..]) => State::Runtime,
        (_, [first, second, 0xe8 | 0xe9, a, b, c, d, tail @ ..]) if tail == STAGED_NOP => {
            let on = match switch.offset {
                0 => [switch.on, 0x09],
                _ => [0xeb, switch.on],
            };
            if [first, second] == on {
                State::On {
                    target: target([a, b, c, d]),
                }
            } else {
                State::Foreign
            }
        }
        _ => State::Foreign,
    }
}

/// Reads the instruction behind a tail sled; `bytes` begin at the sled's address + [`SLED_BYTES`].
pub fn tail_jump(bytes: &[u8]) -> TailJump {
    let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => TailJump::Plain,
        FlowControl::IndirectBranch if reads_below_stack(&instruction) => TailJump::BelowStack,
        FlowControl::IndirectBranch => TailJump::Plain,
        FlowControl::ConditionalBranch => condition(&instruction)
            .map_or(TailJump::Other, |condition| TailJump::Conditional {
                condition,
            }),
        _ => TailJump::Other,
    }
}

fn reads_below_stack(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && (instruction.memory_base() == Register::RSP
            && (instruction.memory_index() != Register::None
                || instruction.memory_displacement64().cast_signed() < 0))
}

/// The condition of a `jcc`. `jrcxz` and `loop` have none of that form.
fn condition(instruction: &Instruction) -> Option<u8> {
    let code = instruction.code();
    if matches!(code, Code::Jrcxz_rel8_64 | Code::Jecxz_rel8_64)
        || !instruction.is_jcc_short_or_near()
    {
        return None;
    }
    // ConditionCode numbers follow o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g from 1.
    u8::try_from(instruction.condition_code() as usize)
        .ok()?
        .checked_sub(1)
}
