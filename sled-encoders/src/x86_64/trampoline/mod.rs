//! The code that staged sleds call: the hot path, and the entry points of all flavours.
//!
//! There are six flavours: for entries, exits, tail exits, entries with argument, tail exits
//! through a stub, and events. They share one slow path. Seven more flavours call flavours for
//! events (`values`). All can be led another way first (`gate`): to counting (`count`), or to a
//! filter (`filter`).
//!
//! They keep every register. All but those of entries and exits keep the flags. There the flags are
//! dead: no calling convention passes or returns anything in them (x86-64 System V ABI, §3.2.1;
//! LLVM's `__xray_FunctionExit` does not keep them either). They touch no vector or x87 state, make
//! no system call, and wait only for room in a full ring, if the collector allows it (`slow`). They
//! use at most 160 bytes of stack, 48 on the hot path. The
//! flavour for events uses 192 and 96, and those with values up to 280 and 184. Behind the filter,
//! all use 88 more when the filter writes waiting calls.
//!
//! ```text
//!  stack on the hot path           registers after the preamble
//!  +0   flags (where kept)         eax  thread id, then time and place as a call word has them
//!  +8   r11                        edx  number of views begun
//!  +16  rdx                        rcx  reserved word
//!  +24  rcx                        r11  slot
//!  +32  rax
//!  +40  return address into the sled: its low half is the record's name
//!  +48  (stub) the name instead
//! ```
//!
//! The place of the name gives the place on the stack at the sled: right above the name, or behind
//! the stub's frame and the red zone.
//!
//! `docs/design/trampoline.md` has the rules of the slow path and their reasons. `rcx`
//! points to the words of the ring that the hot path reserved and could not use. `r12d` describes
//! the event:
//!
//! ```text
//!  r12d bits 0..16  words at rcx to turn into filler, up to the chunk's end (a reservation that
//!                   cannot be used)
//!            16     the event has an argument (in rdi)
//!            17     the hot path reserved in vain: head was parked or at the chunk's end
//!            18     the event has a payload: rdi has its copied bytes (high half) and the bytes
//!                   of its words (low half); pointer, size and type stand behind the name
//!            19     rdi points to the record of a call that has waited, with its time and place
//!            24..32 bytes from the name to the place on the stack at the sled
//! ```
//!
//! A signal handler may run between any two instructions and record events itself. These rules keep
//! that right:
//!
//! * A context judges a reservation by its address alone. In the guard of a chunk (see
//!   `shm_ring::layout`) it is none. Anywhere else below the ring's end it is this context's own,
//!   wherever handlers have moved the head meanwhile.
//! * A context reads the number of views before the counter and the view's moment and place, and
//!   compares it after the reservation. If the number is the same, the view still belongs to the
//!   words before, and no handler wrote it during the reads.
//! * The slow path parks the head by one exchange, which leaves earlier reservations alone. Later
//!   attempts end in the slow path, see `busy`, and are counted as lost.
//! * The parked head names the context that has the slow path. Once another context has taken the
//!   slow path over, the first one stores nothing that matters any more (see `slow`).
//! * An event with a payload can be longer than a guard. It is reserved by compare and exchange, if
//!   it fits into its chunk. So the head never stands behind the guard of the next chunk. A handler
//!   in between makes the context try again.
//! * Copying takes long enough for a handler to fork in it. The child, whose table is wiped, stops
//!   at the next word. The slow path looks for that between reading the table and storing into the
//!   rings.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, dword_ptr, eax, ecx, edi, edx, ptr, qword_ptr,
    r11, r12, r12d, rax, rcx, rdi, rdx, rsp,
};
use shm_ring::{
    Geometry,
    layout::{GUARD_BYTES, HEADER_BYTES, LINE_SHIFT, slot},
    view, word,
};

