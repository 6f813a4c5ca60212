//! Adding up, the rest: new nodes and blocks, calls that were left without an exit, other stacks,
//! and functions that were switched. See `profile`.
//!
//! ```text
//!  registers   rbx  the table        r10  the profile    r9   the innermost frame
//!              r12d name of the site r13  place on the stack    r14  the counter (exits)
//!              rdi  OPEN, as read    spoiled: rax, rcx, rdx, rsi, r8, r11
//! ```

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, dx, eax, ecx, edi, edx, esi, ptr,
    qword_ptr, r8, r8d, r9, r9d, r10, r11, r11d, r12, r12d, r13, r14, rax, rbx, rcx, rdi, rdx, rsi,
    word_ptr,
};
use shm_ring::layout::{LINE_SHIFT, NAME_SHIFT, ProfileRegion, profile, table};

use super::{
    Result, TrampolineSpec, field32, field64, labels,
    profile::{
        Fork, NEAR, POPPED, emit_change, emit_counter, emit_counter_read, emit_duration, emit_hash,
        emit_note, emit_push, of_frame, of_profile, place_mask,
    },
    slow::{emit_no_slot, emit_own_slot},
    small,
};

/// Places of the table that are looked at for a node. Beyond them, no node is made.
const PLACE_LOOKS: i32 = 64;

/// The subroutines.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProfileSlow {
    /// For entries: rdx = address of the name, r8 = place on the stack. Makes eax 0 if the event
    /// was counted as lost for lack of a slot. Spoils rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11,
    /// as the next one does.
    pub(super) entry: CodeLabel,
    /// The same for exits.
    pub(super) exit: CodeLabel,
    /// Counts a duration for which the node has no block: r9 = the node, ecx = the entry of the
    /// block, eax = the counter in it. Spoils rax, rcx, rdx.
    pub(super) block: CodeLabel,
}

/// The common parts of the subroutines.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Reads OPEN and finds the innermost frame, after removing those that may be over because
    /// their functions were switched.
    innermost: CodeLabel,
    /// Removes the innermost frame, whose call has no exit, unless something has changed.
    pop_left: CodeLabel,
    /// CF is set if the function of a site may have been switched since a call began.
    is_switched: CodeLabel,
    /// Finds the number of frames that the place on the stack leaves open.
    settle: CodeLabel,
    /// Finds the node of a site within the node of the innermost frame.
    callee: CodeLabel,
    block: CodeLabel,
}

const KEPT: [AsmRegister64; 4] = [rbx, r12, r13, r14];

// === impl ProfileSlow ===

impl ProfileSlow {
    pub(super) fn emit(
        a: &mut CodeAssembler,
        spec: &TrampolineSpec,
        slot: CodeLabel,
    ) -> Result<Self> {
        let region = spec.geometry.profile_region();
        let [mut innermost, mut pop_left, mut is_switched] = labels(a);
        let [mut settle, mut callee, mut block] = labels(a);
        emit_is_switched(a, spec, &mut is_switched)?;
        emit_pop_left(a, region, &mut pop_left)?;
        emit_innermost(a, region, &mut innermost, pop_left, is_switched)?;
        emit_settle(a, region, &mut settle)?;
        emit_callee(a, region, &mut callee)?;
        emit_block(a, spec, &mut block)?;
        let parts = Parts {
            innermost,
            pop_left,
            is_switched,
            settle,
            callee,
            block,
        };
        Ok(Self {
            entry: emit_entry(a, spec, slot, parts)?,
            exit: emit_exit(a, spec, slot, parts)?,
            block,
        })
    }
}

/// Has a forked child go to `leave`; rbx = the table.
fn fork_to(leave: CodeLabel) -> Fork {
    let mine = field64(rbx, table::MINE);
    Fork { mine, leave }
}

/// The begin of a subroutine: r10 and rbx. Goes to `out` in a forked child and while nothing is
/// recorded, and to `no_slot` if the thread has none.
fn emit_begin(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slot: CodeLabel,
    (no_slot, out): (CodeLabel, CodeLabel),
) -> Result<()> {
    let region = spec.geometry.profile_region();
    for register in KEPT {
        a.push(register)?;
    }
    a.mov(r12d, dword_ptr(rdx))?;
    a.mov(r13, r8)?;
    emit_own_slot(a, spec, slot, (no_slot, out))?;
    a.shl(rcx, region.profile_shift() - LINE_SHIFT)?;
    a.mov(r10, spec.rings + region.profile_offset(0))?;
    a.add(r10, rcx)
}

