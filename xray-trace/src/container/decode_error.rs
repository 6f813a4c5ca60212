//! Errors in the events of a block: packed events, events that are still in their file, and records
//! of a log.

use std::io;

/// Reasons why a block has no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The block ends inside the event.
    #[error("the event at byte {at} of the block is cut off")]
    Cut {
        /// The begin of the event in the block.
        at: usize,
    },
    /// The event has a kind that does not exist in this version.
    #[error("the event at byte {at} of the block has the unknown kind {kind:#04x}")]
    UnknownKind {
        /// The begin of the event in the block.
        at: usize,
        /// The byte that gives its kind.
        kind: u8,
    },
    /// The event omits its function, and no function is expected.
    #[error("the event at byte {at} of the block omits its function, but no function is expected")]
    NothingExpected {
        /// The begin of the event in the block.
        at: usize,
    },
    /// The block could not be read from its file.
    #[error("cannot read the block from the file: {0}")]
    Unreadable(io::ErrorKind),
    /// The checksum of the block in its file is wrong.
    #[error("the block at byte {section} of the file is damaged: its checksum is wrong")]
    Checksum {
        /// The begin of the block's section in the file.
        section: u64,
    },
    /// A number is too great for its meaning.
    #[error("the event at byte {at} of the block has a number out of range")]
    OutOfRange {
        /// The begin of the event in the block.
        at: usize,
    },
}
