//! The collector's side of rings that keep the newest events. A thread whose ring is full takes
//! back its oldest chunk itself, so no collector has to read along. A collector that wants the
//! events copies the ring while the thread goes on.
//!
//! ```text
//!  chunks   …  n-1 ┊  n   n+1   n+2   …   n+14 ┊ n+15
//!          emptied ┊ RELEASED              under way (STARTED - 1)
//!                  ┊ the thread takes this one back next
//! ```
//!
//! The thread sets TAKING in RELEASED, empties the chunk, then counts it. So the copy of a chunk is
//! whole if the thread had not taken the chunk before the copy was done. A ring is copied from the
//! newest chunk to the oldest, so the copy has no gap, however fast the thread is.

use std::{cell::RefCell, hint::black_box};

use crate::{
    consumer::Consumer,
    layout::{GUARD_BYTES, Geometry, LINE_BYTES, control, rings},
    memory::SharedMemory,
    sync::{Ordering, fence},
    word,
};

/// Words of the smallest page.
const PAGE_WORDS: usize = 512;

/// A copy of a ring at one moment. A [`Consumer`] reads it as if it were the ring.
#[derive(Debug)]
pub struct RingCopy {
    geometry: Geometry,
    index: u32,
    /// A copy of the control line, with counters that fit the copied chunks.
    line: [u64; (LINE_BYTES / 8) as usize],
    /// The collector's progress in the ring.
    progress: [u64; PROGRESS.len()],
    /// The number of the first of `chunks`.
    first: u64,
    /// A chunk becomes `None` once it was read.
    chunks: RefCell<Vec<Option<Box<[u64]>>>>,
}

/// The fields of a control line that hold a collector's progress.
const PROGRESS: [usize; 3] = [
    (control::CURSOR / 8) as usize,
    (control::AHEAD / 8) as usize,
    (control::REPORTED / 8) as usize,
];

/// Memory for a [`RingCopy`]. The pages that are copied from and to are in place already, so that
/// none has to be made while the thread goes on.
#[derive(Debug)]
pub struct CopyBuffer {
    geometry: Geometry,
    index: u32,
    most: u64,
    /// As many chunks as the ring had when this was made, `most` at most.
    chunks: Vec<Box<[u64]>>,
}

/// Has rings keep the newest events from now on. While they do, no [`Consumer`] may read them.
pub fn keep_newest<M: SharedMemory>(memory: &M) {
    set_keep_newest(memory, 1);
}

/// Has rings keep what is unread from now on. A consumer may read a ring as soon as [`is_taken`] is
/// false for it.
pub fn keep_unread<M: SharedMemory>(memory: &M) {
    set_keep_newest(memory, 0);
}

fn set_keep_newest<M: SharedMemory>(memory: &M, value: u64) {
    memory.store(rings::KEEP_NEWEST, value);
    // A thread that has not seen this yet shows that it takes a chunk, see TAKING.
    fence(Ordering::SeqCst);
}

/// Returns true if rings keep the newest events.
pub fn keeps_newest<M: SharedMemory>(memory: &M) -> bool {
    memory.load(rings::KEEP_NEWEST) != 0
}

/// Returns true while the thread takes back a chunk of its ring.
pub fn is_taken<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> bool {
    let line = geometry.control_offset(index);
    memory.load(line + control::RELEASED) & control::TAKING != 0
}

/// Finishes the taking of a chunk for a thread that will not: it is gone, or has left by a jump.
pub fn finish_taking<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) {
    let line = geometry.control_offset(index);
    let released = memory.load(line + control::RELEASED);
    if released & control::TAKING == 0 {
        return;
    }
    let released = released & !control::TAKING;
    let place = (released & (geometry.chunks() - 1)) * geometry.chunk_bytes();
    let begin = geometry.ring_offset(index) + place;
    let released = released.wrapping_add(1);
    memory.fill(begin, geometry.chunk_bytes(), word::empty(released));
    memory.store(line + control::RELEASED, released);
}