fn emit_end(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    (mut no_slot, mut out): (CodeLabel, CodeLabel),
) -> Result<()> {
    let [mut lost, mut leave] = labels(a);
    a.set_label(&mut out)?;
    a.mov(eax, 1)?;
    a.set_label(&mut leave)?;
    for register in KEPT.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    a.set_label(&mut no_slot)?;
    emit_no_slot(a, spec, lost)?;
    a.set_label(&mut lost)?;
    a.xor(eax, eax)?;
    a.jmp(leave)
}

fn emit_entry(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slot: CodeLabel,
    parts: Parts,
) -> Result<CodeLabel> {
    let region = spec.geometry.profile_region();
    let [mut start, mut again, no_slot, out] = labels(a);
    let [mut is_over, mut not_followed] = labels(a);
    let fork = fork_to(out);
    a.set_label(&mut start)?;
    emit_begin(a, spec, slot, (no_slot, out))?;
    a.set_label(&mut again)?;
    a.call(parts.innermost)?;
    a.jc(out)?;
    a.call(parts.settle)?;
    a.cmp(ecx, edi)?;
    a.jb(is_over)?;
    a.cmp(ecx, field32(rbx, table::MOST_OPEN))?;
    a.jae(not_followed)?;
    a.call(parts.callee)?;
    a.jc(not_followed)?;
    a.mov(r8, r13)?;
    emit_counter_read(a)?;
    emit_push(a, region, fork)?;
    a.jne(again)?;
    a.jmp(out)?;
    a.set_label(&mut is_over)?;
    emit_pop_all(a, parts, again)?;
    a.set_label(&mut not_followed)?;
    fork.emit(a)?;
    a.inc(qword_ptr(r10 + of_profile(region, profile::NOT_FOLLOWED)))?;
    a.jmp(out)?;
    emit_end(a, spec, (no_slot, out))?;
    Ok(start)
}

fn emit_exit(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slot: CodeLabel,
    parts: Parts,
) -> Result<CodeLabel> {
    let region = spec.geometry.profile_region();
    let [mut start, mut again, no_slot, out] = labels(a);
    let [mut is_over, mut elsewhere, mut search, mut unmatched] = labels(a);
    let [mut count, mut add, mut forwards, mut not_nested] = labels(a);
    let mut not_searched = a.create_label();
    let latest = of_profile(region, profile::LATEST);
    let fork = fork_to(out);
    a.set_label(&mut start)?;
    emit_begin(a, spec, slot, (no_slot, out))?;
    emit_counter_read(a)?;
    a.mov(r14, rsi)?;
    a.set_label(&mut again)?;
    a.call(parts.innermost)?;
    a.jc(out)?;
    a.test(edi, edi)?;
    a.jz(unmatched)?;
    a.cmp(field64(r9, profile::STACK), r13)?;
    a.jne(elsewhere)?;
    a.mov(rsi, field64(r9, profile::BEGAN))?;
    a.mov(eax, r12d)?;
    a.call(parts.is_switched)?;
    a.jc(elsewhere)?;
    // It is the exit of the innermost call: r8 = its duration, rsi = its node, then its
    // caller's node.
    a.mov(r8, r14)?;
    a.sub(r8, rsi)?;
    a.jae(forwards)?;
    a.xor(r8d, r8d)?;
    a.set_label(&mut forwards)?;
    a.mov(ecx, field32(r9, profile::NODE))?;
    a.mov(esi, dword_ptr(r9 + of_frame(profile::NODE, -1)))?;
    emit_change(a, region, POPPED, fork)?;
    a.jne(again)?;
    a.mov(qword_ptr(r10 + latest), r14)?;
    a.mov(r11, r9)?;
    a.mov(r9d, ecx)?;
    a.and(r9d, place_mask(region))?;
    a.add(r9, r10)?;
    a.test(ecx, profile::MORE)?;
    a.jz(not_nested)?;
    a.cmp(ecx, esi)?;
    a.jne(count)?;
    a.add(field64(r9, profile::NESTED), r8)?;
    a.jmp(count)?;
    a.set_label(&mut not_nested)?;
    a.add(ecx, small(profile::NEXT))?;
    a.mov(dword_ptr(r11 + of_frame(profile::GUESS, -1)), ecx)?;
    a.set_label(&mut count)?;
    a.cmp(r8, field64(rbx, table::LONG_CALL))?;
    a.jb(add)?;
    a.mov(rsi, r14)?;
    a.mov(edi, r12d)?;
    emit_note(a, spec, fork)?;
    a.set_label(&mut add)?;
    emit_duration(a, region, fork, parts.block)?;

    // The exit of an outer call: those further in are over. It is none if it lies below the
    // innermost frame of its stack. ecx = the frame looked at.
    a.set_label(&mut elsewhere)?;
    a.mov(rax, field64(r9, profile::STACK))?;
    a.sub(rax, r13)?;
    a.dec(rax)?;
    a.cmp(rax, NEAR)?;
    a.jb(unmatched)?;
    a.mov(ecx, edi)?;
    a.mov(r8, r9)?;
    a.set_label(&mut search)?;
    a.dec(ecx)?;
    a.jz(not_searched)?;
    a.sub(r8, small(profile::FRAME_BYTES))?;
    a.cmp(field64(r8, profile::STACK), r13)?;
    a.jne(search)?;
    a.mov(rsi, field64(r8, profile::BEGAN))?;
    a.mov(eax, r12d)?;
    a.push(rcx)?;
    a.push(r8)?;
    a.call(parts.is_switched)?;
    a.pop(r8)?;
    a.pop(rcx)?;
    a.jc(search)?;
    a.jmp(is_over)?;
    a.set_label(&mut not_searched)?;
    a.call(parts.settle)?;
    a.cmp(ecx, edi)?;
    a.jae(unmatched)?;
    a.set_label(&mut is_over)?;
    emit_pop_all(a, parts, again)?;
    a.set_label(&mut unmatched)?;
    // It may be the exit of a call that was not followed.
    a.cmp(
        qword_ptr(r10 + of_profile(region, profile::NOT_FOLLOWED)),
        0,
    )?;
    a.jne(out)?;
    fork.emit(a)?;
    a.inc(qword_ptr(r10 + of_profile(region, profile::UNMATCHED)))?;
    a.mov(qword_ptr(r10 + latest), r14)?;
    a.jmp(out)?;
    emit_end(a, spec, (no_slot, out))?;
    Ok(start)
}

