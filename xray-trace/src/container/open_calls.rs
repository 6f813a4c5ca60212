//! The calls that are open at the begins of blocks, so that a reader can begin in the middle of a
//! thread.
//!
//! An entry belongs to one block. It has the difference from the previous entry of its section:
//!
//! ```text
//!  number  the block: its index among the thread's, less that of the previous entry
//!  number  the number of outermost calls of the previous entry that are open here, too
//!  number  the number of further open calls; for each, outermost first:
//!          number  twice its function, + 1 if it has arguments
//!          number  ticks from the begin of the call around it, or from 0
//!          number  if it has arguments: their number, and as many numbers
//! ```
//!
//! Entries may be wrong in a hostile file. A reader uses them only as a place to begin, so a wrong
//! entry makes answers wrong, and has no other effect.

use super::payload::Payload;
use super::section::{FieldReader, Fields};
use crate::model::{FunctionId, ThreadId, Ticks, Values};

/// An open call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCall {
    /// The function that was called.
    pub function: FunctionId,
    /// The time of its begin.
    pub start: Ticks,
    /// Its first arguments, if recorded.
    pub args: Values,
}

/// The open calls of a thread at the begins of some of its blocks: one section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCalls {
    /// The thread.
    pub thread: ThreadId,
    /// The first block that has an entry, by its index among the thread's blocks.
    pub first_block: u64,
    /// The packed entries.
    pub entries: Payload,
}

/// Packs the open calls of a thread, block by block, if their size is justified.
#[derive(Debug)]
pub struct OpenCallsEncoder {
    thread: ThreadId,
    /// The bytes of events that justify one byte of an entry.
    spacing: u64,
    /// The bytes of events since the latest entry.
    passed: u64,
    /// The bytes of all events so far.
    all: u64,
    /// The index of the next block.
    block: u64,
    /// The packed entries of the current section. Emptied when it is long.
    entries: Vec<u8>,
    first_block: u64,
    /// The length of the first entry of the current section.
    first_len: usize,
    /// The block of the latest entry.
    latest: u64,
    /// The open calls of the latest entry.
    open: Vec<OpenCall>,
    /// The number of outermost calls that the latest entry has in common with the entry of another
    /// index that came last, which may have been left out.
    shared: usize,
    /// The current entry.
    scratch: Vec<u8>,
    finished: Vec<OpenCalls>,
}

/// The length at which a section is ended, in bytes, unless its first entry takes most of it.
const LONG: usize = 32 << 10;

/// The length of a thread's entries, in bytes, from which on each byte stands for more events, so
/// that the entries grow with the logarithm of the events.
const LONGEST: u64 = 1 << 20;

/// The length of the shortest entry, in bytes.
const SHORTEST: u64 = 3;

// === impl OpenCalls ===

impl OpenCalls {
    /// The greatest depth of a stack with an entry.
    pub const MAX_DEPTH: usize = 1024;

    /// The last entry for `block` or an earlier one: the index of its block, and the open calls
    /// there, outermost first. `None` if there is none, or if the section up to there is unreadable
    /// or inconsistent.
    #[must_use]
    pub fn before(&self, block: u64) -> Option<(u64, Vec<OpenCall>)> {
        let entries = self.entries.load().ok()?;
        let mut fields = FieldReader::new(&entries);
        let mut open = Vec::new();
        let mut latest = None;
        while fields.position() < entries.len() {
            let passed = fields.number("block").ok()?;
            let at = latest.unwrap_or(0_u64).checked_add(passed)?;
            if at > block {
                break;
            }
            entry(&mut fields, &mut open)?;
            latest = Some(at);
        }
        latest.map(|at| (at, open))
    }

