//! The filter: what of a thread's calls is recorded, chosen before anything is written.
//!
//! Each thread has a page with a record for each call that is open ([`shm_ring::layout::filter`]), innermost last. Which calls are over is told by where
//! the stack stands, as the collector does it: exceptions and `longjmp` leave no record behind.
//!
//! ```text
//!  entry   inside a call that is left out: left out, and no record made
//!          else: too deep, the thread muted, not the tree's turn, outside of what is wanted: left out, with a record
//!          else, without a shortest duration: a record, and the event
//!          else: a record that waits, with the time, and no event
//!  exit    of a record that waits, too soon: left out, and the record goes
//!          of a record that waits, long enough: whatever waits is written, outermost first, then the event
//!          of any other: the event if the entry was recorded
//!  event   inside a call that is left out: left out; else whatever waits is written, then the event
//! ```
//!
//! Calls whose arguments are recorded do not wait, since a record has no room for them. What has no record, because it began before the filter or because
//! there is no room for more, is recorded.
//!
//! A handler may run between any two instructions, make calls and leave. So how many records there are is changed by one instruction, which compares with what was read
//! before the record was filled or looked at; if a handler has changed anything meanwhile, all begins again.
//!
//! ```text
//!  registers   eax  the thread          r11  the slots           rcx  where the stack stood       rdx  address of the site's name
//!  within      r10  the page            r8   where it stood      esi  the name                    rdi  OPEN, as it was read
//!              r9   the innermost record
//!  after       eax  not 0 if the event is to be recorded; rcx, rdx, r11 are spoiled
//! ```

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edi, edx, esi, ptr, qword_ptr, r8, r9, r10, r11,
    r12, r12d, rax, rbx, rcx, rdi, rdx, rsi,
};
use shm_ring::layout::{HEADER_BYTES, INSIDE_NAMES, LINE_SHIFT, NAME_SHIFT, filter, slot, table};

use super::{GIVEN, Result, TrampolineSpec, field32, field64, labels, small};

/// Another record, and another change.
const PUSHED: u64 = 1 << 32 | 1;
/// A record less, and another change.
const POPPED: u64 = (1 << 32) - 1;
/// No record more or less, but one of them is another.
const CHANGED: u64 = 1 << 32;
/// Stacks whose neighbouring records are further apart are not the same.
const APART: i32 = 16 << 10;
const WAITS: i32 = filter::WAITS.cast_signed();
const OUTSIDE: i32 = filter::OUTSIDE.cast_signed();

/// What happens at a sled, as the filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    /// An entry of which the time alone is recorded.
    Entry,
    /// An entry with arguments.
    EntryWithArguments,
    Exit,
    Event,
}

/// The subroutines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filter {
    entry: CodeLabel,
    with_arguments: CodeLabel,
    exit: CodeLabel,
    event: CodeLabel,
}

/// What they are made of.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Finds a thread's slot.
    slot: CodeLabel,
    /// Writes what waits.
    write: CodeLabel,
    /// Whether recording begins at a site.
    lookup: CodeLabel,
}

/// Where one of them goes on.
#[derive(Debug, Clone, Copy)]
struct Ways {
    again: CodeLabel,
    record: CodeLabel,
    leave: CodeLabel,
    /// Counts one more that is left out, and leaves.
    left_out: CodeLabel,
}

// === impl Filter ===

impl Filter {
    /// The one for that.
    pub(super) const fn of(&self, happening: Happening) -> CodeLabel {
        match happening {
            Happening::Entry => self.entry,
            Happening::EntryWithArguments => self.with_arguments,
            Happening::Exit => self.exit,
            Happening::Event => self.event,
        }
    }

