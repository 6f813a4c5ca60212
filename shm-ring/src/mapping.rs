//! The rings' memory mapped into the collector.
//!
//! # Safety model
//!
//! The target writes this memory at any time, so no reference to plain data in it is ever made.
//! Every access is an atomic access through a raw pointer to a whole, aligned 8-byte word whose
//! place was checked against the mapping's length. The mapping is owned and lives as long as the
//! value. Truncating the file under the mapping makes accesses fault. The caller prevents that: the
//! file is a memfd that is sealed against it, or shared anonymous memory, which has no descriptor.
//! If it happens all the same, the mapping reads as zero from then on, and [`Mapping::is_broken`]
//! returns true (`fault.rs`).

use std::{
    fs::File,
    io,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::{
    fault::{self, Guard},
    memory::{LOAD, STORE, SharedMemory},
};

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Words that are zeroed between two looks at whether the mapping is broken.
const PIECE_WORDS: usize = 512;

/// A shared mapping of the rings.
#[derive(Debug)]
pub struct Mapping {
    /// The first field, so that it is dropped first: the addresses may be another mapping's once
    /// they are unmapped.
    guard: Guard,
    map: MmapRaw,
}

/// The first cache line of a mapping, for looks at many mappings one after the other. A look
/// touches nothing but the line.
#[derive(Debug)]
pub struct FirstLine {
    /// `None` for a mapping that is shorter.
    line: Option<NonNull<[AtomicU64; LINE_WORDS]>>,
    _mapping: Arc<Mapping>,
}

// === impl Mapping ===

impl Mapping {
    /// Maps `bytes` bytes of `file` from `offset` on, which must be the target's rings. `offset` is
    /// a multiple of the page size.
    ///
    /// With the first mapping the process begins to handle SIGBUS.
    ///
    /// # Errors
    /// The errors of `mmap` and `sigaction`, and too many mappings.
    pub fn new(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        fault::install()?;
        let map = MmapOptions::new()
            .offset(offset)
            .len(length)
            .map_raw(file)?;
        // A core dump of the collector would hold all of it.
        map.advise(Advice::DontDump)?;
        // With huge pages, a look at one word would take 2 MiB. Kernels without huge pages refuse
        // the advice.
        let _ = map.advise(Advice::NoHugePage);
        Self::guarded(map)
    }

    fn guarded(map: MmapRaw) -> io::Result<Self> {
        let guard = Guard::register(map.as_ptr().addr(), map.len())?;
        Ok(Self { guard, map })
    }

    /// True once a part of the memory could not be had. From then on all of it reads as zero, and
    /// writes have no effect.
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    /// Takes whole pages out of this process until they are used again. Their content stays.
    /// `offset` and `bytes` are multiples of the page size.
    pub fn let_go(&self, offset: u64, bytes: u64) {
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(bytes).ok());
        let Some((offset, bytes)) = range else {
            return;
        };
        let is_within = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.map.len());
        if !is_within {
            return;
        }
        // SAFETY: the mapping is shared and of a file, so the pages stay in the file, and the next
        // access finds the same content. Pages that replace lost ones read as zero before and
        // afterwards. A failure leaves the pages in this process.
        let _ = unsafe {
            self.map
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes)
        };
    }

    /// The words from `offset` on, at most `count`. Fewer, or none, where the mapping ends, and
    /// none of a broken mapping.
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        match self.is_broken() {
            true => &[],
            false => self.mapped_words(offset, count),
        }
    }

    /// The same, also of a broken mapping. Its pages may be those that were there before.
    fn mapped_words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let length = self.map.len();
        let Some(offset) = usize::try_from(offset)
            .ok()
            .filter(|o| o % 8 == 0 && *o < length)
        else {
            return &[];
        };
        let count = count.min((length - offset) / 8);
        // SAFETY: `offset` was just checked to lie within the mapping, so the addition stays inside
        // it.
        let first = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: the pointer is valid for reads and writes of `8 * count` bytes (just checked
        // against the length) for as long as `self`, which owns the mapping. It is 8-byte aligned
        // (mappings are page aligned, the offset is a multiple of 8). Every access of this process
        // to the memory is atomic, so that a slice of atomics may stand for it. The other process
        // is outside the language; its stores are plain x86-64 stores of at most 8 aligned bytes. A
        // page that cannot be had any more is replaced before the access ends, see `fault.rs`.
        unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), count) }
    }
}

