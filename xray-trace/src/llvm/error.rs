//! Errors in logs of LLVM: the record, its offset, and the reason. The readers decide whether they
//! stop at an error or skip the damage.

use std::io;

use super::basic::owner::Owner;
use super::fdr::Kind;
use super::fdr::verify::{Invalid, State};

/// The reasons why a log cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input failed.
    #[error("cannot read the log")]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file ends in its header.
    #[error("the file ends inside its header: it has {has} of {needs} bytes")]
    ShortHeader {
        /// The number of bytes in the file.
        has: usize,
        /// The length of the header.
        needs: usize,
    },
    /// The file is no log of the wanted kind.
    #[error("the file does not have the format {wanted}: its first bytes are {start}")]
    Other {
        /// The wanted kind.
        wanted: &'static str,
        /// The first bytes of the file, in hexadecimal.
        start: String,
    },
    /// The log has a version that is not specified yet.
    #[error(
        "version {version} of the {log} is not supported; the newest supported version is {newest}"
    )]
    Version {
        /// The kind of the log.
        log: &'static str,
        /// Its version.
        version: u64,
        /// The newest version that can be read.
        newest: u64,
    },
    /// The file ends inside a record.
    #[error(
        "{record} record at offset {offset}: the file ends inside it, after {has} of {needs} bytes"
    )]
    Truncated {
        /// The kind of the record.
        record: &'static str,
        /// The offset of the record.
        offset: u64,
        /// The length of the record.
        needs: u64,
        /// The number of its bytes in the file.
        has: u64,
    },
    /// The record has a kind that does not exist.
    #[error("record at offset {offset}: unknown {what} {number}")]
    UnknownKind {
        /// The unknown field: a kind of metadata record, of function record, …
        what: &'static str,
        /// Its value.
        number: u32,
        /// The offset of the record.
        offset: u64,
    },
    /// An EndOfBuffer record in a log whose buffers begin with their length.
    #[error(
        "EndOfBuffer record at offset {offset}: logs of version {version} have no such records"
    )]
    EndOfBuffer {
        /// The offset of the record.
        offset: u64,
        /// The version of the log.
        version: u16,
    },
    /// An event has a negative size.
    #[error("{record} record at offset {offset}: its size {size} is negative")]
    NegativeSize {
        /// The kind of the event.
        record: Kind,
        /// The offset of the record.
        offset: u64,
        /// Its size.
        size: i32,
    },
    /// A part of the log is longer than any writer makes it.
    #[error("{what} at offset {offset}: its {len} bytes exceed the limit of {limit} bytes")]
    TooLong {
        /// The name of the part.
        what: &'static str,
        /// Its offset.
        offset: u64,
        /// Its length.
        len: u64,
        /// The greatest length that is read.
        limit: u64,
    },
    /// A record reaches beyond the end of its buffer.
    #[error(
        "{record} record at offset {offset}: it extends {over} bytes beyond its buffer, which \
         ends at {end}"
    )]
    BeyondBuffer {
        /// The kind of the record.
        record: Kind,
        /// The offset of the record.
        offset: u64,
        /// The end of its buffer.
        end: u64,
        /// The number of bytes beyond the end.
        over: u64,
    },
    /// A buffer begins before the end of the previous one.
    #[error(
        "BufferExtents record at offset {offset}: a buffer begins {missing} bytes before the end \
         of the previous one"
    )]
    BufferInBuffer {
        /// The offset of the record.
        offset: u64,
        /// The number of missing bytes of the previous buffer.
        missing: u64,
    },
    /// The file ends before the end of a buffer.
    #[error(
        "buffer at offset {offset}: the file ends {missing} bytes before the end of the buffer"
    )]
    ShortBuffer {
        /// The offset of the buffer.
        offset: u64,
        /// The number of missing bytes.
        missing: u64,
    },
    /// A buffer has a length that is impossible for a file.
    #[error(
        "BufferExtents record at offset {offset}: a buffer of {size} bytes does not fit into any \
         file"
    )]
    Extents {
        /// The offset of the record.
        offset: u64,
        /// The length.
        size: u64,
    },
    /// There is no buffer where one should begin.
    #[error("offset {offset}: expected a buffer, found the byte {found:#04x}")]
    NoBuffer {
        /// The offset.
        offset: u64,
        /// The byte at this offset.
        found: u8,
    },
    /// Two records are in an order that the format does not allow.
    #[error("{} record at offset {offset}", .why.to)]
    Order {
        /// The offset of the second record.
        offset: u64,
        /// The two records.
        #[source]
        why: Invalid,
    },
    /// A buffer ends before its first event.
    #[error("the buffer that ends at offset {offset} has no event: its last record is {last}")]
    Terminal {
        /// The end of the buffer.
        offset: u64,
        /// Its last record.
        last: State,
    },
    /// An argument does not belong to any entry.
    #[error(
        "argument record at offset {offset}: it does not follow a function entry that it belongs \
         to"
    )]
    Argument {
        /// The offset of the record.
        offset: u64,
    },
    /// An argument belongs to another call than the entry before it.
    #[error(
        "argument record at offset {offset}: it belongs to {argument}, but follows an entry of \
         {entry}"
    )]
    OtherArgument {
        /// The offset of the record.
        offset: u64,
        /// The call of the argument.
        argument: Owner,
        /// The call of the entry before it.
        entry: Owner,
    },
    /// The counter exceeds 64 bits.
    #[error(
        "{record} record at offset {offset}: {base} plus {delta} ticks does not fit into 64 bits"
    )]
    Time {
        /// The kind of the record.
        record: Kind,
        /// The offset of the record.
        offset: u64,
        /// The counter before it.
        base: u64,
        /// The ticks since then.
        delta: i64,
    },
    /// A block of a profile is too short for its content.
    #[error(
        "block at offset {offset}: a path in it ends at {path_end}, but the block ends at \
         {block_end}"
    )]
    PathBeyondBlock {
        /// The offset of the block.
        offset: u64,
        /// The end of the path.
        path_end: u64,
        /// The end of the block.
        block_end: u64,
    },
    /// A text is no YAML, or not the expected YAML.
    #[error("line {line}, column {column}: {why}")]
    Yaml {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The reason.
        why: String,
    },
}

// === impl Error ===

impl Error {
    /// The error for a file that begins with `start` and is not what the caller wants.
    pub(super) fn other(wanted: &'static str, start: &[u8]) -> Self {
        let start = start.iter().take(8).map(|byte| format!("{byte:02x}"));
        Self::Other {
            wanted,
            start: start.collect::<Vec<_>>().join(" "),
        }
    }

    /// Whether the file is damaged. If the input itself fails, there is no point in reading on.
    pub(super) fn is_damage(&self) -> bool {
        !matches!(self, Self::Io(_))
    }
}
