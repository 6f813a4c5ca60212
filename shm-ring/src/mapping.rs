//! The rings' memory mapped into the collector.
//!
//! # Safety model
//!
//! The target writes this memory at any time, so no reference to it is ever made: every access is an atomic access through a raw pointer to a whole, aligned
//! 8-byte word whose place was checked against the mapping's length. The mapping is owned and lives as long as the
//! value. A file that is truncated under the mapping would make accesses fault; the file behind it is the target's shared anonymous
//! memory (or a sealed memfd), which has no name and which its owner cannot shrink.

use std::{
    fs::File,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use memmap2::{MmapOptions, MmapRaw};

use crate::memory::SharedMemory;

/// A shared mapping of the rings.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
}

// === impl Mapping ===

impl Mapping {
    /// Maps `bytes` bytes of `file`, which must be the target's rings.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(file: &File, bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let map = MmapOptions::new().len(length).map_raw(file)?;
        Ok(Self { map })
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let offset = usize::try_from(offset).ok()?;
        if offset % 8 != 0 || offset.checked_add(8)? > self.map.len() {
            return None;
        }
        // SAFETY: `offset + 8` was just checked to lie within the mapping, so the addition stays inside it.
        let pointer = unsafe { self.map.as_mut_ptr().add(offset) };
        // SAFETY: the pointer is valid for reads and writes for as long as `self` (it owns the mapping), is 8-byte aligned (mappings
        // are page aligned, the offset is a multiple of 8), and every access of this process to the memory is atomic.
        // The other process is outside the language; its stores are plain x86-64 stores of at most 8 aligned bytes.
        Some(unsafe { AtomicU64::from_ptr(pointer.cast()) })
    }
}

// === impl SharedMemory for Mapping ===

impl SharedMemory for Mapping {
    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    fn zero(&self, offset: u64, bytes: u64) {
        for at in (offset..offset.saturating_add(bytes)).step_by(8) {
            match self.word(at) {
                // The release store of RELEASED that follows publishes these.
                Some(word) => word.store(0, Ordering::Relaxed),
                None => break,
            }
        }
    }
}