    pub(super) fn emit(
        a: &mut CodeAssembler,
        spec: &TrampolineSpec,
        slow: CodeLabel,
        slot: CodeLabel,
    ) -> Result<Self> {
        let [mut write, mut lookup] = labels(a);
        emit_write(a, &mut write, slow)?;
        emit_lookup(a, spec, &mut lookup)?;
        let parts = Parts {
            slot,
            write,
            lookup,
        };
        let mut one = |happening| emit_one(a, spec, parts, happening);
        Ok(Self {
            entry: one(Happening::Entry)?,
            with_arguments: one(Happening::EntryWithArguments)?,
            exit: one(Happening::Exit)?,
            event: one(Happening::Event)?,
        })
    }
}

/// A field of the table's header; r11 = the slots behind it.
fn header(offset: u64) -> i32 {
    small(offset) - small(HEADER_BYTES)
}

fn emit_one(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    parts: Parts,
    happening: Happening,
) -> Result<CodeLabel> {
    let kept = [r8, r9, r10, rsi, rdi];
    let [mut start, mut find, mut have, mut again, mut empty] = labels(a);
    let [mut record, mut leave, mut left_out, mut out] = labels(a);
    let ways = Ways {
        again,
        record,
        leave,
        left_out,
    };

    a.set_label(&mut start)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(r8, rcx)?;
    a.mov(esi, dword_ptr(rdx))?;
    a.mov(ecx, eax)?;
    a.and(ecx, small(u64::from(spec.geometry.slots() - 1)))?;
    a.shl(ecx, LINE_SHIFT)?;
    a.cmp(dword_ptr(r11 + rcx + small(slot::TID)), eax)?;
    a.jne(find)?;
    a.set_label(&mut have)?;
    a.shl(rcx, filter::PAGE_SHIFT - LINE_SHIFT)?;
    a.mov(r10, spec.rings + spec.geometry.filter_offset(0))?;
    a.add(r10, rcx)?;

    a.set_label(&mut again)?;
    a.mov(rdi, field64(r10, filter::OPEN))?;
    a.mov(ecx, edi)?;
    a.test(ecx, ecx)?;
    match happening {
        Happening::Exit => a.jz(record)?,
        _ => a.jz(empty)?,
    }
    // More than there can be: this is not what was written here.
    a.cmp(ecx, small(filter::MOST))?;
    a.ja(record)?;
    a.lea(r9, ptr(rcx + rcx * 2))?;
    a.lea(
        r9,
        ptr(r10 + r9 * 8 + small(filter::RECORDS - filter::RECORD_BYTES)),
    )?;
    match happening {
        Happening::Entry | Happening::EntryWithArguments => {
            emit_entry(a, parts, ways, happening, &mut empty)?;
        }
        Happening::Exit => emit_exit(a, parts, ways)?,
        Happening::Event => emit_event(a, parts, ways, &mut empty)?,
    }
    a.set_label(&mut left_out)?;
    a.inc(field64(r10, filter::LEFT_OUT))?;
    a.set_label(&mut leave)?;
    a.xor(eax, eax)?;
    a.jmp(out)?;

    // The thread has another slot, or none so far. Where nothing is recorded, or there is no slot, that is told where events are.
    a.set_label(&mut find)?;
    a.cmp(qword_ptr(r11 + header(table::LIVE)), 0)?;
    a.je(record)?;
    a.test(eax, eax)?;
    a.jz(record)?;
    a.call(parts.slot)?;
    a.mov(r11, spec.table + HEADER_BYTES)?;
    a.jz(have)?;
    a.set_label(&mut record)?;
    a.mov(eax, 1)?;
    a.set_label(&mut out)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    Ok(start)
}