/// Words given to a ring, without those in guards. An event has one word or more, see
/// [`EventShare`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Words {
    /// Words since the ring was claimed.
    pub begun: u64,
    /// Words among them that are gone: they were read, or overwritten.
    pub overwritten: u64,
}

/// The share of events among the newest words of a ring. Other words are the values, the payload,
/// the time or the place of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventShare {
    /// Words that were looked at.
    pub words: u64,
    /// Words among them that stand for one event each.
    pub events: u64,
}

/// The most words that are looked at for that.
const SHARE_WORDS: usize = 512;

// === impl EventShare ===

impl EventShare {
    /// The share in ring `index` now: in the chunk under way, or, while that has hardly begun, at
    /// the end of the chunk before it. Looks at `most` words at most.
    pub fn of<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, most: u64) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let Some(whole) = started.checked_sub(1) else {
            return Self::default();
        };
        let most = most.min(SHARE_WORDS as u64);
        let there = Self::before(memory, geometry, (index, whole), most);
        let few = most.min(SHARE_WORDS as u64 / 8);
        match whole.checked_sub(1) {
            Some(last) if there.words < few && last >= untouched(memory, line) => {
                Self::before(memory, geometry, (index, last), most)
            }
            _ => there,
        }
    }

    /// The share among the last written words of a chunk.
    fn before<M: SharedMemory>(
        memory: &M,
        geometry: Geometry,
        (index, number): (u32, u64),
        most: u64,
    ) -> Self {
        let written = written(memory, geometry, (index, number), 0);
        let mut words = [0; SHARE_WORDS];
        let many = written.min(most);
        let Some(words) = usize::try_from(many)
            .ok()
            .and_then(|many| words.get_mut(..many))
        else {
            return Self::default();
        };
        let from = chunk_offset(geometry, index, number) + GUARD_BYTES + 8 * (written - many);
        memory.copy_words(from, words);
        let written = words.iter().filter(|word| **word & 0xffff_ffff != 0);
        Self {
            words: written.clone().count() as u64,
            events: written.filter(|word| **word & 1 != 0).count() as u64,
        }
    }

    /// The estimated number of events in `words` words.
    #[must_use]
    pub fn events_in(self, words: u64) -> u64 {
        match self.words {
            0 => words,
            all => {
                let events = u128::from(words) * u128::from(self.events) / u128::from(all);
                u64::try_from(events).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The number of written words of a chunk, without those in its guard. At least `known` are
/// written. If they are nearly all, few words are read.
fn written<M: SharedMemory>(
    memory: &M,
    geometry: Geometry,
    (index, number): (u32, u64),
    known: u64,
) -> u64 {
    let usable = (geometry.chunk_bytes() - GUARD_BYTES) / 8;
    let words = chunk_offset(geometry, index, number) + GUARD_BYTES;
    // The collector has emptied the newest chunk if it has read it to its end. A session that ends
    // also empties the part of a chunk that it has read. Words that were read were written.
    let read = memory
        .load(geometry.control_offset(index) + control::CURSOR)
        .saturating_sub(number.saturating_mul(geometry.chunk_bytes()));
    let read = (read.saturating_sub(GUARD_BYTES) / 8).min(usable);
    // The words of a chunk are written one after the other.
    let (mut written, mut free) = (read.max(known).min(usable), usable);
    let mut step = 1;
    while written < free {
        let at = (written + step - 1).min(free - 1);
        if memory.load(words + 8 * at) & 0xffff_ffff == 0 {
            free = at;
            break;
        }
        written = at + 1;
        step *= 2;
    }
    while written < free {
        let middle = written + (free - written) / 2;
        match memory.load(words + 8 * middle) & 0xffff_ffff {
            0 => free = middle,
            _ => written = middle + 1,
        }
    }
    written
}

// === impl Words ===

impl Words {
    /// The words before `cursor`, the place of a consumer that has read them.
    #[must_use]
    pub fn read_until(geometry: Geometry, cursor: u64) -> Self {
        let usable = (geometry.chunk_bytes() - GUARD_BYTES) / 8;
        let last = (cursor % geometry.chunk_bytes()).saturating_sub(GUARD_BYTES) / 8;
        let words = (cursor / geometry.chunk_bytes()).saturating_mul(usable);
        let begun = words.saturating_add(last);
        Self {
            begun,
            overwritten: begun,
        }
    }

    /// The words of ring `index` now.
    pub fn of<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> Self {
        Self::after(memory, geometry, index, 0)
    }

    /// The same, if `begun` words were there before. If few came since, few words are read.
    pub fn after<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, begun: u64) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let released = memory.load(line + control::RELEASED) & !control::TAKING;
        let usable = (geometry.chunk_bytes() - GUARD_BYTES) / 8;
        let Some(whole) = started.checked_sub(1) else {
            return Self::default();
        };
        let known = begun.saturating_sub(whole.saturating_mul(usable));
        let written = written(memory, geometry, (index, whole), known);
        Self {
            begun: whole.saturating_mul(usable).saturating_add(written),
            overwritten: released.min(whole).saturating_mul(usable),
        }
    }

    /// The words that came after `before`; none if the ring was claimed anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            begun: self.begun.saturating_sub(before.begun),
            overwritten: self.overwritten.saturating_sub(before.begun),
        }
    }
}

