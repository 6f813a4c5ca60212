//! What can be wrong with the events of a block: packed ones, those that are still in their file,
//! and records of a log.

use std::io;

/// Why a block gives no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The block ends inside the event.
    #[error("the event at byte {at} of the block is cut off")]
    Cut {
        /// Where the event begins in the block.
        at: usize,
    },
    /// This version has no such kind.
    #[error("the event at byte {at} of the block has the unknown kind {kind:#04x}")]
    UnknownKind {
        /// Where the event begins in the block.
        at: usize,
        /// The byte that gives its kind.
        kind: u8,
    },
    /// The event leaves out its function, and none is expected.
    #[error("the event at byte {at} of the block leaves out its function, and none is expected")]
    NothingExpected {
        /// Where the event begins in the block.
        at: usize,
    },
    /// The block could not be read from its file.
    #[error("the block cannot be read from the file: {0}")]
    Unreadable(io::ErrorKind),
    /// The checksum of the block in its file is wrong.
    #[error("the block at byte {section} of the file is damaged: its checksum does not fit")]
    Checksum {
        /// Where the block's section begins.
        section: u64,
    },
    /// A number is too great for its meaning.
    #[error("the event at byte {at} of the block has a number out of range")]
    OutOfRange {
        /// Where the event begins in the block.
        at: usize,
    },
}
