//! The kind of a file, detected from its first bytes. The readers of the kinds are in the files
//! beside this one.

use super::byte_order::ByteOrder;
use super::profile::MAGIC as PROFILE_MAGIC;
use crate::container;

/// The number of bytes that [`Format::detect`] needs at most.
pub const PREFIX_LEN: usize = 64;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The file is empty.
    Empty,
    /// A basic-mode log.
    Basic(ByteOrder),
    /// A log of the flight data recorder.
    Fdr(ByteOrder),
    /// A profile with the runtime's file header.
    Profile(ByteOrder),
    /// The blocks of a profile without file header. LLVM's own loader reads such files.
    ProfileBlocks(ByteOrder),
    /// YAML: a trace, or an instrumentation map.
    Yaml,
    /// Our own export in JSON lines.
    JsonLines,
    /// Our own export of a trace in CSV.
    Csv,
    /// Trace events in JSON (Chrome's `trace_event`), or other JSON.
    Chrome,
    /// A `perf.data` of `perf record`.
    PerfData,
    /// A folder in the Common Trace Format. No file has it.
    Ctf,
    /// Our own `.xtrace`.
    Xtrace,
    /// Another file.
    Unknown,
}

/// The begin of a `perf.data` of a little-endian machine.
const PERF_MAGIC: &[u8] = b"PERFILE2";

/// The keys of our JSON lines. A line that another tool has written may begin with any of them.
const KEYS_OF_ROWS: [&[u8]; 19] = [
    b"time_ns",
    b"pid",
    b"process",
    b"tid",
    b"thread",
    b"event",
    b"function_id",
    b"function",
    b"module",
    b"arguments",
    b"result",
    b"event_type",
    b"event_type_name",
    b"data",
    b"data_hex",
    b"size",
    b"processor",
    b"lost",
    b"unwound",
];

// === impl Format ===

impl Format {
    /// The kind of a file that begins with these bytes: its first [`PREFIX_LEN`] bytes, or all of a
    /// shorter file.
    #[must_use]
    pub fn detect(start: &[u8]) -> Self {
        if start.is_empty() {
            return Self::Empty;
        }
        if start.starts_with(&container::MAGIC) {
            return Self::Xtrace;
        }
        if start.starts_with(PERF_MAGIC) {
            return Self::PerfData;
        }
        for order in [ByteOrder::Little, ByteOrder::Big] {
            if start.len() >= 8 && order.u64(start, 0) == PROFILE_MAGIC {
                return Self::Profile(order);
            }
            if is_profile_block(order, start) {
                return Self::ProfileBlocks(order);
            }
            let (version, kind) = (order.u16(start, 0), order.u16(start, 2));
            if start.len() >= 4 && (1..=0xff).contains(&version) {
                match kind {
                    0 => return Self::Basic(order),
                    1 => return Self::Fdr(order),
                    _ => {}
                }
            }
        }
        if is_text(start) {
            of_text(start)
        } else {
            Self::Unknown
        }
    }
}

/// The kind of a text, from its first column, its first key or its first brackets. JSON with the
/// first key of LLVM's YAML is such YAML.
fn of_text(start: &[u8]) -> Format {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let start = start.trim_ascii_start();
    if let Some(after) = start.strip_prefix(b"{") {
        let key = after.trim_ascii_start().strip_prefix(b"\"");
        let key = key.map(|key| key.split(|byte| *byte == b'"').next().unwrap_or_default());
        return match key {
            None | Some(b"header") => Format::Yaml,
            Some(key) if KEYS_OF_ROWS.contains(&key) => Format::JsonLines,
            Some(_) => Format::Chrome,
        };
    }
    if let Some(after) = start.strip_prefix(b"[") {
        return match after.trim_ascii_start() {
            [b'{' | b']', ..] => Format::Chrome,
            _ => Format::Yaml,
        };
    }
    let is_csv = [&b"time_ns,"[..], b"\"time_ns\","];
    match is_csv.iter().any(|name| start.starts_with(name)) {
        true => Format::Csv,
        false => Format::Yaml,
    }
}

/// Whether a block has the number 0, a thread id that Linux can have, and a plausible length. The
/// header of a log has a counter's rate in the place of the thread id.
fn is_profile_block(order: ByteOrder, start: &[u8]) -> bool {
    const SMALLEST: u32 = 36;
    const MAX_TID: u64 = 1 << 22;
    start.len() >= 36
        && order.u32(start, 0) >= SMALLEST
        && order.u32(start, 4) == 0
        && (1..=MAX_TID).contains(&order.u64(start, 8))
}

fn is_text(start: &[u8]) -> bool {
    // The last character may be cut.
    let valid = match std::str::from_utf8(start) {
        Ok(_) => start.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return false,
    };
    start[..valid]
        .iter()
        .all(|byte| *byte >= b' ' || b"\t\n\r".contains(byte))
        && valid > 0
}