/// CF is set if the function of the site eax may have been switched since the counter rsi. Spoils
/// rcx, rdx, r8, r11.
fn emit_is_switched(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    is_switched: &mut CodeLabel,
) -> Result<()> {
    let region = spec.geometry.profile_region();
    let [mut next, mut none, mut found, mut more, mut done] = labels(a);
    a.set_label(is_switched)?;
    a.cmp(rsi, field64(rbx, table::ALL_SWITCHED))?;
    a.jb(done)?;
    a.cmp(eax, profile::MORE_NAME)?;
    a.je(more)?;
    a.mov(rdx, spec.rings + region.switched_offset())?;
    a.mov(ecx, eax)?;
    a.shr(ecx, NAME_SHIFT)?;
    a.mov(r8d, small(profile::SWITCHED_SITES))?;
    a.set_label(&mut next)?;
    a.and(ecx, small(profile::SWITCHED_SITES - 1))?;
    a.mov(r11d, ecx)?;
    a.shl(r11, profile::SWITCHED_BYTES.trailing_zeros())?;
    a.add(r11, rdx)?;
    a.cmp(field32(r11, profile::SWITCHED_NAME), eax)?;
    a.je(found)?;
    a.cmp(field32(r11, profile::SWITCHED_NAME), 0)?;
    a.je(none)?;
    a.inc(ecx)?;
    a.dec(r8d)?;
    a.jnz(next)?;
    a.set_label(&mut none)?;
    a.test(eax, eax)?;
    a.ret()?;
    // Its function is not known: any switched one may be it.
    a.set_label(&mut more)?;
    a.cmp(rsi, field64(rbx, table::SWITCHED))?;
    a.ret()?;
    a.set_label(&mut found)?;
    a.cmp(rsi, field64(r11, profile::SWITCHED_AT))?;
    a.set_label(&mut done)?;
    a.ret()
}

