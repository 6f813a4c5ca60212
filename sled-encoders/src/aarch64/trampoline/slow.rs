//! The slow path, which both flavours share. It begins chunks and views, and counts losses. The hot
//! path is in `mod.rs`. The file is long because it emits one sequence of machine code, whose parts
//! share their registers, labels and stack.
//!
//! ```text
//!  stack at entry             registers at entry
//!  +0   x0 … x5               x0  words that the hot path reserved and could not use
//!  +48  the sled's frame      w5  the event, as drawn in the header of `super`
//!                             x30  return address into the sled
//!
//!  stack behind the preamble  registers, once the head is parked
//!  +0   x6, x7                x0  the head before, then the next word
//!  +16  x8, x9                x1  slot
//!  +32  x10, x11              x2  counter, then time and place as a call word has them
//!  +48  x12, x13              x3  the place on the stack at the sled, then the call word
//!  +64  x14, x15              x4  control line
//!  +80  x16, x17              x8  thread id    x9  index of the slot
//!  +96  x0 … x5               x11  the ring    x12  its end    x13  end of a new chunk's guard
//!  +144 the sled's frame      x14  the head as this context parks it
//!                             x15  return address into the sled
//! ```

use dynasm::dynasm;
use dynasmrt::{DynamicLabel, DynasmApi, DynasmLabelApi};
use shm_ring::{
    Geometry,
    layout::{
        BUCKET_SHIFT, GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, PROBES, SLOW_WORDS, bucket, control,
        rings, slot, table,
    },
    view, word,
};

use super::{
    Assembler, BASE, CNTVCT_EL0, HAS_ARGUMENT, HEAD, HOT_FRAME, IN_VAIN, LIMIT, SINCE, TICKS_SHIFT,
    TID, TrampolineSpec, VIEW, WINDOW_SHIFT, beyond_guard, chunk_mask, load_tid, load64, offset,
    slots_mask, waiting::emit_wait,
};

const HAS_ARGUMENT_BIT: u32 = HAS_ARGUMENT.trailing_zeros();
const IN_VAIN_BIT: u32 = IN_VAIN.trailing_zeros();
/// Bytes that the slow path puts on the stack. x0 lies above them.
const SLOW_FRAME: u32 = 96;

// Offsets that instructions take as they are.
pub(super) const STARTED: u32 = offset(slot::STARTED);
const REPORTED: u32 = offset(slot::REPORTED);
const OWNER: u32 = offset(control::OWNER);
pub(super) const RELEASED: u32 = offset(control::RELEASED);
const PUBLISHED: u32 = offset(control::STARTED);
const LOST: u32 = offset(control::LOST);
pub(super) const BUSY: u32 = offset(control::BUSY);
pub(super) const LIVE: u32 = offset(table::LIVE);
const MINE: u32 = offset(table::MINE);
const NO_SLOT: u32 = offset(rings::NO_SLOT);
const BUCKETS_TAKEN: u32 = offset(rings::BUCKETS_TAKEN);
const CHUNK: u32 = offset(rings::CHUNK);
const CLAIM: u32 = offset(rings::CLAIM);
pub(super) const DEADLINE: u32 = offset(rings::DEADLINE);
pub(super) const WAIT: u32 = offset(rings::WAIT);
pub(super) const WAITED: u32 = offset(slot::WAITED);
const CLOSED_AT: u32 = offset(table::CLOSED_AT);
const BUCKET_TID: u32 = offset(bucket::TID);
const BUCKET_LOST: u32 = offset(bucket::LOST);
const BASE_HALF_STEP: u32 = offset(view::BASE_STEP / 2);
const PARKED_BIT: u32 = slot::PARKED.trailing_zeros();
/// The bits of a parked head without the additions of vain attempts.
const PARKED_MASK: u64 = !(slot::PARKED_ROOM - 1);

