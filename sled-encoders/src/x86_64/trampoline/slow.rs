//! The slow path, which all flavours share.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, eax, ebx, ecx, edi, edx, ptr, qword_ptr,
    r8, r8d, r9, r9d, r10, r10d, r11, r12d, rax, rbx, rcx, rdi, rdx, rsi,
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
    beyond_guard, chunk_mask, field32, field64, labels, small,
};

/// Bytes that are zeroed between two looks at the table: a cache line.
const ZEROED_AT_ONCE: u64 = 64;

/// The slow path: rcx, r12d as drawn in the header of `super`, rdx = address of the site's name, rdi the argument. Keeps every register
/// that the flavours do not save themselves.
///
/// A handler may fork between any two instructions, and the child goes on here with a table that is wiped and rings that are its parent's (P58). So what
/// the table says is read into registers, then `mine` is looked at, then those are stored: what a child that is forked after the look still
/// stores is what its parent stores there as well. That holds for a child that goes on before its parent has come around the ring. Marking
/// the ring busy and counting are the exceptions: a child that is forked in the instruction or two between the look and those does them, too.
pub(super) fn emit_slow(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slow: &mut CodeLabel,
    copy: CodeLabel,
    find_slot: CodeLabel,
) -> Result<()> {
    let g = spec.geometry;
    let controls = spec.rings + HEADER_BYTES;
    let [mut out, mut no_slot, mut not_given] = labels(a);
    let [
        mut busy,
        mut filler,
        mut filler_done,
        mut fill_rest,
        mut new_chunk,
        mut full,
    ] = labels(a);
    let [
        mut have_room,
        mut write_view,
        mut same_view,
        mut no_gap,
        mut gap_fits,
    ] = labels(a);
    let [
        mut payload,
        mut content_done,
        mut fill_guard,
        mut guarded,
        mut not_parked,
    ] = labels(a);
    let [mut no_payload, mut idle, mut keep] = labels(a);
    let kept = [rbx, rsi, rdi, r8, r9, r10];

    a.set_label(slow)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(rsi, rdx)?;
    a.mov(r10, rdi)?;
    a.mov(r8, rcx)?;
    // A forked child sees a zeroed table: not traced.
    a.mov(rbx, spec.table)?;
    a.cmp(field64(rbx, table::LIVE), 0)?;
    a.je(out)?;
    // Our own reservation, made before the view was seen to be new, or too short for an argument. Nobody else will ever write
    // these words.
    a.mov(edx, r12d)?;
    a.and(edx, FILLERS)?;
    a.jz(filler_done)?;
    a.set_label(&mut filler)?;
    a.mov(dword_ptr(r8), word::FILLER)?;
    a.add(r8, 8)?;
    a.test(r8d, chunk_mask(g))?;
    a.jz(filler_done)?;
    a.dec(edx)?;
    a.jnz(filler)?;
    a.set_label(&mut filler_done)?;

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
    // One at a time: a handler that interrupts the slow path counts its event as lost.
    a.cmp(field64(rdi, control::BUSY), 0)?;
    a.jne(busy)?;
    leave_if_child(a, rbx, out)?;
    a.mov(field64(rdi, control::BUSY), 1)?;
    // One instruction: what handlers reserve before it stays theirs, what they try after it comes to nothing.
    a.mov(rbx, r8)?;
    a.xchg(field64(r11, slot::HEAD), rbx)?;
    // rax = the counter, rdx = where the stack stood at the sled.
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(edx, r12d)?;
    a.shr(edx, TO_STACK_SHIFT)?;
    a.add(rdx, rsi)?;
    a.test(r12d, GIVEN.cast_signed())?;
    a.jz(not_given)?;
    a.mov(rax, field64(r10, filter::TIME))?;
    a.mov(rdx, field64(r10, filter::PLACE))?;
    a.set_label(&mut not_given)?;
    // Is there a chunk under way, and room in it? A freed slot has a head from its last owner, but no limit.
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
    a.mov(dword_ptr(rbx), word::FILLER)?;
    a.add(rbx, 8)?;
    a.test(ebx, chunk_mask(g))?;
    a.jnz(fill_rest)?;

    a.set_label(&mut new_chunk)?;
    a.mov(rbx, field64(r11, slot::STARTED))?;
    a.mov(r9, rbx)?;
    // Pairs with the collector's store of RELEASED after it zeroed the chunk.
    a.sub(r9, field64(rdi, control::RELEASED))?;
    a.cmp(r9, small(g.chunks()))?;
    a.mov(r9d, dword_ptr(spec.tid_offset).fs())?;
    a.mov(r8, spec.table)?;
    a.jae(full)?;
    leave_if_child(a, r8, out)?;
    a.mov(field64(rdi, control::OWNER), r9)?;
    a.lea(r8, ptr(rcx + small(g.ring_bytes())))?;
    a.mov(r9d, ebx)?;
    a.and(r9d, small(g.chunks() - 1))?;
    a.shl(r9, g.chunk_shift())?;
    a.add(rcx, r9)?;
    a.inc(rbx)?;
    a.mov(field64(r11, slot::STARTED), rbx)?;
    a.mov(field64(rdi, control::STARTED), rbx)?;
    a.mov(field64(r11, slot::LIMIT), r8)?;
    // rbx = where the guard ends: filled up to there below.
    a.lea(rbx, ptr(rcx + small(GUARD_BYTES)))?;
    a.jmp(write_view)?;

    a.set_label(&mut have_room)?;
    a.mov(rcx, rbx)?;
    a.mov(r9, rax)?;
    a.sub(r9, field64(r11, slot::SINCE))?;
    a.cmp(r9, small(view::TICKS))?;
    a.jae(write_view)?;
    a.mov(r9, rdx)?;
    a.sub(r9, field64(r11, slot::BASE))?;
    a.cmp(r9, small(view::WINDOW_BYTES))?;
    a.jb(same_view)?;
    a.set_label(&mut write_view)?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    a.inc(field32(r11, slot::VIEW))?;
    a.mov(r9, rax)?;
    a.and(r9, -small(view::SINCE_STEP))?;
    a.mov(field64(r11, slot::SINCE), r9)?;
    a.or(r9, i32::from(word::SYNC))?;
    a.mov(qword_ptr(rcx), r9)?;
    a.lea(r9, ptr(rdx + small(view::BASE_STEP / 2)))?;
    a.and(r9, -small(view::BASE_STEP))?;
    a.sub(r9, small(view::BASE_STEP))?;
    a.mov(field64(r11, slot::BASE), r9)?;
    a.shl(r9, 8)?;
    a.or(r9, i32::from(word::STACK))?;
    a.mov(qword_ptr(rcx + 8), r9)?;
    a.add(rcx, 16)?;
    a.set_label(&mut same_view)?;
    // eax = both relative to the view.
    a.sub(rax, field64(r11, slot::SINCE))?;
    a.shl(eax, view::PLACE_BITS)?;
    a.sub(rdx, field64(r11, slot::BASE))?;
    a.shr(edx, view::PLACE_SHIFT)?;
    a.or(eax, edx)?;
    // Losses since the last gap word; one word tells at most u32::MAX of them.
    a.mov(r9, field64(rdi, control::LOST))?;
    a.sub(r9, field64(r11, slot::REPORTED))?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    a.test(r9, r9)?;
    a.jz(no_gap)?;
    a.mov(r8d, u32::MAX)?;
    a.cmp(r9, r8)?;
    a.jbe(gap_fits)?;
    a.mov(r9, r8)?;
    a.set_label(&mut gap_fits)?;
    a.add(field64(r11, slot::REPORTED), r9)?;
    a.mov(dword_ptr(rcx + 4), r9d)?;
    a.mov(dword_ptr(rcx), word::GAP)?;
    a.add(rcx, 8)?;
    a.set_label(&mut no_gap)?;
    a.test(r12d, (HAS_ARGUMENT | HAS_PAYLOAD).cast_signed())?;
    a.jz(content_done)?;
    a.test(r12d, HAS_PAYLOAD.cast_signed())?;
    a.jnz(payload)?;
    a.mov(dword_ptr(rcx + 4), r10d)?;
    a.mov(dword_ptr(rcx), word::ARGUMENT_LOW)?;
    a.mov(r9, r10)?;
    a.shr(r9, 32)?;
    a.mov(dword_ptr(rcx + 12), r9d)?;
    a.mov(dword_ptr(rcx + 8), word::ARGUMENT_HIGH)?;
    a.add(rcx, 16)?;
    a.set_label(&mut content_done)?;
    a.mov(dword_ptr(rcx + 4), eax)?;
    a.mov(r9d, dword_ptr(rsi))?;
    a.mov(dword_ptr(rcx), r9d)?;
    a.add(rcx, 8)?;
    a.set_label(&mut fill_guard)?;
    a.cmp(rcx, rbx)?;
    a.jae(guarded)?;
    a.mov(dword_ptr(rcx), word::FILLER)?;
    a.add(rcx, 8)?;
    a.jmp(fill_guard)?;
    a.set_label(&mut guarded)?;
    a.mov(r8, spec.table)?;
    leave_if_child(a, r8, out)?;
    // From here on handlers use the chunk.
    a.mov(field64(r11, slot::HEAD), rcx)?;
    a.set_label(&mut idle)?;
    a.mov(field64(rdi, control::BUSY), 0)?;
    a.mov(r8, spec.rings)?;
    a.cmp(field64(r8, rings::KEEP_NEWEST), 0)?;
    a.jne(keep)?;
    a.set_label(&mut out)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    a.set_label(&mut payload)?;
    a.call(copy)?;
    a.jnz(content_done)?;
    // A child: nothing here is its own.
    a.jmp(out)?;

    a.set_label(&mut full)?;
    leave_if_child(a, r8, out)?;
    a.inc(field64(rdi, control::LOST))?;
    a.jmp(idle)?;

    a.set_label(&mut keep)?;
    emit_take_back(a, spec, out)?;

    // Whoever is busy below us goes on from the head that it took, or begins a chunk if that is past its end. Head grows with
    // every vain attempt; parking it again keeps any number of them away from the next valid address.
    a.set_label(&mut busy)?;
    a.test(r12d, IN_VAIN.cast_signed())?;
    a.jz(not_parked)?;
    a.mov(field64(r11, slot::HEAD), r8)?;
    a.set_label(&mut not_parked)?;
    leave_if_child(a, rbx, out)?;
    a.inc(field64(rdi, control::LOST))?;
    a.jmp(out)?;
    a.set_label(&mut no_slot)?;
    emit_no_slot(a, spec, out)?;
    Ok(())
}