use self::{
    filter::{Filter, Happening},
    gate::{JumpPad, Ways, emit_gate, emit_pad, emit_skip},
    payload::{Maker, emit_copy, emit_event},
    profile_slow::ProfileSlow,
    slow::{emit_slot, emit_slow},
};
use super::stub::RED_ZONE;
use crate::{Capture, EncodeError, SledKind};

mod count;
mod filter;
mod gate;
mod payload;
mod profile;
mod profile_slow;
mod slow;
mod template;
mod values;
mod waiting;

pub use gate::{DispatchMode, Enable, Gate};
pub use template::Template;

/// The addresses and sizes of all memory that the trampolines of one target use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrampolineSpec {
    /// The address where the code will stand.
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

/// Assembled trampolines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampolines {
    /// The machine code for the spec's origin, in [`DispatchMode::None`].
    pub code: Vec<u8>,
    /// The bytes that lead flavours another way, in the order in which they must be written.
    pub gates: Vec<Gate>,
    entry: u64,
    exit: u64,
    tail: u64,
    argument: u64,
    stub: u64,
    event: u64,
    /// Flavours for entries with 1, 2, … arguments.
    arguments: [u64; Capture::MOST_ARGUMENTS as usize],
    /// The flavour for exits with the result.
    result: u64,
}

/// The properties of a flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flavour {
    flags: Flags,
    argument: Argument,
    name: Name,
    /// The event at its sleds.
    happening: Happening,
}

/// A flavour that was assembled, as its ways see it.
#[derive(Debug, Clone, Copy)]
struct Part {
    pad: JumpPad,
    happening: Happening,
    /// The distance of the name above the stack pointer, at the gate.
    name: i32,
    /// The distance from the name to the place on the stack at the sled. Values stand in between;
    /// the frame has their size.
    to_stack: i32,
    has_values: bool,
    /// The code that puts registers back.
    done: CodeLabel,
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

/// The place of the low 32 bits that name the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    ReturnAddress,
    AboveReturnAddress,
}

type Result<T> = std::result::Result<T, iced_x86::IcedError>;

/// `r12d`: the event has an argument.
const HAS_ARGUMENT: u32 = 1 << 16;
/// `r12d`: the hot path reserved in vain.
const IN_VAIN: u32 = 1 << 17;
/// `r12d`: the event has a payload.
const HAS_PAYLOAD: u32 = 1 << 18;
/// `r12d`: rdi = the record of a call that has waited, with its time and place, see `filter`.
const GIVEN: u32 = 1 << 19;
/// `r12d`: words to turn into filler.
const FILLERS: i32 = 0xffff;
/// `r12d`: the lowest bit of the distance from the name to the place on the stack at the sled.
const TO_STACK_SHIFT: u32 = 24;

// === impl Trampolines ===

impl Trampolines {
    /// Generates the code.
    ///
    /// # Errors
    /// [`EncodeError::Assembler`]: a mistake in here.
    pub fn assemble(spec: &TrampolineSpec) -> std::result::Result<Self, EncodeError> {
        let template = Template::assemble(spec.geometry, spec.tid_offset)?;
        Ok(template.place(spec.origin, spec.table, spec.rings))
    }

    /// The same code at `origin`, if this one was assembled for the origin 0.
    fn moved_to(&self, origin: u64) -> Self {
        let gates = self.gates.iter().map(|gate| gate.moved_by(origin));
        Self {
            code: self.code.clone(),
            gates: gates.collect(),
            entry: origin + self.entry,
            exit: origin + self.exit,
            tail: origin + self.tail,
            argument: origin + self.argument,
            stub: origin + self.stub,
            event: origin + self.event,
            arguments: self.arguments.map(|address| origin + address),
            result: origin + self.result,
        }
    }

    /// Address of the trampoline that a staged sled of `kind` calls. For an event, the one that its
    /// stub calls.
    pub const fn target(&self, kind: SledKind) -> u64 {
        match kind {
            SledKind::Entry => self.entry,
            SledKind::Exit => self.exit,
            SledKind::TailExit => self.tail,
            SledKind::EntryArgument => self.argument,
            SledKind::CustomEvent | SledKind::TypedEvent | SledKind::CustomEventV0 => self.event,
        }
    }

