//! The bytes of a block while its events are packed: heads, numbers, and data.

use super::event_head::{DELTA_BITS, extended, head_kind};
use super::{MAX_DATA_LEN, varint};

/// The most bytes of an event without its data: an advance (head, byte, number), then a head, a
/// byte, a function and six values.
const LONGEST_EVENT: usize = 96;

/// The packed events of a block.
#[derive(Debug, Default)]
pub(super) struct PackedBytes {
    /// The packed events up to `at`; the bytes behind are left over. Kept between blocks.
    bytes: Vec<u8>,
    /// The place of the next byte.
    at: usize,
}

// === impl PackedBytes ===

impl PackedBytes {
    pub(super) fn is_empty(&self) -> bool {
        self.at == 0
    }

    pub(super) fn len(&self) -> usize {
        self.at
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.at]
    }

    /// Removes all bytes, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.at = 0;
    }

    /// Writes the number of bytes, and the bytes. Returns the number of dropped bytes.
    pub(super) fn put_data(&mut self, data: &[u8]) -> usize {
        let kept = &data[..data.len().min(MAX_DATA_LEN)];
        self.put_number(kept.len() as u64);
        if self.bytes.len() < self.at + kept.len() {
            self.bytes.resize(self.at + kept.len() + LONGEST_EVENT, 0);
        }
        self.bytes[self.at..self.at + kept.len()].copy_from_slice(kept);
        self.at += kept.len();
        data.len() - kept.len()
    }

    /// Writes a time that no head has room for. Returns the rest of the time for the event's head.
    pub(super) fn put_advance(&mut self, delta: u64) -> u64 {
        if delta >> DELTA_BITS == 0 {
            return delta;
        }
        self.put_head(head_kind::EXTENDED, 0);
        self.put_byte(extended::ADVANCE);
        self.put_number(delta);
        0
    }

    /// Writes an event's head. It always writes eight bytes, and counts as many as the time needs.
    #[inline]
    pub(super) fn put_head(&mut self, kind: u64, delta: u64) {
        // Times are irregular, so a branch would often be mispredicted. This code has none.
        let above = |most: u64| u8::from(delta > most);
        let (one, two, four) = (above(0xf), above(0xfff), above(0xf_ffff));
        let word = kind | u64::from(one + two + four) << 2 | delta << 4;
        let len = usize::from(1 + one + two + 2 * four);
        self.put(word.to_le_bytes(), len);
    }

    pub(super) fn put_byte(&mut self, byte: u8) {
        self.put([byte], 1);
    }

    pub(super) fn put_number(&mut self, number: u64) {
        let mut bytes = [0; varint::MAX_LEN];
        let len = varint::write(&mut bytes, number);
        self.put(bytes, len);
    }

    /// Writes `bytes`, of which the first `len` count.
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        match self.bytes.get_mut(self.at..self.at + N) {
            Some(room) => room.copy_from_slice(&bytes),
            None => self.grow_and_put(&bytes),
        }
        self.at += len;
    }

    #[cold]
    fn grow_and_put(&mut self, bytes: &[u8]) {
        let len = (self.bytes.len() * 2)
            .max(4096)
            .max(self.at + LONGEST_EVENT);
        self.bytes.resize(len, 0);
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
    }
}
