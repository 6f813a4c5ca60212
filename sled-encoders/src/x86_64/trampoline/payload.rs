//! The flavour for events of the program's own, and the copy of their payload. The stub that calls
//! the flavour is in `event.rs`.

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, al, byte_ptr, dword_ptr, eax, ecx, edx, ptr, qword_ptr, r8, r8d, r9,
    r9b, r9d, r10, r10d, r11, r12, r12d, rax, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::{
    layout::{HEADER_BYTES, LINE_SHIFT, PAYLOAD_WORDS, slot, table},
    word,
};

use super::super::stub::RED_ZONE;
use super::{
    HAS_PAYLOAD, Part, Result, TO_STACK_SHIFT, TrampolineSpec, beyond_guard, chunk_mask,
    emit_place, emit_view, field32, field64,
    filter::Happening,
    gate::{emit_gate, emit_pad},
    labels, small,
};

/// Distances behind the name of an event's site, in the stub's frame.
const POINTER: i32 = 8;
pub(super) const SIZE: i32 = 16;
const KIND: i32 = 24;
/// Distances from the name to the place on the stack at the sled. Behind a stub's frame lies the
/// red zone. Behind a frame of `values` lie the recorded values and the return address into the
/// sled.
const FRAME_BYTES: i32 = 32;
const STUB_TO_STACK: i32 = FRAME_BYTES + RED_ZONE;
const VALUES_TO_STACK: i32 = FRAME_BYTES + 8;
/// Bounds of a program's addresses. With five levels of pages, only a program that has asked for it
/// has higher ones.
const LOWEST_ADDRESS: i32 = 4096;
const ADDRESS_BITS: u32 = 47;
/// Bytes of the pushes, of the flags, and of thread and slots, before the gate.
const TO_GATE: usize = 5 + 5 + 8 + 10 + 10;
/// `(x * SEVENTH) >> 16` is x / 7, rounded down, for x up to some 9000.
const SEVENTH: i32 = 9363;

/// The maker of the frame that an event is recorded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// The stub of an event's sled.
    Stub,
    /// A flavour of `values` for entries.
    Arguments,
    /// The flavour of `values` for exits.
    Result,
}

