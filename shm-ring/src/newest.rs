//! Rings that keep the newest events, as the collector sees them. A thread whose ring is full takes back its oldest chunk itself, so nobody has to
//! read along; who wants to know what happened takes a picture while the thread goes on.
//!
//! ```text
//!  chunks   …  n-1 ┊  n   n+1   n+2   …   n+14 ┊ n+15
//!          emptied ┊ RELEASED              under way (STARTED - 1)
//!                  ┊ the next that is taken back
//! ```
//!
//! The thread sets TAKING in RELEASED, empties the chunk, then counts it: a chunk that was copied
//! is whole if it was not taken before the copy was done. A picture is copied from the newest chunk
//! to the oldest, so it has no gap, however fast the thread is.

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

/// What a ring held at one moment, to be read by a [`Consumer`] that believes it to be the ring.
#[derive(Debug)]
pub struct Picture {
    geometry: Geometry,
    index: u32,
    /// The control line as it was, with the chunks that there are.
    line: [u64; (LINE_BYTES / 8) as usize],
    /// The number of the first of `chunks`.
    first: u64,
    /// `None` once read.
    chunks: RefCell<Vec<Option<Box<[u64]>>>>,
}

/// Memory for a [`Picture`]: the pages that are copied from and to are there, so they need not be made while the thread goes on.
#[derive(Debug)]
pub struct Blank {
    geometry: Geometry,
    index: u32,
    most: u64,
    /// As many as a picture would have had when this was made, if the thread had not gone on.
    chunks: Vec<Box<[u64]>>,
}

/// Says whether rings keep the newest events from now on. While they do, no [`Consumer`] may read them; when they do no more, one may as soon as
/// nothing [`is_taken`].
pub fn keep_newest<M: SharedMemory>(memory: &M, keep: bool) {
    memory.store(rings::KEEP_NEWEST, u64::from(keep));
    // A thread that has not seen this yet shows that it takes a chunk, see TAKING.
    fence(Ordering::SeqCst);
}

/// Whether rings keep the newest events.
pub fn keeps_newest<M: SharedMemory>(memory: &M) -> bool {
    memory.load(rings::KEEP_NEWEST) != 0
}

/// Whether the thread takes back a chunk of its ring just now.
pub fn is_taken<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> bool {
    let line = geometry.control_offset(index);
    memory.load(line + control::RELEASED) & control::TAKING != 0
}

/// Finishes what a thread was about that will not: it is gone, or has left by a jump.
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

/// How much a ring was given: words, but for those in guards. An event has one word or more, see
/// [`EventShare`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Words {
    /// Since the ring was claimed.
    pub begun: u64,
    /// Of those, the ones that are not there any more: they were read, or overwritten.
    pub overwritten: u64,
}

/// Of the newest words of a ring, how many those are, and how many of them name an event: others
/// are its values and payload, and its time and place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventShare {
    /// Words that were looked at.
    pub words: u64,
    /// Of those, the ones that stand for an event each.
    pub events: u64,
}

/// Words that are looked at for that.
const SHARE_WORDS: usize = 512;

// === impl EventShare ===

impl EventShare {
    /// Of ring `index` now: of the chunk under way, or of the end of the one before while that has
    /// hardly begun.
    pub fn of<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let Some(whole) = started.checked_sub(1) else {
            return Self::default();
        };
        let there = Self::before(memory, geometry, (index, whole));
        let few = SHARE_WORDS as u64 / 8;
        match whole.checked_sub(1) {
            Some(last) if there.words < few && last >= untouched(memory, line) => {
                Self::before(memory, geometry, (index, last))
            }
            _ => there,
        }
    }

    /// Of the last words that are written of a chunk.
    fn before<M: SharedMemory>(
        memory: &M,
        geometry: Geometry,
        (index, number): (u32, u64),
    ) -> Self {
        let written = written(memory, geometry, index, number);
        let mut words = [0; SHARE_WORDS];
        let many = written.min(SHARE_WORDS as u64);
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

    /// About how many events so many words are.
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

/// How many words of a chunk are written, but for those in its guard.
fn written<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, number: u64) -> u64 {
    let usable = (geometry.chunk_bytes() - GUARD_BYTES) / 8;
    let words = chunk_offset(geometry, index, number) + GUARD_BYTES;
    // The collector has emptied the newest chunk if it has read that to its end. A session that
    // ends empties as well what it has read of a chunk. Words that were read were written.
    let read = memory
        .load(geometry.control_offset(index) + control::CURSOR)
        .saturating_sub(number.saturating_mul(geometry.chunk_bytes()));
    let read = (read.saturating_sub(GUARD_BYTES) / 8).min(usable);
    // The words of a chunk are written one after the other.
    let (mut written, mut free) = (read, usable);
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
    /// Of ring `index` now.
    pub fn of<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let released = memory.load(line + control::RELEASED) & !control::TAKING;
        let usable = (geometry.chunk_bytes() - GUARD_BYTES) / 8;
        let Some(whole) = started.checked_sub(1) else {
            return Self::default();
        };
        let written = written(memory, geometry, index, whole);
        Self {
            begun: whole.saturating_mul(usable).saturating_add(written),
            overwritten: released.min(whole).saturating_mul(usable),
        }
    }

    /// What came after `before`; nothing if the ring was claimed anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            begun: self.begun.saturating_sub(before.begun),
            overwritten: self.overwritten.saturating_sub(before.begun),
        }
    }
}

