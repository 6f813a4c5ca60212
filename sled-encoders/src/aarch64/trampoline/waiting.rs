//! The wait for room in a full ring, if the collector allows it: `docs/design/ring.md`,
//! "Waiting for room".

use dynasm::dynasm;
use dynasmrt::{DynasmApi, DynasmLabelApi};
use shm_ring::layout::slot;

use super::{
    Assembler, CNTVCT_EL0, TrampolineSpec, load64, offset,
    slow::{BUSY, DEADLINE, LIVE, RELEASED, STARTED, WAIT, WAITED, Ways, leave_if_child},
};

const EXPIRED: u32 = offset(slot::EXPIRED);

/// Waits for room in the full ring, whose head is put back. Goes to `find` once there is room, or
/// on to `lost`, which follows. The same as `emit_wait` of x86-64. x16 = the rings.
pub(super) fn emit_wait(a: &mut Assembler, spec: &TrampolineSpec, ways: Ways) {
    let g = spec.geometry;
    let chunks_shift = g.ring_shift() - g.chunk_shift();
    leave_if_child(a, spec, 6);
    dynasm!(a
        ; .arch aarch64
        ; add x7, x4, BUSY
        ; unmark:
        ; ldxr x6, [x7]
        ; eor x6, x6, x14
        ; cbnz x6, >unmarked
        ; stxr w6, xzr, [x7]
        ; cbnz w6, <unmark
        ; unmarked:
        ; ldr x6, [x4, RELEASED]
        ; add w6, w6, #1
        ; ldr w7, [x1, EXPIRED]
        ; eor w6, w6, w7
        ; cbz w6, =>ways.lost
        ; mrs x2, CNTVCT_EL0
        ; wait:
        ; yield
    );
    leave_if_child(a, spec, 6);
    load64(a, 6, spec.table);
    dynasm!(a
        ; .arch aarch64
        ; ldr x6, [x6, LIVE]
        ; cbz x6, =>ways.lost
        ; mrs x3, CNTVCT_EL0
        ; ldr x6, [x16, DEADLINE]
        ; cbz x6, >no_end
        ; sub x6, x6, x3
        ; tbnz x6, #63, =>ways.lost
        ; no_end:
        // x3 = the wait so far.
        ; sub x3, x3, x2
        ; ldr x6, [x1, STARTED]
        // Pairs with the collector's store of RELEASED after it emptied the chunk.
        ; add x7, x4, RELEASED
        ; ldar x13, [x7]
        ; sub x6, x6, x13
        ; lsr x6, x6, chunks_shift
        ; cbz x6, >room
        ; ldr x6, [x16, WAIT]
        ; sub x6, x3, x6
        ; tbnz x6, #63, <wait
        // The number that showed the ring full: a chunk may have been given back since.
        ; add w13, w13, #1
        ; movz x6, #1
        ; room:
        // Another processor's counter may be behind.
        ; tbz x3, #63, >forward
        ; movz x3, #0
        ; forward:
        ; lsr x7, x3, #32
        ; cbz x7, >fits
        ; movn w3, #0
        ; fits:
        ; add x7, x1, WAITED
        ; add_wait:
        ; ldxr w10, [x7]
        ; add x10, x10, x3
        ; lsr x17, x10, #32
        ; cbz x17, >sum_fits
        ; movn w10, #0
        ; sum_fits:
        ; stxr w17, w10, [x7]
        ; cbnz w17, <add_wait
        // x6 is 0 if there is room.
        ; cbz x6, =>ways.find
        ; str w13, [x1, EXPIRED]
    );
}
