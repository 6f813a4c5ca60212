//! Adding up: a thread adds each call to the sums of its stack, and records nothing. Here are the
//! ways of calls that are as expected; all others are in `profile_slow`.
//!
//! Each thread has a profile ([`shm_ring::layout::profile`]): a tree of nodes, one for each stack,
//! and the frames of the open calls. An entry finds the node of its stack and adds a frame. An exit
//! removes the frame, and adds the duration to the node. The place on the stack shows which calls
//! are over, by the rule of `docs/design/shadow-stack.md`.
//!
//! A handler may run between any two instructions, make calls and leave. So one instruction changes
//! the number of frames, in OPEN. It compares OPEN with the value that was read before the frame
//! was filled or looked at. If a handler has changed anything meanwhile, all begins again. What
//! follows the removal of a frame are additions of one instruction each.
//!
//! ```text
//!  entry   r10  the profile   r11  the slots        r8  place on the stack   rdi  OPEN, as read
//!          r9   the innermost frame                 ecx place of the node    rsi  the counter
//!  exit    the same, and later r8 the duration, r9 the node
//! ```
//!
//! On processors of the measured kinds, `rdtsc` waits for all instructions before it. So the price
//! of an event is the longest chain of instructions between two readings of the counter. That is
//! why an entry reads the counter between its two chains: the one to the innermost frame, and the
//! one to the node.
//!
//! The places of nodes and the numbers of blocks are masked, so that a program that overwrites a
//! profile harms nothing but its own sums.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, cl, dword_ptr, eax,
    ecx, edi, edx, esi, ptr, qword_ptr, r8, r9, r10, r11, rax, rcx, rdi, rdx, rsi, rsp, word_ptr,
};
use shm_ring::layout::{
    HEADER_BYTES, LINE_SHIFT, ProfileRegion, profile, rings, slot,
    table::{LONG_CALL, MINE, MOST_OPEN, SWITCHED},
};

use super::{
    Part, Result, TrampolineSpec, emit_resume, field32, field64,
    filter::Happening,
    gate::{ProfileWay, emit_end_of_adding_up},
    labels,
    profile_slow::ProfileSlow,
    small,
};

/// Two neighbouring calls that are further apart belong to different stacks.
pub(super) const NEAR: i32 = 16 << 10;
/// The factor of the hash of a caller's place and a site's name.
const MIX: i32 = 0x9e37_79b1_u32.cast_signed();
/// A change that adds a frame.
pub(super) const PUSHED: u64 = 1 << 32 | 1;
/// A change that removes a frame.
pub(super) const POPPED: u64 = (1 << 32) - 1;

/// The registers that the ways keep. The flavours keep the others.
const KEPT: [AsmRegister64; 5] = [rdi, rsi, r8, r9, r10];
const KEPT_BYTES: i32 = 8 * 5;

