//! A block: a stretch of one thread's events, packed. [`BlockEncoder`] packs the events, and
//! [`Events`] unpacks them. The block itself knows the thread, the times and the counts.

use super::encode::{BlockEncoder, EncodedBlock};
use super::events::Events;
use super::payload::Payload;
use crate::model::{FunctionId, ThreadId, Ticks};

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

// === impl BlockEncoder ===

impl BlockEncoder {
    /// Takes the block, if it has events, and begins the next one.
    #[must_use]
    pub fn finish(&mut self) -> Option<Block> {
        let EncodedBlock {
            first,
            last,
            calls,
            lost,
            bytes,
        } = self.take()?;
        Some(Block {
            thread: self.thread(),
            first,
            last,
            calls,
            lost,
            payload: bytes.into(),
        })
    }
}