/// The places at which the parts of the slow path go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// Writes a word.
    put: DynamicLabel,
    /// Another context has the slow path. The rest of the chunk counts as this event.
    robbed: DynamicLabel,
    /// Counts the event, of which no word is in the ring.
    pub(super) lost: DynamicLabel,
    /// Looks for the thread's slot, after a wait for room.
    pub(super) find: DynamicLabel,
}

/// The slow path. x0 and w5 as drawn above, the flavour's registers on the stack. Returns to the
/// sled.
pub(super) fn emit_slow(a: &mut Assembler, spec: &TrampolineSpec) {
    let g = spec.geometry;
    let ways = Ways {
        put: a.new_dynamic_label(),
        robbed: a.new_dynamic_label(),
        lost: a.new_dynamic_label(),
        find: a.new_dynamic_label(),
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
        ; cbz x6, >closed
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
        ; =>ways.find
    );
    emit_slot(a, spec);
    emit_take_head(a, spec, ways);
    emit_new_chunk(a, spec, ways);
    emit_words(a, spec, ways);
    dynasm!(a
        ; .arch aarch64
        // The mark is this context's unless the collector has removed it.
        ; idle:
        ; add x7, x4, BUSY
        ; clear:
        ; ldxr x6, [x7]
        ; eor x6, x6, x14
        ; cbnz x6, >tell
        ; stxr w6, xzr, [x7]
        ; cbnz w6, <clear
        // x3 = the call word, or the losses.
        ; tell:
    );
    load64(a, 7, spec.rings + rings::ACTIVITY);
    dynasm!(a
        ; .arch aarch64
        ; stlr x3, [x7]
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

        // No collector has moved the deadline. The head goes back as it was.
        ; over:
    );
    leave_if_child(a, spec, 6);
    load64(a, 10, spec.table);
    dynasm!(a
        ; .arch aarch64
        ; str x2, [x10, CLOSED_AT]
        ; str xzr, [x10, LIVE]
        ; ldr w6, [x1, TID]
        ; eor w6, w6, w8
        ; cbnz w6, >was_left
        ; movn w6, !slot::PAUSED
        ; str w6, [x1, TID]
        ; was_left:
        ; mov x10, x0
        ; b >back

        // The thread leaves its home slot, so that its next call ends at the look at the slot's
        // owner. In a forked child, no slot is the thread's own.
        ; closed:
    );
    load_tid(a, spec, 8);
    load64(a, 11, spec.table + HEADER_BYTES);
    dynasm!(a
        ; .arch aarch64
        ; cbz w8, >out
        ; and w9, w8, slots_mask(g)
        ; add x1, x11, x9, lsl LINE_SHIFT
        ; ldr w6, [x1, TID]
        ; eor w6, w6, w8
        ; cbnz w6, >out
        ; movn w6, !slot::PAUSED
        ; str w6, [x1, TID]
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
    );
    load64(a, 16, spec.rings);
    dynasm!(a
        ; .arch aarch64
        ; ldr x6, [x16, WAIT]
        ; cbz x6, =>ways.lost
    );
    emit_wait(a, spec, ways);
    dynasm!(a
        ; .arch aarch64
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
        ; mov x3, x6
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
        ; mov x3, x6
    );
    // The other context may never come back. Then no chunk is begun until the collector helps.
    load64(a, 7, spec.rings + rings::CHUNK);
    dynasm!(a
        ; .arch aarch64
        ; stlr x3, [x7]
        ; b <tell

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
    );
    load64(a, 7, spec.rings);
    dynasm!(a
        ; .arch aarch64
        ; ldr x7, [x7, DEADLINE]
        ; cbz x7, >no_deadline
        ; sub x7, x7, x2
        ; tbnz x7, #63, >over
        ; no_deadline:
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
fn emit_new_chunk(a: &mut Assembler, spec: &TrampolineSpec, ways: Ways) {
    let g = spec.geometry;
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
    );
    load64(a, 16, spec.rings);
    dynasm!(a
        ; .arch aarch64
        ; add x7, x16, CLAIM
        ; stlr x8, [x7]
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
        ; add x7, x0, x10
        ; add x6, x16, CHUNK
        ; stlr x7, [x6]
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
        // The wait for room in the full ring since the last wait word.
        ; waits:
        ; ldr w17, [x1, WAITED]
        ; cbz w17, >no_wait
    );
    look_at_head(a, 10, ways.robbed);
    dynasm!(a
        ; .arch aarch64
        ; add x7, x1, WAITED
        ; ldxr w10, [x7]
        ; eor w10, w10, w17
        ; cbnz w10, <waits
        ; stxr w16, wzr, [x7]
        ; cbnz w16, <waits
        ; movz w7, word::WAIT
        ; orr x7, x7, x17, lsl #32
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; no_wait:
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

/// Stores the view around x2 and x3 in the slot and writes its two words. Then x6 and x7 = time and
/// place relative to it.
///
/// A context that comes back must not store its own view over the one that another context has
/// begun: handlers that interrupt it would record times relative to the wrong view.
fn emit_begin_view(a: &mut Assembler, ways: Ways) {
    count_view(a);
    dynasm!(a
        ; .arch aarch64
        ; and x6, x2, !(view::SINCE_STEP - 1)
    );
    store_field(a, SINCE, ways.robbed);
    dynasm!(a
        ; .arch aarch64
        ; add x7, x6, word::SYNC.into()
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        ; movz w6, BASE_HALF_STEP
        ; add x6, x3, x6
        ; and x6, x6, !(view::BASE_STEP - 1)
        ; movz w7, BASE_HALF_STEP * 2
        ; sub x6, x6, x7
        // No view has this base. So a base that is restored while this context is away differs
        // from it.
        ; str xzr, [x1, BASE]
    );
    store_field(a, BASE, ways.robbed);
    dynasm!(a
        ; .arch aarch64
        ; movz w7, word::STACK.into()
        ; orr x7, x7, x6, lsl #8
    );
    put(a, ways);
    dynasm!(a
        ; .arch aarch64
        // Relative to the words that were just written, not to the slot's view.
        ; and x6, x2, view::SINCE_STEP - 1
        ; movz w7, BASE_HALF_STEP
        ; add x10, x3, x7
        ; and x10, x10, view::BASE_STEP - 1
        ; add x7, x10, x7
    );
}

/// Adds one to the number of views begun. x6, x7 and x10 are lost.
fn count_view(a: &mut Assembler) {
    dynasm!(a
        ; .arch aarch64
        ; add x7, x1, VIEW
        ; count_view:
        ; ldxr w6, [x7]
        ; add w6, w6, #1
        ; stxr w10, w6, [x7]
        ; cbnz w10, <count_view
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

/// Stores x6 in a field of the view. Goes to `gone` if the head is not parked by this context any
/// more. x7, x10, x16 and x17 are lost.
fn store_field(a: &mut Assembler, field: u32, gone: DynamicLabel) {
    dynasm!(a
        ; .arch aarch64
        ; add x7, x1, field
        ; store_field:
        ; ldr x17, [x7]
    );
    look_at_head(a, 10, gone);
    dynasm!(a
        ; .arch aarch64
        ; ldxr x10, [x7]
        ; eor x10, x10, x17
        ; cbnz x10, <store_field
        ; stxr w16, x6, [x7]
        ; cbnz w16, <store_field
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

/// Finds the thread's slot. The search begins at the thread's home slot. It ends at the first slot
/// that the thread owns or that is free, which the thread claims, and never passes a closed slot.
/// Then x1 = the slot, w8 = the thread, w9 = the slot's index.
fn emit_slot(a: &mut Assembler, spec: &TrampolineSpec) {
    let g = spec.geometry;
    load_tid(a, spec, 8);
    dynasm!(a
        ; .arch aarch64
        ; cbz w8, >no_slot
        ; and w9, w8, slots_mask(g)
        ; movz w10, PROBES
    );
    load64(a, 11, spec.table + HEADER_BYTES);
    dynasm!(a
        ; .arch aarch64
        ; probe:
        ; add x1, x11, x9, lsl LINE_SHIFT
        ; add x7, x1, TID
        // Pairs with the collector's store of 0, which comes after the rest of the slot.
        ; ldar w6, [x7]
        ; eor w4, w6, w8
        ; cbz w4, >found
        ; cbz w6, >claim
        // A closed slot.
        ; add w4, w6, slot::CLOSED.wrapping_neg()
        ; cbz w4, >no_slot
        ; add w4, w6, slot::PAUSED.wrapping_neg()
        ; cbnz w4, >other
    );
    // The thread goes on in the slot that it has paused.
    load64(a, 4, spec.rings + HEADER_BYTES + control::OWNER);
    dynasm!(a
        ; .arch aarch64
        ; add x4, x4, x9, lsl LINE_SHIFT
        ; ldr w4, [x4]
        ; eor w4, w4, w8
        ; cbnz w4, >other
        ; str w8, [x7]
        ; b <probe
        ; other:
        ; add w9, w9, #1
        ; and w9, w9, slots_mask(g)
        ; sub w10, w10, #1
        ; cbnz w10, <probe
        ; no_slot:
    );
    emit_no_slot(a, spec);
    dynasm!(a
        ; .arch aarch64
        // A free slot's limit is 0, so a handler that comes in after the claim takes the slow path,
        // too.
        ; claim:
        ; ldaxr w6, [x7]
        ; cbnz w6, <probe
        ; stlxr w6, w8, [x7]
        ; cbnz w6, <claim
        ; found:
    );
}

/// Counts the event of thread w8 as lost. The search for the thread's bucket begins at its home
/// bucket and ends at the first one that the thread owns or that is free, which the thread claims.
/// An event without a thread or a bucket is counted for all threads.
fn emit_no_slot(a: &mut Assembler, spec: &TrampolineSpec) {
    let g = spec.geometry;
    load64(a, 11, spec.rings);
    load64(a, 12, g.bucket_offset(0));
    dynasm!(a
        ; .arch aarch64
        ; add x12, x11, x12
        ; cbz w8, >no_bucket
        ; and w9, w8, buckets_mask(g)
        ; movz w10, PROBES
        ; probe_bucket:
        ; add x7, x12, x9, lsl BUCKET_SHIFT
        ; ldr x6, [x7, BUCKET_TID]
        ; cbz x6, >take_bucket
        ; sub x6, x6, x8
        ; cbz x6, >count_bucket
        ; add w9, w9, #1
        ; and w9, w9, buckets_mask(g)
        ; sub w10, w10, #1
        ; cbnz w10, <probe_bucket
        ; no_bucket:
        ; add x7, x11, NO_SLOT
        ; b >count_lost
        ; take_bucket:
        // The count is first: a handler may leave by a jump before the bucket is taken. The
        // collector needs no exact count.
        ; add x13, x11, BUCKETS_TAKEN
        ; count_taken:
        ; ldxr x6, [x13]
        ; add x6, x6, #1
        ; stxr w4, x6, [x13]
        ; cbnz w4, <count_taken
        ; retake:
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; ldxr x6, [x7]
        ; cbnz x6, <probe_bucket
        ; stxr w6, x8, [x7]
        ; cbnz w6, <retake
        ; count_bucket:
        ; add x7, x7, BUCKET_LOST
        ; count_lost:
    );
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; ldxr x6, [x7]
        ; add x6, x6, #1
        ; stxr w10, x6, [x7]
        ; cbnz w10, <count_lost
        ; b >out
    );
}

/// Goes to `out` if the table is wiped: this is a forked child. x`register` is lost.
pub(super) fn leave_if_child(a: &mut Assembler, spec: &TrampolineSpec, register: u8) {
    load64(a, register, spec.table);
    dynasm!(a
        ; .arch aarch64
        ; ldr X(register), [X(register), MINE]
        ; cbz X(register), >out
    );
}

fn buckets_mask(g: Geometry) -> u32 {
    g.buckets() - 1
}

fn low_bits(count: u32) -> u64 {
    (1 << count) - 1
}