/// Finds the slot of thread eax: the home one, or the next that is its own or nobody's, which it takes. Then r11 = the slot, rcx = where it stands among the
/// slots, and ZF is set; it is not if there is none. Spoils rdx, rdi, r9.
pub(super) fn emit_slot(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    find_slot: &mut CodeLabel,
) -> Result<()> {
    let mask = small(u64::from(spec.geometry.slots() - 1));
    let slots = spec.table + HEADER_BYTES;
    let [mut probe, mut claim, mut found] = labels(a);
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
    a.inc(r9d)?;
    a.and(r9d, mask)?;
    a.dec(edx)?;
    a.jnz(probe)?;
    a.test(eax, eax)?;
    a.set_label(&mut found)?;
    a.ret()?;
    // A free slot's limit is 0, so a handler that comes in after the claim takes the slow path, too.
    a.set_label(&mut claim)?;
    a.mov(edi, eax)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(field32(r11, slot::TID), edi)?;
    a.mov(eax, edi)?;
    a.jnz(probe)?;
    // In shared memory, so that it is known whose the slot is, whatever becomes of the process; but not a child's.
    a.mov(rdx, spec.table)?;
    leave_if_child(a, rdx, found)?;
    a.mov(rdx, spec.rings + HEADER_BYTES)?;
    a.mov(qword_ptr(rdx + rcx + small(control::OWNER)), rdi)?;
    a.test(edx, 0)?;
    a.ret()
}

