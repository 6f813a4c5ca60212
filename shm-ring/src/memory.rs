//! Access to the rings' memory, which another process writes.

/// The rings' mapping, as the consumer sees it: whole 8-byte words at offsets that are multiples of 8.
///
/// An offset beyond the memory reads as 0 and is not written: offsets come from a [`crate::Geometry`] and the memory
/// may be smaller than a stranger's geometry says.
pub trait SharedMemory {
    /// Reads a word; later reads see at least what the writer of the word had written before it.
    fn load(&self, offset: u64) -> u64;
    /// Writes a word; whoever reads it sees everything that was written here before it.
    fn store(&self, offset: u64, value: u64);
    /// Zeroes `bytes` bytes (a multiple of 8).
    fn zero(&self, offset: u64, bytes: u64);

    /// Reads words into `into` up to the first one whose low half is 0, and says how many were read.
    fn load_words(&self, offset: u64, into: &mut [u64]) -> usize {
        for (i, word) in into.iter_mut().enumerate() {
            *word = self.load(offset + 8 * i as u64);
            if *word & 0xffff_ffff == 0 {
                return i;
            }
        }
        into.len()
    }

    /// Which of `count` words from `offset` on is the first one whose low half is not 0, counted from 0.
    fn find_word(&self, offset: u64, count: u64) -> Option<u64> {
        (0..count).find(|i| self.load(offset + 8 * i) & 0xffff_ffff != 0)
    }
}
