//! A block: consecutive events of one thread, packed. [`BlockEncoder`] packs the events, and
//! [`Events`] unpacks them. The block itself has the thread, the times and the counts.

use std::fs::File;
use std::sync::Arc;

use super::encode::{BlockEncoder, EncodedBlock};
use super::events::Events;
use super::payload::{FRAME_LEN, Payload};
use super::section::Fields;
use crate::model::{Event, FunctionId, ThreadId, Ticks};

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
        self.moved(thread, number, |ticks| ticks).0
    }

    /// The same with other times as well, which must keep their order. False if an event cannot be
    /// unpacked.
    pub(crate) fn moved(
        &self,
        thread: ThreadId,
        mut number: impl FnMut(FunctionId) -> FunctionId,
        mut at: impl FnMut(Ticks) -> Ticks,
    ) -> (Option<Self>, bool) {
        let mut encoder = BlockEncoder::new(thread);
        let mut events = self.events();
        let is_whole = loop {
            match events.next() {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(event)) => {
                    let event = Event {
                        ticks: at(event.ticks),
                        ..event
                    };
                    encoder.push(&event, &events, &mut number);
                }
            }
        };
        (encoder.finish(), is_whole)
    }

    /// The same block with its events left in `file`, where a [`Writer`](super::Writer) has written
    /// the section of the block at `section`. The events are read and checked when they are needed,
    /// and must not change.
    #[must_use]
    pub fn left_in(&self, file: &Arc<File>, section: u64) -> Self {
        let mut fields = Vec::new();
        self.put_fields(&mut Fields(&mut fields));
        let begin = u32::try_from(FRAME_LEN + fields.len()).unwrap_or(u32::MAX);
        let len = u32::try_from(self.encoded_len()).unwrap_or(u32::MAX);
        Self {
            payload: Payload::in_file(Arc::clone(file), section, begin, len),
            ..self.clone()
        }
    }

    /// Writes what comes before the events in a section.
    pub(super) fn put_fields(&self, fields: &mut Fields<'_>) {
        fields
            .number(self.thread.0)
            .number(self.first.0)
            .number(self.last.0)
            .number(self.calls)
            .number(self.lost);
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
