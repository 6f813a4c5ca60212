//! The code that staged sleds call.
//!
//! Four flavours, one slow path. They keep every register; exit, tail and stub keep the flags (at an entry they are dead). They touch no
//! vector or x87 state, make no system call, never wait, and use at most 136 bytes of stack, 48 on the hot path.
//!
//! ```text
//!  stack on the hot path           registers after the preamble
//!  +0   flags (not at entries)     eax  thread id, then counter low
//!  +8   r11                        edx  counter high
//!  +16  rdx                        rcx  reserved word
//!  +24  rcx                        r11  slot
//!  +32  rax
//!  +40  return address into the sled: its low half is the record's name
//!  +48  (stub) the name instead
//! ```
//!
//! What the slow path does is argued in `docs/ARCHITECTURE.md`, "Trampolines"; each step says here which rule it follows. `rcx` says
//! which words of the ring the hot path reserved and could not use, `r12d` what to do about them:
//!
//! ```text
//!  r12d bits 0..8   words at rcx to turn into filler, up to the chunk's end (a reservation that cannot be used)
//!            8      the event has an argument (in rdi)
//!            9      the hot path reserved in vain: head was parked or at the chunk's end
//! ```
//!
//! A signal handler may run between any two instructions and record events itself. What keeps that right:
//!
//! * A reservation is judged by its address alone. In the guard of a chunk (see `shm_ring::layout`) it is none, anywhere
//!   else below the ring's end it is this context's own, wherever handlers have moved the head meanwhile.
//! * The counter's high half is compared before the reservation and after it. It only grows, so if both agree, no sync
//!   word came in between.
//! * The slow path parks the head at the ring's end by one exchange: what was reserved before is not touched by
//!   it, and what is tried after it ends in the slow path, sees `busy`, and is counted as lost.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, dword_ptr, eax, ebx, ecx, edi, edx, ptr,
    qword_ptr, r8, r8d, r9, r9d, r10, r10d, r11, r12, r12d, rax, rbx, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::{
    Geometry,
    layout::{
        GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, PROBES, SLOW_WORDS, control, rings, slot, table,
    },
    word,
};

use crate::{EncodeError, SledKind};

/// Where everything lies that the trampolines of one target use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrampolineSpec {
    /// Where the code will stand.
    pub origin: u64,
    /// Offset from `fs` of the thread library's copy of the thread id.
    pub tid_offset: i32,
    /// Address of the table's mapping.
    pub table: u64,
    /// Address of the rings' mapping, a multiple of the chunk size.
    pub rings: u64,
    /// Sizes of both.
    pub geometry: Geometry,
}

/// Trampolines, assembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampolines {
    /// The machine code, to stand at the spec's origin.
    pub code: Vec<u8>,
    entry: u64,
    exit: u64,
    tail: u64,
    argument: u64,
    stub: u64,
}

/// What distinguishes one flavour from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flavour {
    flags: Flags,
    argument: Argument,
    name: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flags {
    Dead,
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    First,
}

/// Where the low 32 bits stand that name the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    ReturnAddress,
    AboveReturnAddress,
}

type Result<T> = std::result::Result<T, iced_x86::IcedError>;

/// `r12d`: the event has an argument.
const HAS_ARGUMENT: u32 = 1 << 8;
/// `r12d`: the hot path reserved in vain.
const IN_VAIN: u32 = 1 << 9;

// === impl Trampolines ===

impl Trampolines {
    /// Generates the code.
    ///
    /// # Errors
    /// [`EncodeError::Assembler`]: a mistake in here.
    pub fn assemble(spec: &TrampolineSpec) -> std::result::Result<Self, EncodeError> {
        Self::generate(spec).map_err(|error| EncodeError::Assembler(error.to_string()))
    }

    /// Address of the trampoline that a staged sled of `kind` calls.
    pub const fn target(&self, kind: SledKind) -> u64 {
        match kind {
            SledKind::Entry => self.entry,
            SledKind::Exit => self.exit,
            SledKind::TailExit => self.tail,
            SledKind::EntryArgument => self.argument,
        }
    }

    /// Address of the trampoline that stubs of tail sleds call.
    pub const fn stub_target(&self) -> u64 {
        self.stub
    }

