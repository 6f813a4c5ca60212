//! The bytes of a file that holds a record.
//!
//! ```text
//!  +0   "xrayd" 0 0 1 | boot id, 16 bytes | pid namespace, 8 bytes | CRC-32 of what follows
//!  +36  the record, a protobuf message
//! ```
//!
//! A record holds for one boot of the kernel and one pid namespace, because a pid and a start time
//! name one process only there.

use std::{fmt, fs, io, os::unix::fs::MetadataExt as _};

use prost::Message as _;

use super::{
    convert::{self, NoRecord},
    message,
};
use crate::process::SessionRecord;

const MAGIC: [u8; 8] = *b"xrayd\0\0\x01";
const BOOT_BYTES: usize = 16;
const HEADER_BYTES: usize = MAGIC.len() + BOOT_BYTES + 8 + 4;

/// Where pids and start times hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PidScope {
    boot: [u8; BOOT_BYTES],
    /// Inode of the pid namespace.
    namespace: u64,
}

/// The reason why a file gives no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The processes that it names do not exist any more.
    #[error("it is of another boot of this machine")]
    Outdated,
    #[error("it is of another pid namespace")]
    Elsewhere,
    #[error("it is of another version of xrayd")]
    OtherVersion,
    #[error("it is damaged: {0}")]
    Damaged(String),
}

// === impl PidScope ===

/// As a part of a file's name: the boot id and the inode, both hexadecimal.
impl fmt::Display for PidScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.boot {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{:x}", self.namespace)
    }
}

impl PidScope {
    /// The scope of this process.
    pub(super) fn this() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: Vec<u32> = text
            .chars()
            .filter_map(|digit| digit.to_digit(16))
            .collect();
        let mut boot = [0; BOOT_BYTES];
        for (byte, pair) in boot.iter_mut().zip(digits.as_chunks::<2>().0) {
            let [high, low] = *pair;
            *byte = u8::try_from(high << 4 | low).unwrap_or_default();
        }
        Ok(Self {
            boot,
            namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
        })
    }
}

/// The bytes of a file with this record.
pub(super) fn write(scope: PidScope, record: &SessionRecord) -> Vec<u8> {
    let message = convert::session(record).encode_to_vec();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + message.len());
    bytes.extend(MAGIC);
    bytes.extend(scope.boot);
    bytes.extend(scope.namespace.to_le_bytes());
    bytes.extend(crc32fast::hash(&message).to_le_bytes());
    bytes.extend(message);
    bytes
}

/// The record in the bytes of a file.
///
/// # Errors
/// The bytes are no record of this scope.
pub(super) fn read(scope: PidScope, bytes: &[u8]) -> Result<SessionRecord, Unusable> {
    let damaged = |what: &str| Unusable::Damaged(what.to_owned());
    let short = || damaged("it is too short");
    let (magic, bytes) = bytes.split_first_chunk().ok_or_else(short)?;
    if *magic != MAGIC {
        return Err(match magic[..5] == MAGIC[..5] {
            true => Unusable::OtherVersion,
            false => damaged("it does not begin as a record does"),
        });
    }
    let (boot, bytes) = bytes.split_first_chunk().ok_or_else(short)?;
    let (namespace, bytes) = bytes.split_first_chunk().ok_or_else(short)?;
    let (sum, message) = bytes.split_first_chunk().ok_or_else(short)?;
    if crc32fast::hash(message) != u32::from_le_bytes(*sum) {
        return Err(damaged("its checksum is wrong"));
    }
    if *boot != scope.boot {
        return Err(Unusable::Outdated);
    }
    if u64::from_le_bytes(*namespace) != scope.namespace {
        return Err(Unusable::Elsewhere);
    }
    let message = message::Session::decode(message).map_err(|error| damaged(&error.to_string()))?;
    convert::record(message).map_err(|error: NoRecord| damaged(&error.to_string()))
}