fn emit_entry(
    a: &mut CodeAssembler,
    parts: Parts,
    ways: Ways,
    happening: Happening,
    empty: &mut CodeLabel,
) -> Result<()> {
    let [mut within, mut out_of_it, mut begin, mut whole, mut keep] = labels(a);
    let [mut leave_out, mut push, mut no_wrap, mut full] = labels(a);
    a.cmp(field64(r9, filter::PLACE), r8)?;
    emit_unwinding(a, parts, ways, &mut within, Over::AtOrBelow)?;
    a.mov(ecx, field32(r9, filter::STATE))?;
    a.cmp(ecx, OUTSIDE << filter::STATE_SHIFT)?;
    a.jae(out_of_it)?;
    a.cmp(field32(r10, filter::MUTED), 0)?;
    a.jne(leave_out)?;
    a.and(ecx, (1 << filter::STATE_SHIFT) - 1)?;
    a.cmp(ecx, dword_ptr(r11 + header(table::MAX_DEPTH)))?;
    a.jae(leave_out)?;
    if happening == Happening::EntryWithArguments {
        // What waits comes first.
        emit_write_waiting(a, parts)?;
        a.mov(ecx, field32(r9, filter::STATE))?;
        a.and(ecx, (1 << filter::STATE_SHIFT) - 1)?;
    }
    a.inc(ecx)?;

    // ecx = how deep it is.
    a.set_label(&mut keep)?;
    a.cmp(edi, small(filter::MOST))?;
    a.jae(full)?;
    if happening == Happening::Entry {
        a.cmp(qword_ptr(r11 + header(table::MIN_TICKS)), 0)?;
        a.je(push)?;
        a.or(ecx, WAITS << filter::STATE_SHIFT)?;
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
    }
    // ecx = what the record says, rax = its time.
    a.set_label(&mut push)?;
    a.mov(edx, edi)?;
    a.lea(r9, ptr(rdx + rdx * 2))?;
    a.lea(r9, ptr(r10 + r9 * 8 + small(filter::RECORDS)))?;
    a.cmp(qword_ptr(r11 + header(table::MINE)), 0)?;
    a.je(ways.leave)?;
    a.mov(field64(r9, filter::PLACE), r8)?;
    a.mov(field64(r9, filter::TIME), rax)?;
    a.mov(field32(r9, filter::NAME), esi)?;
    a.mov(field32(r9, filter::STATE), ecx)?;
    emit_change(a, PUSHED, ways.again)?;
    a.shr(ecx, filter::STATE_SHIFT)?;
    a.jz(ways.record)?;
    a.cmp(ecx, WAITS)?;
    a.je(ways.leave)?;
    a.jmp(ways.left_out)?;

    a.set_label(&mut out_of_it)?;
    a.cmp(ecx, filter::LEFT.cast_signed() << filter::STATE_SHIFT)?;
    a.jae(ways.left_out)?;
    a.call(parts.lookup)?;
    a.jnz(ways.left_out)?;
    a.jmp(begin)?;

    a.set_label(empty)?;
    a.cmp(dword_ptr(r11 + header(table::INSIDE)), 0)?;
    a.je(begin)?;
    a.call(parts.lookup)?;
    a.mov(ecx, OUTSIDE << filter::STATE_SHIFT)?;
    a.jnz(push)?;
    // A tree begins: is it its turn?
    a.set_label(&mut begin)?;
    a.cmp(field32(r10, filter::MUTED), 0)?;
    a.jne(leave_out)?;
    a.mov(eax, dword_ptr(r11 + header(table::ONE_IN)))?;
    a.cmp(eax, 1)?;
    a.jbe(whole)?;
    a.mov(edx, field32(r10, filter::TREES))?;
    a.lea(ecx, ptr(rdx + 1))?;
    a.cmp(ecx, eax)?;
    a.jb(no_wrap)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut no_wrap)?;
    a.mov(field32(r10, filter::TREES), ecx)?;
    a.test(edx, edx)?;
    a.jnz(leave_out)?;
    a.set_label(&mut whole)?;
    a.mov(ecx, 1)?;
    a.jmp(keep)?;

    a.set_label(&mut leave_out)?;
    a.mov(ecx, filter::LEFT.cast_signed() << filter::STATE_SHIFT)?;
    a.cmp(edi, small(filter::MOST))?;
    a.jb(push)?;
    a.jmp(ways.left_out)?;

    // No room: what is further in is recorded, and so is what it is in.
    a.set_label(&mut full)?;
    emit_write_waiting(a, parts)?;
    a.jmp(ways.record)?;
    Ok(())
}