    fn generate(spec: &TrampolineSpec) -> Result<Self> {
        let mut a = CodeAssembler::new(64)?;
        let mut slow = a.create_label();
        emit_slow(&mut a, spec, &mut slow)?;
        let flavours = [
            Flavour {
                flags: Flags::Dead,
                argument: Argument::None,
                name: Name::ReturnAddress,
            },
            Flavour {
                flags: Flags::Kept,
                argument: Argument::None,
                name: Name::ReturnAddress,
            },
            Flavour {
                flags: Flags::Dead,
                argument: Argument::First,
                name: Name::ReturnAddress,
            },
            Flavour {
                flags: Flags::Kept,
                argument: Argument::None,
                name: Name::AboveReturnAddress,
            },
        ];
        let mut starts = Vec::new();
        for flavour in flavours {
            let mut start = a.create_label();
            // Each flavour begins a cache line.
            align(&mut a, spec)?;
            a.set_label(&mut start)?;
            emit_flavour(&mut a, spec, flavour, slow)?;
            starts.push(start);
        }
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let result = a.assemble_options(spec.origin, options)?;
        let at = |i: usize| result.label_ip(&starts[i]);
        let (entry, exit, argument, stub) = (at(0)?, at(1)?, at(2)?, at(3)?);
        Ok(Self {
            code: result.inner.code_buffer,
            entry,
            exit,
            tail: exit,
            argument,
            stub,
        })
    }
}

fn align(a: &mut CodeAssembler, spec: &TrampolineSpec) -> Result<()> {
    let length = a.assemble(spec.origin)?.len();
    for _ in length..length.next_multiple_of(64) {
        a.int3()?;
    }
    Ok(())
}