// === impl FirstLine ===

impl FirstLine {
    /// The first cache line of `mapping`.
    pub fn of(mapping: &Arc<Mapping>) -> Self {
        let words = mapping.mapped_words(0, LINE_WORDS);
        let line = words.first_chunk().map(NonNull::from);
        Self {
            line,
            _mapping: Arc::clone(mapping),
        }
    }

    /// Begins to load the line into the cache.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Some(line) = self.line {
            // SAFETY: every x86-64 processor has SSE. A prefetch has no effect on memory, and
            // faults at no address.
            unsafe {
                core::arch::x86_64::_mm_prefetch(
                    line.as_ptr().cast::<i8>(),
                    core::arch::x86_64::_MM_HINT_T0,
                );
            }
        }
    }

    /// Reads a word as [`SharedMemory::load`] does, and touches no other memory: not even what says
    /// that the mapping is broken. A broken mapping reads as zero there, too. So does a word beyond
    /// the line.
    #[inline]
    pub fn peek(&self, offset: u64) -> u64 {
        let Some(line) = self.line else {
            return 0;
        };
        // SAFETY: the pointer was made from a slice of atomics that `_mapping` lends, as
        // `mapped_words` argues, and `_mapping` lives as long as `self`.
        let line = unsafe { line.as_ref() };
        let word = usize::try_from(offset / 8).ok().and_then(|at| line.get(at));
        word.map_or(0, |word| word.load(LOAD))
    }
}

// SAFETY: the line is a part of the mapping, which may be sent, and all accesses to it are atomic.
unsafe impl Send for FirstLine {}
// SAFETY: as above.
unsafe impl Sync for FirstLine {}

// === impl SharedMemory for Mapping ===

impl SharedMemory for Mapping {
    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.words(offset, 1)
            .first()
            .map_or(0, |word| word.load(LOAD))
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.words(offset, 1).first() {
            word.store(value, STORE);
        }
    }

    fn set_bits(&self, offset: u64, bits: u64) -> u64 {
        let words = self.words(offset, 1);
        // Sequentially consistent: see `layout::control::TAKING`.
        words
            .first()
            .map_or(0, |word| word.fetch_or(bits, Ordering::SeqCst))
    }

    fn fill(&self, offset: u64, bytes: u64, value: u64) {
        // In pieces, so that a mapping that breaks meanwhile is noticed: each page of it that is
        // written takes memory.
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        while at < end {
            let count =
                usize::try_from((end - at) / 8).map_or(PIECE_WORDS, |left| left.min(PIECE_WORDS));
            let words = self.words(at, count);
            if words.is_empty() {
                return;
            }
            for word in words {
                // The release store of RELEASED that follows publishes these.
                word.store(value, Ordering::Relaxed);
            }
            at = at.saturating_add(8 * words.len() as u64);
        }
    }

    #[inline]
    fn load_words(&self, offset: u64, into: &mut [u64]) -> usize {
        let words = self.words(offset, into.len());
        for (i, (word, into)) in words.iter().zip(into).enumerate() {
            // Pairs with the trampoline's store of the word's low half.
            *into = word.load(LOAD);
            if *into & 0xffff_ffff == 0 {
                return i;
            }
        }
        words.len()
    }

    fn copy_words(&self, offset: u64, into: &mut [u64]) {
        let words = self.words(offset, into.len());
        for (into, word) in into.iter_mut().zip(words) {
            // The same pair as in `load_words`.
            *into = word.load(LOAD);
        }
    }

    fn find_word(&self, offset: u64, count: u64) -> Option<u64> {
        // Pairs with the trampoline's store of the word's low half.
        self.words(offset, usize::try_from(count).unwrap_or(usize::MAX))
            .iter()
            .position(|word| word.load(LOAD) & 0xffff_ffff != 0)
            .map(|found| found as u64)
    }
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "a helper of the tests")]
mod tests {
    use memmap2::MmapMut;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::{Consumer, Content, Event, Geometry, Item, Outcome, Producer, Table, Target};

    /// A mapping without a file, so that the tests run under miri too.
    fn anonymous(bytes: u64) -> Mapping {
        let map = MmapMut::map_anon(usize::try_from(bytes).unwrap()).unwrap();
        Mapping::guarded(map.into()).unwrap()
    }

