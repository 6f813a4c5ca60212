//! The code that staged sleds call: the hot path and the slow path.
//!
//! There are two flavours and one slow path. Entries, exits and tail exits do not differ, since the
//! name of a site comes from the return address and no flavour touches a flag. The flavours keep
//! every register, touch no vector state, make no system call, and never wait. They use 144 bytes
//! of stack, 48 on the hot path; the sled itself uses 16.
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
//! their reasons. Steps and labels have the names of the mirrored file and of
//! `shm_ring::Recording`. `x0` points to the words of the ring that the hot path reserved and could
//! not use. `w5` describes the event:
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
    layout::{
        GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, SLOW_WORDS, bucket, control, rings, slot, table,
    },
    view, word,
};

use self::{
    slots::emit_find_slot,
    views::{count_view, emit_begin_view},
};
use crate::{EncodeError, SledKind};

mod slots;
mod views;

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
const HAS_ARGUMENT_BIT: u32 = HAS_ARGUMENT.trailing_zeros();
/// `w5`: the hot path reserved in vain.
const IN_VAIN: u32 = 1 << 9;
const IN_VAIN_BIT: u32 = IN_VAIN.trailing_zeros();
/// Bytes that the hot path and the sled put on the stack.
const HOT_FRAME: u32 = 48 + 16;
/// Bytes that the slow path puts on the stack. x0 lies above them.
const SLOW_FRAME: u32 = 96;
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
const STARTED: u32 = offset(slot::STARTED);
const REPORTED: u32 = offset(slot::REPORTED);
const OWNER: u32 = offset(control::OWNER);
const RELEASED: u32 = offset(control::RELEASED);
const PUBLISHED: u32 = offset(control::STARTED);
const LOST: u32 = offset(control::LOST);
const BUSY: u32 = offset(control::BUSY);
const LIVE: u32 = offset(table::LIVE);
const MINE: u32 = offset(table::MINE);
const NO_SLOT: u32 = offset(rings::NO_SLOT);
const BUCKETS_TAKEN: u32 = offset(rings::BUCKETS_TAKEN);
const BUCKET_TID: u32 = offset(bucket::TID);
const BUCKET_LOST: u32 = offset(bucket::LOST);
/// A difference that is in the view is 0 when it is shifted right by this.
const TICKS_SHIFT: u32 = view::TICKS.trailing_zeros();
const WINDOW_SHIFT: u32 = view::WINDOW_BYTES.trailing_zeros();
const BASE_HALF_STEP: u32 = offset(view::BASE_STEP / 2);
const PARKED_BIT: u32 = slot::PARKED.trailing_zeros();
/// The bits of a parked head without the additions of vain attempts.
const PARKED_MASK: u64 = !(slot::PARKED_ROOM - 1);

/// The places at which the parts of the slow path go on.
#[derive(Debug, Clone, Copy)]
struct Ways {
    /// Writes a word.
    put: DynamicLabel,
    /// Another context has the slow path. The rest of the chunk counts as this event.
    robbed: DynamicLabel,
    /// Counts the event, of which no word is in the ring.
    lost: DynamicLabel,
}

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

