//! Decodes records from bytes that [`Events`](super::Events) or [`Reader`](super::Reader) has read
//! and checked before.

use std::ops::Range;

use super::record::{FUNCTION_LEN, METADATA_LEN};
use super::{BitOrder, FunctionKind, Kind, Record};
use crate::llvm::ByteOrder;

/// The layout of a log's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    order: ByteOrder,
    bits: BitOrder,
    version: u16,
}

/// A function record of a log with a plain layout, see [`Layout::is_plain`].
#[derive(Debug, Clone, Copy)]
pub struct PlainCall(u64);

// === impl Layout ===

impl Layout {
    pub(super) fn new(order: ByteOrder, bits: BitOrder, version: u16) -> Self {
        Self {
            order,
            bits,
            version,
        }
    }

    /// The usual layout of logs with this version: little-endian, with bits numbered from the low
    /// end.
    #[must_use]
    pub fn plain(version: u16) -> Self {
        Self::new(ByteOrder::Little, BitOrder::LowFirst, version)
    }

    /// Whether function records have the usual layout, so that [`PlainCall`] can read them.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.order == ByteOrder::Little && self.bits == BitOrder::LowFirst
    }

    /// The version of the log.
    #[must_use]
    pub fn version(self) -> u16 {
        self.version
    }

    /// The record at the begin of these bytes, the range of its payload in them, and its length.
    /// `None` if the bytes contain no whole record.
    #[must_use]
    pub fn record(self, bytes: &[u8]) -> Option<(Record<Range<usize>>, usize)> {
        let Some(number) = self.bits.metadata(*bytes.first()?) else {
            let bytes = bytes.first_chunk::<FUNCTION_LEN>()?;
            let (kind, function) = self.bits.function(self.order.u32(bytes, 0));
            let record = Record::Function {
                kind: FunctionKind::from_number(kind)?,
                function,
                delta: self.order.u32(bytes, 4),
            };
            return Some((record, FUNCTION_LEN));
        };
        let kind = Kind::from_number(number)?;
        let [_, fields @ ..] = bytes.first_chunk::<METADATA_LEN>()?;
        let record = Record::metadata(kind, fields, self.order, self.version)?;
        let size = usize::try_from(record.payload().unwrap_or(0)).ok()?;
        let payload = METADATA_LEN..METADATA_LEN.checked_add(size)?;
        bytes.get(payload.clone())?;
        let len = payload.end;
        Some((record.map(|_| payload), len))
    }
}

// === impl PlainCall ===

impl PlainCall {
    /// Its length in bytes.
    pub const LEN: usize = FUNCTION_LEN;

    /// The record in these bytes, if it is a function record of a known kind.
    #[inline(always)]
    #[must_use]
    pub fn new(bytes: [u8; Self::LEN]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        (word & 9 == 0).then_some(Self(word))
    }

    /// The kind of the record.
    #[inline(always)]
    #[must_use]
    pub fn kind(self) -> FunctionKind {
        match self.0 >> 1 & 3 {
            0 => FunctionKind::Enter,
            1 => FunctionKind::Exit,
            2 => FunctionKind::TailExit,
            _ => FunctionKind::EnterArg,
        }
    }

    /// The function's id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "28 bits are wanted")]
    #[must_use]
    pub fn function(self) -> u32 {
        self.0 as u32 >> 4
    }

    /// Ticks since the previous record.
    #[inline(always)]
    #[must_use]
    pub fn delta(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the record that begins with this byte is an argument.
    #[inline(always)]
    #[must_use]
    pub fn is_argument(first: u8) -> bool {
        first == BitOrder::LowFirst.first_byte(6)
    }
}