// === impl CopyBuffer ===

impl CopyBuffer {
    /// Makes room for the newest chunks of ring `index`, at most `most` of them.
    pub fn new<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, most: u64) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let there = started.saturating_sub(untouched(memory, line));
        let mut chunks = Vec::new();
        for number in started - there.min(most).min(geometry.chunks())..started {
            let mut copy = empty_chunk(geometry);
            for page in copy.chunks_mut(PAGE_WORDS) {
                // The compiler must not know that the value is there already, or it would leave out
                // the write.
                page[0] = black_box(0);
            }
            let from = chunk_offset(geometry, index, number);
            for page in (from..from + geometry.chunk_bytes()).step_by(8 * PAGE_WORDS) {
                black_box(memory.load(page));
            }
            chunks.push(copy);
        }
        Self {
            geometry,
            index,
            most,
            chunks,
        }
    }

    /// Copies the present contents of the ring.
    pub fn copy_ring<M: SharedMemory>(self, memory: &M) -> RingCopy {
        let Self {
            geometry,
            index,
            most,
            chunks: mut buffers,
        } = self;
        let mut line = [0; (LINE_BYTES / 8) as usize];
        let offset = geometry.control_offset(index);
        memory.copy_words(offset, &mut line);
        let started = memory.load(offset + control::STARTED);
        let mut chunks = Vec::new();
        let mut first = started;
        while let Some(number) = first.checked_sub(1)
            && started - number <= most.min(geometry.chunks())
        {
            let mut copy = buffers.pop().unwrap_or_else(|| empty_chunk(geometry));
            memory.copy_words(chunk_offset(geometry, index, number), &mut copy);
            // The copy is whole if the chunk is still not taken now.
            if number < untouched(memory, offset) {
                break;
            }
            chunks.push(Some(copy));
            first = number;
        }
        chunks.reverse();
        let progress = PROGRESS.map(|field| line[field]);
        let mut copy = RingCopy {
            geometry,
            index,
            line,
            progress,
            first,
            chunks: RefCell::new(chunks),
        };
        copy.line[(control::STARTED / 8) as usize] = started;
        copy.line[(control::RELEASED / 8) as usize] = first;
        copy.set_progress([0; PROGRESS.len()]);
        copy
    }
}