/// The slow path. x0 and w5 as drawn above, the flavour's registers on the stack. Returns to the
/// sled.
fn emit_slow(a: &mut Assembler, spec: &TrampolineSpec) {
    let g = spec.geometry;
    let ways = Ways {
        put: a.new_dynamic_label(),
        robbed: a.new_dynamic_label(),
        lost: a.new_dynamic_label(),
    };
    dynasm!(a
        ; .arch aarch64
        ; stp x6, x7, [sp, #-96]!
        ; stp x8, x9, [sp, #16]
        ; stp x10, x11, [sp, #32]
        ; stp x12, x13, [sp, #48]
        ; stp x14, x15, [sp, #64]
        ; stp x16, x17, [sp, #80]
        ; mov x15, x30
    );
    // A forked child sees a zeroed table: not traced.
    load64(a, 4, spec.table);
    dynasm!(a
        ; .arch aarch64
        ; ldr x6, [x4, LIVE]
        ; cbz x6, >out
        // The hot path's reservation, made before the view was seen to be new, or too short for an
        // argument. No other context ever writes these words.
        ; and w6, w5, #0xff
        ; cbz w6, >filler_done
        ; movz w7, word::FILLER
        ; filler:
        ; str x7, [x0], #8
        ; and x4, x0, chunk_mask(g)
        ; cbz x4, >filler_done
        ; sub w6, w6, #1
        ; cbnz w6, <filler
        ; filler_done:
    );
    emit_find_slot(a, spec);
    emit_take_head(a, spec, ways);
    emit_new_chunk(a, ways, g);
    emit_words(a, spec, ways);
    dynasm!(a
        ; .arch aarch64
        // The mark is this context's unless the collector has removed it.
        ; idle:
        ; add x7, x4, BUSY
        ; clear:
        ; ldxr x6, [x7]
        ; eor x6, x6, x14
        ; cbnz x6, >out
        ; stxr w6, xzr, [x7]
        ; cbnz w6, <clear
        ; b >out

        // Another context has taken the slow path over, or this is a child, whose table is private.
        // The slot may hold a part of this context's view, so the next event begins a view.
        ; =>ways.robbed
    );
    count_view(a);
    dynasm!(a
        ; .arch aarch64
        ; str xzr, [x1, SINCE]
        ; b >out

        // The head goes back to the mark of the context that this one has taken over, or to the
        // ring's end.
        ; full:
        ; mov x10, x0
        ; tbnz x0, PARKED_BIT, >back
        ; mov x10, x12
        ; back:
        ; add x7, x1, HEAD
        ; put_back:
        ; ldxr x6, [x7]
        ; and x16, x6, PARKED_MASK
        ; eor x16, x16, x14
        ; cbnz x16, =>ways.lost
        ; stxr w16, x10, [x7]
        ; cbnz w16, <put_back
        ; =>ways.lost
        ; add x7, x4, LOST
        // The look is part of the loop, here and below: after a fork between the two accesses, the
        // loop begins again.
        ; count_full:
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; ldxr x6, [x7]
        ; add x6, x6, #1
        ; stxr w10, x6, [x7]
        ; cbnz w10, <count_full
        ; b <idle

        // Each vain attempt adds to the head. This removes the addition, unless another context
        // has removed it.
        ; busy:
        ; tbz w5, IN_VAIN_BIT, >not_in_vain
        ; and x6, x0, PARKED_MASK
        ; add x7, x1, HEAD
        ; repark:
        ; ldxr x10, [x7]
        ; eor x10, x10, x0
        ; cbnz x10, >not_in_vain
        ; stxr w10, x6, [x7]
        ; cbnz w10, <repark
        ; not_in_vain:
        ; add x7, x4, LOST
        ; count_busy:
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; ldxr x6, [x7]
        ; add x6, x6, #1
        ; stxr w10, x6, [x7]
        ; cbnz w10, <count_busy

        ; out:
        ; mov x30, x15
        ; ldp x16, x17, [sp, #80]
        ; ldp x14, x15, [sp, #64]
        ; ldp x12, x13, [sp, #48]
        ; ldp x10, x11, [sp, #32]
        ; ldp x8, x9, [sp, #16]
        ; ldp x6, x7, [sp], #96
        ; ldp x4, x5, [sp, #32]
        ; ldp x2, x3, [sp, #16]
        ; ldp x0, x1, [sp], #48
        ; ret

        // Writes the word x7 to x0 and moves x0 on. x6 is 0 if the head is still parked by this
        // context. The old word is read before the look at the head. The high half of an empty word
        // counts the rounds of the ring. Spoils x10 and x16.
        ; =>ways.put
        ; ldr x10, [x0]
        ; ldr x6, [x1, HEAD]
        ; and x6, x6, PARKED_MASK
        ; eor x6, x6, x14
        ; cbnz x6, >gone
        ; ldxr x16, [x0]
        ; eor x16, x16, x10
        ; cbnz x16, =>ways.put
        ; stxr w16, x7, [x0]
        ; cbnz w16, =>ways.put
        ; add x0, x0, #8
        ; gone:
        ; ret
    );
}

/// Goes to `gone` if the head is not parked by this context any more: another context has taken the
/// slow path over, or this is a forked child, whose table is wiped. x`register` is lost.
fn look_at_head(a: &mut Assembler, register: u8, gone: DynamicLabel) {
    dynasm!(a
        ; .arch aarch64
        ; ldr X(register), [x1, HEAD]
        ; and XSP(register), X(register), PARKED_MASK
        ; eor X(register), X(register), x14
        ; cbnz X(register), =>gone
    );
}

/// Writes the word x7, see `put`.
fn put(a: &mut Assembler, ways: Ways) {
    dynasm!(a
        ; .arch aarch64
        ; bl =>ways.put
        ; cbnz x6, =>ways.robbed
    );
}

/// Goes to `out` if the table is wiped: this is a forked child. x`register` is lost.
fn leave_if_child(a: &mut Assembler, spec: &TrampolineSpec, register: u8) {
    load64(a, register, spec.table);
    dynasm!(a
        ; .arch aarch64
        ; ldr X(register), [X(register), MINE]
        ; cbz X(register), >out
    );
}

/// Parks the head. Then x4 = control line, x11 = the ring, x12 = its end, x14 = the head as this
/// context parks it, x0 = the head before, x2 = the counter, x3 = the place on the stack at the
/// sled. Goes to `have_room`, or fills the chunk's rest and goes on.
fn emit_take_head(a: &mut Assembler, spec: &TrampolineSpec, ways: Ways) {
    let g = spec.geometry;
    load64(a, 4, spec.rings + HEADER_BYTES);
    load64(a, 11, spec.rings + g.rings_offset());
    load64(a, 12, g.ring_bytes());
    dynasm!(a
        ; .arch aarch64
        ; add x4, x4, x9, lsl LINE_SHIFT
        ; add x11, x11, x9, lsl g.ring_shift()
        ; add x12, x11, x12
        // The same as `slot::parked_by`.
        ; add x14, sp, #0
        ; lsl x14, x14, #10
        ; lsr x14, x14, #2
        ; orr x14, x14, slot::PARKED
        // One at a time: a handler that interrupts the slow path counts its event as lost.
        ; take:
        ; ldr x0, [x1, HEAD]
        ; tbz x0, PARKED_BIT, >free
        // This context's own mark stands there if the head changed after it was read.
        ; ldr x6, [x4, BUSY]
        ; cbz x6, >free
        ; eor x6, x6, x14
        ; cbnz x6, >busy
        ; free:
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; str x14, [x4, BUSY]
        // Handlers keep the words that they reserve before the exchange, and reserve none after it.
        ; add x7, x1, HEAD
        ; park:
        ; ldxr x6, [x7]
        ; eor x6, x6, x0
        ; cbnz x6, <take
        ; stxr w6, x14, [x7]
        ; cbnz w6, <park
    );
    // A wiped slot has the same head as a new one.
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; mrs x2, CNTVCT_EL0
        ; add x3, sp, SLOW_FRAME + HOT_FRAME
        // Is there a chunk under way, and room in it? A freed slot has a head from its last owner,
        // but no limit. A head that another context has parked is no address in the ring. The rest
        // of that context's chunk is a hole, which counts as its event.
        ; ldr x6, [x1, LIMIT]
        ; cbz x6, >new_chunk
        ; sub x6, x0, x11
        ; tbnz x6, #63, >new_chunk
        ; sub x6, x0, x12
        ; tbz x6, #63, >new_chunk
        ; and x6, x0, beyond_guard(g)
        ; cbz x6, >new_chunk
    );
    load64(a, 7, g.chunk_bytes() - SLOW_WORDS * 8);
    dynasm!(a
        ; .arch aarch64
        ; and x6, x0, chunk_mask(g)
        ; sub x6, x7, x6
        ; tbz x6, #63, >have_room
        ; movz w7, word::FILLER
        ; fill_rest:
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; and x6, x0, chunk_mask(g)
        ; cbnz x6, <fill_rest
    );
}

/// Begins a chunk: x0 = its first word, x13 = the end of its guard. Goes to `write_view`.
fn emit_new_chunk(a: &mut Assembler, ways: Ways, g: Geometry) {
    let chunks_shift = g.ring_shift() - g.chunk_shift();
    dynasm!(a
        ; .arch aarch64
        // A context that gives up between here and the claim leaves nothing in the ring, not even a
        // hole. So it counts its event.
        ; new_chunk:
        ; ldr x6, [x1, STARTED]
        // Pairs with the collector's store of RELEASED after it emptied the chunk.
        ; add x7, x4, RELEASED
        ; ldar x7, [x7]
        ; sub x7, x6, x7
        ; lsr x7, x7, chunks_shift
        ; cbnz x7, >full
    );
    look_at_head(a, 10, ways.lost);
    dynasm!(a
        ; .arch aarch64
        ; add x7, x1, STARTED
        ; ldxr x10, [x7]
        ; eor x10, x10, x6
        ; cbnz x10, <new_chunk
        ; add x10, x6, #1
        ; stxr w16, x10, [x7]
        ; cbnz w16, <new_chunk
        ; and x7, x6, low_bits(chunks_shift)
        ; add x0, x11, x7, lsl g.chunk_shift()
    );
    look_at_head(a, 7, ways.robbed);
    dynasm!(a
        ; .arch aarch64
        ; str x8, [x4, OWNER]
        ; str x12, [x1, LIMIT]
        // Publishes the owner, and that the words of earlier chunks were written. The number never
        // goes back.
        ; add x7, x4, PUBLISHED
        ; publish:
        ; ldxr x6, [x7]
        ; sub x6, x6, x10
        ; tbz x6, #63, >published
        ; stlxr w6, x10, [x7]
        ; cbnz w6, <publish
        ; published:
        ; add x13, x0, offset(GUARD_BYTES)
        ; b >write_view
    );
}

/// Writes the view and the losses where they are needed, filler up to the guard's end, and the
/// event.
fn emit_words(a: &mut Assembler, spec: &TrampolineSpec, ways: Ways) {
    dynasm!(a
        ; .arch aarch64
        ; have_room:
        ; mov x13, x0
        ; ldr x6, [x1, SINCE]
        ; sub x6, x2, x6
        ; lsr x7, x6, TICKS_SHIFT
        ; cbnz x7, >write_view
        ; ldr x7, [x1, BASE]
        ; sub x7, x3, x7
        ; lsr x10, x7, WINDOW_SHIFT
        ; cbz x10, >same_view
        ; write_view:
    );
    emit_begin_view(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; same_view:
        // x2 = x6 and x7, both relative to the view.
        ; lsr x7, x7, view::PLACE_SHIFT
        ; orr x2, x7, x6, lsl view::PLACE_BITS
        // Losses since the last gap word. One word holds at most u32::MAX of them.
        ; losses:
        ; ldr x7, [x1, REPORTED]
        ; ldr x6, [x4, LOST]
        ; sub x6, x6, x7
        ; cbz x6, >no_gap
        ; lsr x10, x6, #32
        ; cbz x10, >gap_fits
        ; movn w6, #0
        ; gap_fits:
    );
    look_at_head(a, 10, ways.robbed);
    dynasm!(a
        ; .arch aarch64
        ; add x17, x1, REPORTED
        ; ldxr x10, [x17]
        ; eor x10, x10, x7
        ; cbnz x10, <losses
        ; add x10, x7, x6
        ; stxr w16, x10, [x17]
        ; cbnz w16, <losses
        ; movz w7, word::GAP
        ; orr x7, x7, x6, lsl #32
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; no_gap:
        // Filler in the guard of a new chunk: the event's words end where the guard ends, and
        // nothing stands behind the call word before the call word is stored.
        ; sub x13, x13, #8
        ; tbz w5, HAS_ARGUMENT_BIT, >known
        ; sub x13, x13, #16
        ; known:
        ; movz w7, word::FILLER
        ; fill_guard:
        ; sub x6, x0, x13
        ; tbz x6, #63, >guarded
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; b <fill_guard
        ; guarded:
        ; tbz w5, HAS_ARGUMENT_BIT, >no_argument
        ; ldr x17, [sp, SLOW_FRAME]
        ; movz w7, word::ARGUMENT_LOW
        ; orr x7, x7, x17, lsl #32
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; lsr x17, x17, #32
        ; movz w7, word::ARGUMENT_HIGH
        ; orr x7, x7, x17, lsl #32
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        // The store of the head reserves the call word, as on the hot path; the word is written
        // then.
        ; no_argument:
        ; mov x3, x0
        ; add x0, x0, #8
        // From here on handlers use the chunk.
        ; add x7, x1, HEAD
        ; unpark:
        ; ldxr x6, [x7]
        ; and x10, x6, PARKED_MASK
        ; eor x10, x10, x14
        ; cbnz x10, =>ways.robbed
        ; stxr w10, x0, [x7]
        ; cbnz w10, <unpark
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; add w6, w15, #1
        ; orr x6, x6, x2, lsl #32
        ; str x6, [x3]
    );
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

fn buckets_mask(g: Geometry) -> u32 {
    g.buckets() - 1
}

fn low_bits(count: u32) -> u64 {
    (1 << count) - 1
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
