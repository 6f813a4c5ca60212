//! The code that staged sleds call: the hot path, and the entry points of both flavours.
//!
//! There are two flavours and one slow path. Entries, exits and tail exits do not differ, since the
//! name of a site comes from the return address and no flavour touches a flag. The flavours keep
//! every register, touch no vector state, make no system call, and wait only for room in a full
//! ring, if the collector allows it (`slow`). They use 144 bytes of stack, 48 on the hot path; the
//! sled itself uses 16.
//!
//! ```text
//!  stack on the hot path      registers after the preamble
//!  +0   x0, x1                x0  the reserved word
//!  +16  x2, x3                x1  slot
//!  +32  x4, x5                x2  counter, then time and place as a call word has them
//!                             x3  number of views begun
//!                             x4, x5  free
//!  x30  return address into the sled: its low half + 1 is the record's name
//! ```
//!
//! `docs/design/trampoline.md` and `docs/design/aarch64.md` have the rules of the slow path and
//! their reasons. Steps and labels have the names of the mirrored files and of
//! `shm_ring::Recording`. There are no gates, no counting, no filter and no payloads, so the files
//! for these have no mirror image. `x0` points to the words of the ring that the hot path reserved
//! and could not use. `w5` describes the event:
//!
//! ```text
//!  w5 bits 0..8   words at x0 to turn into filler, up to the chunk's end (a reservation that
//!                 cannot be used)
//!          8      the event has an argument (in x0 at the call; the stack has it)
//!          9      the hot path reserved in vain: head was parked or at the chunk's end
//! ```
//!
//! A signal handler may run between any two instructions and record events itself. Some steps are
//! one instruction on x86-64: reserve, park, count a loss. Here each of them is a loop of `ldxr`
//! and `stxr`. The return from an exception clears the monitor, so a handler between the two makes
//! the loop begin again. A word is stored whole, by one aligned store of 8 bytes.
//!
//! A handler may also switch to another context, which takes the slow path over. The rules for
//! stores are those of x86-64. A switch back that is no return from an exception does not clear the
//! monitor, so the slow path does not rely on the monitor.

use dynasm::dynasm;
use dynasmrt::{DynamicLabel, DynasmApi, DynasmLabelApi, VecAssembler, aarch64::Aarch64Relocation};
use shm_ring::{
    Geometry,
    layout::{GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, slot},
    view, word,
};

use self::slow::emit_slow;
use crate::{EncodeError, SledKind};

mod slow;
mod waiting;

/// The addresses and sizes of all memory that the trampolines of one target use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrampolineSpec {
    /// The address where the code will stand: a multiple of 64.
    pub origin: u64,
    /// Offset from `tpidr_el0` of the thread library's copy of the thread id; glibc has it below.
    pub tid_offset: i32,
    /// Address of the table's mapping.
    pub table: u64,
    /// Address of the rings' mapping, a multiple of the chunk size.
    pub rings: u64,
    /// Sizes of both.
    pub geometry: Geometry,
}

/// Assembled trampolines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampolines {
    /// The machine code for the spec's origin.
    pub code: Vec<u8>,
    event: u64,
    argument: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    First,
}

type Assembler = VecAssembler<Aarch64Relocation>;

/// `w5`: the event has an argument.
const HAS_ARGUMENT: u32 = 1 << 8;
/// `w5`: the hot path reserved in vain.
const IN_VAIN: u32 = 1 << 9;
/// Bytes that the hot path and the sled put on the stack.
const HOT_FRAME: u32 = 48 + 16;
/// Code that is only jumped to stands at multiples of a cache line.
const ALIGN: usize = 64;

/// The thread's pointer to its control block.
const TPIDR_EL0: u32 = system_register(3, 13, 0, 2);
/// The virtual counter, of the same frequency on every processor.
const CNTVCT_EL0: u32 = system_register(3, 14, 0, 2);