    #[test]
    fn the_first_written_word_is_found() {
        let mapping = anonymous(4096);
        assert_eq!(mapping.find_word(8, u64::MAX), None);
        mapping.store(0, 4);
        // Not written yet: the low half comes last.
        mapping.store(16, 1 << 32);
        mapping.store(24, 2);
        assert_eq!(mapping.find_word(0, 1), Some(0));
        assert_eq!(mapping.find_word(8, u64::MAX), Some(2));
        assert_eq!(mapping.find_word(8, 2), None);
        assert_eq!(mapping.find_word(4096, 1), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "a file that is mapped")]
    fn pages_that_were_let_go_keep_their_content() {
        let file = memfd_create(c"pages", MFdFlags::MFD_CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(4 * 4096).unwrap();
        let mapping = Mapping::new(&file, 0, 4 * 4096).unwrap();
        for page in 0..4 {
            mapping.store(page * 4096, page + 1);
        }
        mapping.let_go(4096, 2 * 4096);
        for (offset, bytes) in [(0, 5 * 4096), (u64::MAX, 4096), (4096, u64::MAX)] {
            mapping.let_go(offset, bytes);
        }
        let words = (0..4).map(|page| mapping.load(page * 4096));
        assert_eq!(words.collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn words_out_of_the_mapping_do_not_exist() {
        let mapping = anonymous(4096);
        for offset in [0, 8, 4088] {
            mapping.store(offset, offset + 1);
            assert_eq!(mapping.load(offset), offset + 1);
        }
        for offset in [4096, 4104, 1 << 40, u64::MAX - 7, 1, 4, 4089, u64::MAX] {
            mapping.store(offset, 7);
            assert_eq!(mapping.load(offset), 0, "{offset:#x}");
            assert_eq!(mapping.load_words(offset, &mut [0; 4]), 0, "{offset:#x}");
            mapping.zero(offset, 64);
        }
        for word in 508..512 {
            mapping.store(word * 8, word);
        }
        let mut words = [0; 8];
        assert_eq!(mapping.load_words(508 * 8, &mut words), 4);
        assert_eq!(words[..4], [508, 509, 510, 511]);
        mapping.store(510 * 8, 1 << 32);
        assert_eq!(mapping.load_words(508 * 8, &mut words), 2);
        mapping.zero(509 * 8, u64::MAX);
        assert_eq!((mapping.load(508 * 8), mapping.load(511 * 8)), (508, 0));
    }

    #[test]
    fn a_thread_writes_while_another_reads() {
        const EVENTS: u64 = if cfg!(miri) { 100 } else { 100_000 };
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let mapping = anonymous(geometry.rings_bytes());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let table = Table::new(geometry);
                let target = Target {
                    table: &table,
                    rings: &mapping,
                    geometry,
                };
                let count = |number: &u64| {
                    let event = Event {
                        site: 1,
                        sp: 8 * ((1 << 40) + *number % 10_000),
                        content: Content::Argument(*number),
                    };
                    target.record(geometry.slots(), event, *number) == Outcome::Recorded
                };
                (0..EVENTS).filter(count).count() as u64
            });
            let mut consumer = Consumer::resume(&mapping, geometry, 0);
            let (mut calls, mut lost) = (0, 0);
            let mut take = |item| match item {
                Item::Call {
                    argument,
                    ticks,
                    sp,
                    ..
                } => {
                    assert_eq!((argument, ticks), (Some(ticks), calls + lost));
                    assert_eq!(sp, 8 * ((1 << 40) + ticks % 10_000));
                    calls += 1;
                }
                Item::Lost(count) => lost += count,
                Item::Waited(_) => panic!("no thread waits"),
                Item::Data(data) => panic!("no payload was written: {data:?}"),
            };
            while !writer.is_finished() {
                consumer.drain(&mapping, Producer::Alive, 0, u64::MAX, &mut take);
            }
            consumer.drain(&mapping, Producer::Gone, 0, u64::MAX, &mut take);
            consumer.tell_losses(&mapping, &mut take);
            assert_eq!((calls, calls + lost), (writer.join().unwrap(), EVENTS));
        });
    }
}