/// The hot path.
fn emit_flavour(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    flavour: Flavour,
    slow: CodeLabel,
) -> Result<()> {
    let slots = spec.table + HEADER_BYTES;
    let words: u32 = if flavour.argument == Argument::First {
        3
    } else {
        1
    };
    let name = match (flavour.flags, flavour.name) {
        (Flags::Dead, Name::ReturnAddress) => 32,
        (Flags::Kept, Name::ReturnAddress) => 40,
        (Flags::Dead, Name::AboveReturnAddress) => 40,
        (Flags::Kept, Name::AboveReturnAddress) => 48,
    };
    let has_argument = if flavour.argument == Argument::First {
        HAS_ARGUMENT
    } else {
        0
    };
    let (mut done, mut nothing_reserved) = (a.create_label(), a.create_label());
    let (mut in_vain, mut unusable) = (a.create_label(), a.create_label());
    let mut enter_slow = a.create_label();

    a.push(rax)?;
    a.push(rcx)?;
    a.push(rdx)?;
    a.push(r11)?;
    if flavour.flags == Flags::Kept {
        // lahf and seto carry all status flags; pushfq/popfq would cost twenty cycles more.
        a.lahf()?;
        a.seto(al)?;
        a.push(rax)?;
    }
    // Whose slot?
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.mov(r11, slots)?;
    a.mov(ecx, eax)?;
    a.and(ecx, small(u64::from(spec.geometry.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.add(r11, rcx)?;
    a.cmp(field32(r11, slot::TID), eax)?;
    a.jne(nothing_reserved)?;
    // Counter, compare, reservation, compare: see the header on handlers in between.
    a.rdtsc()?;
    a.cmp(field32(r11, slot::HIGH), edx)?;
    a.jne(nothing_reserved)?;
    a.mov(ecx, words * 8)?;
    a.xadd(field64(r11, slot::HEAD), rcx)?;
    a.cmp(rcx, field64(r11, slot::LIMIT))?;
    a.jae(in_vain)?;
    a.test(ecx, beyond_guard(spec.geometry))?;
    a.jz(in_vain)?;
    a.cmp(field32(r11, slot::HIGH), edx)?;
    a.jne(unusable)?;
    if flavour.argument == Argument::First {
        // Three words must not straddle the chunk's end: chunks are aligned, so the address tells.
        a.mov(edx, ecx)?;
        a.and(edx, chunk_mask(spec.geometry))?;
        a.cmp(edx, small(spec.geometry.chunk_bytes() - 24))?;
        a.ja(unusable)?;
    }
    // The low half of each word goes last: it makes the word whole.
    if flavour.argument == Argument::First {
        a.mov(edx, edi)?;
        a.mov(dword_ptr(rcx + 4), edx)?;
        a.mov(dword_ptr(rcx), word::ARGUMENT_LOW)?;
        a.mov(rdx, rdi)?;
        a.shr(rdx, 32)?;
        a.mov(dword_ptr(rcx + 12), edx)?;
        a.mov(dword_ptr(rcx + 8), word::ARGUMENT_HIGH)?;
        a.add(rcx, 16)?;
    }
    a.mov(dword_ptr(rcx + 4), eax)?;
    a.mov(eax, dword_ptr(rsp + name))?;
    a.mov(dword_ptr(rcx), eax)?;
    a.set_label(&mut done)?;
    if flavour.flags == Flags::Kept {
        // al is 1 if OF was set: 0x7f + 1 overflows. sahf restores the rest.
        a.pop(rax)?;
        a.add(al, 0x7f)?;
        a.sahf()?;
    }
    a.pop(r11)?;
    a.pop(rdx)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.ret()?;

    a.set_label(&mut nothing_reserved)?;
    a.push(r12)?;
    a.mov(r12d, has_argument)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut in_vain)?;
    a.push(r12)?;
    a.mov(r12d, has_argument | IN_VAIN)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut unusable)?;
    a.push(r12)?;
    a.mov(r12d, has_argument | words)?;
    a.set_label(&mut enter_slow)?;
    a.lea(rdx, ptr(rsp + (name + 8)))?;
    a.call(slow)?;
    a.pop(r12)?;
    a.jmp(done)?;
    Ok(())
}

/// The slow path: rcx, r12d as drawn above, rdx = address of the site's name, rdi the argument. Keeps every register
/// that the flavours do not save themselves.
fn emit_slow(a: &mut CodeAssembler, spec: &TrampolineSpec, slow: &mut CodeLabel) -> Result<()> {
    let g = spec.geometry;
    let mask = small(u64::from(g.slots() - 1));
    let slots = spec.table + HEADER_BYTES;
    let controls = spec.rings + HEADER_BYTES;
    let [mut out, mut probe, mut found, mut claim, mut no_slot] = labels(a);
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
        mut write_sync,
        mut same_high,
        mut no_gap,
        mut gap_fits,
    ] = labels(a);
    let [mut no_argument, mut fill_guard, mut guarded, mut not_parked] = labels(a);
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
    // Our own reservation, made before the counter's high half was seen to be new, or too short for an argument. Nobody
    // else will ever write these words.
    a.mov(edx, r12d)?;
    a.and(edx, 0xff)?;
    a.jz(filler_done)?;
    a.set_label(&mut filler)?;
    a.mov(dword_ptr(r8), word::FILLER)?;
    a.add(r8, 8)?;
    a.test(r8d, chunk_mask(g))?;
    a.jz(filler_done)?;
    a.dec(edx)?;
    a.jnz(filler)?;
    a.set_label(&mut filler_done)?;

    // The slot: the home one, or the next that is ours or nobody's.
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.test(eax, eax)?;
    a.jz(no_slot)?;
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
    a.set_label(&mut no_slot)?;
    a.mov(rdi, spec.rings)?;
    a.lock().inc(field64(rdi, rings::NO_SLOT))?;
    a.jmp(out)?;
    // A free slot's limit is 0, so a handler that comes in after the claim takes the slow path, too.
    a.set_label(&mut claim)?;
    a.mov(edi, eax)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(field32(r11, slot::TID), edi)?;
    a.mov(eax, edi)?;
    a.jnz(probe)?;

    // rdi = control line, rcx = the ring, r8 = its end.
    a.set_label(&mut found)?;
    a.mov(rdi, controls)?;
    a.add(rdi, rcx)?;
    a.shl(rcx, g.ring_shift() - LINE_SHIFT)?;
    a.mov(r8, spec.rings + g.rings_offset())?;
    a.add(rcx, r8)?;
    a.lea(r8, ptr(rcx + small(g.ring_bytes())))?;
    // One at a time: a handler that interrupts the slow path counts its event as lost.
    a.cmp(field64(rdi, control::BUSY), 0)?;
    a.jne(busy)?;
    a.mov(field64(rdi, control::BUSY), 1)?;
    // One instruction: what handlers reserve before it stays theirs, what they try after it comes to nothing.
    a.mov(rbx, r8)?;
    a.xchg(field64(r11, slot::HEAD), rbx)?;
    a.rdtsc()?;
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
    a.jae(full)?;
    a.mov(r9d, ebx)?;
    a.and(r9d, small(g.chunks() - 1))?;
    a.shl(r9, g.chunk_shift())?;
    a.add(rcx, r9)?;
    a.inc(rbx)?;
    a.mov(field64(r11, slot::STARTED), rbx)?;
    a.mov(r9d, dword_ptr(spec.tid_offset).fs())?;
    a.mov(field64(rdi, control::OWNER), r9)?;
    a.mov(field64(rdi, control::STARTED), rbx)?;
    a.mov(field64(r11, slot::LIMIT), r8)?;
    // rbx = where the guard ends: filled up to there below.
    a.lea(rbx, ptr(rcx + small(GUARD_BYTES)))?;
    a.jmp(write_sync)?;

    a.set_label(&mut have_room)?;
    a.mov(rcx, rbx)?;
    a.cmp(field32(r11, slot::HIGH), edx)?;
    a.je(same_high)?;
    a.set_label(&mut write_sync)?;
    a.mov(field32(r11, slot::HIGH), edx)?;
    a.mov(dword_ptr(rcx + 4), edx)?;
    a.mov(dword_ptr(rcx), word::SYNC)?;
    a.add(rcx, 8)?;
    a.set_label(&mut same_high)?;
    // Losses since the last gap word; one word tells at most u32::MAX of them.
    a.mov(r9, field64(rdi, control::LOST))?;
    a.sub(r9, field64(r11, slot::REPORTED))?;
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
    a.test(r12d, HAS_ARGUMENT.cast_signed())?;
    a.jz(no_argument)?;
    a.mov(dword_ptr(rcx + 4), r10d)?;
    a.mov(dword_ptr(rcx), word::ARGUMENT_LOW)?;
    a.mov(r9, r10)?;
    a.shr(r9, 32)?;
    a.mov(dword_ptr(rcx + 12), r9d)?;
    a.mov(dword_ptr(rcx + 8), word::ARGUMENT_HIGH)?;
    a.add(rcx, 16)?;
    a.set_label(&mut no_argument)?;
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
    // From here on handlers use the chunk.
    a.mov(field64(r11, slot::HEAD), rcx)?;
    a.mov(field64(rdi, control::BUSY), 0)?;
    a.set_label(&mut out)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    a.set_label(&mut full)?;
    a.inc(field64(rdi, control::LOST))?;
    a.mov(field64(rdi, control::BUSY), 0)?;
    a.jmp(out)?;

    // Whoever is busy below us goes on from the head that it took, or begins a chunk if that is past its end. Head grows with
    // every vain attempt; parking it again keeps any number of them away from the next valid address.
    a.set_label(&mut busy)?;
    a.test(r12d, IN_VAIN.cast_signed())?;
    a.jz(not_parked)?;
    a.mov(field64(r11, slot::HEAD), r8)?;
    a.set_label(&mut not_parked)?;
    a.inc(field64(rdi, control::LOST))?;
    a.jmp(out)?;
    Ok(())
}

/// The bits of an address's low half of which one is set outside a chunk's guard.
fn beyond_guard(g: Geometry) -> i32 {
    small(g.chunk_bytes() - GUARD_BYTES)
}

fn chunk_mask(g: Geometry) -> i32 {
    small(g.chunk_bytes() - 1)
}

/// An operand that a geometry bounds to 30 bits.
fn small(value: u64) -> i32 {
    i32::try_from(value).expect("sizes of rings and chunks are at most 1 GiB")
}

fn field32(base: AsmRegister64, offset: u64) -> iced_x86::code_asm::AsmMemoryOperand {
    dword_ptr(base + small(offset))
}

fn field64(base: AsmRegister64, offset: u64) -> iced_x86::code_asm::AsmMemoryOperand {
    qword_ptr(base + small(offset))
}

fn labels<const N: usize>(a: &mut CodeAssembler) -> [CodeLabel; N] {
    std::array::from_fn(|_| a.create_label())
}