// Offsets that instructions take as they are.
const TID: u32 = offset(slot::TID);
const VIEW: u32 = offset(slot::VIEW);
const SINCE: u32 = offset(slot::SINCE);
const BASE: u32 = offset(slot::BASE);
const HEAD: u32 = offset(slot::HEAD);
const LIMIT: u32 = offset(slot::LIMIT);
/// A difference that is in the view is 0 when it is shifted right by this.
const TICKS_SHIFT: u32 = view::TICKS.trailing_zeros();
const WINDOW_SHIFT: u32 = view::WINDOW_BYTES.trailing_zeros();

// === impl Trampolines ===

impl Trampolines {
    /// Generates the code.
    ///
    /// # Errors
    /// [`EncodeError::Unaligned`] if the code cannot stand at the origin.
    /// [`EncodeError::Assembler`] is a mistake in here.
    pub fn assemble(spec: &TrampolineSpec) -> Result<Self, EncodeError> {
        if !spec.origin.is_multiple_of(ALIGN as u64) {
            return Err(EncodeError::Unaligned {
                address: spec.origin,
            });
        }
        // All jumps are relative: the origin does not matter to the assembler.
        let mut a = Assembler::new(0);
        let slow = a.new_dynamic_label();
        let event = emit_flavour(&mut a, spec, Argument::None, slow);
        let argument = emit_flavour(&mut a, spec, Argument::First, slow);
        align(&mut a);
        dynasm!(a ; .arch aarch64 ; =>slow);
        emit_slow(&mut a, spec);
        let code = a
            .finalize()
            .map_err(|error| EncodeError::Assembler(error.to_string()))?;
        Ok(Self {
            code,
            event: spec.origin + event,
            argument: spec.origin + argument,
        })
    }

    /// Address of the trampoline that a staged sled of `kind` calls.
    /// `None` for the events of the program's own, which have none here.
    pub const fn target(&self, kind: SledKind) -> Option<u64> {
        match kind {
            SledKind::Entry | SledKind::Exit | SledKind::TailExit => Some(self.event),
            SledKind::EntryArgument => Some(self.argument),
            SledKind::CustomEvent | SledKind::TypedEvent | SledKind::CustomEventV0 => None,
        }
    }
}

/// Emits `udf #0` up to the next cache line.
fn align(a: &mut Assembler) {
    while !a.offset().0.is_multiple_of(ALIGN) {
        a.push_u32(0);
    }
}