/// The number of the first chunk that is neither given back nor being taken, in the ring with this
/// control line.
fn untouched<M: SharedMemory>(memory: &M, line: u64) -> u64 {
    // Pairs with the producer's store of TAKING before it empties.
    let released = memory.load(line + control::RELEASED);
    (released & !control::TAKING) + u64::from(released & control::TAKING != 0)
}

fn chunk_offset(geometry: Geometry, index: u32, number: u64) -> u64 {
    let place = (number & (geometry.chunks() - 1)) * geometry.chunk_bytes();
    geometry.ring_offset(index) + place
}

fn empty_chunk(geometry: Geometry) -> Box<[u64]> {
    let words = usize::try_from(geometry.chunk_bytes() / 8).unwrap_or(0);
    vec![0; words].into_boxed_slice()
}

// === impl RingCopy ===

impl RingCopy {
    /// Copies the newest chunks of ring `index`, at most `most` of them.
    pub fn take<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, most: u64) -> Self {
        CopyBuffer::new(memory, geometry, index, most).copy_ring(memory)
    }

    /// Leaves out the events that a collector has read.
    pub fn leave_out_read(&mut self) {
        self.set_progress(self.progress);
    }

    fn set_progress(&mut self, progress: [u64; PROGRESS.len()]) {
        for (field, value) in PROGRESS.into_iter().zip(progress) {
            self.line[field] = value;
        }
    }

    /// Reads it from its oldest event on, or from the first one that was not left out.
    pub fn consumer(&self) -> Consumer {
        Consumer::resume(self, self.geometry, self.index)
    }

    /// The words that the ring was given, without those that are left out. Those that were not
    /// copied are overwritten. To be called before the copy is read.
    pub fn words(&self) -> Words {
        let cursor = self.load(self.geometry.control_offset(self.index) + control::CURSOR);
        let read = Words::read_until(self.geometry, cursor);
        Words::of(self, self.geometry, self.index).since(read)
    }

    /// Bytes that were copied.
    pub fn bytes(&self) -> u64 {
        self.chunks.borrow().len() as u64 * self.geometry.chunk_bytes()
    }

    /// The index in `chunks` and the word in that chunk that an offset stands for.
    fn place(&self, offset: u64) -> Option<(usize, usize)> {
        let at = offset
            .checked_sub(self.geometry.ring_offset(self.index))
            .filter(|at| *at < self.geometry.ring_bytes())?;
        let chunk = self.geometry.chunk_bytes();
        let turn = (at / chunk).wrapping_sub(self.first) & (self.geometry.chunks() - 1);
        let word = at % chunk / 8;
        Some((usize::try_from(turn).ok()?, usize::try_from(word).ok()?))
    }
}

impl SharedMemory for RingCopy {
    fn load(&self, offset: u64) -> u64 {
        let line = offset.wrapping_sub(self.geometry.control_offset(self.index)) / 8;
        if let Some(word) = usize::try_from(line).ok().and_then(|at| self.line.get(at)) {
            return *word;
        }
        let mut word = [0];
        self.copy_words(offset, &mut word);
        word[0]
    }

    /// Does nothing: no collector comes after the one that reads the copy.
    fn store(&self, _: u64, _: u64) {}

    fn fill(&self, offset: u64, _: u64, _: u64) {
        if let Some((chunk, _)) = self.place(offset)
            && let Some(chunk) = self.chunks.borrow_mut().get_mut(chunk)
        {
            *chunk = None;
        }
    }

    fn load_words(&self, offset: u64, into: &mut [u64]) -> usize {
        self.copy_words(offset, into);
        let empty = into.iter().position(|word| word & 0xffff_ffff == 0);
        empty.unwrap_or(into.len())
    }

    fn copy_words(&self, offset: u64, into: &mut [u64]) {
        into.fill(0);
        let chunks = self.chunks.borrow();
        if let Some((chunk, word)) = self.place(offset)
            && let Some(Some(words)) = chunks.get(chunk)
        {
            let from = words.get(word..).unwrap_or_default();
            into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}