/// Removes frames until ecx are left, unless a handler changes the frames meanwhile. Then goes on
/// at `again`. Spoils rax, rcx, rdx, rsi, rdi, r8, r9, r11.
fn emit_pop_all(a: &mut CodeAssembler, parts: Parts, again: CodeLabel) -> Result<()> {
    let mut next = a.create_label();
    a.mov(r11d, ecx)?;
    a.set_label(&mut next)?;
    a.call(parts.pop_left)?;
    a.jne(again)?;
    a.mov(rax, POPPED)?;
    a.add(rdi, rax)?;
    a.sub(r9, small(profile::FRAME_BYTES))?;
    a.cmp(edi, r11d)?;
    a.ja(next)?;
    a.jmp(again)
}

/// Removes the innermost frame, and counts its call as one without an exit, unless something has
/// changed since rdi was read. ZF is set if nothing has. Spoils rax, rcx, rdx, rsi, r8.
fn emit_pop_left(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    pop_left: &mut CodeLabel,
) -> Result<()> {
    let [mut forwards, mut done, mut removed] = labels(a);
    let fork = fork_to(done);
    a.set_label(pop_left)?;
    a.mov(rsi, field64(r9, profile::BEGAN))?;
    a.mov(ecx, field32(r9, profile::NODE))?;
    a.mov(r8d, dword_ptr(r9 + of_frame(profile::NODE, -1)))?;
    emit_change(a, region, POPPED, fork)?;
    a.jne(done)?;
    a.mov(rdx, qword_ptr(r10 + of_profile(region, profile::LATEST)))?;
    a.sub(rdx, rsi)?;
    a.jae(forwards)?;
    a.xor(edx, edx)?;
    a.set_label(&mut forwards)?;
    a.mov(eax, ecx)?;
    a.and(ecx, place_mask(region))?;
    a.add(rcx, r10)?;
    fork.emit(a)?;
    a.add(field64(rcx, profile::LEFT_TICKS), rdx)?;
    a.inc(field64(rcx, profile::LEFT))?;
    a.test(eax, profile::MORE)?;
    a.jz(removed)?;
    a.cmp(eax, r8d)?;
    a.jne(removed)?;
    a.add(field64(rcx, profile::NESTED), rdx)?;
    a.set_label(&mut removed)?;
    a.xor(eax, eax)?;
    a.set_label(&mut done)?;
    a.ret()
}

/// Makes rdi the number of frames, and r9 the innermost one, once it is none that may be over
/// because its function was switched. CF is set if there is none to be had: the program has
/// overwritten the number, or this is a forked child. Spoils rax, rcx, rdx, rsi, r8, r11.
fn emit_innermost(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    innermost: &mut CodeLabel,
    pop_left: CodeLabel,
    is_switched: CodeLabel,
) -> Result<()> {
    let [mut none, mut found] = labels(a);
    a.set_label(innermost)?;
    fork_to(none).emit(a)?;
    a.mov(rdi, qword_ptr(r10 + of_profile(region, profile::OPEN)))?;
    a.mov(ecx, edi)?;
    a.cmp(ecx, small(region.frames()))?;
    a.jae(none)?;
    a.shl(ecx, profile::FRAME_SHIFT)?;
    a.lea(r9, ptr(r10 + rcx + small(region.frames_at())))?;
    a.test(edi, edi)?;
    a.jz(found)?;
    a.mov(rsi, field64(r9, profile::BEGAN))?;
    a.cmp(rsi, field64(rbx, table::SWITCHED))?;
    a.jae(found)?;
    a.mov(ecx, field32(r9, profile::NODE))?;
    a.and(ecx, place_mask(region))?;
    a.mov(eax, dword_ptr(r10 + rcx + small(profile::NAME)))?;
    a.call(is_switched)?;
    a.jae(found)?;
    a.call(pop_left)?;
    a.jmp(*innermost)?;
    a.set_label(&mut found)?;
    a.test(edi, edi)?;
    a.ret()?;
    a.set_label(&mut none)?;
    a.xor(ecx, ecx)?;
    a.cmp(ecx, 1)?;
    a.ret()
}

