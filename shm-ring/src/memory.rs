//! Access to the rings' memory, which another process writes. The mapping itself is in
//! `mapping.rs`.

use crate::sync::Ordering;

/// The ordering of reads. Pairs with [`STORE`], and with the trampolines' stores of a ring word's
/// low half and of a control line's fields.
pub const LOAD: Ordering = Ordering::Acquire;
/// The ordering of a write that publishes everything written before it. Pairs with [`LOAD`], and
/// with the trampolines' load of RELEASED.
pub const STORE: Ordering = Ordering::Release;

/// Half of a word. Trampolines store the halves of a ring's word one by one. The low one is last:
/// it makes the word whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// Bits 32..64.
    High,
    /// Bits 0..32.
    Low,
}

/// The rings' mapping, as the consumer sees it: whole 8-byte words at offsets that are multiples of
/// 8.
///
/// An offset beyond the memory reads as 0, and a write there does nothing: offsets come from a
/// [`crate::Geometry`], and the memory may be smaller than a stranger's geometry claims.
pub trait SharedMemory {
    /// Reads a word. Later reads see at least everything that the writer of the word wrote before
    /// it.
    fn load(&self, offset: u64) -> u64;
    /// Writes a word. Every reader of it sees everything that was written here before it.
    fn store(&self, offset: u64, value: u64);
    /// Writes one half of a word that has no other writer.
    fn store_half(&self, offset: u64, half: Half, value: u32) {
        let (word, value) = (self.load(offset), u64::from(value));
        let whole = match half {
            Half::High => word & 0xffff_ffff | value << 32,
            Half::Low => word & !0xffff_ffff | value,
        };
        self.store(offset, whole);
    }
    /// Sets bits of a word and returns its value before. If another thread writes another word and
    /// then reads this one, and the caller reads that other word after this call, then at least one
    /// of the two reads returns the new value.
    fn set_bits(&self, offset: u64, bits: u64) -> u64 {
        let word = self.load(offset);
        self.store(offset, word | bits);
        word
    }
    /// Writes a word if it has the expected value, and returns true if it had. Only the thread that
    /// calls this and its signal handlers write the word.
    fn exchange(&self, offset: u64, expected: u64, value: u64) -> bool {
        let same = self.load(offset) == expected;
        if same {
            self.store(offset, value);
        }
        same
    }
    /// Writes the same word all over `bytes` bytes (a multiple of 8).
    fn fill(&self, offset: u64, bytes: u64, word: u64);
    /// Zeroes `bytes` bytes (a multiple of 8).
    fn zero(&self, offset: u64, bytes: u64) {
        self.fill(offset, bytes, 0);
    }

    /// Reads words into `into` up to the first one whose low half is 0, and returns their number.
    fn load_words(&self, offset: u64, into: &mut [u64]) -> usize {
        for (i, word) in into.iter_mut().enumerate() {
            *word = self.load(offset + 8 * i as u64);
            if *word & 0xffff_ffff == 0 {
                return i;
            }
        }
        into.len()
    }

    /// Reads words, empty ones too. Later reads see at least everything that the writers of these
    /// words wrote before them.
    fn copy_words(&self, offset: u64, into: &mut [u64]) {
        for (i, word) in into.iter_mut().enumerate() {
            *word = self.load(offset + 8 * i as u64);
        }
    }

    /// The index of the first word whose low half is not 0, among `count` words from `offset` on.
    fn find_word(&self, offset: u64, count: u64) -> Option<u64> {
        (0..count).find(|i| self.load(offset + 8 * i) & 0xffff_ffff != 0)
    }
}
