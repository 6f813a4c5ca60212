//! The search of the slow path for its thread's slot, and the count of an event without one. The
//! hot path looks only at the home slot.

use dynasm::dynasm;
use dynasmrt::{DynasmApi, DynasmLabelApi};
use shm_ring::layout::{BUCKET_SHIFT, HEADER_BYTES, LINE_SHIFT, PROBES, slot::CLOSED};

use super::{
    Assembler, BUCKET_LOST, BUCKET_TID, BUCKETS_TAKEN, NO_SLOT, TID, TrampolineSpec, buckets_mask,
    leave_if_child, load_tid, load64, slots_mask,
};

/// Finds the thread's slot. The search begins at the thread's home slot. It ends at the first slot
/// that the thread owns or that is free, which the thread claims, and never passes a closed slot.
/// Then x1 = the slot, w8 = the thread, w9 = the slot's index.
pub(super) fn emit_find_slot(a: &mut Assembler, spec: &TrampolineSpec) {
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
        ; add w4, w6, CLOSED.wrapping_neg()
        ; cbz w4, >no_slot
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
