//! The buffers of a log: whose they are, when they began and where they stand, so that a reader can take those of one
//! thread in the order of time.
//!
//! The wall clock says in which order a thread has filled its buffers; the counter does where it has not moved on.

use std::io::Read;

use super::{Buffer, Events};
use crate::llvm::Error;

/// A buffer of a log that has events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Where it stands, whose it is, and when it began.
    pub buffer: Buffer,
    /// How many bytes it has, up to the end of its last event.
    pub len: u64,
    /// The counter at its last event.
    pub last: u64,
    /// Events: calls, exits, arguments and the program's own.
    pub events: u64,
}

/// Goes through a log and lists its buffers, in the order of the file. What it needs for each is less than
/// 100 bytes.
///
/// # Errors
///
/// Those of [`Events::next`].
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