/// Emits the hot path, and returns its offset.
fn emit_flavour(
    a: &mut Assembler,
    spec: &TrampolineSpec,
    argument: Argument,
    slow: DynamicLabel,
) -> u64 {
    let g = spec.geometry;
    let (words, what) = match argument {
        Argument::None => (1, 0),
        Argument::First => (3, HAS_ARGUMENT),
    };
    align(a);
    let start = a.offset().0 as u64;
    dynasm!(a
        ; .arch aarch64
        ; stp x0, x1, [sp, #-48]!
        ; stp x2, x3, [sp, #16]
        ; stp x4, x5, [sp, #32]
    );
    // Whose slot?
    load_tid(a, spec, 0);
    load64(a, 1, spec.table + HEADER_BYTES);
    dynasm!(a
        ; .arch aarch64
        ; and w2, w0, slots_mask(g)
        ; add x1, x1, x2, lsl LINE_SHIFT
        ; ldr w2, [x1, TID]
        ; eor w2, w2, w0
        ; cbnz w2, >nothing_reserved
        // Counter, view, reservation, view again: see the header on handlers in between. No `isb`:
        // as with rdtsc, a counter read a few instructions early does not matter. The number of
        // views is read before the view.
        ; mrs x2, CNTVCT_EL0
        ; ldr w3, [x1, VIEW]
        ; ldr x4, [x1, SINCE]
        ; sub x2, x2, x4
        ; lsr x4, x2, TICKS_SHIFT
        ; cbnz x4, >nothing_reserved
        ; add x5, sp, HOT_FRAME
        ; ldr x4, [x1, BASE]
        ; sub x5, x5, x4
        ; lsr x4, x5, WINDOW_SHIFT
        ; cbnz x4, >nothing_reserved
        ; lsr x5, x5, view::PLACE_SHIFT
        ; orr x2, x5, x2, lsl view::PLACE_BITS
        // x1 moves on to the head for the loop, and back.
        ; add x1, x1, HEAD
        ; reserve:
        ; ldxr x0, [x1]
        ; add x4, x0, words * 8
        ; stxr w5, x4, [x1]
        ; cbnz w5, <reserve
        ; sub x1, x1, HEAD
        // At the ring's end or behind it?
        ; ldr x4, [x1, LIMIT]
        ; sub x4, x0, x4
        ; tbz x4, #63, >in_vain
        ; and x4, x0, beyond_guard(g)
        ; cbz x4, >in_vain
        ; ldr w4, [x1, VIEW]
        ; eor w4, w4, w3
        ; cbnz w4, >unusable
    );
    if argument == Argument::First {
        // Three words must not straddle the chunk's end. Chunks are aligned, so the address is
        // enough.
        load64(a, 5, g.chunk_bytes() - 24);
        dynasm!(a
            ; .arch aarch64
            ; and x4, x0, chunk_mask(g)
            ; sub x4, x5, x4
            ; tbnz x4, #63, >unusable
            ; ldr x4, [sp]
            ; movz w5, word::ARGUMENT_LOW
            ; orr x5, x5, x4, lsl #32
            ; str x5, [x0], #8
            ; lsr x4, x4, #32
            ; movz w5, word::ARGUMENT_HIGH
            ; orr x5, x5, x4, lsl #32
            ; str x5, [x0], #8
        );
    }
    dynasm!(a
        ; .arch aarch64
        ; add w4, w30, #1
        ; orr x4, x4, x2, lsl #32
        ; str x4, [x0]
        ; ldp x4, x5, [sp, #32]
        ; ldp x2, x3, [sp, #16]
        ; ldp x0, x1, [sp], #48
        ; ret

        ; nothing_reserved:
        ; movz w5, what
        ; b =>slow
        ; in_vain:
        ; movz w5, what | IN_VAIN
        ; b =>slow
        ; unusable:
        ; movz w5, what | words
        ; b =>slow
    );
    start
}

/// w`register` = the thread id; w1 is lost.
fn load_tid(a: &mut Assembler, spec: &TrampolineSpec, register: u8) {
    let offset = spec.tid_offset.cast_unsigned();
    dynasm!(a
        ; .arch aarch64
        ; mrs X(register), TPIDR_EL0
        ; movz w1, offset & 0xffff
        ; movk w1, offset >> 16, lsl #16
        ; ldr W(register), [X(register), w1, sxtw]
    );
}

/// x`register` = `value`, in as few instructions as it has 16-bit parts that are not 0.
fn load64(a: &mut Assembler, register: u8, value: u64) {
    let part = |shift: u32| u32::try_from(value >> shift & 0xffff).expect("16 bits");
    dynasm!(a ; .arch aarch64 ; movz X(register), part(0));
    if part(16) != 0 {
        dynasm!(a ; .arch aarch64 ; movk X(register), part(16), lsl #16);
    }
    if part(32) != 0 {
        dynasm!(a ; .arch aarch64 ; movk X(register), part(32), lsl #32);
    }
    if part(48) != 0 {
        dynasm!(a ; .arch aarch64 ; movk X(register), part(48), lsl #48);
    }
}

/// The bits of an address's low half. Outside a chunk's guard, at least one of them is set.
fn beyond_guard(g: Geometry) -> u64 {
    g.chunk_bytes() - GUARD_BYTES
}

fn chunk_mask(g: Geometry) -> u64 {
    g.chunk_bytes() - 1
}

fn slots_mask(g: Geometry) -> u32 {
    g.slots() - 1
}

/// The 15 bits by which `mrs` names a register of op0 3.
const fn system_register(op1: u32, crn: u32, crm: u32, op2: u32) -> u32 {
    1 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

/// An offset in a slot or a line.
#[expect(clippy::cast_possible_truncation, reason = "offsets are small")]
const fn offset(value: u64) -> u32 {
    value as u32
}