/// The flavour for events. Their stubs call it with the red zone out of the way, and so do the
/// flavours of `values`.
///
/// ```text
///  stack                            registers after the preamble
///  +0   r10 … +32 rsi               rsi  the stub's frame: site, pointer, size, type
///  +40  flags … +72 rax             rdi  copied bytes (high half), bytes of their words (low half)
///  +80  return address              r9   bytes of all words
///  +88  the stub's frame            r8   time and place as a call word has them
/// ```
pub(super) fn emit_event(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    maker: Maker,
    start: &mut CodeLabel,
    slow: CodeLabel,
    copy: CodeLabel,
) -> Result<Part> {
    const FRAME: i32 = 88;
    let g = spec.geometry;
    let limit = small(g.payload_limit());
    let kept = [rsi, rdi, r8, r9, r10];
    let what = match maker {
        Maker::Stub => HAS_PAYLOAD | STUB_TO_STACK.cast_unsigned() << TO_STACK_SHIFT,
        Maker::Arguments | Maker::Result => HAS_PAYLOAD,
    };
    let [mut fits, mut readable, mut again, mut done] = labels(a);
    let [mut nothing_reserved, mut unusable, mut enter_slow] = labels(a);

    let pad = emit_pad(a, spec, TO_GATE)?;
    a.set_label(start)?;
    a.push(rax)?;
    a.push(rcx)?;
    a.push(rdx)?;
    a.push(r11)?;
    a.lahf()?;
    a.seto(al)?;
    a.push(rax)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.mov(r11, spec.table + HEADER_BYTES)?;
    let pad = emit_gate(a, pad)?;
    a.lea(rsi, ptr(rsp + FRAME))?;
    // Only the size's low half: up to LLVM 16 it was an int, and the bits above it are undefined. A
    // negative size is the error of some call, and no size.
    a.mov(r10d, dword_ptr(rsi + SIZE))?;
    a.cmp(r10d, limit)?;
    a.jbe(fits)?;
    a.cmp(r10d, i32::MAX)?;
    a.mov(r10d, limit)?;
    a.jbe(fits)?;
    a.xor(r10d, r10d)?;
    a.set_label(&mut fits)?;
    // Nothing is read where no program has memory. Elsewhere pointer and size are taken on trust.
    a.mov(r8, qword_ptr(rsi + POINTER))?;
    a.lea(r8, ptr(r8 - LOWEST_ADDRESS))?;
    a.shr(r8, ADDRESS_BITS)?;
    a.jz(readable)?;
    a.xor(r10d, r10d)?;
    a.set_label(&mut readable)?;
    a.lea(r9d, ptr(r10 + 6))?;
    a.imul_3(r9d, r9d, SEVENTH)?;
    a.shr(r9d, 16)?;
    a.shl(r9d, 3)?;
    a.mov(rdi, r10)?;
    a.shl(rdi, 32)?;
    a.or(rdi, r9)?;
    a.add(r9d, small(8 * PAYLOAD_WORDS))?;
    // Whose slot?
    a.and(ecx, small(u64::from(g.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.add(r11, rcx)?;
    a.cmp(field32(r11, slot::TID), eax)?;
    a.jne(nothing_reserved)?;
    a.set_label(&mut again)?;
    emit_view(a, nothing_reserved)?;
    match maker {
        Maker::Stub => a.lea(rcx, ptr(rsi + STUB_TO_STACK))?,
        Maker::Arguments | Maker::Result => a.lea(rcx, ptr(rsi + r10 + VALUES_TO_STACK))?,
    }
    emit_place(a, nothing_reserved)?;
    a.mov(r8d, eax)?;
    a.mov(rax, field64(r11, slot::HEAD))?;
    a.cmp(rax, field64(r11, slot::LIMIT))?;
    a.jae(nothing_reserved)?;
    a.test(eax, beyond_guard(g))?;
    a.jz(nothing_reserved)?;
    a.mov(ecx, eax)?;
    a.and(ecx, chunk_mask(g))?;
    a.add(ecx, r9d)?;
    a.cmp(ecx, small(g.chunk_bytes()))?;
    a.ja(nothing_reserved)?;
    // No lock prefix: only this thread and its signal handlers write it.
    a.lea(rcx, ptr(rax + r9))?;
    a.cmpxchg(field64(r11, slot::HEAD), rcx)?;
    a.jne(again)?;
    a.mov(rcx, rax)?;
    a.cmp(field32(r11, slot::VIEW), edx)?;
    a.jne(unusable)?;
    a.mov(r10, rdi)?;
    a.mov(eax, r8d)?;
    a.call(copy)?;
    a.jz(done)?;
    a.mov(dword_ptr(rcx + 4), eax)?;
    a.mov(eax, dword_ptr(rsi))?;
    a.mov(dword_ptr(rcx), eax)?;
    a.set_label(&mut done)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.pop(rax)?;
    a.add(al, 0x7f)?;
    a.sahf()?;
    a.pop(r11)?;
    a.pop(rdx)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.ret()?;

    a.set_label(&mut nothing_reserved)?;
    a.push(r12)?;
    a.mov(r12d, what)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut unusable)?;
    a.push(r12)?;
    a.mov(r12d, r9d)?;
    a.shr(r12d, 3)?;
    a.or(r12d, what.cast_signed())?;
    a.set_label(&mut enter_slow)?;
    if maker != Maker::Stub {
        a.lea(edx, ptr(r10 + VALUES_TO_STACK))?;
        a.shl(edx, TO_STACK_SHIFT)?;
        a.or(r12d, edx)?;
    }
    a.mov(rdx, rsi)?;
    a.call(slow)?;
    a.pop(r12)?;
    a.jmp(done)?;
    Ok(Part {
        pad,
        happening: match maker {
            Maker::Stub => Happening::Event,
            Maker::Arguments => Happening::EntryWithArguments,
            Maker::Result => Happening::Exit,
        },
        name: FRAME,
        to_stack: match maker {
            Maker::Stub => STUB_TO_STACK,
            Maker::Arguments | Maker::Result => VALUES_TO_STACK,
        },
        has_values: maker != Maker::Stub,
        done,
    })
}

/// Writes the words of an event without the last one to rcx, and moves rcx behind them. rsi = the
/// stub's frame, r10 = copied bytes and bytes of their words, as above. ZF is set if this is a
/// forked child now, which must write nothing more: the ring is its parent's (P58). Spoils r8, r9,
/// r10, rdx.
pub(super) fn emit_copy(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    copy: &mut CodeLabel,
) -> Result<()> {
    let [mut next, mut tail, mut byte, mut end, mut gone] = labels(a);
    a.set_label(copy)?;
    a.mov(rdx, spec.table + table::MINE)?;
    for (place, what) in [(SIZE, word::SIZE), (KIND, word::TYPE)] {
        a.mov(r8d, dword_ptr(rsi + place))?;
        a.cmp(qword_ptr(rdx), 0)?;
        a.je(gone)?;
        a.mov(dword_ptr(rcx + 4), r8d)?;
        a.mov(dword_ptr(rcx), what)?;
        a.add(rcx, 8)?;
    }
    a.mov(r8, qword_ptr(rsi + POINTER))?;
    a.shr(r10, 32)?;
    a.set_label(&mut next)?;
    a.cmp(qword_ptr(rdx), 0)?;
    a.je(gone)?;
    a.cmp(r10d, 8)?;
    a.jb(tail)?;
    // Eight bytes of which seven count, in one store: the word is whole at once.
    a.mov(r9, qword_ptr(r8))?;
    a.shl(r9, 8)?;
    a.mov(r9b, i32::from(word::PAYLOAD))?;
    a.mov(qword_ptr(rcx), r9)?;
    a.add(rcx, 8)?;
    a.add(r8, small(word::PAYLOAD_BYTES as u64))?;
    a.sub(r10d, small(word::PAYLOAD_BYTES as u64))?;
    a.jmp(next)?;
    // The last seven or fewer, from the last one on: nothing behind the end is read.
    a.set_label(&mut tail)?;
    a.test(r10d, r10d)?;
    a.jz(end)?;
    a.xor(r9d, r9d)?;
    a.set_label(&mut byte)?;
    a.shl(r9, 8)?;
    a.mov(r9b, byte_ptr(r8 + r10 - 1))?;
    a.dec(r10d)?;
    a.jnz(byte)?;
    a.shl(r9, 8)?;
    a.mov(r9b, i32::from(word::PAYLOAD))?;
    a.mov(qword_ptr(rcx), r9)?;
    a.add(rcx, 8)?;
    a.set_label(&mut end)?;
    a.test(rdx, rdx)?;
    a.set_label(&mut gone)?;
    a.ret()?;
    Ok(())
}

/// The same in the slow path, to rbx and by `put`. ZF is set while the slow path is this
/// context's. Spoils rax, rdx, r8, r9, r10.
pub(super) fn emit_slow_copy(
    a: &mut CodeAssembler,
    copy: &mut CodeLabel,
    put: CodeLabel,
) -> Result<()> {
    let [mut next, mut tail, mut byte, mut end] = labels(a);
    a.set_label(copy)?;
    for (place, what) in [(SIZE, word::SIZE), (KIND, word::TYPE)] {
        a.mov(r9d, dword_ptr(rsi + place))?;
        a.shl(r9, 32)?;
        a.or(r9, what.cast_signed())?;
        a.call(put)?;
        a.jne(end)?;
    }
    a.mov(rdx, qword_ptr(rsi + POINTER))?;
    a.shr(r10, 32)?;
    a.set_label(&mut next)?;
    a.cmp(r10d, 8)?;
    a.jb(tail)?;
    a.mov(r9, qword_ptr(rdx))?;
    a.shl(r9, 8)?;
    a.mov(r9b, i32::from(word::PAYLOAD))?;
    a.call(put)?;
    a.jne(end)?;
    a.add(rdx, small(word::PAYLOAD_BYTES as u64))?;
    a.sub(r10d, small(word::PAYLOAD_BYTES as u64))?;
    a.jmp(next)?;
    a.set_label(&mut tail)?;
    a.test(r10d, r10d)?;
    a.jz(end)?;
    a.xor(r9d, r9d)?;
    a.set_label(&mut byte)?;
    a.shl(r9, 8)?;
    a.mov(r9b, byte_ptr(rdx + r10 - 1))?;
    a.dec(r10d)?;
    a.jnz(byte)?;
    a.shl(r9, 8)?;
    a.mov(r9b, i32::from(word::PAYLOAD))?;
    a.call(put)?;
    a.set_label(&mut end)?;
    a.ret()
}
