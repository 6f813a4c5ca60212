//! A block: consecutive events of one thread, packed. [`BlockEncoder`] packs the events, and
//! [`Events`] unpacks them. The block itself has the thread, the times and the counts.

use super::encode::{BlockEncoder, EncodedBlock};
use super::events::Events;
use super::payload::Payload;
use crate::model::{FunctionId, ThreadId, Ticks};

/// Consecutive events of one thread. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The thread.
    pub thread: ThreadId,
    /// The time of the first event.
    pub first: Ticks,
    /// The time of the last event.
    pub last: Ticks,
    /// The number of call events, for a block from a file as given by its writer.
    pub calls: u32,
    /// The number of lost events, as the sum of the losses in the block.
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

    /// The same events with another thread and other ids of functions, up to the first event that
    /// cannot be unpacked. `None` if there are none.
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

    /// Unpacks the events, in order. Reads them first if they are still in the file. The iterator
    /// ends after the first error.
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
