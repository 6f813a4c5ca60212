//! The wait for room in a full ring, if the collector allows it: `docs/design/ring.md`,
//! "Waiting for room".

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, eax, edx, r8, r9, r9d, r11, r13, r14, rax, rbx, rdi, rdx,
};
use shm_ring::layout::{control, rings, slot, table};

use super::{Result, TrampolineSpec, field32, field64, labels, slow::leave_if_child, small};

/// Waits for room in the full ring, whose head is put back. Goes to `find` once there is room. Goes
/// to `lost` if no room comes within [`rings::WAIT`] ticks, and does not wait while as many chunks
/// are given back as at the end of the last vain wait: a collector that gives nothing back costs
/// one wait. r8 = the rings.
///
/// The context takes its mark away first. So handlers that interrupt it take the slow path, and
/// wait likewise. Another context may take a place in the new room before this one comes to it,
/// which then waits again.
pub(super) fn emit_wait(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    (find, lost, out): (CodeLabel, CodeLabel, CodeLabel),
) -> Result<()> {
    let [mut look, mut room, mut short, mut add_vain] = labels(a);
    a.mov(rbx, spec.table)?;
    leave_if_child(a, rbx, out)?;
    a.mov(rax, r13)?;
    a.xor(r9d, r9d)?;
    a.cmpxchg(field64(rdi, control::BUSY), r9)?;
    a.mov(rdx, field64(rdi, control::RELEASED))?;
    a.inc(edx)?;
    a.cmp(field32(r11, slot::EXPIRED), edx)?;
    a.je(lost)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(r14, rax)?;
    a.set_label(&mut look)?;
    a.pause()?;
    leave_if_child(a, rbx, out)?;
    a.cmp(field64(rbx, table::LIVE), 0)?;
    a.je(lost)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(rdx, field64(r8, rings::DEADLINE))?;
    a.dec(rdx)?;
    a.cmp(rdx, rax)?;
    a.jb(lost)?;
    // rdx = the wait so far.
    a.mov(rdx, rax)?;
    a.sub(rdx, r14)?;
    // Pairs with the collector's store of RELEASED after it zeroed the chunk.
    a.mov(rax, field64(rdi, control::RELEASED))?;
    a.mov(r9, field64(r11, slot::STARTED))?;
    a.sub(r9, rax)?;
    a.cmp(r9, small(spec.geometry.chunks()))?;
    a.jb(room)?;
    a.cmp(rdx, field64(r8, rings::WAIT))?;
    a.jb(look)?;
    // The number that showed the ring full: a chunk may have been given back since.
    a.mov(r9d, eax)?;
    a.inc(r9d)?;
    emit_add_wait(a, &mut add_vain)?;
    a.mov(field32(r11, slot::EXPIRED), r9d)?;
    a.jmp(lost)?;
    a.set_label(&mut room)?;
    emit_add_wait(a, &mut short)?;
    a.jmp(find)?;
    Ok(())
}

/// Adds rdx ticks to the wait that no wait word has reported. An instruction has to follow. Spoils
/// rdx and rax.
fn emit_add_wait(a: &mut CodeAssembler, added: &mut CodeLabel) -> Result<()> {
    let mut fits = a.create_label();
    // Another processor's counter may be behind. A thread that lost its processor may have waited
    // for longer than the field holds.
    a.xor(eax, eax)?;
    a.test(rdx, rdx)?;
    a.cmovs(rdx, rax)?;
    a.mov(rax, rdx)?;
    a.shr(rax, 32)?;
    a.jz(fits)?;
    a.mov(edx, u32::MAX)?;
    a.set_label(&mut fits)?;
    a.add(field32(r11, slot::WAITED), edx)?;
    a.jnc(*added)?;
    a.mov(field32(r11, slot::WAITED), u32::MAX.cast_signed())?;
    a.set_label(added)
}
