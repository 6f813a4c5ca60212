//! Counting: a thread adds one to its count of a site, and does nothing else.
//!
//! A list of names that all threads share has the number of each site. The first thread that comes
//! to a site gives it its number. A thread's counts lie one behind the other by those numbers.
//! Number 0 stands for all sites that found no number left.
//!
//! One instruction changes a count, and one enters a name. So a handler may run, and leave, at any
//! point.

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edx, ptr, qword_ptr, r8, r8d, r9, r10, r10d,
    r11, rax, rbx, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::layout::{LINE_SHIFT, NAME_SHIFT, rings, slot, table};

use super::{
    Result, TrampolineSpec, field64, labels,
    slow::{emit_no_slot, emit_own_slot},
    small,
};

/// Entries of the list that a flavour looks at without calling the subroutine.
const LOOKS: usize = 4;

/// The way of a flavour to counting, from its gate on. eax = the thread, r11 = the slots, and the
/// name is `name` bytes above the stack pointer.
pub(super) fn emit_way(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    name: i32,
    count: CodeLabel,
    done: CodeLabel,
) -> Result<CodeLabel> {
    let g = spec.geometry;
    let region = g.count_region();
    let [mut start, mut seldom, mut found] = labels(a);
    a.set_label(&mut start)?;
    a.mov(ecx, eax)?;
    a.and(ecx, small(u64::from(g.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.cmp(dword_ptr(r11 + rcx + small(slot::TID)), eax)?;
    a.jne(seldom)?;
    a.shl(rcx, region.counts_shift() - LINE_SHIFT)?;
    a.mov(rdx, spec.rings + region.counts_offset(0))?;
    a.add(rdx, rcx)?;
    a.mov(eax, dword_ptr(rsp + name))?;
    a.mov(ecx, eax)?;
    a.shr(ecx, NAME_SHIFT)?;
    a.mov(r11, spec.rings + region.names_offset())?;
    for look in 0..LOOKS {
        if look > 0 {
            a.inc(ecx)?;
        }
        a.and(ecx, small(region.names() - 1))?;
        a.cmp(dword_ptr(r11 + rcx * 8), eax)?;
        a.je(found)?;
    }
    a.set_label(&mut seldom)?;
    a.lea(rdx, ptr(rsp + name))?;
    a.call(count)?;
    a.jmp(done)?;
    a.set_label(&mut found)?;
    a.mov(ecx, dword_ptr(r11 + rcx * 8 + 4))?;
    // The target may have written any number there.
    a.and(ecx, small(region.ids() - 1))?;
    a.inc(qword_ptr(rdx + rcx * 8))?;
    a.jmp(done)?;
    Ok(start)
}

/// The subroutine for a thread without its first slot, and for sites that have no number or whose
/// name stands further on. rdx = address of the name. Spoils rax, rcx, rdx, r11.
pub(super) fn emit_count(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    slot: CodeLabel,
) -> Result<CodeLabel> {
    let g = spec.geometry;
    let region = g.count_region();
    let kept = [rbx, rsi, rdi, r8, r9, r10];
    let [mut start, mut no_slot, mut next, mut found, mut enter] = labels(a);
    let [mut others, mut add, mut out] = labels(a);
    a.set_label(&mut start)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(r10d, dword_ptr(rdx))?;
    emit_own_slot(a, spec, slot, (no_slot, out))?;
    // rsi = the thread's counts, rdi = the names.
    a.shl(rcx, region.counts_shift() - LINE_SHIFT)?;
    a.mov(rsi, spec.rings + region.counts_offset(0))?;
    a.add(rsi, rcx)?;
    a.mov(rdi, spec.rings + region.names_offset())?;
    a.mov(ecx, r10d)?;
    a.shr(ecx, NAME_SHIFT)?;
    a.mov(r8d, small(region.names()))?;
    a.set_label(&mut next)?;
    a.and(ecx, small(region.names() - 1))?;
    a.mov(edx, dword_ptr(rdi + rcx * 8))?;
    a.cmp(edx, r10d)?;
    a.je(found)?;
    a.test(edx, edx)?;
    a.jz(enter)?;
    a.inc(ecx)?;
    a.dec(r8d)?;
    a.jnz(next)?;
    a.set_label(&mut others)?;
    a.xor(eax, eax)?;
    a.jmp(add)?;

    // The next number. A context that another one overtakes here leaves its number unused.
    a.set_label(&mut enter)?;
    a.mov(r9, spec.rings)?;
    a.cmp(field64(r9, rings::COUNT_IDS), small(region.ids() - 1))?;
    a.jae(others)?;
    a.cmp(field64(rbx, table::MINE), 0)?;
    a.je(out)?;
    a.mov(edx, 1)?;
    a.lock().xadd(field64(r9, rings::COUNT_IDS), rdx)?;
    a.inc(rdx)?;
    a.cmp(rdx, small(region.ids()))?;
    a.jae(others)?;
    a.shl(rdx, 32)?;
    a.or(rdx, r10)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(qword_ptr(rdi + rcx * 8), rdx)?;
    a.jnz(next)?;

    a.set_label(&mut found)?;
    a.mov(eax, dword_ptr(rdi + rcx * 8 + 4))?;
    a.and(eax, small(region.ids() - 1))?;
    a.set_label(&mut add)?;
    a.cmp(field64(rbx, table::MINE), 0)?;
    a.je(out)?;
    a.inc(qword_ptr(rsi + rax * 8))?;
    a.set_label(&mut out)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    a.set_label(&mut no_slot)?;
    emit_no_slot(a, spec, out)?;
    Ok(start)
}
