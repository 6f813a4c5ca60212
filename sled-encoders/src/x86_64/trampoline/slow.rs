//! The slow path, which all flavours share. It begins chunks and views, and counts losses. The hot
//! path is in `mod.rs`. The file is long because it emits one sequence of machine code, whose parts
//! share their registers, labels and stack.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, eax, ebx, ecx, edi, edx, ptr, qword_ptr,
    r8, r8d, r9, r9d, r10, r10d, r11, r12d, r13, r14, r14d, rax, rbx, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::{
    layout::{
        BUCKET_SHIFT, GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, PROBES, SLOW_WORDS, bucket, control,
        filter, rings, slot, table,
    },
    view, word,
};

use super::{
    FILLERS, GIVEN, HAS_ARGUMENT, HAS_PAYLOAD, IN_VAIN, Result, TO_STACK_SHIFT, TrampolineSpec,
    beyond_guard, chunk_mask, field32, field64, labels, payload::emit_slow_copy, small,
    waiting::emit_wait,
};

/// Bytes that are emptied between two looks at the table: a cache line.
const EMPTIED_AT_ONCE: u64 = 64;

/// The slow path: rcx, r12d as drawn in the header of `super`, rdx = address of the site's name,
/// rdi the argument. Keeps every register that the flavours do not save themselves.
///
/// A handler may fork between any two instructions. The child goes on here with a wiped table and
/// its parent's rings (P58). So the slow path reads the table into registers, looks at `mine` or at
/// the head, then stores the registers. A child that is forked after the look stores the same
/// values as its parent, if the child goes on before its parent has come around the ring. There are
/// two exceptions: a child that is forked in the instruction or two between the look and the store
/// also marks the ring busy, or counts an event.
///
/// A handler may also switch to another context of the thread. If this context stays away, the
/// collector lets the other one take the slow path over. So the head names the context that has the
/// slow path. Each store of a context that comes back is one of these:
///
/// * a `cmpxchg` that compares with a value read before the look at the head,
/// * a value that every context stores there,
/// * an increment.
///
/// There are two exceptions, the call word and the mark in `BUSY`: see
/// `docs/design/trampoline.md`, "Contexts that come back".
///
/// ```text
///  r10  the argument   r11  slot   rdi  control line   r13  the head as this context parks it
///  r14  counter, then time and place as a call word has them    rdx  the place on the stack
///  rbx  the head before, then the next word    rcx  the ring, then the end of a new chunk's guard
/// ```
pub(super) fn emit_slow(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slow: &mut CodeLabel,
    find_slot: CodeLabel,
) -> Result<()> {
    let g = spec.geometry;
    let controls = spec.rings + HEADER_BYTES;
    let [mut out, mut no_slot, mut not_given, mut put, mut copy] = labels(a);
    let [mut take, mut free, mut busy, mut not_in_vain] = labels(a);
    let [mut filler, mut find, mut fill_rest, mut no_payload] = labels(a);
    let [mut new_chunk, mut publish, mut published] = labels(a);
    let [mut have_room, mut write_view, mut same_view] = labels(a);
    let [mut losses, mut no_gap, mut gap_fits] = labels(a);
    let [
        mut payload,
        mut content_done,
        mut fill_guard,
        mut guarded,
        mut unpark,
    ] = labels(a);
    let [mut full, mut put_back, mut lost, mut idle, mut keep] = labels(a);
    let [mut robbed, mut over, mut was_left, mut closed] = labels(a);
    let [mut no_wait, mut wait] = labels(a);
    let kept = [rsi, rdi, r8, r9, r10, r13, r14];

    a.set_label(slow)?;
    a.push(rbx)?;
    // A forked child sees a zeroed table: not traced.
    a.mov(rbx, spec.table)?;
    a.cmp(field64(rbx, table::LIVE), 0)?;
    a.je(closed)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(rsi, rdx)?;
    a.mov(r10, rdi)?;
    a.mov(r8, rcx)?;
    // The hot path's reservation, made before the view was seen to be new, or too short for an
    // argument. No other context ever writes these words.
    a.mov(edx, r12d)?;
    a.and(edx, FILLERS)?;
    a.jz(find)?;
    a.set_label(&mut filler)?;
    a.mov(dword_ptr(r8), word::FILLER)?;
    a.add(r8, 8)?;
    a.test(r8d, chunk_mask(g))?;
    a.jz(find)?;
    a.dec(edx)?;
    a.jnz(filler)?;
    a.set_label(&mut find)?;
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.test(eax, eax)?;
    a.jz(no_slot)?;
    a.call(find_slot)?;
    a.jnz(no_slot)?;
    // rdi = control line, rcx = the ring, r8 = its end.
    a.mov(rdi, controls)?;
    a.add(rdi, rcx)?;
    a.shl(rcx, g.ring_shift() - LINE_SHIFT)?;
    a.mov(r8, spec.rings + g.rings_offset())?;
    a.add(rcx, r8)?;
    a.lea(r8, ptr(rcx + small(g.ring_bytes())))?;
    // The same as `slot::parked_by`.
    a.mov(r13, rsp)?;
    a.shl(r13, 10)?;
    a.shr(r13, 2)?;
    a.bts(r13, slot::PARKED.trailing_zeros())?;
    // One at a time: a handler that interrupts the slow path counts its event as lost.
    a.set_label(&mut take)?;
    a.mov(rax, field64(r11, slot::HEAD))?;
    a.mov(rdx, rax)?;
    a.shr(rdx, slot::PARKED.trailing_zeros())?;
    a.jz(free)?;
    // This context's own mark stands there if the head changed after it was read.
    a.mov(rdx, field64(rdi, control::BUSY))?;
    a.test(rdx, rdx)?;
    a.jz(free)?;
    a.cmp(rdx, r13)?;
    a.jne(busy)?;
    a.set_label(&mut free)?;
    leave_if_child(a, rbx, out)?;
    a.mov(field64(rdi, control::BUSY), r13)?;
    // One instruction: handlers keep the words that they reserve before it, and reserve none after
    // it.
    a.cmpxchg(field64(r11, slot::HEAD), r13)?;
    a.jne(take)?;
    // A wiped slot has the same head as a new one.
    leave_if_child(a, rbx, out)?;
    a.mov(rbx, rax)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(r14, rax)?;
    // 0 less 1 is later than every counter.
    a.mov(rdx, spec.rings)?;
    a.mov(r9, field64(rdx, rings::DEADLINE))?;
    a.dec(r9)?;
    a.cmp(r9, rax)?;
    a.jb(over)?;
    a.mov(edx, r12d)?;
    a.shr(edx, TO_STACK_SHIFT)?;
    a.add(rdx, rsi)?;
    a.test(r12d, GIVEN.cast_signed())?;
    a.jz(not_given)?;
    a.mov(r14, field64(r10, filter::TIME))?;
    a.mov(rdx, field64(r10, filter::PLACE))?;
    a.set_label(&mut not_given)?;
    // Is there a chunk under way, and room in it? A freed slot has a head from its last owner, but
    // no limit. A head that another context has parked is no address in the ring. The rest of that
    // context's chunk is a hole, which counts as its event.
    a.cmp(field64(r11, slot::LIMIT), 0)?;
    a.je(new_chunk)?;
    a.cmp(rbx, rcx)?;
    a.jb(new_chunk)?;
    a.cmp(rbx, r8)?;
    a.jae(new_chunk)?;
    a.test(ebx, beyond_guard(g))?;
    a.jz(new_chunk)?;
    a.mov(r9d, ebx)?;
    a.and(r9d, chunk_mask(g))?;
    a.test(r12d, HAS_PAYLOAD.cast_signed())?;
    a.jz(no_payload)?;
    a.add(r9d, r10d)?;
    a.set_label(&mut no_payload)?;
    a.cmp(r9d, small(g.chunk_bytes() - SLOW_WORDS * 8))?;
    a.jbe(have_room)?;
    a.set_label(&mut fill_rest)?;
    a.mov(r9d, word::FILLER)?;
    a.call(put)?;
    a.jne(robbed)?;
    a.test(ebx, chunk_mask(g))?;
    a.jnz(fill_rest)?;

    // A context that gives up between here and the claim of a chunk leaves nothing in the ring, not
    // even a hole. So it counts its event.
    a.set_label(&mut new_chunk)?;
    a.mov(r9, field64(r11, slot::STARTED))?;
    a.mov(rax, r9)?;
    // Pairs with the collector's store of RELEASED after it zeroed the chunk.
    a.sub(rax, field64(rdi, control::RELEASED))?;
    a.cmp(rax, small(g.chunks()))?;
    a.jae(full)?;
    look_at_head(a, lost)?;
    a.mov(rax, r9)?;
    a.lea(r8, ptr(r9 + 1))?;
    a.cmpxchg(field64(r11, slot::STARTED), r8)?;
    a.jne(new_chunk)?;
    a.and(r9d, small(g.chunks() - 1))?;
    a.shl(r9, g.chunk_shift())?;
    a.lea(rbx, ptr(rcx + r9))?;
    a.mov(r9d, dword_ptr(spec.tid_offset).fs())?;
    look_at_head(a, robbed)?;
    a.mov(field64(rdi, control::OWNER), r9)?;
    a.lea(r9, ptr(rcx + small(g.ring_bytes())))?;
    a.mov(field64(r11, slot::LIMIT), r9)?;
    // STARTED never goes back.
    a.set_label(&mut publish)?;
    a.mov(rax, field64(rdi, control::STARTED))?;
    a.cmp(rax, r8)?;
    a.jae(published)?;
    a.cmpxchg(field64(rdi, control::STARTED), r8)?;
    a.jne(publish)?;
    a.set_label(&mut published)?;
    a.lea(r9, ptr(rbx + r8))?;
    a.mov(rax, spec.rings)?;
    a.mov(field64(rax, rings::CHUNK), r9)?;
    // The guard is filled below, up to there.
    a.lea(rcx, ptr(rbx + small(GUARD_BYTES)))?;
    a.jmp(write_view)?;

    a.set_label(&mut have_room)?;
    a.mov(rcx, rbx)?;
    a.mov(rax, r14)?;
    a.sub(rax, field64(r11, slot::SINCE))?;
    a.cmp(rax, small(view::TICKS))?;
    a.jae(write_view)?;
    a.mov(r9, rdx)?;
    a.sub(r9, field64(r11, slot::BASE))?;
    a.cmp(r9, small(view::WINDOW_BYTES))?;
    a.jb(same_view)?;
    // A context that comes back must not store its own view over the one that another context has
    // begun: handlers that interrupt it would record times relative to the wrong view.
    a.set_label(&mut write_view)?;
    a.inc(field32(r11, slot::VIEW))?;
    a.mov(r9, r14)?;
    a.and(r9, -small(view::SINCE_STEP))?;
    store_field(a, slot::SINCE, robbed)?;
    a.or(r9, i32::from(word::SYNC))?;
    a.call(put)?;
    a.jne(robbed)?;
    a.lea(r9, ptr(rdx + small(view::BASE_STEP / 2)))?;
    a.and(r9, -small(view::BASE_STEP))?;
    a.sub(r9, small(view::BASE_STEP))?;
    // No view has this base. So a base that is restored while this context is away differs from it.
    a.mov(qword_ptr(r11 + small(slot::BASE)), 0)?;
    store_field(a, slot::BASE, robbed)?;
    a.shl(r9, 8)?;
    a.or(r9, i32::from(word::STACK))?;
    a.call(put)?;
    a.jne(robbed)?;
    // Relative to the words that were just written, not to the slot's view.
    a.mov(eax, r14d)?;
    a.and(eax, small(view::SINCE_STEP - 1))?;
    a.lea(r9, ptr(rdx + small(view::BASE_STEP / 2)))?;
    a.and(r9d, small(view::BASE_STEP - 1))?;
    a.add(r9d, small(view::BASE_STEP / 2))?;
    a.set_label(&mut same_view)?;
    // eax, r9 = both relative to the view.
    a.shl(eax, view::PLACE_BITS)?;
    a.shr(r9d, view::PLACE_SHIFT)?;
    a.or(eax, r9d)?;
    a.mov(r14d, eax)?;
    // Losses since the last gap word. One word holds at most u32::MAX of them.
    a.set_label(&mut losses)?;
    a.mov(rdx, field64(r11, slot::REPORTED))?;
    a.mov(r9, field64(rdi, control::LOST))?;
    a.sub(r9, rdx)?;
    a.jz(no_gap)?;
    a.mov(r8d, u32::MAX)?;
    a.cmp(r9, r8)?;
    a.jbe(gap_fits)?;
    a.mov(r9, r8)?;
    a.set_label(&mut gap_fits)?;
    look_at_head(a, robbed)?;
    a.mov(rax, rdx)?;
    a.add(rdx, r9)?;
    a.cmpxchg(field64(r11, slot::REPORTED), rdx)?;
    a.jne(losses)?;
    a.shl(r9, 32)?;
    a.or(r9, word::GAP.cast_signed())?;
    a.call(put)?;
    a.jne(robbed)?;
    a.set_label(&mut no_gap)?;
    // The wait for room in the full ring since the last wait word.
    a.mov(edx, field32(r11, slot::WAITED))?;
    a.test(edx, edx)?;
    a.jz(no_wait)?;
    look_at_head(a, robbed)?;
    a.mov(eax, edx)?;
    a.xor(r9d, r9d)?;
    a.cmpxchg(field32(r11, slot::WAITED), r9d)?;
    a.jne(no_gap)?;
    a.mov(r9d, edx)?;
    a.shl(r9, 32)?;
    a.or(r9, word::WAIT.cast_signed())?;
    a.call(put)?;
    a.jne(robbed)?;
    a.set_label(&mut no_wait)?;
    // Filler in the guard of a new chunk: the event's words end where the guard ends, and nothing
    // stands behind the call word before the call word is stored.
    a.mov(edx, 8)?;
    a.test(r12d, (HAS_ARGUMENT | HAS_PAYLOAD).cast_signed())?;
    a.jz(fill_guard)?;
    a.mov(edx, 8 + 16)?;
    a.test(r12d, HAS_PAYLOAD.cast_signed())?;
    a.jz(fill_guard)?;
    a.add(edx, r10d)?;
    a.set_label(&mut fill_guard)?;
    a.lea(r9, ptr(rbx + rdx))?;
    a.cmp(r9, rcx)?;
    a.jae(guarded)?;
    a.mov(r9d, word::FILLER)?;
    a.call(put)?;
    a.jne(robbed)?;
    a.jmp(fill_guard)?;
    a.set_label(&mut guarded)?;
    a.test(r12d, (HAS_ARGUMENT | HAS_PAYLOAD).cast_signed())?;
    a.jz(content_done)?;
    a.test(r12d, HAS_PAYLOAD.cast_signed())?;
    a.jnz(payload)?;
    a.mov(r9, r10)?;
    a.shl(r9, 32)?;
    a.or(r9, word::ARGUMENT_LOW.cast_signed())?;
    a.call(put)?;
    a.jne(robbed)?;
    a.mov(r9, r10)?;
    a.shr(r9, 32)?;
    a.shl(r9, 32)?;
    a.or(r9, word::ARGUMENT_HIGH.cast_signed())?;
    a.call(put)?;
    a.jne(robbed)?;
    a.set_label(&mut content_done)?;
    // The store of the head reserves the call word, as on the hot path; the word is written then.
    a.mov(rdx, rbx)?;
    a.add(rbx, 8)?;
    // From here on handlers use the chunk.
    a.set_label(&mut unpark)?;
    a.mov(rax, field64(r11, slot::HEAD))?;
    a.mov(r9, rax)?;
    a.and(r9, -small(slot::PARKED_ROOM))?;
    a.cmp(r9, r13)?;
    a.jne(robbed)?;
    a.cmpxchg(field64(r11, slot::HEAD), rbx)?;
    a.jne(unpark)?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    a.mov(dword_ptr(rdx + 4), r14d)?;
    a.mov(r9d, dword_ptr(rsi))?;
    a.mov(dword_ptr(rdx), r9d)?;
    // The mark is this context's unless the collector has removed it.
    a.set_label(&mut idle)?;
    a.mov(rax, r13)?;
    a.xor(r9d, r9d)?;
    a.cmpxchg(field64(rdi, control::BUSY), r9)?;
    // rdx = the call word, or the losses.
    a.mov(r8, spec.rings)?;
    a.mov(field64(r8, rings::ACTIVITY), rdx)?;
    a.cmp(field64(r8, rings::KEEP_NEWEST), 0)?;
    a.jne(keep)?;
    a.set_label(&mut out)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.pop(rbx)?;
    a.ret()?;

    // No collector has moved the deadline. The head goes back as it was.
    a.set_label(&mut over)?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    a.mov(field64(r8, table::CLOSED_AT), r14)?;
    a.mov(field64(r8, table::LIVE), 0)?;
    a.mov(r9d, dword_ptr(spec.tid_offset).fs())?;
    a.cmp(field32(r11, slot::TID), r9d)?;
    a.jne(was_left)?;
    a.mov(field32(r11, slot::TID), slot::PAUSED.cast_signed())?;
    a.set_label(&mut was_left)?;
    a.mov(r8, rbx)?;
    a.jmp(put_back)?;

    // The thread leaves its home slot, so that its next call ends at the look at the slot's owner.
    a.set_label(&mut closed)?;
    emit_leave_home(a, spec)?;
    a.pop(rbx)?;
    a.ret()?;

    a.set_label(&mut payload)?;
    a.call(copy)?;
    a.je(content_done)?;
    // Another context has taken the slow path over, or this is a child, whose table is private. The
    // rest of the chunk counts as this event. The slot may hold a part of this context's view, so
    // the next event begins a view.
    a.set_label(&mut robbed)?;
    a.inc(field32(r11, slot::VIEW))?;
    a.mov(qword_ptr(r11 + small(slot::SINCE)), 0)?;
    a.jmp(out)?;

    // The head goes back to the mark of the context that this one has taken over, or to the ring's
    // end.
    a.set_label(&mut full)?;
    a.mov(r9, rbx)?;
    a.shr(r9, slot::PARKED.trailing_zeros())?;
    a.mov(r8, rbx)?;
    a.jnz(put_back)?;
    a.lea(r8, ptr(rcx + small(g.ring_bytes())))?;
    a.set_label(&mut put_back)?;
    a.mov(rax, field64(r11, slot::HEAD))?;
    a.mov(r9, rax)?;
    a.and(r9, -small(slot::PARKED_ROOM))?;
    a.cmp(r9, r13)?;
    a.jne(lost)?;
    a.cmpxchg(field64(r11, slot::HEAD), r8)?;
    a.jne(put_back)?;
    a.mov(r8, spec.rings)?;
    a.cmp(field64(r8, rings::WAIT), 0)?;
    a.jne(wait)?;
    a.set_label(&mut lost)?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    a.inc(field64(rdi, control::LOST))?;
    a.mov(rdx, field64(rdi, control::LOST))?;
    a.jmp(idle)?;

    a.set_label(&mut wait)?;
    emit_wait(a, spec, (find, lost, out))?;
    a.set_label(&mut keep)?;
    emit_release(a, spec, out)?;

    // Each vain attempt adds to the head. This removes the addition, unless another context has
    // removed it.
    a.set_label(&mut busy)?;
    a.test(r12d, IN_VAIN.cast_signed())?;
    a.jz(not_in_vain)?;
    a.mov(rdx, rax)?;
    a.and(rdx, -small(slot::PARKED_ROOM))?;
    a.cmpxchg(field64(r11, slot::HEAD), rdx)?;
    a.set_label(&mut not_in_vain)?;
    leave_if_child(a, rbx, out)?;
    a.inc(field64(rdi, control::LOST))?;
    a.mov(rdx, field64(rdi, control::LOST))?;
    a.mov(r8, spec.rings)?;
    a.mov(field64(r8, rings::ACTIVITY), rdx)?;
    // The other context may never come back. Then no chunk is begun until the collector helps.
    a.mov(field64(r8, rings::CHUNK), rdx)?;
    a.jmp(out)?;
    a.set_label(&mut no_slot)?;
    emit_no_slot(a, spec, out)?;
    emit_put(a, &mut put)?;
    emit_slow_copy(a, &mut copy, put)?;
    Ok(())
}