    /// Address of the trampoline that a staged sled of `kind` calls to record the part of `capture`
    /// that can be had there. A tail exit has no result; the function that it jumps to has.
    pub fn target_for(&self, kind: SledKind, capture: Capture) -> u64 {
        match kind {
            SledKind::Entry | SledKind::EntryArgument => usize::from(capture.arguments())
                .checked_sub(1)
                .and_then(|index| self.arguments.get(index).copied())
                .unwrap_or_else(|| self.target(kind)),
            SledKind::Exit if capture.has_result() => self.result,
            _ => self.target(kind),
        }
    }

    /// True if a sled of `kind` can be staged to call `address`.
    pub fn is_target(&self, kind: SledKind, address: u64) -> bool {
        self.target(kind) == address
            || match kind {
                SledKind::Entry | SledKind::EntryArgument => self.arguments.contains(&address),
                SledKind::Exit => self.result == address,
                _ => false,
            }
    }

    /// Address of the trampoline that stubs of tail sleds call.
    pub const fn stub_target(&self) -> u64 {
        self.stub
    }

    fn generate(spec: &TrampolineSpec) -> Result<Self> {
        let mut a = CodeAssembler::new(64)?;
        let [mut slow, mut copy, mut slot] = labels(&mut a);
        emit_slot(&mut a, spec, &mut slot)?;
        emit_slow(&mut a, spec, &mut slow, slot)?;
        emit_copy(&mut a, spec, &mut copy)?;
        let filter = Filter::emit(&mut a, spec, slow, slot)?;
        let count = count::emit_count(&mut a, spec, slot)?;
        let profile = ProfileSlow::emit(&mut a, spec, slot)?;
        let mut starts = labels::<{ FLAVOURS.len() }>(&mut a);
        let mut parts = Vec::new();
        for (flavour, start) in FLAVOURS.into_iter().zip(&mut starts) {
            parts.push(emit_flavour(&mut a, spec, flavour, start, slow)?);
        }
        let mut events = labels::<3>(&mut a);
        let makers = [Maker::Stub, Maker::Arguments, Maker::Result];
        for (maker, start) in makers.into_iter().zip(&mut events) {
            parts.push(emit_event(&mut a, spec, maker, start, slow, copy)?);
        }
        let [event, with_arguments, with_result] = events;
        let mut arguments = labels::<{ Capture::MOST_ARGUMENTS as usize }>(&mut a);
        for (count, start) in (1..).zip(&mut arguments) {
            emit_skip(&mut a, spec, starts[0])?;
            a.set_label(start)?;
            values::emit_entry(&mut a, count, with_arguments)?;
        }
        let mut result = a.create_label();
        emit_skip(&mut a, spec, starts[1])?;
        a.set_label(&mut result)?;
        values::emit_exit(&mut a, with_result)?;
        let ways: Vec<Ways> = parts
            .iter()
            .map(|part| emit_ways(&mut a, spec, part, &filter, count, &profile))
            .collect::<Result<_>>()?;
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let made = a.assemble_options(spec.origin, options)?;
        let at = |label: &CodeLabel| made.label_ip(label);
        let [entry, exit, tail, argument, stub] = starts;
        let mut with = [0; Capture::MOST_ARGUMENTS as usize];
        for (address, start) in with.iter_mut().zip(&arguments) {
            *address = at(start)?;
        }
        let mut gates = Vec::new();
        let mut code = made.inner.code_buffer.clone();
        for (part, ways) in parts.iter().zip(ways) {
            let ends = (ways, part.done);
            gates.extend(part.pad.finish(&mut code, spec.origin, ends, at)?);
        }
        let with_values = with.into_iter().chain([at(&result)?]);
        gates.extend(with_values.map(Gate::to_skip));
        for without_count in [exit, tail, stub] {
            gates.push(Gate::to_return(at(&without_count)?));
        }
        gates.push(Gate::to_return_always(at(&event)?));
        for with_count in [entry, argument] {
            gates.push(Gate::to_close(at(&with_count)?));
        }
        Ok(Self {
            code,
            gates,
            entry: at(&entry)?,
            exit: at(&exit)?,
            tail: at(&tail)?,
            argument: at(&argument)?,
            stub: at(&stub)?,
            event: at(&event)?,
            arguments: with,
            result: at(&result)?,
        })
    }
}