fn emit_exit(a: &mut CodeAssembler, parts: Parts, ways: Ways) -> Result<()> {
    let [mut other, mut waits, mut search] = labels(a);
    let [mut unknown, mut elsewhere, mut inner] = labels(a);
    a.cmp(field64(r9, filter::PLACE), r8)?;
    a.jne(other)?;
    a.mov(ecx, field32(r9, filter::STATE))?;
    a.shr(ecx, filter::STATE_SHIFT)?;
    a.cmp(ecx, WAITS)?;
    a.je(waits)?;
    emit_change(a, POPPED, ways.again)?;
    a.test(ecx, ecx)?;
    a.jz(ways.record)?;
    a.jmp(ways.leave)?;

    a.set_label(&mut waits)?;
    emit_pop(a, parts, ways)?;
    a.jmp(ways.left_out)?;

    // Not the innermost's. What is further in than the one whose it is is over, and where that has no record, what is further in than its place.
    a.set_label(&mut other)?;
    a.ja(inner)?;
    a.mov(rdx, r9)?;
    a.lea(rcx, ptr(r10 + small(filter::RECORDS)))?;
    a.set_label(&mut search)?;
    a.sub(rdx, small(filter::RECORD_BYTES))?;
    a.cmp(rdx, rcx)?;
    a.jb(unknown)?;
    a.cmp(field64(rdx, filter::PLACE), r8)?;
    a.jne(search)?;
    emit_pop(a, parts, ways)?;
    a.inc(field64(r10, filter::LEFT_OUT))?;
    a.jmp(ways.again)?;
    a.set_label(&mut unknown)?;
    a.cmp(field64(r9, filter::PLACE), r8)?;
    emit_unwinding(a, parts, ways, &mut elsewhere, Over::Below)?;
    a.jmp(ways.record)?;
    // It has no record: it is left out as the innermost is, or there was no room, or it began before the filter.
    a.set_label(&mut inner)?;
    a.mov(ecx, field32(r9, filter::STATE))?;
    a.cmp(ecx, OUTSIDE << filter::STATE_SHIFT)?;
    a.jae(ways.leave)?;
    emit_write_waiting(a, parts)?;
    a.jmp(ways.record)?;
    Ok(())
}

fn emit_event(
    a: &mut CodeAssembler,
    parts: Parts,
    ways: Ways,
    empty: &mut CodeLabel,
) -> Result<()> {
    let mut within = a.create_label();
    a.cmp(field64(r9, filter::PLACE), r8)?;
    emit_unwinding(a, parts, ways, &mut within, Over::Below)?;
    a.mov(ecx, field32(r9, filter::STATE))?;
    a.cmp(ecx, OUTSIDE << filter::STATE_SHIFT)?;
    a.jae(ways.left_out)?;
    emit_write_waiting(a, parts)?;
    a.jmp(ways.record)?;
    a.set_label(empty)?;
    a.cmp(dword_ptr(r11 + header(table::INSIDE)), 0)?;
    a.jne(ways.left_out)?;
    a.cmp(field32(r10, filter::MUTED), 0)?;
    a.je(ways.record)?;
    Ok(())
}

/// What an event shows to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// Calls whose place is the event's, or below it.
    AtOrBelow,
    /// Calls whose place is below it.
    Below,
}