/// Pauses the thread's home slot if it is the thread's own. In a forked child, no slot is. An
/// instruction has to follow. Spoils rbx, rcx, r11.
fn emit_leave_home(a: &mut CodeAssembler, spec: &TrampolineSpec) -> Result<()> {
    let mut other = a.create_label();
    a.mov(ebx, dword_ptr(spec.tid_offset).fs())?;
    a.test(ebx, ebx)?;
    a.jz(other)?;
    a.mov(ecx, ebx)?;
    a.and(ecx, small(u64::from(spec.geometry.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.mov(r11, spec.table + HEADER_BYTES)?;
    a.add(r11, rcx)?;
    a.cmp(field32(r11, slot::TID), ebx)?;
    a.jne(other)?;
    a.mov(field32(r11, slot::TID), slot::PAUSED.cast_signed())?;
    a.set_label(&mut other)
}

/// Goes to `gone` if the head is not parked by this context any more: another context has taken the
/// slow path over, or this is a forked child, whose table is wiped. Spoils rax.
fn look_at_head(a: &mut CodeAssembler, gone: CodeLabel) -> Result<()> {
    a.mov(rax, field64(r11, slot::HEAD))?;
    a.and(rax, -small(slot::PARKED_ROOM))?;
    a.cmp(rax, r13)?;
    a.jne(gone)
}

/// Stores r9 in a field of the view. Goes to `gone` if the head is not parked by this context any
/// more. Spoils rax and r8.
fn store_field(a: &mut CodeAssembler, field: u64, gone: CodeLabel) -> Result<()> {
    let mut again = a.create_label();
    a.set_label(&mut again)?;
    a.mov(r8, field64(r11, field))?;
    look_at_head(a, gone)?;
    a.mov(rax, r8)?;
    a.cmpxchg(field64(r11, field), r9)?;
    a.jne(again)
}

/// Writes the word r9 to rbx and moves rbx on. ZF is set if the head is still parked by this
/// context. Spoils rax and r8.
///
/// The old word is read before the look at the head. If the word has changed at the exchange, other
/// contexts have been here. The high half of an empty word counts the rounds of the ring.
fn emit_put(a: &mut CodeAssembler, put: &mut CodeLabel) -> Result<()> {
    let mut gone = a.create_label();
    a.set_label(put)?;
    a.mov(r8, qword_ptr(rbx))?;
    look_at_head(a, gone)?;
    a.mov(rax, r8)?;
    a.cmpxchg(qword_ptr(rbx), r9)?;
    a.jne(*put)?;
    a.lea(rbx, ptr(rbx + 8))?;
    a.set_label(&mut gone)?;
    a.ret()
}

/// Finds the slot of thread eax. The search begins at the thread's home slot. It ends at the first
/// slot that the thread owns or has paused, or that is free, which the thread claims. It never
/// passes a closed slot. Then r11 = the slot, rcx = its offset among the slots, and ZF is set. ZF
/// is clear if there is no slot. Spoils rdx, rdi, r9.
pub(super) fn emit_slot(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    find_slot: &mut CodeLabel,
) -> Result<()> {
    let mask = small(u64::from(spec.geometry.slots() - 1));
    let slots = spec.table + HEADER_BYTES;
    let [mut probe, mut claim, mut none, mut found, mut other] = labels(a);
    a.set_label(find_slot)?;
    a.mov(r9d, eax)?;
    a.and(r9d, mask)?;
    a.mov(edx, PROBES)?;
    a.set_label(&mut probe)?;
    a.mov(r11, slots)?;
    a.mov(rcx, r9)?;
    a.shl(rcx, LINE_SHIFT)?;
    a.add(r11, rcx)?;
    a.mov(edi, field32(r11, slot::TID))?;
    a.cmp(edi, eax)?;
    a.je(found)?;
    a.test(edi, edi)?;
    a.jz(claim)?;
    a.cmp(edi, slot::CLOSED)?;
    a.je(none)?;
    a.cmp(edi, slot::PAUSED)?;
    a.jne(other)?;
    // The thread goes on in the slot that it has paused.
    a.mov(rdi, spec.rings + HEADER_BYTES + control::OWNER)?;
    a.cmp(dword_ptr(rdi + rcx), eax)?;
    a.jne(other)?;
    a.mov(field32(r11, slot::TID), eax)?;
    a.jmp(probe)?;
    a.set_label(&mut other)?;
    a.inc(r9d)?;
    a.and(r9d, mask)?;
    a.dec(edx)?;
    a.jnz(probe)?;
    a.set_label(&mut none)?;
    a.test(eax, eax)?;
    a.set_label(&mut found)?;
    a.ret()?;
    // A free slot's limit is 0, so a handler that comes in after the claim takes the slow path,
    // too.
    a.set_label(&mut claim)?;
    a.mov(edi, eax)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(field32(r11, slot::TID), edi)?;
    a.mov(eax, edi)?;
    a.jnz(probe)?;
    // In shared memory the collector finds the slot's owner after the process has ended. A child
    // does not store it.
    a.mov(rdx, spec.table)?;
    leave_if_child(a, rdx, found)?;
    a.mov(rdx, spec.rings)?;
    a.mov(
        qword_ptr(rdx + rcx + small(HEADER_BYTES + control::OWNER)),
        rdi,
    )?;
    a.mov(field64(rdx, rings::CLAIM), rdi)?;
    a.test(edx, 0)?;
    a.ret()
}

/// Empties the oldest chunk of a ring that keeps the newest events and whose chunks are all begun,
/// and gives the chunk back, so that the next chunk can be begun at once. Handlers go on in the
/// chunk under way meanwhile. A handler that comes to that chunk's end finds the ring full. rdi =
/// control line, r11 = slot, r8 = the rings.
///
/// A child that is forked in here stops at the next look at the table. Until then it empties the
/// words that its parent empties. A child that is forked in the two instructions between the look
/// and the mark sets the mark, and the collector removes a mark that stays. A context that comes
/// back after that stops at the next look at the mark, and so empties a cache line at most.
fn emit_release(a: &mut CodeAssembler, spec: &TrampolineSpec, out: CodeLabel) -> Result<()> {
    let g = spec.geometry;
    let [mut empty, mut give_back] = labels(a);
    const { assert!(control::TAKING == 1 << 63, "the sign, and the highest bit") };
    a.mov(rbx, field64(r11, slot::STARTED))?;
    a.mov(r9, field64(rdi, control::RELEASED))?;
    a.test(r9, r9)?;
    a.js(out)?;
    a.sub(rbx, r9)?;
    a.cmp(rbx, small(g.chunks()))?;
    a.jb(out)?;
    a.mov(r14, spec.table)?;
    leave_if_child(a, r14, out)?;
    // Locked, so that the load of KEEP_NEWEST comes after it in the order that all processors see.
    a.lock().bts(field64(rdi, control::RELEASED), 63)?;
    a.jc(out)?;
    // r13 = RELEASED with the mark, r9 = its next value. A handler may have taken the chunk back
    // meanwhile.
    a.mov(r13, field64(rdi, control::RELEASED))?;
    a.mov(rbx, r13)?;
    a.btr(rbx, 63)?;
    a.cmp(rbx, r9)?;
    a.mov(r9, rbx)?;
    a.jne(give_back)?;
    a.cmp(field64(r8, rings::KEEP_NEWEST), 0)?;
    a.je(give_back)?;
    // rdx = the chunk.
    a.mov(rdx, rdi)?;
    a.mov(rcx, spec.rings + HEADER_BYTES)?;
    a.sub(rdx, rcx)?;
    a.shl(rdx, g.ring_shift() - LINE_SHIFT)?;
    a.mov(rcx, spec.rings + g.rings_offset())?;
    a.add(rdx, rcx)?;
    a.and(ebx, small(g.chunks() - 1))?;
    a.shl(rbx, g.chunk_shift())?;
    a.add(rdx, rbx)?;
    a.mov(ecx, small(g.chunk_bytes() / EMPTIED_AT_ONCE))?;
    a.inc(r9)?;
    // The same as `word::empty`.
    a.mov(rbx, r9)?;
    a.shl(rbx, 32)?;
    a.set_label(&mut empty)?;
    leave_if_child(a, r14, out)?;
    a.cmp(field64(rdi, control::RELEASED), r13)?;
    a.jne(out)?;
    for at in (0..EMPTIED_AT_ONCE).step_by(8) {
        a.mov(field64(rdx, at), rbx)?;
    }
    a.add(rdx, small(EMPTIED_AT_ONCE))?;
    a.dec(ecx)?;
    a.jnz(empty)?;
    a.set_label(&mut give_back)?;
    leave_if_child(a, r14, out)?;
    a.mov(rax, r13)?;
    a.lock().cmpxchg(field64(rdi, control::RELEASED), r9)?;
    a.jmp(out)?;
    Ok(())
}

/// Counts the event of thread eax as lost. The search for the thread's bucket begins at its home
/// bucket and ends at the first one that the thread owns or that is free, which the thread claims.
/// An event without a thread or a bucket is counted for all threads. rbx = the table.
pub(super) fn emit_no_slot(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    out: CodeLabel,
) -> Result<()> {
    let g = spec.geometry;
    let mask = small(u64::from(g.buckets() - 1));
    let [mut probe, mut count, mut take, mut no_bucket] = labels(a);
    a.mov(rdi, spec.rings)?;
    a.test(eax, eax)?;
    a.jz(no_bucket)?;
    a.mov(r9d, eax)?;
    a.mov(edx, PROBES)?;
    a.set_label(&mut probe)?;
    a.and(r9d, mask)?;
    a.mov(r11, rdi)?;
    a.mov(rcx, r9)?;
    a.shl(rcx, BUCKET_SHIFT)?;
    a.lea(r11, ptr(r11 + rcx + small(g.bucket_offset(0))))?;
    a.mov(ecx, field32(r11, bucket::TID))?;
    a.cmp(ecx, eax)?;
    a.je(count)?;
    a.test(ecx, ecx)?;
    a.jz(take)?;
    a.inc(r9d)?;
    a.dec(edx)?;
    a.jnz(probe)?;
    a.set_label(&mut no_bucket)?;
    leave_if_child(a, rbx, out)?;
    a.lock().inc(field64(rdi, rings::NO_SLOT))?;
    a.jmp(out)?;
    a.set_label(&mut take)?;
    // First: a handler may leave by a jump before the bucket is taken. The collector needs no exact
    // count.
    a.lock().inc(field64(rdi, rings::BUCKETS_TAKEN))?;
    a.mov(ecx, eax)?;
    a.xor(eax, eax)?;
    leave_if_child(a, rbx, out)?;
    a.lock().cmpxchg(field32(r11, bucket::TID), ecx)?;
    a.mov(eax, ecx)?;
    a.jnz(probe)?;
    a.set_label(&mut count)?;
    leave_if_child(a, rbx, out)?;
    a.lock().inc(field64(r11, bucket::LOST))?;
    a.jmp(out)?;
    Ok(())
}

/// Makes rbx the table, eax the thread, and rcx the offset of its slot among the slots, for the
/// subroutines that write no event. `find_slot` is the code of [`emit_slot`]. Goes to `out` while
/// nothing is recorded, and to `no_slot` if the thread has no slot. Spoils rdx, rdi, r9, r11.
pub(super) fn emit_own_slot(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    find_slot: CodeLabel,
    (no_slot, out): (CodeLabel, CodeLabel),
) -> Result<()> {
    // A forked child sees a zeroed table: not traced.
    a.mov(rbx, spec.table)?;
    a.cmp(field64(rbx, table::LIVE), 0)?;
    a.je(out)?;
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.test(eax, eax)?;
    a.jz(no_slot)?;
    a.call(find_slot)?;
    a.jnz(no_slot)
}

/// Goes to `out` if the table, whose address the register holds, is wiped: this is a forked child.
pub(super) fn leave_if_child(
    a: &mut CodeAssembler,
    register: AsmRegister64,
    out: CodeLabel,
) -> Result<()> {
    a.cmp(field64(register, table::MINE), 0)?;
    a.je(out)?;
    Ok(())
}