/// The flavours, in the order in which they are assembled.
const FLAVOURS: [Flavour; 5] = [
    Flavour {
        flags: Flags::Dead,
        argument: Argument::None,
        name: Name::ReturnAddress,
        happening: Happening::Entry,
    },
    Flavour {
        flags: Flags::Dead,
        argument: Argument::None,
        name: Name::ReturnAddress,
        happening: Happening::Exit,
    },
    Flavour {
        flags: Flags::Kept,
        argument: Argument::None,
        name: Name::ReturnAddress,
        happening: Happening::Exit,
    },
    Flavour {
        flags: Flags::Dead,
        argument: Argument::First,
        name: Name::ReturnAddress,
        happening: Happening::EntryWithArguments,
    },
    Flavour {
        flags: Flags::Kept,
        argument: Argument::None,
        name: Name::AboveReturnAddress,
        happening: Happening::Exit,
    },
];

/// Emits the ways that the gate of a flavour leads to.
fn emit_ways(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    part: &Part,
    filter: &Filter,
    count: CodeLabel,
    profile: &ProfileSlow,
) -> Result<Ways> {
    let mut way = a.create_label();
    a.set_label(&mut way)?;
    a.lea(rcx, ptr(rsp + (part.name + part.to_stack)))?;
    if part.has_values {
        a.mov(edx, dword_ptr(rsp + (part.name + payload::SIZE)))?;
        a.add(rcx, rdx)?;
    }
    a.lea(rdx, ptr(rsp + part.name))?;
    a.call(filter.of(part.happening))?;
    a.test(eax, eax)?;
    a.jz(part.done)?;
    emit_resume(a, spec, part)?;
    let counts = match part.happening {
        Happening::Entry => true,
        Happening::EntryWithArguments => !part.has_values,
        Happening::Exit | Happening::Event => false,
    };
    let count = counts.then(|| count::emit_way(a, spec, part.name, count, part.done));
    let adds_up = !part.has_values && part.happening != Happening::Event;
    let profile = adds_up.then(|| profile::emit_way(a, spec, part, profile));
    Ok(Ways {
        filter: way,
        count: count.transpose()?,
        profile: profile.transpose()?,
    })
}

/// Goes on with the hot path of a flavour, after one of its ways.
fn emit_resume(a: &mut CodeAssembler, spec: &TrampolineSpec, part: &Part) -> Result<()> {
    a.mov(eax, dword_ptr(spec.tid_offset).fs())?;
    a.mov(r11, spec.table + HEADER_BYTES)?;
    a.mov(ecx, eax)?;
    a.jmp(part.pad.resume)
}

fn align(a: &mut CodeAssembler, spec: &TrampolineSpec) -> Result<()> {
    let length = a.assemble(spec.origin)?.len();
    for _ in length..length.next_multiple_of(64) {
        a.int3()?;
    }
    Ok(())
}

