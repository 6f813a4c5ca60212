//! The start of a view in the slow path. The comparison with an event is in `mod.rs`.

use dynasm::dynasm;
use dynasmrt::{DynamicLabel, DynasmApi, DynasmLabelApi};
use shm_ring::{view, word};

use super::{Assembler, BASE, BASE_HALF_STEP, SINCE, VIEW, Ways, look_at_head, put};

/// Stores the view around x2 and x3 in the slot and writes its two words. Then x6 and x7 = time and
/// place relative to it.
///
/// A context that comes back must not store its own view over the one that another context has
/// begun: handlers that interrupt it would record times relative to the wrong view.
pub(super) fn emit_begin_view(a: &mut Assembler, ways: Ways) {
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
pub(super) fn count_view(a: &mut Assembler) {
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