/// After a comparison of the innermost record's place with r8: goes on if that is further out. Else looks whether the records up to there are of the same
/// stack: then the innermost is over, and all begins again; if not, the event is inside of it.
fn emit_unwinding(
    a: &mut CodeAssembler,
    parts: Parts,
    ways: Ways,
    within: &mut CodeLabel,
    what: Over,
) -> Result<()> {
    let [mut walk, mut last] = labels(a);
    match what {
        Over::AtOrBelow => a.ja(*within)?,
        Over::Below => a.jae(*within)?,
    }
    a.mov(rdx, r9)?;
    a.mov(rax, field64(rdx, filter::PLACE))?;
    a.set_label(&mut walk)?;
    a.sub(rdx, small(filter::RECORD_BYTES))?;
    a.lea(rcx, ptr(r10 + small(filter::RECORDS)))?;
    a.cmp(rdx, rcx)?;
    a.jb(last)?;
    a.mov(rcx, field64(rdx, filter::PLACE))?;
    a.cmp(rcx, r8)?;
    a.ja(last)?;
    a.neg(rax)?;
    a.add(rax, rcx)?;
    a.cmp(rax, APART)?;
    a.mov(rax, rcx)?;
    a.jb(walk)?;
    a.jmp(*within)?;
    a.set_label(&mut last)?;
    a.neg(rax)?;
    a.add(rax, r8)?;
    a.cmp(rax, APART)?;
    a.jae(*within)?;
    emit_pop(a, parts, ways)?;
    a.inc(field64(r10, filter::LEFT_OUT))?;
    a.jmp(ways.again)?;
    a.set_label(within)?;
    Ok(())
}

/// Takes the innermost record away, which is over, and goes on behind this if it waited, and too short for that; else all begins again.
fn emit_pop(a: &mut CodeAssembler, parts: Parts, ways: Ways) -> Result<()> {
    let [mut long, mut popped, mut own, mut done] = labels(a);
    a.mov(ecx, field32(r9, filter::STATE))?;
    a.shr(ecx, filter::STATE_SHIFT)?;
    a.cmp(ecx, WAITS)?;
    a.jne(popped)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.sub(rax, field64(r9, filter::TIME))?;
    a.cmp(rax, qword_ptr(r11 + header(table::MIN_TICKS)))?;
    a.jae(long)?;
    emit_change(a, POPPED, ways.again)?;
    a.jmp(done)?;
    a.set_label(&mut popped)?;
    emit_change(a, POPPED, ways.again)?;
    a.jmp(ways.again)?;
    a.set_label(&mut long)?;
    // Whoever was writing this one has been left by a jump.
    a.mov(eax, edi)?;
    a.cmp(field64(r10, filter::WRITING), rax)?;
    a.jb(own)?;
    a.mov(qword_ptr(r10 + small(filter::WRITING)), 0)?;
    a.set_label(&mut own)?;
    a.call(parts.write)?;
    a.cmp(qword_ptr(r11 + header(table::MINE)), 0)?;
    a.jne(ways.again)?;
    a.jmp(ways.leave)?;
    a.set_label(&mut done)?;
    Ok(())
}

/// Changes how many records there are, if nothing was changed since rdi was read. Spoils rax and rdx.
fn emit_change(a: &mut CodeAssembler, by: u64, again: CodeLabel) -> Result<()> {
    a.mov(rax, rdi)?;
    a.mov(rdx, by)?;
    a.add(rdx, rax)?;
    // No lock prefix: only this thread and its signal handlers write it.
    a.cmpxchg(field64(r10, filter::OPEN), rdx)?;
    a.jne(again)
}

/// Writes what waits, if the innermost record does.
fn emit_write_waiting(a: &mut CodeAssembler, parts: Parts) -> Result<()> {
    let mut none_waits = a.create_label();
    a.test(field32(r9, filter::STATE), WAITS << filter::STATE_SHIFT)?;
    a.jz(none_waits)?;
    a.call(parts.write)?;
    a.set_label(&mut none_waits)
}

