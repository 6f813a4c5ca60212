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
//!  r12d bits 0..8   words at rcx to turn into filler (a valid reservation whose counter's high half is new)
//!            8      the event has an argument (in rdi)
//!           16..32  bytes that the hot path added to head in vain
//! ```

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, dword_ptr, eax, ebx, ecx, edi, edx, ptr, qword_ptr,
    r8, r8d, r9, r9d, r10, r10d, r11, r12, r12d, rax, rbx, rcx, rdi, rdx, rsi, rsp,
};
use shm_ring::{
    Geometry,
    layout::{HEADER_BYTES, LINE_SHIFT, PROBES, SLOW_WORDS, control, rings, slot, table},
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
            Flavour { flags: Flags::Dead, argument: Argument::None, name: Name::ReturnAddress },
            Flavour { flags: Flags::Kept, argument: Argument::None, name: Name::ReturnAddress },
            Flavour { flags: Flags::Dead, argument: Argument::First, name: Name::ReturnAddress },
            Flavour { flags: Flags::Kept, argument: Argument::None, name: Name::AboveReturnAddress },
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
        Ok(Self { code: result.inner.code_buffer, entry, exit, tail: exit, argument, stub })
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
    let words: u32 = if flavour.argument == Argument::First { 3 } else { 1 };
    let reserved = i32::try_from(words * 8).unwrap_or(8);
    let name = match (flavour.flags, flavour.name) {
        (Flags::Dead, Name::ReturnAddress) => 32,
        (Flags::Kept, Name::ReturnAddress) => 40,
        (Flags::Dead, Name::AboveReturnAddress) => 40,
        (Flags::Kept, Name::AboveReturnAddress) => 48,
    };
    let has_argument: u32 = if flavour.argument == Argument::First { 0x100 } else { 0 };
    let (mut done, mut stranger) = (a.create_label(), a.create_label());
    let (mut no_room, mut new_high) = (a.create_label(), a.create_label());
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
    a.and(ecx, i32::try_from(spec.geometry.slots() - 1).unwrap_or(i32::MAX))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.add(r11, rcx)?;
    a.cmp(field32(r11, slot::TID), eax)?;
    a.jne(stranger)?;
    // Counter first, then the reservation, then the two compares: see ARCHITECTURE.md on handlers in between.
    a.rdtsc()?;
    a.mov(ecx, reserved)?;
    a.xadd(field64(r11, slot::HEAD), rcx)?;
    a.cmp(rcx, field64(r11, slot::LIMIT))?;
    a.jae(no_room)?;
    if flavour.argument == Argument::First {
        // Three words must not straddle the chunk's end: chunks are aligned, so the address tells.
        let last = i32::try_from(spec.geometry.chunk_bytes() - 24).unwrap_or(i32::MAX);
        let mut fits = a.create_label();
        a.push(rcx)?;
        a.and(ecx, i32::try_from(spec.geometry.chunk_bytes() - 1).unwrap_or(i32::MAX))?;
        a.sub(ecx, last)?;
        a.jbe(fits)?;
        // ecx = bytes too many, 8 or 16: 24 - ecx bytes of the chunk are left, to be filled.
        a.mov(edx, 24)?;
        a.sub(edx, ecx)?;
        a.shr(edx, 3)?;
        a.pop(rcx)?;
        a.push(r12)?;
        a.mov(r12d, edx)?;
        a.or(r12d, has_argument)?;
        a.jmp(enter_slow)?;
        a.set_label(&mut fits)?;
        a.pop(rcx)?;
    }
    a.cmp(field32(r11, slot::HIGH), edx)?;
    a.jne(new_high)?;
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

    a.set_label(&mut stranger)?;
    a.push(r12)?;
    a.mov(r12d, has_argument)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut no_room)?;
    a.push(r12)?;
    a.mov(r12d, has_argument | words << 19)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut new_high)?;
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
    let mask = i32::try_from(g.slots() - 1).unwrap_or(i32::MAX);
    let slots = spec.table + HEADER_BYTES;
    let controls = spec.rings + HEADER_BYTES;
    let [mut out, mut probe, mut found, mut claim, mut no_slot] = labels(a);
    let [mut busy, mut filler, mut fill_rest, mut new_chunk, mut full] = labels(a);
    let [mut have_room, mut write_sync, mut same_high, mut no_gap, mut gap_fits] = labels(a);
    let [mut no_argument, mut filler_done] = labels(a);
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

    // One at a time: a handler that interrupts the slow path counts its event as lost.
    a.set_label(&mut found)?;
    a.mov(rdi, controls)?;
    a.add(rdi, rcx)?;
    a.cmp(field64(rdi, control::BUSY), 0)?;
    a.jne(busy)?;
    a.mov(field64(rdi, control::BUSY), 1)?;
    a.mov(rbx, field64(r11, slot::LIMIT))?;
    a.mov(field64(r11, slot::LIMIT), 0)?;
    // Our own reservation, made before the counter's high half was seen to be new (or too short for an argument).
    a.mov(edx, r12d)?;
    a.and(edx, 0xff)?;
    a.jz(filler_done)?;
    a.set_label(&mut filler)?;
    a.mov(dword_ptr(r8), word::FILLER)?;
    a.add(r8, 8)?;
    a.dec(edx)?;
    a.jnz(filler)?;
    a.set_label(&mut filler_done)?;
    a.rdtsc()?;
    a.mov(rcx, field64(r11, slot::HEAD))?;
    a.test(rbx, rbx)?;
    a.jz(new_chunk)?;
    a.lea(r9, ptr(rcx + i32::try_from(SLOW_WORDS * 8).unwrap_or(40)))?;
    a.cmp(r9, rbx)?;
    a.jbe(have_room)?;
    a.set_label(&mut fill_rest)?;
    a.cmp(rcx, rbx)?;
    a.jae(new_chunk)?;
    a.mov(dword_ptr(rcx), word::FILLER)?;
    a.add(rcx, 8)?;
    a.jmp(fill_rest)?;

    a.set_label(&mut new_chunk)?;
    a.mov(rbx, field64(r11, slot::STARTED))?;
    a.mov(r9, rbx)?;
    // Pairs with the collector's store of RELEASED after it zeroed the chunk.
    a.sub(r9, field64(rdi, control::RELEASED))?;
    a.cmp(r9, i32::try_from(g.chunks()).unwrap_or(i32::MAX))?;
    a.jae(full)?;
    a.mov(ecx, ebx)?;
    a.and(ecx, i32::try_from(g.chunks() - 1).unwrap_or(i32::MAX))?;
    a.shl(rcx, g.chunk_shift())?;
    a.mov(r8, controls)?;
    a.mov(r9, rdi)?;
    a.sub(r9, r8)?;
    a.shl(r9, g.ring_shift() - LINE_SHIFT)?;
    a.add(rcx, r9)?;
    a.mov(r9, spec.rings + g.rings_offset())?;
    a.add(rcx, r9)?;
    a.inc(rbx)?;
    a.mov(field64(r11, slot::STARTED), rbx)?;
    a.mov(r9d, dword_ptr(spec.tid_offset).fs())?;
    a.mov(field64(rdi, control::OWNER), r9)?;
    a.mov(field64(rdi, control::STARTED), rbx)?;
    a.lea(rbx, ptr(rcx + i32::try_from(g.chunk_bytes()).unwrap_or(i32::MAX)))?;
    a.jmp(write_sync)?;

    a.set_label(&mut have_room)?;
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
    a.test(r12d, 0x100)?;
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
    // Head before limit: until limit is set, handlers go to the slow path.
    a.mov(field64(r11, slot::HEAD), rcx)?;
    a.mov(field64(r11, slot::LIMIT), rbx)?;
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

    // Take back what the hot path added to head: whoever is busy below us will set it.
    a.set_label(&mut busy)?;
    a.mov(edx, r12d)?;
    a.shr(edx, 16)?;
    a.sub(field64(r11, slot::HEAD), rdx)?;
    a.inc(field64(rdi, control::LOST))?;
    a.jmp(out)?;
    Ok(())
}

fn field32(base: AsmRegister64, offset: u64) -> iced_x86::code_asm::AsmMemoryOperand {
    dword_ptr(base + i32::try_from(offset).unwrap_or(0))
}

fn field64(base: AsmRegister64, offset: u64) -> iced_x86::code_asm::AsmMemoryOperand {
    qword_ptr(base + i32::try_from(offset).unwrap_or(0))
}

fn labels<const N: usize>(a: &mut CodeAssembler) -> [CodeLabel; N] {
    std::array::from_fn(|_| a.create_label())
}
