//! A block: a stretch of one thread's events, packed.
//!
//! An event begins with a head of 1, 2, 3 or 5 bytes, a little-endian number:
//!
//! ```text
//!  bits 0-1  what: 0 exit of the innermost open call, 1 entry as expected, 2 entry of a named function, 3 see the next byte
//!  bits 2-3  length of the head: 0 one byte, 1 two, 2 three, 3 five
//!  bits 4-   ticks since the event before: 4, 12, 20 or 36 bits
//! ```
//!
//! and is followed by what its kind asks for. `docs/trace-format.md` has all of it.

use super::BlockEncoder;
use super::decode::Events;
use super::payload::Payload;
use crate::model::{FunctionId, ThreadId, Ticks};

/// What an event head says, in its lowest two bits.
pub(super) mod what {
    pub(in super::super) const EXIT_INNERMOST: u64 = 0;
    pub(in super::super) const ENTER_EXPECTED: u64 = 1;
    pub(in super::super) const ENTER_NAMED: u64 = 2;
    pub(in super::super) const EXTENDED: u64 = 3;
}

/// The byte after an extended head: a kind in bits 0-1, two flags, and zeros.
pub(super) mod extended {
    pub(in super::super) const ENTER: u8 = 0;
    pub(in super::super) const EXIT: u8 = 1;
    pub(in super::super) const TAIL_EXIT: u8 = 2;
    /// The function is named, after this byte.
    pub(in super::super) const NAMED: u8 = 4;
    /// From this bit on: how many values follow, after the function.
    pub(in super::super) const VALUES_SHIFT: u32 = 3;
    pub(in super::super) const VALUES: u8 = 7 << VALUES_SHIFT;
    /// Events were lost; their number follows.
    pub(in super::super) const LOST: u8 = 3;
    /// Something that the program said: its kind, its length and its bytes follow.
    pub(in super::super) const DATA: u8 = 0x0b;
    /// The same with more about it: its kind, the function that it stands in (1 more than its id; 0 if that is not known), how many bytes the
    /// program said there are, how many are there, and those.
    pub(in super::super) const SAID: u8 = 0x13;
    /// Calls ended without an exit; their number follows.
    pub(in super::super) const UNWOUND: u8 = 0x17;
    /// The exit that comes next is of no call that is open.
    pub(in super::super) const ASTRAY: u8 = 0x1b;
    /// The processor's number follows.
    pub(in super::super) const CPU: u8 = 0x0f;
    /// No event: ticks that the next head has no room for follow.
    pub(in super::super) const ADVANCE: u8 = 7;
}

/// Ticks that the longest head has room for, in bits.
pub(super) const DELTA_BITS: u32 = 36;

/// The length of a head, by its length code.
pub(super) const HEAD_LEN: [usize; 4] = [1, 2, 3, 5];

/// A finished stretch of one thread's events. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Whose events these are.
    pub thread: ThreadId,
    /// When the first happened.
    pub first: Ticks,
    /// When the last happened.
    pub last: Ticks,
    /// How many call events there are. In a block read from a file: how many its writer said there are.
    pub calls: u32,
    /// How many events are said to be lost, summed over the block.
    pub lost: u64,
    /// The packed events.
    pub payload: Payload,
}

// === impl Block ===

impl Block {
    /// The length of the packed events, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.payload.len()
    }

    /// The same events of another thread, their functions by other numbers; up to the first that cannot be unpacked. `None` if there are none.
    #[must_use]
    pub fn renumbered(
        &self,
        thread: ThreadId,
        number: impl Fn(FunctionId) -> FunctionId,
    ) -> Option<Self> {
        let mut encoder = BlockEncoder::new(thread);
        let mut events = self.events();
        while let Some(Ok(event)) = events.next() {
            encoder.push(&event, &events, &number);
        }
        encoder.finish()
    }

    /// Unpacks the events, in order; reads them first if they are still in the file. After the first error there are no more.
    #[must_use]
    pub fn events(&self) -> Events {
        self.payload.events(self.first)
    }
}
