//! The filter chooses the calls of a thread that are recorded, before anything is written. It
//! writes no event itself: the flavours and the slow path do.
//!
//! Each thread has a page with a record for each open call ([`shm_ring::layout::filter`]),
//! innermost last. The place on the stack shows which calls are over, as it does for the collector:
//! exceptions and `longjmp` leave no record behind.
//!
//! ```text
//!  entry   inside a call that is left out: left out, without a record
//!          else too deep, thread muted, not the tree's turn, or outside: left out, with a record
//!          else, without a shortest duration: a record, and the event
//!          else: a record that waits, with the time, and no event
//!  exit    of a record that waits, too soon: left out, and the record goes
//!          of a record that waits, long enough: all that wait are written, then the event
//!          of any other: the event if the entry was recorded
//!  event   inside a call that is left out: left out
//!          else: all that wait are written, then the event
//! ```
//!
//! Waiting records are written outermost first. Calls whose arguments are recorded do not wait,
//! since a record has no room for arguments. A call without a record is recorded: it began before
//! the filter, or there is no room for more records.
//!
//! A handler may run between any two instructions, make calls and leave. So one instruction changes
//! the number of records, in OPEN. It compares OPEN with the value that was read before the record
//! was filled or looked at. If a handler has changed anything meanwhile, all begins again.
//!
//! ```text
//!  registers   eax  the thread    r11  the slots    rcx  place on the stack  rdx  address of name
//!  within      r10  the page      r8   that place   esi  the name            rdi  OPEN, as read
//!              r9   the innermost record
//!  after       eax  not 0 if the event is to be recorded; rcx, rdx, r11 are spoiled
//! ```

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edi, edx, esi, ptr, qword_ptr, r8, r9, r10, r11,
    r12, r12d, rax, rbx, rcx, rdi, rdx, rsi,
};
use shm_ring::layout::{HEADER_BYTES, INSIDE_NAMES, LINE_SHIFT, NAME_SHIFT, filter, slot, table};

use super::{GIVEN, Result, TrampolineSpec, field32, field64, labels, small};

/// A change that adds a record.
const PUSHED: u64 = 1 << 32 | 1;
/// A change that removes a record.
const POPPED: u64 = (1 << 32) - 1;
/// A change that leaves the number of records.
const CHANGED: u64 = 1 << 32;
/// Two neighbouring records that are further apart belong to different stacks.
const APART: i32 = 16 << 10;
const WAITS: i32 = filter::WAITS.cast_signed();
const OUTSIDE: i32 = filter::OUTSIDE.cast_signed();

/// The event at a sled, as the filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happening {
    /// An entry that records only the time.
    Entry,
    /// An entry with arguments.
    EntryWithArguments,
    Exit,
    Event,
}

/// The subroutines, one for each kind of event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filter {
    entry: CodeLabel,
    with_arguments: CodeLabel,
    exit: CodeLabel,
    event: CodeLabel,
}

/// The common parts of the subroutines.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Finds a thread's slot.
    slot: CodeLabel,
    /// Writes the records that wait.
    write: CodeLabel,
    /// Looks up whether recording begins at a site.
    lookup: CodeLabel,
}

/// The places where a subroutine goes on.
#[derive(Debug, Clone, Copy)]
struct Ways {
    again: CodeLabel,
    record: CodeLabel,
    leave: CodeLabel,
    /// Counts one more event as left out, and leaves.
    left_out: CodeLabel,
}

// === impl Filter ===

impl Filter {
    /// The subroutine for this kind of event.
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
    // More than there can be: the program has overwritten it.
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

    // The thread has another slot, or none yet. The flavour handles a table that is not live, or no
    // slot.
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
        // Calls that wait come first.
        emit_write_waiting(a, parts)?;
        a.mov(ecx, field32(r9, filter::STATE))?;
        a.and(ecx, (1 << filter::STATE_SHIFT) - 1)?;
    }
    a.inc(ecx)?;

    // ecx = the depth.
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
    // ecx = the record's state, rax = its time.
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

    // No room: the call is recorded, and so are the calls around it.
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

    // The exit of an outer call: the calls further in are over. Without a record its place counts.
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
    // No record: left out as the innermost is, or no room, or begun before the filter.
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

/// The calls that an event shows to be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// Calls whose place is the event's, or below it.
    AtOrBelow,
    /// Calls whose place is below the event's.
    Below,
}

/// Follows a comparison of the innermost record's place with r8. Goes on if that place is further
/// out. Otherwise it looks whether the records up to r8 belong to the same stack. If they do, the
/// innermost call is over, and all begins again. If they do not, the event is inside of that call.
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

/// Removes the innermost record, whose call is over. Goes on behind this if the call waited, and
/// was too short to be recorded. Otherwise all begins again.
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
    // A context that was writing this record was left by a jump.
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

/// Changes the number of records, if nothing was changed since rdi was read. Spoils rax and rdx.
fn emit_change(a: &mut CodeAssembler, by: u64, again: CodeLabel) -> Result<()> {
    a.mov(rax, rdi)?;
    a.mov(rdx, by)?;
    a.add(rdx, rax)?;
    // No lock prefix: only this thread and its signal handlers write it.
    a.cmpxchg(field64(r10, filter::OPEN), rdx)?;
    a.jne(again)
}

/// Writes the records that wait, if the innermost one does.
fn emit_write_waiting(a: &mut CodeAssembler, parts: Parts) -> Result<()> {
    let mut none_waits = a.create_label();
    a.test(field32(r9, filter::STATE), WAITS << filter::STATE_SHIFT)?;
    a.jz(none_waits)?;
    a.call(parts.write)?;
    a.set_label(&mut none_waits)
}

/// Writes the records that wait into the ring, outermost first. From then on they count as
/// recorded. r10 = the page, edi = the number of records. Records that an interrupted context is
/// writing are left to that context. Spoils rax, rcx, rdx.
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
    // Before any look at the records: handlers leave them alone from now on.
    a.mov(eax, edi)?;
    a.mov(field64(r10, filter::WRITING), rax)?;
    // rdx = the end of the records that others write.
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
    // An interrupted context has read records that have changed.
    a.mov(rax, CHANGED)?;
    a.add(field64(r10, filter::OPEN), rax)?;
    a.set_label(&mut end)?;
    a.mov(field64(r10, filter::WRITING), rbx)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

/// ZF is set if the site esi is in the list of functions inside which events are recorded. Spoils
/// rax, rcx, rdx.
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
