//! What can be wrong with a log of LLVM's: which record, where, and why.

use std::io;

use super::basic::owner::Owner;
use super::fdr::Kind;
use super::fdr::verify::{Invalid, State};

/// Why a log cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input failed.
    #[error("cannot read the log")]
    Io(#[from] io::Error),
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// The file ends in its header.
    #[error("the file ends in its header: it has {has} bytes of {needs}")]
    ShortHeader {
        /// How many bytes there are.
        has: usize,
        /// How many the header has.
        needs: usize,
    },
    /// The file is no log of the kind that is wanted.
    #[error("this is no {wanted}: the first bytes are {start}")]
    Other {
        /// What it should have been.
        wanted: &'static str,
        /// How it begins, in hexadecimal.
        start: String,
    },
    /// A log of a version that nobody has described yet.
    #[error(
        "version {version} of the {log} is not supported; the newest that is known is {newest}"
    )]
    Version {
        /// What kind of log.
        log: &'static str,
        /// Its version.
        version: u64,
        /// The newest version that can be read.
        newest: u64,
    },
    /// The file ends inside a record.
    #[error(
        "{record} record at offset {offset}: the file ends in it, after {has} of {needs} bytes"
    )]
    Truncated {
        /// What kind of record.
        record: &'static str,
        /// Where it begins.
        offset: u64,
        /// How many bytes it has.
        needs: u64,
        /// How many of them are there.
        has: u64,
    },
    /// A record of a kind that does not exist.
    #[error("record at offset {offset}: there is no {what} {number}")]
    UnknownKind {
        /// What is unknown: a kind of metadata record, of function record, …
        what: &'static str,
        /// Its number.
        number: u32,
        /// Where the record begins.
        offset: u64,
    },
    /// An end-of-buffer record where buffers state their length in front.
    #[error("EndOfBuffer record at offset {offset}: version {version} of the log has none")]
    EndOfBuffer {
        /// Where.
        offset: u64,
        /// The version of the log.
        version: u16,
    },
    /// An event with a size below zero.
    #[error("{record} record at offset {offset}: its size is {size}")]
    NegativeSize {
        /// What kind of event.
        record: Kind,
        /// Where.
        offset: u64,
        /// Its size.
        size: i32,
    },
    /// Something is longer than any writer makes it.
    #[error("{what} at offset {offset}: it has {len} bytes, more than the {limit} that are read")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Its length.
        len: u64,
        /// The greatest length that is read.
        limit: u64,
    },
    /// A record reaches beyond the end of its buffer.
    #[error(
        "{record} record at offset {offset}: it reaches {over} bytes beyond its buffer, which ends at {end}"
    )]
    BeyondBuffer {
        /// What kind of record.
        record: Kind,
        /// Where it begins.
        offset: u64,
        /// Where its buffer ends.
        end: u64,
        /// How far it reaches beyond.
        over: u64,
    },
    /// A new buffer begins although the old one has not ended.
    #[error(
        "BufferExtents record at offset {offset}: a buffer begins, but the one before goes on for {missing} bytes"
    )]
    BufferInBuffer {
        /// Where.
        offset: u64,
        /// How many bytes are missing of the buffer before.
        missing: u64,
    },
    /// The file ends although a buffer has not ended.
    #[error("buffer at offset {offset}: the file ends in it, {missing} bytes early")]
    ShortBuffer {
        /// Where the buffer begins.
        offset: u64,
        /// How many bytes are missing.
        missing: u64,
    },
    /// A length that no file can have.
    #[error("BufferExtents record at offset {offset}: no file has room for {size} bytes")]
    Extents {
        /// Where.
        offset: u64,
        /// What it says.
        size: u64,
    },
    /// No buffer where one should begin.
    #[error("at offset {offset}, where a buffer should begin, stands the byte {found:#04x}")]
    NoBuffer {
        /// Where.
        offset: u64,
        /// What stands there.
        found: u8,
    },
    /// Records in an order that the format does not have.
    #[error("{} record at offset {offset}", .why.to)]
    Order {
        /// Where.
        offset: u64,
        /// Between which records.
        #[source]
        why: Invalid,
    },
    /// A buffer ends before its first event.
    #[error("the buffer that ends at offset {offset} ends with {last}, which ends none")]
    Terminal {
        /// Where it ends.
        offset: u64,
        /// Its last record.
        last: State,
    },
    /// An argument that belongs to no entry.
    #[error(
        "argument record at offset {offset}: no function entry that it belongs to stands in front of it"
    )]
    Argument {
        /// Where.
        offset: u64,
    },
    /// An argument of another call than the entry in front of it.
    #[error(
        "argument record at offset {offset}: it belongs to {argument}, but behind an entry of {entry}"
    )]
    OtherArgument {
        /// Where.
        offset: u64,
        /// Whose argument it says it is.
        argument: Owner,
        /// Which entry stands in front of it.
        entry: Owner,
    },
    /// The counter leaves its 64 bits.
    #[error("{record} record at offset {offset}: {base} and {delta} ticks are no time")]
    Time {
        /// What kind of record.
        record: Kind,
        /// Where.
        offset: u64,
        /// The time before it.
        base: u64,
        /// The time since.
        delta: i64,
    },
    /// A block of a profile is too short for what it holds.
    #[error(
        "block at offset {offset}: a path in it ends at {path_end}, but the block at {block_end}"
    )]
    PathBeyondBlock {
        /// Where the block begins.
        offset: u64,
        /// Where the path ends.
        path_end: u64,
        /// Where the block ends.
        block_end: u64,
    },
    /// Text that is no YAML.
    #[error("line {line}, column {column}: {why}")]
    Yaml {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
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

    /// Whether going on behind it makes sense: not if the input itself fails.
    pub(super) fn is_damage(&self) -> bool {
        !matches!(self, Self::Io(_))
    }
}
