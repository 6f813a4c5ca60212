//! The list of a log's buffers: thread, begin and offset of each. With it a reader can read the
//! buffers of one thread in order of time.
//!
//! The wall clock gives the order in which a thread has filled its buffers. If it has not advanced,
//! the counter does.

use std::io::Read;

use super::{Buffer, Events};
use crate::llvm::Error;

/// A buffer with events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its offset, its thread, and its begin.
    pub buffer: Buffer,
    /// Its length in bytes, up to the end of its last event.
    pub len: u64,
    /// The counter at its last event.
    pub last: u64,
    /// The number of its events: calls, exits, arguments and user events.
    pub events: u64,
}

/// Goes through a log and lists its buffers, in the order of the file. Each takes less than 100
/// bytes of memory.
///
/// # Errors
///
/// The errors of [`Events::next`].
pub fn blocks<R: Read>(events: &mut Events<R>) -> Result<Vec<BlockInfo>, Error> {
    let mut blocks = Vec::<BlockInfo>::new();
    let mut current = None;
    while let Some(event) = events.next()? {
        let last = event.tsc;
        let (buffer, end) = (*events.buffer(), events.offset());
        if current != Some(buffer.offset) {
            current = Some(buffer.offset);
            blocks.push(BlockInfo {
                buffer,
                len: 0,
                last,
                events: 0,
            });
        }
        if let Some(block) = blocks.last_mut() {
            block.last = last;
            block.len = end.saturating_sub(buffer.offset);
            block.events += 1;
        }
    }
    Ok(blocks)
}