// === impl Blank ===

impl Blank {
    /// Makes room for the newest chunks of ring `index`, at most `most` of them.
    pub fn new<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, most: u64) -> Self {
        let line = geometry.control_offset(index);
        let started = memory.load(line + control::STARTED);
        let there = started.saturating_sub(untouched(memory, line));
        let mut chunks = Vec::new();
        for number in started - there.min(most).min(geometry.chunks())..started {
            let mut copy = blank_chunk(geometry);
            for page in copy.chunks_mut(PAGE_WORDS) {
                // Not known to be what is there already, else it would not be written.
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

    /// Copies what the ring holds now.
    pub fn expose<M: SharedMemory>(self, memory: &M) -> Picture {
        let Self {
            geometry,
            index,
            most,
            chunks: mut blanks,
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
            let mut copy = blanks.pop().unwrap_or_else(|| blank_chunk(geometry));
            memory.copy_words(chunk_offset(geometry, index, number), &mut copy);
            // What was copied of a chunk that is not taken now is as it was.
            if number < untouched(memory, offset) {
                break;
            }
            chunks.push(Some(copy));
            first = number;
        }
        chunks.reverse();
        for (field, value) in [
            (control::STARTED, started),
            (control::RELEASED, first),
            // Nothing was read of it.
            (control::CURSOR, 0),
            (control::AHEAD, 0),
            (control::TOLD, 0),
        ] {
            line[(field / 8) as usize] = value;
        }
        Picture {
            geometry,
            index,
            line,
            first,
            chunks: RefCell::new(chunks),
        }
    }
}

/// The first chunk that was neither given back nor is taken now, of the ring with that control line.
fn untouched<M: SharedMemory>(memory: &M, line: u64) -> u64 {
    // Pairs with the producer's store of TAKING before it empties.
    let released = memory.load(line + control::RELEASED);
    (released & !control::TAKING) + u64::from(released & control::TAKING != 0)
}

fn chunk_offset(geometry: Geometry, index: u32, number: u64) -> u64 {
    let place = (number & (geometry.chunks() - 1)) * geometry.chunk_bytes();
    geometry.ring_offset(index) + place
}

fn blank_chunk(geometry: Geometry) -> Box<[u64]> {
    let words = usize::try_from(geometry.chunk_bytes() / 8).unwrap_or(0);
    vec![0; words].into_boxed_slice()
}

// === impl Picture ===

impl Picture {
    /// Copies the newest chunks of ring `index`, at most `most` of them.
    pub fn take<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32, most: u64) -> Self {
        Blank::new(memory, geometry, index, most).expose(memory)
    }

    /// Reads it from its oldest event on.
    pub fn consumer(&self) -> Consumer {
        Consumer::resume(self, self.geometry, self.index)
    }

    /// About how many words the ring had been given before its first that was copied; 0 if it has
    /// all.
    pub fn missing(&self) -> u64 {
        let usable = (self.geometry.chunk_bytes() - GUARD_BYTES) / 8;
        self.first.saturating_mul(usable)
    }

    /// Bytes that were copied.
    pub fn bytes(&self) -> u64 {
        self.chunks.borrow().len() as u64 * self.geometry.chunk_bytes()
    }

    /// Which of `chunks` holds the offset, and which word of it that is.
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

impl SharedMemory for Picture {
    fn load(&self, offset: u64) -> u64 {
        let line = offset.wrapping_sub(self.geometry.control_offset(self.index)) / 8;
        if let Some(word) = usize::try_from(line).ok().and_then(|at| self.line.get(at)) {
            return *word;
        }
        let mut word = [0];
        self.copy_words(offset, &mut word);
        word[0]
    }

    /// Nobody comes after the one who reads it.
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