/// Makes ecx the number of frames that an event at the place r13 leaves open, by the rule of
/// `docs/design/shadow-stack.md`: it belongs to the innermost stack that reaches near to it. If
/// there is none, it begins another stack, and leaves all open. edi = the number of frames. Spoils
/// rax, rdx, rsi, r8, r11.
///
/// ```text
///  ecx  the last frame of the stack looked at    esi  its first frame    r8  a frame in between
/// ```
fn emit_settle(a: &mut CodeAssembler, region: ProfileRegion, settle: &mut CodeLabel) -> Result<()> {
    let [mut stack, mut walk, mut begun, mut outer] = labels(a);
    let [mut none, mut done, mut over, mut not_below] = labels(a);
    a.set_label(settle)?;
    a.mov(ecx, edi)?;
    a.set_label(&mut stack)?;
    a.test(ecx, ecx)?;
    a.jz(none)?;
    emit_frame(a, region)?;
    a.mov(esi, ecx)?;
    a.xor(r11d, r11d)?;
    a.mov(rax, field64(r8, profile::STACK))?;
    a.sub(rax, r13)?;
    a.jbe(not_below)?;
    a.cmp(rax, NEAR)?;
    a.jbe(done)?;
    a.jmp(walk)?;
    a.set_label(&mut not_below)?;
    a.inc(r11d)?;
    a.set_label(&mut walk)?;
    a.cmp(esi, 1)?;
    a.je(begun)?;
    a.mov(rax, qword_ptr(r8 + of_frame(profile::STACK, -1)))?;
    a.sub(rax, field64(r8, profile::STACK))?;
    a.dec(rax)?;
    a.cmp(rax, NEAR)?;
    a.jae(begun)?;
    a.sub(r8, small(profile::FRAME_BYTES))?;
    a.dec(esi)?;
    a.jmp(walk)?;
    a.set_label(&mut begun)?;
    a.test(r11d, r11d)?;
    a.jz(outer)?;
    a.mov(rax, r13)?;
    a.sub(rax, field64(r8, profile::STACK))?;
    a.jbe(over)?;
    a.cmp(rax, NEAR)?;
    a.ja(outer)?;
    a.set_label(&mut over)?;
    emit_frame(a, region)?;
    a.cmp(field64(r8, profile::STACK), r13)?;
    a.ja(done)?;
    a.dec(ecx)?;
    a.cmp(ecx, esi)?;
    a.jae(over)?;
    a.ret()?;
    a.set_label(&mut outer)?;
    a.lea(ecx, ptr(rsi - 1))?;
    a.jmp(stack)?;
    a.set_label(&mut none)?;
    a.mov(ecx, edi)?;
    a.set_label(&mut done)?;
    a.ret()
}

/// Makes r8 the frame ecx.
fn emit_frame(a: &mut CodeAssembler, region: ProfileRegion) -> Result<()> {
    a.mov(r8d, ecx)?;
    a.shl(r8, profile::FRAME_SHIFT)?;
    a.lea(r8, ptr(r8 + r10 + small(region.frames_at())))
}