/// Emits the hot path of a flavour.
fn emit_flavour(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    flavour: Flavour,
    start: &mut CodeLabel,
    slow: CodeLabel,
) -> Result<Part> {
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
    // The name itself, and the stub's red zone.
    let to_stack: i32 = match flavour.name {
        Name::ReturnAddress => 8,
        Name::AboveReturnAddress => 8 + RED_ZONE,
    };
    let has_argument = if flavour.argument == Argument::First {
        HAS_ARGUMENT
    } else {
        0
    };
    let what = has_argument | to_stack.cast_unsigned() << TO_STACK_SHIFT;
    let (mut done, mut nothing_reserved) = (a.create_label(), a.create_label());
    let (mut in_vain, mut unusable) = (a.create_label(), a.create_label());
    let mut enter_slow = a.create_label();
    // Pushes, the flags, the thread, the slots.
    let to_gate = match flavour.flags {
        Flags::Dead => 5 + 10 + 10,
        Flags::Kept => 5 + 5 + 10 + 10,
    };

    // Each flavour begins a cache line.
    let pad = emit_pad(a, spec, to_gate)?;
    a.set_label(start)?;
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
    let pad = emit_gate(a, pad)?;
    a.and(ecx, small(u64::from(spec.geometry.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.add(r11, rcx)?;
    a.cmp(field32(r11, slot::TID), eax)?;
    a.jne(nothing_reserved)?;
    // Counter, view, reservation, view again: see the header on handlers in between.
    emit_view(a, nothing_reserved)?;
    a.lea(rcx, ptr(rsp + (name + to_stack)))?;
    emit_place(a, nothing_reserved)?;
    a.mov(ecx, words * 8)?;
    a.xadd(field64(r11, slot::HEAD), rcx)?;
    a.cmp(rcx, field64(r11, slot::LIMIT))?;
    a.jae(in_vain)?;
    a.test(ecx, beyond_guard(spec.geometry))?;
    a.jz(in_vain)?;
    a.cmp(field32(r11, slot::VIEW), edx)?;
    a.jne(unusable)?;
    if flavour.argument == Argument::First {
        // Three words must not straddle the chunk's end. Chunks are aligned, so the address is
        // enough.
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
    a.mov(r12d, what)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut in_vain)?;
    a.push(r12)?;
    a.mov(r12d, what | IN_VAIN)?;
    a.jmp(enter_slow)?;
    a.set_label(&mut unusable)?;
    a.push(r12)?;
    a.mov(r12d, what | words)?;
    a.set_label(&mut enter_slow)?;
    a.lea(rdx, ptr(rsp + (name + 8)))?;
    a.call(slow)?;
    a.pop(r12)?;
    a.jmp(done)?;
    Ok(Part {
        pad,
        happening: flavour.happening,
        name,
        to_stack,
        has_values: false,
        done,
    })
}

/// Makes eax the ticks since the view began, and edx the number of views begun. Spoils rcx. Goes to
/// `slow` if the view does not have these ticks, or if the counter's high half has changed since it
/// began (every second or two).
fn emit_view(a: &mut CodeAssembler, slow: CodeLabel) -> Result<()> {
    // The number is first: it shows changes by a handler during the other reads.
    a.mov(ecx, field32(r11, slot::VIEW))?;
    a.rdtsc()?;
    // The halves one by one: an instruction less than with 64 bits at once.
    a.cmp(edx, field32(r11, slot::SINCE + 4))?;
    a.jne(slow)?;
    a.sub(eax, field32(r11, slot::SINCE))?;
    a.cmp(eax, small(view::TICKS))?;
    a.jae(slow)?;
    a.mov(edx, ecx)
}

/// Makes eax a call word's high half. eax = ticks since the view began, rcx = the place on the
/// stack. Goes to `slow` if the view does not have that place. Spoils rcx.
fn emit_place(a: &mut CodeAssembler, slow: CodeLabel) -> Result<()> {
    a.sub(rcx, field64(r11, slot::BASE))?;
    a.cmp(rcx, small(view::WINDOW_BYTES))?;
    a.jae(slow)?;
    a.shr(ecx, view::PLACE_SHIFT)?;
    a.shl(eax, view::PLACE_BITS)?;
    a.or(eax, ecx)
}

/// The bits of an address's low half. Outside a chunk's guard, at least one of them is set.
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