/// Writes what waits into the ring, outermost first; from then on it counts as recorded. r10 = the page, edi = how many records there are. What somebody who
/// was interrupted is writing is left to that one. Spoils rax, rcx, rdx.
fn emit_write(a: &mut CodeAssembler, write: &mut CodeLabel, slow: CodeLabel) -> Result<()> {
    let [mut down, mut begin, mut next, mut end, mut theirs] = labels(a);
    let kept = [rbx, rdi, r8, r9, r11, r12];
    a.set_label(write)?;
    for register in kept {
        a.push(register)?;
    }
    a.mov(edx, edi)?;
    a.lea(r9, ptr(rdx + rdx * 2))?;
    a.lea(r9, ptr(r10 + r9 * 8 + small(filter::RECORDS)))?;
    a.mov(r8, r9)?;
    a.mov(rbx, field64(r10, filter::WRITING))?;
    a.cmp(rbx, rdx)?;
    a.jbe(theirs)?;
    a.xor(ecx, ecx)?;
    a.mov(rbx, rcx)?;
    a.set_label(&mut theirs)?;
    // Before anything is looked at: who interrupts this leaves what is here alone from now on.
    a.mov(eax, edi)?;
    a.mov(field64(r10, filter::WRITING), rax)?;
    // rdx = where what others write ends.
    a.lea(rdx, ptr(rbx + rbx * 2))?;
    a.lea(rdx, ptr(r10 + rdx * 8 + small(filter::RECORDS)))?;
    a.set_label(&mut down)?;
    a.cmp(r9, rdx)?;
    a.jbe(begin)?;
    a.mov(
        ecx,
        dword_ptr(r9 + (small(filter::STATE) - small(filter::RECORD_BYTES))),
    )?;
    a.shr(ecx, filter::STATE_SHIFT)?;
    a.cmp(ecx, WAITS)?;
    a.jne(begin)?;
    a.sub(r9, small(filter::RECORD_BYTES))?;
    a.jmp(down)?;
    a.set_label(&mut begin)?;
    a.cmp(r9, r8)?;
    a.jae(end)?;
    a.set_label(&mut next)?;
    a.and(field32(r9, filter::STATE), (1 << filter::STATE_SHIFT) - 1)?;
    a.mov(rdi, r9)?;
    a.lea(rdx, ptr(r9 + small(filter::NAME)))?;
    a.mov(r12d, GIVEN.cast_signed())?;
    a.call(slow)?;
    a.add(r9, small(filter::RECORD_BYTES))?;
    a.cmp(r9, r8)?;
    a.jb(next)?;
    // Who was interrupted has read records that have changed.
    a.mov(rax, CHANGED)?;
    a.add(field64(r10, filter::OPEN), rax)?;
    a.set_label(&mut end)?;
    a.mov(field64(r10, filter::WRITING), rbx)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// ZF is set if the site esi is in the list inside which is recorded. Spoils rax, rcx, rdx.
fn emit_lookup(a: &mut CodeAssembler, spec: &TrampolineSpec, lookup: &mut CodeLabel) -> Result<()> {
    let [mut next, mut none, mut found] = labels(a);
    let bytes = spec.geometry.inside_offset(1) - spec.geometry.inside_offset(0);
    a.set_label(lookup)?;
    a.mov(ecx, dword_ptr(r11 + header(table::INSIDE)))?;
    a.dec(ecx)?;
    a.and(ecx, 1)?;
    a.shl(ecx, bytes.trailing_zeros())?;
    a.mov(rdx, spec.table + spec.geometry.inside_offset(0))?;
    a.add(rdx, rcx)?;
    a.mov(ecx, esi)?;
    a.shr(ecx, NAME_SHIFT)?;
    a.mov(eax, small(INSIDE_NAMES))?;
    a.set_label(&mut next)?;
    a.and(ecx, small(INSIDE_NAMES - 1))?;
    a.cmp(dword_ptr(rdx + rcx * 4), esi)?;
    a.je(found)?;
    a.cmp(dword_ptr(rdx + rcx * 4), 0)?;
    a.je(none)?;
    a.inc(ecx)?;
    a.dec(eax)?;
    a.jnz(next)?;
    a.set_label(&mut none)?;
    a.or(eax, 1)?;
    a.set_label(&mut found)?;
    a.ret()
}