/// Makes ecx the place of the site's node within the node of the innermost frame, r9. If there is
/// none left, it is the place of the node for more stacks. CF is set if there is not even one of
/// those. Spoils rax, rdx, rsi, r8, r11.
fn emit_callee(a: &mut CodeAssembler, region: ProfileRegion, callee: &mut CodeLabel) -> Result<()> {
    let [mut look, mut again, mut probe, mut next, mut make] = labels(a);
    let [mut whole, mut found, mut found_more, mut more, mut none] = labels(a);
    let places = small(region.places_at());
    let nodes = of_profile(region, profile::NODES);
    a.set_label(callee)?;
    a.mov(eax, field32(r9, profile::NODE))?;
    a.test(eax, profile::MORE)?;
    a.jz(look)?;
    a.mov(ecx, eax)?;
    a.ret()?;
    a.set_label(&mut look)?;
    a.mov(r11d, r12d)?;
    a.set_label(&mut again)?;
    emit_hash(a, region, eax, r11d)?;
    a.mov(esi, PLACE_LOOKS)?;
    a.set_label(&mut probe)?;
    a.and(edx, small(region.places() - 1))?;
    a.mov(ecx, dword_ptr(r10 + rdx * 4 + places))?;
    a.test(ecx, ecx)?;
    a.jz(make)?;
    a.and(ecx, place_mask(region))?;
    a.cmp(dword_ptr(r10 + rcx + small(profile::NAME)), r11d)?;
    a.jne(next)?;
    a.cmp(dword_ptr(r10 + rcx + small(profile::CALLER)), eax)?;
    a.je(found)?;
    a.set_label(&mut next)?;
    a.inc(edx)?;
    a.dec(esi)?;
    a.jnz(probe)?;
    a.set_label(&mut more)?;
    a.cmp(r11d, profile::MORE_NAME)?;
    a.je(none)?;
    a.mov(r11d, profile::MORE_NAME)?;
    a.jmp(again)?;
    // One node in eight is kept for nodes of more stacks.
    a.set_label(&mut make)?;
    a.mov(r8d, field32(rbx, table::MOST_NODES))?;
    a.cmp(r8d, small(region.nodes()))?;
    a.ja(none)?;
    a.cmp(r11d, profile::MORE_NAME)?;
    a.je(whole)?;
    a.mov(ecx, r8d)?;
    a.shr(ecx, 3)?;
    a.sub(r8d, ecx)?;
    a.set_label(&mut whole)?;
    a.mov(rcx, qword_ptr(r10 + nodes))?;
    a.inc(rcx)?;
    a.cmp(rcx, r8)?;
    a.jae(more)?;
    fork_to(none).emit(a)?;
    a.mov(ecx, 1)?;
    a.xadd(qword_ptr(r10 + nodes), rcx)?;
    a.inc(rcx)?;
    a.cmp(rcx, r8)?;
    a.jae(more)?;
    a.shl(ecx, profile::NODE_SHIFT)?;
    a.mov(dword_ptr(r10 + rcx + small(profile::CALLER)), eax)?;
    a.mov(qword_ptr(r10 + rcx + small(profile::SHORTEST)), -1)?;
    // Last: the collector sees by it that the node is made.
    a.mov(dword_ptr(r10 + rcx + small(profile::NAME)), r11d)?;
    a.mov(r8d, eax)?;
    a.xor(eax, eax)?;
    // A handler may have taken the entry. Then this node stays unused.
    a.cmpxchg(dword_ptr(r10 + rdx * 4 + places), ecx)?;
    a.mov(eax, r8d)?;
    a.jne(probe)?;
    a.set_label(&mut found)?;
    a.cmp(r11d, profile::MORE_NAME)?;
    a.je(found_more)?;
    a.mov(edx, field32(r9, profile::GUESS))?;
    a.and(edx, small(region.size() - 4))?;
    a.mov(dword_ptr(r10 + rdx), ecx)?;
    a.test(ecx, ecx)?;
    a.ret()?;
    a.set_label(&mut found_more)?;
    a.or(ecx, profile::MORE)?;
    a.ret()?;
    a.set_label(&mut none)?;
    a.xor(ecx, ecx)?;
    a.cmp(ecx, 1)?;
    a.ret()
}

/// See [`ProfileSlow::block`]. Spoils rsi and rdi, too.
fn emit_block(a: &mut CodeAssembler, spec: &TrampolineSpec, block: &mut CodeLabel) -> Result<()> {
    let region = spec.geometry.profile_region();
    let [mut unsorted, mut made, mut out] = labels(a);
    let begun = of_profile(region, profile::BEGUN_BLOCKS);
    let fork = Fork {
        mine: field64(rsi, table::MINE),
        leave: out,
    };
    a.set_label(block)?;
    a.mov(rsi, spec.table)?;
    a.mov(edi, field32(rsi, table::MOST_BLOCKS))?;
    a.cmp(edi, small(region.blocks()))?;
    a.ja(unsorted)?;
    a.mov(rdx, qword_ptr(r10 + begun))?;
    a.inc(rdx)?;
    a.cmp(rdx, rdi)?;
    a.jae(unsorted)?;
    fork.emit(a)?;
    a.mov(edx, 1)?;
    a.xadd(qword_ptr(r10 + begun), rdx)?;
    a.inc(rdx)?;
    a.cmp(rdx, rdi)?;
    a.jae(unsorted)?;
    a.mov(edi, eax)?;
    a.xor(eax, eax)?;
    a.cmpxchg(word_ptr(r9 + rcx * 2 + small(profile::BLOCKS)), dx)?;
    a.jz(made)?;
    // A handler was first. This block stays unused.
    a.movzx(edx, word_ptr(r9 + rcx * 2 + small(profile::BLOCKS)))?;
    a.set_label(&mut made)?;
    a.mov(eax, edi)?;
    emit_counter(a, region)?;
    fork.emit(a)?;
    a.inc(qword_ptr(rdx + rax))?;
    a.ret()?;
    a.set_label(&mut unsorted)?;
    fork.emit(a)?;
    a.inc(field64(r9, profile::UNSORTED))?;
    a.set_label(&mut out)?;
    a.ret()
}