/// In a ring that keeps the newest events and whose chunks are all begun: zeroes the oldest and gives it back, so that the next chunk can be begun
/// at once. Handlers go on in the chunk under way meanwhile; one that comes to its end finds the ring full. rdi = control line, r11 = slot, r8 = the
/// rings.
///
/// A child that is forked in here stops at the next look at the table; until then it zeroes what its parent zeroes. One that is forked in the two
/// instructions between the look and the mark sets that, which the collector takes away if it stays.
fn emit_take_back(a: &mut CodeAssembler, spec: &TrampolineSpec, out: CodeLabel) -> Result<()> {
    let g = spec.geometry;
    let [mut zero, mut give_back] = labels(a);
    const { assert!(control::TAKING == 1 << 63, "the sign, and the highest bit") };
    a.mov(rbx, field64(r11, slot::STARTED))?;
    a.mov(r9, field64(rdi, control::RELEASED))?;
    a.test(r9, r9)?;
    a.js(out)?;
    a.sub(rbx, r9)?;
    a.cmp(rbx, small(g.chunks()))?;
    a.jb(out)?;
    a.mov(rax, spec.table)?;
    leave_if_child(a, rax, out)?;
    // Locked, so that the look at KEEP_NEWEST comes after it for everybody.
    a.lock().bts(field64(rdi, control::RELEASED), 63)?;
    a.jc(out)?;
    // A handler may have done all of this meanwhile.
    a.mov(rbx, field64(rdi, control::RELEASED))?;
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
    a.mov(ecx, small(g.chunk_bytes() / ZEROED_AT_ONCE))?;
    a.xor(ebx, ebx)?;
    a.set_label(&mut zero)?;
    leave_if_child(a, rax, out)?;
    for at in (0..ZEROED_AT_ONCE).step_by(8) {
        a.mov(field64(rdx, at), rbx)?;
    }
    a.add(rdx, small(ZEROED_AT_ONCE))?;
    a.dec(ecx)?;
    a.jnz(zero)?;
    a.inc(r9)?;
    a.set_label(&mut give_back)?;
    leave_if_child(a, rax, out)?;
    a.mov(field64(rdi, control::RELEASED), r9)?;
    a.jmp(out)?;
    Ok(())
}

/// Counts the event as lost: for thread eax in its bucket, the home one or the next that is its own or nobody's; if there is none, or no thread, for all.
/// rbx = the table.
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
    // First: a handler may leave by a jump before the bucket is taken. How often does not matter.
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

/// Goes to `out` if the table, whose address the register holds, is wiped: this is a forked child.
fn leave_if_child(a: &mut CodeAssembler, register: AsmRegister64, out: CodeLabel) -> Result<()> {
    a.cmp(field64(register, table::MINE), 0)?;
    a.je(out)?;
    Ok(())
}