/// The way of a flavour to adding up, from its gate on. eax = the thread, r11 = the slots.
pub(super) fn emit_way(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    part: &Part,
    slow: &ProfileSlow,
) -> Result<ProfileWay> {
    let region = spec.geometry.profile_region();
    let [mut start, mut slowly, mut leave] = labels(a);
    let [far, outermost, other, known] = labels(a);
    let name = part.name + KEPT_BYTES;
    a.set_label(&mut start)?;
    for register in KEPT {
        a.push(register)?;
    }
    a.mov(ecx, eax)?;
    a.and(ecx, small(u64::from(spec.geometry.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.cmp(dword_ptr(r11 + rcx + small(slot::TID)), eax)?;
    a.jne(slowly)?;
    a.shl(rcx, region.profile_shift() - LINE_SHIFT)?;
    a.mov(r10, spec.rings + region.profile_offset(0))?;
    a.add(r10, rcx)?;
    let at = NamePlace {
        name,
        stack: name + part.to_stack,
    };
    let ways = Ways {
        slowly,
        far,
        outermost,
        other,
        known,
        leave,
    };
    let is_exit = part.happening == Happening::Exit;
    match is_exit {
        true => emit_exit(a, spec, at, ways, slow)?,
        false => emit_entry(a, region, at, ways)?,
    }
    a.set_label(&mut leave)?;
    for register in KEPT.into_iter().rev() {
        a.pop(register)?;
    }
    let end = emit_end_of_adding_up(a)?;
    emit_resume(a, spec, part)?;
    a.set_label(&mut slowly)?;
    a.lea(rdx, ptr(rsp + at.name))?;
    a.lea(r8, ptr(rsp + at.stack))?;
    a.call(if is_exit { slow.exit } else { slow.entry })?;
    a.test(eax, eax)?;
    a.jnz(leave)?;
    // It would count as lost once more.
    for register in KEPT.into_iter().rev() {
        a.pop(register)?;
    }
    a.jmp(part.done)?;
    if !is_exit {
        emit_far(a, ways)?;
        emit_other(a, region, at, ways)?;
    }
    Ok(ProfileWay { start, end })
}

/// Distances above the stack pointer.
#[derive(Debug, Clone, Copy)]
struct NamePlace {
    /// Of the name.
    name: i32,
    /// Of the place on the stack at the sled.
    stack: i32,
}

/// The places where a way goes on.
#[derive(Debug, Clone, Copy)]
struct Ways {
    /// To the subroutine.
    slowly: CodeLabel,
    /// The innermost call is not near, or there is none.
    far: CodeLabel,
    /// No call is open.
    outermost: CodeLabel,
    /// The callee is not the expected one.
    other: CodeLabel,
    /// Its node is known.
    known: CodeLabel,
    leave: CodeLabel,
}

/// A field of the table's header; r11 = the slots behind it.
fn header(offset: u64) -> i32 {
    small(offset) - small(HEADER_BYTES)
}

/// A field of a frame, relative to the innermost one; `further` 1 for the next one to be added, and
/// -1 for the caller's.
pub(super) fn of_frame(field: u64, further: i32) -> i32 {
    small(field) + further * small(profile::FRAME_BYTES)
}

/// A field of the profile's header.
pub(super) fn of_profile(region: ProfileRegion, field: u64) -> i32 {
    small(region.header_at() + field)
}

/// The bits of a place.
pub(super) fn place_mask(region: ProfileRegion) -> i32 {
    small(region.size() - profile::NODE_BYTES)
}

fn emit_entry(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    at: NamePlace,
    ways: Ways,
) -> Result<()> {
    let mut again = a.create_label();
    let Ways {
        slowly,
        far,
        mut outermost,
        other,
        mut known,
        leave,
    } = ways;
    let open = of_profile(region, profile::OPEN);
    let mine = qword_ptr(r11 + header(MINE));
    a.lea(r8, ptr(rsp + at.stack))?;
    a.set_label(&mut again)?;
    a.mov(rdi, qword_ptr(r10 + open))?;
    a.mov(ecx, edi)?;
    a.and(ecx, small(region.frames() - 1))?;
    a.cmp(ecx, dword_ptr(r11 + header(MOST_OPEN)))?;
    a.jae(slowly)?;
    a.shl(ecx, profile::FRAME_SHIFT)?;
    a.lea(r9, ptr(r10 + rcx + small(region.frames_at())))?;
    a.mov(rax, field64(r9, profile::STACK))?;
    a.sub(rax, r8)?;
    a.dec(rax)?;
    a.cmp(rax, NEAR)?;
    a.jae(far)?;
    // A caller that began before a function was switched may be over.
    a.mov(rax, field64(r9, profile::BEGAN))?;
    a.cmp(rax, qword_ptr(r11 + header(SWITCHED)))?;
    a.jb(slowly)?;
    a.set_label(&mut outermost)?;
    emit_counter_read(a)?;
    a.mov(eax, field32(r9, profile::GUESS))?;
    a.and(eax, small(region.size() - 4))?;
    a.mov(ecx, dword_ptr(r10 + rax))?;
    a.and(ecx, place_mask(region))?;
    a.mov(eax, dword_ptr(rsp + at.name))?;
    a.cmp(dword_ptr(r10 + rcx + small(profile::NAME)), eax)?;
    a.jne(other)?;
    a.mov(eax, field32(r9, profile::NODE))?;
    a.cmp(dword_ptr(r10 + rcx + small(profile::CALLER)), eax)?;
    a.jne(other)?;
    a.set_label(&mut known)?;
    emit_push(a, region, Fork { mine, leave })?;
    a.jne(again)
}

/// Goes on with an entry whose caller is not near: no call is open, or the caller is on another
/// stack.
fn emit_far(a: &mut CodeAssembler, ways: Ways) -> Result<()> {
    let mut far = ways.far;
    a.set_label(&mut far)?;
    a.test(edi, edi)?;
    a.jz(ways.outermost)?;
    a.jmp(ways.slowly)
}

/// How a context finds out that it is a forked child, and where it goes then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fork {
    /// The table's word that is 0 in a child.
    pub(super) mine: AsmMemoryOperand,
    pub(super) leave: CodeLabel,
}

// === impl Fork ===

impl Fork {
    /// Has a child leave. A handler may fork between any two instructions, and the child has its
    /// parent's profile. So this stands right before each store that matters.
    pub(super) fn emit(self, a: &mut CodeAssembler) -> Result<()> {
        a.cmp(self.mine, 0)?;
        a.je(self.leave)
    }
}

/// Makes rsi the counter. Spoils rax and rdx.
pub(super) fn emit_counter_read(a: &mut CodeAssembler) -> Result<()> {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rdx, rax)?;
    a.mov(rsi, rdx)
}

/// Adds a frame behind the innermost one, r9. rsi = the counter, ecx = the place of the node, r8 =
/// the place on the stack. ZF is set unless a handler has changed the frames meanwhile. Spoils rax
/// and rdx.
pub(super) fn emit_push(a: &mut CodeAssembler, region: ProfileRegion, fork: Fork) -> Result<()> {
    const {
        assert!(
            profile::FIRST == 0,
            "the first guess is the place of the node"
        )
    };
    fork.emit(a)?;
    a.mov(qword_ptr(r9 + of_frame(profile::STACK, 1)), r8)?;
    a.mov(qword_ptr(r9 + of_frame(profile::BEGAN, 1)), rsi)?;
    a.mov(dword_ptr(r9 + of_frame(profile::NODE, 1)), ecx)?;
    a.mov(dword_ptr(r9 + of_frame(profile::GUESS, 1)), ecx)?;
    a.mov(qword_ptr(r10 + of_profile(region, profile::LATEST)), rsi)?;
    emit_change(a, region, PUSHED, fork)
}

/// Changes the number of frames, if nothing was changed since rdi was read. ZF is set if it has.
/// Spoils rax and rdx.
pub(super) fn emit_change(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    by: u64,
    fork: Fork,
) -> Result<()> {
    a.mov(rax, rdi)?;
    a.mov(rdx, by)?;
    a.add(rdx, rax)?;
    fork.emit(a)?;
    // No lock prefix: only this thread and its signal handlers write it.
    a.cmpxchg(qword_ptr(r10 + of_profile(region, profile::OPEN)), rdx)
}

/// Places of the table that are looked at here. The subroutine looks at more.
const LOOKS: usize = 2;

/// Goes on with an entry whose callee is not the expected one: finds its node in the table, and
/// expects it the next time. r8 keeps the counter meanwhile.
fn emit_other(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    at: NamePlace,
    ways: Ways,
) -> Result<()> {
    let (mut other, mut found) = (ways.other, a.create_label());
    a.set_label(&mut other)?;
    a.mov(r8, rsi)?;
    a.mov(eax, dword_ptr(rsp + at.name))?;
    a.mov(esi, field32(r9, profile::NODE))?;
    emit_hash(a, region, esi, eax)?;
    for look in 1..=LOOKS {
        let mut next = a.create_label();
        a.and(edx, small(region.places() - 1))?;
        a.mov(ecx, dword_ptr(r10 + rdx * 4 + small(region.places_at())))?;
        a.and(ecx, place_mask(region))?;
        a.cmp(dword_ptr(r10 + rcx + small(profile::NAME)), eax)?;
        a.jne(next)?;
        // No node has a caller with MORE.
        a.cmp(dword_ptr(r10 + rcx + small(profile::CALLER)), esi)?;
        a.je(found)?;
        a.set_label(&mut next)?;
        match look {
            LOOKS => a.jmp(ways.slowly)?,
            _ => a.inc(edx)?,
        }
    }
    a.set_label(&mut found)?;
    a.mov(eax, field32(r9, profile::GUESS))?;
    a.and(eax, small(region.size() - 4))?;
    a.mov(dword_ptr(r10 + rax), ecx)?;
    a.mov(rsi, r8)?;
    a.lea(r8, ptr(rsp + at.stack))?;
    a.jmp(ways.known)
}

/// Makes edx the first entry of the table of places for a callee, by the place of its caller and
/// the name of its site.
pub(super) fn emit_hash(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    caller: AsmRegister32,
    name: AsmRegister32,
) -> Result<()> {
    a.imul_3(edx, caller, MIX)?;
    a.xor(edx, name)?;
    a.imul_3(edx, edx, MIX)?;
    a.shr(edx, 32 - region.places().trailing_zeros())
}

fn emit_exit(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    at: NamePlace,
    Ways { slowly, leave, .. }: Ways,
    slow: &ProfileSlow,
) -> Result<()> {
    let region = spec.geometry.profile_region();
    let [mut again, mut long, mut add] = labels(a);
    let fork = Fork {
        mine: qword_ptr(r11 + header(MINE)),
        leave,
    };
    emit_counter_read(a)?;
    a.set_label(&mut again)?;
    a.lea(r8, ptr(rsp + at.stack))?;
    a.mov(rdi, qword_ptr(r10 + of_profile(region, profile::OPEN)))?;
    a.mov(ecx, edi)?;
    a.and(ecx, small(region.frames() - 1))?;
    a.shl(ecx, profile::FRAME_SHIFT)?;
    a.lea(r9, ptr(r10 + rcx + small(region.frames_at())))?;
    // Frame 0 has no place on the stack.
    a.cmp(field64(r9, profile::STACK), r8)?;
    a.jne(slowly)?;
    a.mov(rdx, field64(r9, profile::BEGAN))?;
    a.cmp(rdx, qword_ptr(r11 + header(SWITCHED)))?;
    a.jb(slowly)?;
    a.mov(ecx, field32(r9, profile::NODE))?;
    a.test(ecx, profile::MORE)?;
    a.jnz(slowly)?;
    a.mov(r8, rsi)?;
    a.sub(r8, rdx)?;
    // The counter of this processor is behind.
    a.jb(slowly)?;
    emit_change(a, region, POPPED, fork)?;
    a.jne(again)?;
    a.mov(qword_ptr(r10 + of_profile(region, profile::LATEST)), rsi)?;
    a.lea(eax, ptr(rcx + small(profile::NEXT)))?;
    a.mov(dword_ptr(r9 + of_frame(profile::GUESS, -1)), eax)?;
    a.and(ecx, place_mask(region))?;
    a.lea(r9, ptr(r10 + rcx))?;
    a.cmp(r8, qword_ptr(r11 + header(LONG_CALL)))?;
    a.jae(long)?;
    a.set_label(&mut add)?;
    emit_duration(a, region, fork, slow.block)?;
    a.set_label(&mut long)?;
    a.mov(edi, dword_ptr(rsp + at.name))?;
    emit_note(a, spec, fork)?;
    a.jmp(add)
}

/// Notes a long call: r8 = its duration, rsi = the counter at its end, edi = the name of its exit's
/// site. Keeps r8 to r11 and rsi.
pub(super) fn emit_note(a: &mut CodeAssembler, spec: &TrampolineSpec, fork: Fork) -> Result<()> {
    let region = spec.geometry.profile_region();
    fork.emit(a)?;
    a.mov(ecx, 1)?;
    // No lock prefix: only this thread and its signal handlers write it.
    a.xadd(qword_ptr(r10 + of_profile(region, profile::NOTED)), rcx)?;
    a.mov(eax, ecx)?;
    a.and(eax, small(profile::NOTES - 1))?;
    a.shl(eax, profile::NOTE_SHIFT)?;
    a.lea(rdx, ptr(r10 + rax + small(region.notes_at())))?;
    a.inc(rcx)?;
    // The number is 0 while the rest changes, and is there last.
    fork.emit(a)?;
    a.mov(field64(rdx, profile::NOTE_NUMBER), 0)?;
    fork.emit(a)?;
    a.mov(field64(rdx, profile::NOTE_ENDED), rsi)?;
    a.mov(field64(rdx, profile::NOTE_TICKS), r8)?;
    a.mov(field32(rdx, profile::NOTE_NAME), edi)?;
    fork.emit(a)?;
    a.mov(field64(rdx, profile::NOTE_NUMBER), rcx)?;
    a.mov(rax, spec.rings + rings::LONG_CALLS)?;
    fork.emit(a)?;
    a.lock().inc(qword_ptr(rax))
}

/// Adds the duration r8 to the sums of the node r9, and goes where a forked child goes.
/// `block` is the subroutine for a duration that has no block. Spoils rax, rcx, rdx, rsi, rdi.
pub(super) fn emit_duration(
    a: &mut CodeAssembler,
    region: ProfileRegion,
    fork: Fork,
    block: CodeLabel,
) -> Result<()> {
    let [mut longer, mut sort, mut no_block] = labels(a);
    let [mut shorter, mut compare_shortest] = labels(a);
    fork.emit(a)?;
    a.add(field64(r9, profile::TOTAL), r8)?;
    a.cmp(r8, field64(r9, profile::LONGEST))?;
    a.ja(longer)?;
    a.set_label(&mut compare_shortest)?;
    a.cmp(r8, field64(r9, profile::SHORTEST))?;
    a.jb(shorter)?;
    a.set_label(&mut sort)?;
    emit_sort(a, region, no_block)?;
    fork.emit(a)?;
    a.inc(qword_ptr(rdx + rax))?;
    a.jmp(fork.leave)?;
    a.set_label(&mut longer)?;
    a.mov(rax, field64(r9, profile::LONGEST))?;
    a.cmp(r8, rax)?;
    a.jbe(compare_shortest)?;
    a.cmpxchg(field64(r9, profile::LONGEST), r8)?;
    a.jne(longer)?;
    a.jmp(compare_shortest)?;
    a.set_label(&mut shorter)?;
    a.mov(rax, field64(r9, profile::SHORTEST))?;
    a.cmp(r8, rax)?;
    a.jae(sort)?;
    a.cmpxchg(field64(r9, profile::SHORTEST), r8)?;
    a.jne(shorter)?;
    a.jmp(sort)?;
    a.set_label(&mut no_block)?;
    a.add(ecx, 3)?;
    a.shr(ecx, 1)?;
    a.call(block)?;
    a.jmp(fork.leave)
}

/// Makes rdx + rax the address of the counter for the duration r8 in a block of the node r9. Goes
/// to `no_block` if the node has none for it; then ecx + 3 is twice the entry of the block, or one
/// more, and eax = the counter in it. Spoils rcx.
fn emit_sort(a: &mut CodeAssembler, region: ProfileRegion, no_block: CodeLabel) -> Result<()> {
    // The next event waits for these instructions: the chain is as short as can be.
    a.mov(rcx, r8)?;
    a.or(rcx, 8)?;
    a.bsr(rcx, rcx)?;
    a.mov(edx, ecx)?;
    a.shr(edx, 1)?;
    a.movzx(edx, word_ptr(r9 + rdx * 2 + small(profile::BLOCKS)))?;
    a.mov(rax, r8)?;
    a.sub(ecx, 3)?;
    a.shr(rax, cl)?;
    a.lea(eax, ptr(rax + rcx * 8))?;
    a.and(eax, 15)?;
    a.test(edx, edx)?;
    a.jz(no_block)?;
    emit_counter(a, region)
}

/// Makes rdx + rax the address of the counter eax of the block edx.
pub(super) fn emit_counter(a: &mut CodeAssembler, region: ProfileRegion) -> Result<()> {
    a.lea(rax, ptr(r10 + rax * 8 + small(region.blocks_at())))?;
    a.and(edx, small(region.blocks() - 1))?;
    a.shl(edx, profile::NODE_SHIFT)
}