    /// Passes each entry for a block before `end` to `take`: the index of its block, the number of
    /// outermost calls that the entry before has, too, and the open calls there, outermost first.
    /// Ends before the first entry that is unreadable, inconsistent, or for a later block.
    ///
    /// # Errors
    ///
    /// The errors of `take`.
    pub fn each<E>(
        &self,
        end: u64,
        mut take: impl FnMut(u64, usize, &[OpenCall]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Ok(entries) = self.entries.load() else {
            return Ok(());
        };
        let mut fields = FieldReader::new(&entries);
        let (mut open, mut block) = (Vec::new(), 0_u64);
        while fields.position() < entries.len() {
            let passed = fields.number("block").ok();
            let at = passed.and_then(|passed| block.checked_add(passed));
            let Some(at) = at.filter(|at| *at < end) else {
                break;
            };
            let Some(kept) = entry(&mut fields, &mut open) else {
                break;
            };
            block = at;
            take(block, kept, &open)?;
        }
        Ok(())
    }
}

/// Reads the part of an entry after its block. `open` has the calls of the previous entry. Returns
/// the number of calls that were kept.
fn entry(fields: &mut FieldReader<'_>, open: &mut Vec<OpenCall>) -> Option<usize> {
    let mut len = |field| usize::try_from(fields.number(field).ok()?).ok();
    let (kept, more) = (len("kept calls")?, len("more calls")?);
    if kept > open.len() || more > OpenCalls::MAX_DEPTH - kept {
        return None;
    }
    open.truncate(kept);
    for _ in 0..more {
        let function = fields.number("function").ok()?;
        let caller = open.last().map_or(0, |caller| caller.start.0);
        let start = caller.checked_add(fields.number("ticks").ok()?)?;
        let mut args = [0; Values::MOST];
        let count = match function & 1 {
            0 => 0,
            _ => usize::try_from(fields.number("arguments").ok()?).ok()?,
        };
        let args = args.get_mut(..count)?;
        for arg in &mut *args {
            *arg = fields.number("argument").ok()?;
        }
        open.push(OpenCall {
            function: FunctionId(u32::try_from(function >> 1).ok()?),
            start: Ticks(start),
            args: Values::new(args.iter().copied()),
        });
    }
    Some(kept)
}

// === impl OpenCallsEncoder ===

impl OpenCallsEncoder {
    /// Begins before the first block of `thread`. A block has an entry if each byte of the entry
    /// stands for at least `spacing` bytes of events, and for more in a thread with very many
    /// events.
    #[must_use]
    pub fn new(thread: ThreadId, spacing: u64) -> Self {
        Self {
            thread,
            spacing,
            passed: 0,
            all: 0,
            block: 0,
            entries: Vec::new(),
            first_block: 0,
            first_len: 0,
            latest: 0,
            open: Vec::new(),
            shared: 0,
            scratch: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Adds the begin of a block of `len` bytes of events, with the open calls, outermost first.
    /// Each call began no earlier than the one before.
    pub fn block(&mut self, open: impl ExactSizeIterator<Item = OpenCall> + Clone, len: u64) {
        let spacing = self.spacing.max(self.all / LONGEST);
        let worthwhile = |bytes: u64| self.passed >= spacing.saturating_mul(bytes);
        if open.len() <= OpenCalls::MAX_DEPTH && worthwhile(SHORTEST) {
            let kept = self.kept(0, open.clone());
            self.encode(kept, open.clone());
            let bytes = self.scratch.len() as u64;
            if self.passed >= spacing.saturating_mul(bytes) {
                self.commit(kept, open);
            }
        }
        self.passed = self.passed.saturating_add(len);
        self.all = self.all.saturating_add(len);
        self.block += 1;
    }

    /// Adds an entry of another index for the block with this index, with the open calls, outermost
    /// first. The `kept` outermost ones are the same as in the entry before. Leaves the entry out
    /// if it is too deep, or if its block does not come after the blocks before. An entry costs no
    /// more than its other calls.
    pub fn entry(&mut self, block: u64, kept: usize, open: &[OpenCall]) {
        self.shared = self.shared.min(kept);
        if block < self.block || open.len() > OpenCalls::MAX_DEPTH {
            return;
        }
        self.block = block;
        let open = open.iter().copied();
        let kept = self.kept(self.shared, open.clone());
        self.encode(kept, open.clone());
        self.commit(kept, open);
        self.shared = usize::MAX;
        self.block = block.saturating_add(1);
    }

    /// The bytes of entries that are in no section yet.
    pub(super) fn pending(&self) -> usize {
        self.entries.len()
    }

    /// Ends the current section. The next entry begins another one.
    pub(super) fn end_section(&mut self) {
        self.finish_section();
    }

    /// Takes the sections that are finished, in order.
    pub(super) fn take_finished(&mut self) -> Vec<OpenCalls> {
        std::mem::take(&mut self.finished)
    }

    /// The sections that were not taken, in order.
    #[must_use]
    pub fn finish(mut self) -> Vec<OpenCalls> {
        self.finish_section();
        self.finished
    }

    /// The number of outermost calls that are the same as in the latest entry. The first `equal`
    /// ones are not compared.
    fn kept(&self, equal: usize, open: impl ExactSizeIterator<Item = OpenCall>) -> usize {
        let equal = equal.min(self.open.len()).min(open.len());
        let others = self.open.iter().skip(equal).zip(open.skip(equal));
        equal + others.take_while(|(before, now)| *before == now).count()
    }

    /// Packs an entry for the next block. The latest entry has the `kept` outermost calls, too.
    fn encode(&mut self, kept: usize, open: impl ExactSizeIterator<Item = OpenCall>) {
        self.scratch.clear();
        let mut fields = Fields(&mut self.scratch);
        let before = if self.entries.is_empty() {
            0
        } else {
            self.latest
        };
        let more = open.len() - kept;
        fields.number(self.block - before);
        fields.number(kept as u64).number(more as u64);
        let mut caller = match kept.checked_sub(1) {
            Some(at) => self.open[at].start.0,
            None => 0,
        };
        for OpenCall {
            function,
            start,
            args,
        } in open.skip(kept)
        {
            fields.number(2 * u64::from(function.0) + u64::from(!args.is_empty()));
            fields.number(start.0.saturating_sub(caller));
            if !args.is_empty() {
                fields.number(args.len() as u64);
            }
            for arg in args.as_slice() {
                fields.number(*arg);
            }
            caller = start.0;
        }
    }

    /// Keeps the packed entry. The latest entry has the `kept` outermost calls, too.
    fn commit(&mut self, mut kept: usize, open: impl ExactSizeIterator<Item = OpenCall> + Clone) {
        // The first entry of a section has all of its calls. Sections twice as long as their first
        // entries take at most twice the space of their other entries.
        let long = LONG.max(self.first_len.saturating_mul(2));
        if !self.entries.is_empty() && self.entries.len() + self.scratch.len() > long {
            self.finish_section();
            // The new section has no previous entry that this one could build on.
            kept = 0;
            self.encode(kept, open.clone());
        }
        if self.entries.is_empty() {
            self.first_block = self.block;
            self.first_len = self.scratch.len();
        }
        self.entries.append(&mut self.scratch);
        self.open.truncate(kept);
        self.open.extend(open.skip(kept));
        self.shared = 0;
        self.latest = self.block;
        self.passed = 0;
    }

    fn finish_section(&mut self) {
        if !self.entries.is_empty() {
            self.finished.push(OpenCalls {
                thread: self.thread,
                first_block: self.first_block,
                entries: Payload::from(std::mem::take(&mut self.entries)),
            });
        }
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(function: u32, start: u64) -> OpenCall {
        OpenCall {
            function: FunctionId(function),
            start: Ticks(start),
            args: Values::new(start..start + 2 * u64::from(function % 3 == 2)),
        }
    }

    fn encoded(spacing: u64, stacks: &[Vec<OpenCall>]) -> Vec<OpenCalls> {
        let mut encoder = OpenCallsEncoder::new(ThreadId(4), spacing);
        for open in stacks {
            encoder.block(open.iter().copied(), 100);
        }
        encoder.finish()
    }

    fn section(entries: &[u8]) -> OpenCalls {
        OpenCalls {
            thread: ThreadId(0),
            first_block: 0,
            entries: Payload::from(entries),
        }
    }

    #[test]
    fn open_calls_are_read_as_they_were_written() {
        let stacks = [
            vec![],
            vec![call(0, 5), call(2, 9), call(u32::MAX, 9)],
            vec![call(0, 5), call(2, 9), call(u32::MAX, 9), call(1, 1 << 60)],
            vec![call(0, 5)],
            vec![call(0, 6), call(0, 6)],
            vec![],
        ];
        let [sections] = &encoded(0, &stacks)[..] else {
            panic!("one section is enough");
        };
        assert_eq!((sections.thread, sections.first_block), (ThreadId(4), 0));
        for (block, open) in (0..).zip(&stacks) {
            assert_eq!(sections.before(block), Some((block, open.clone())));
        }
        assert_eq!(sections.before(99), Some((5, vec![])));
        // The second entry has all of its calls, the third only one.
        let kept = sections.entries.load().unwrap();
        assert_eq!(kept[..6], [0, 0, 0, 1, 0, 3]);
    }

    #[test]
    fn an_entry_stands_for_its_share_of_events() {
        let stacks: Vec<_> = (0..40)
            .map(|at| vec![call(0, 7), call(1, 7 + at)])
            .collect();
        // The first entry takes 7 bytes, each of the others 5.
        let sections = encoded(50, &stacks);
        let found = (0..40).filter_map(|block| sections[0].before(block));
        let mut blocks: Vec<_> = found.map(|(block, _)| block).collect();
        blocks.dedup();
        assert_eq!(blocks[..3], [4, 7, 10]);
        assert_eq!(sections[0].before(3), None);
        assert!(encoded(1 << 40, &stacks).is_empty());
    }

    #[test]
    fn entries_are_packed_again_as_they_were() {
        let stacks: Vec<_> = (0..40)
            .map(|at| vec![call(0, 7), call(1, 7 + at)])
            .collect();
        let sections = encoded(50, &stacks);
        let mut again = OpenCallsEncoder::new(ThreadId(4), 0);
        let mut blocks = Vec::new();
        for section in &sections {
            let added: Result<(), ()> = section.each(40, |block, kept, open| {
                blocks.push(block);
                again.entry(block, kept, open);
                Ok(())
            });
            added.unwrap();
        }
        assert_eq!(blocks[..3], [4, 7, 10]);
        // These come too late, or are too deep.
        again.entry(4, 0, &[call(0, 1)]);
        let deep: Vec<_> = (0..1025).map(|at| call(at, 1)).collect();
        again.entry(99, 0, &deep);
        assert_eq!(again.finish(), sections);
        let failed = sections[0].each(40, |block, _, _| Err(block));
        assert_eq!(failed, Err(4));
        let count = |section: &OpenCalls, end| {
            let mut count = 0;
            let read: Result<(), ()> = section.each(end, |_, _, _| {
                count += 1;
                Ok(())
            });
            read.unwrap();
            count
        };
        let cut = section(&sections[0].entries.load().unwrap()[..8]);
        assert_eq!(count(&cut, 40), 1, "the second entry is cut");
        for (end, expected) in [(0, 0), (4, 0), (5, 1), (10, 2), (11, 3)] {
            assert_eq!(count(&sections[0], end), expected, "{end}");
        }
    }

    #[test]
    fn an_entry_that_was_left_out_is_not_built_on() {
        let (one, other, third) = (call(0, 5), call(1, 6), call(3, 7));
        let last = vec![one, third, call(4, 8)];
        let mut encoder = OpenCallsEncoder::new(ThreadId(0), 0);
        encoder.entry(5, 0, &[one, other]);
        encoder.entry(5, 1, &[one, third]);
        encoder.entry(6, 2, &last);
        let sections = encoder.finish();
        assert_eq!(sections[0].before(6), Some((6, last)));
        let mut kept = Vec::new();
        let read: Result<(), ()> = sections[0].each(7, |block, shared, _| {
            kept.push((block, shared));
            Ok(())
        });
        assert_eq!((read, kept), (Ok(()), vec![(5, 0), (6, 1)]));
    }

    /// The first entry is longer than a section should be.
    #[test]
    fn short_entries_after_a_long_one_take_little_space() {
        let deep: Vec<_> = (0..1024)
            .map(|at| OpenCall {
                args: Values::new([u64::MAX; Values::MOST]),
                ..call(at, 1)
            })
            .collect();
        let mut encoder = OpenCallsEncoder::new(ThreadId(0), 0);
        encoder.entry(0, 0, &deep);
        let first = encoder.pending();
        assert!(first > LONG, "{first}");
        for block in 1..10_000 {
            encoder.entry(block, 1024, &deep);
        }
        let sections = encoder.finish();
        let sum: usize = sections.iter().map(|section| section.entries.len()).sum();
        assert!(sum < 2 * first + 100_000, "{sum}");
        assert_eq!(sections[0].before(99), Some((99, deep)));
    }

    #[test]
    fn long_sections_are_divided_and_each_stands_by_itself() {
        let deep = |at: u64| (0..600).map(|depth| call(depth, at)).collect::<Vec<_>>();
        let stacks: Vec<_> = (0..100).map(deep).collect();
        let sections = encoded(0, &stacks);
        assert!(sections.len() > 1);
        for pair in sections.windows(2) {
            let last = pair[1].first_block - 1;
            let open = stacks[usize::try_from(last).unwrap()].clone();
            assert_eq!(pair[0].before(u64::MAX), Some((last, open)));
            assert!(pair[0].entries.len() <= LONG);
        }
    }

    #[test]
    fn there_is_no_entry_for_a_stack_that_is_too_deep() {
        let deep = |len: u32| (0..len).map(|at| call(at, 1)).collect::<Vec<_>>();
        let sections = encoded(0, &[deep(1024), deep(1025), deep(1)]);
        let blocks = [0, 1, 2].map(|block| sections[0].before(block).unwrap().0);
        assert_eq!(blocks, [0, 0, 2]);
    }

    #[test]
    fn contradictory_entries_are_not_used() {
        let number = |value| {
            let mut bytes = Vec::new();
            Fields(&mut bytes).number(value);
            bytes
        };
        let (many, great) = (number(1025_u64), number(u64::MAX));
        for (what, entries) in [
            ("nothing", vec![]),
            ("a call is kept of none", vec![0, 1, 0]),
            ("too many calls", [&[0, 0][..], &many].concat()),
            ("the calls are missing", vec![0, 0, 1]),
            ("the argument is missing", vec![0, 0, 1, 1, 7]),
            ("no such function", [&[0, 0, 1][..], &great, &[0]].concat()),
            (
                "a time that passes 2^64",
                [&[0, 0, 2, 0][..], &great, &[0, 1]].concat(),
            ),
            (
                "a block that passes 2^64",
                [&[1, 0, 0][..], &great, &[0, 0]].concat(),
            ),
        ] {
            assert_eq!(section(&entries).before(u64::MAX), None, "{what}");
        }
    }
}
