//! What kind of file it is, told from its first bytes, and the header that basic and FDR logs share.
//!
//! ```text
//!  0  u16  version
//!  2  u16  type: 0 basic, 1 FDR
//!  4  u32  bit 0 constant counter, bit 1 nonstop counter; the runtime leaves the others as they were in memory
//!  8  u64  ticks of the counter per second, 0 if unknown
//! 16  16 B free: the size of a buffer (u64) in FDR logs, what was in memory in basic ones
//! ```
//!
//! In the byte order of the machine that wrote it: versions are small, so the version's zero byte tells which.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;

use super::Error;
use super::window::Window;
use crate::container;

/// Bytes of the header.
pub const HEADER_LEN: usize = 32;

/// Bytes that are enough for [`Format::detect`].
pub const PREFIX_LEN: usize = 64;

/// The order of the bytes of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest first.
    Little,
    /// The highest first.
    Big,
}

/// What kind of file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// There is nothing in it.
    Empty,
    /// A basic-mode log.
    Basic(ByteOrder),
    /// A log of the flight data recorder.
    Fdr(ByteOrder),
    /// A profile, with the runtime's file header.
    Profile(ByteOrder),
    /// Blocks of a profile without file header, as LLVM's own loader wants them.
    ProfileBlocks(ByteOrder),
    /// YAML: a trace, or an instrumentation map.
    Yaml,
    /// Our own `.xtrace`.
    Xtrace,
    /// None of these.
    Unknown,
}

/// Whether a log is of basic mode or of the flight data recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogType {
    /// Basic mode.
    Basic,
    /// The flight data recorder.
    Fdr,
}

/// The header of a basic or FDR log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The version of the format.
    pub version: u16,
    /// The format.
    pub log: LogType,
    /// The counter ticks at a constant rate, or so the runtime says.
    pub constant_tsc: bool,
    /// The counter never stops, or so the runtime says.
    pub nonstop_tsc: bool,
    /// Ticks per second, 0 if unknown.
    pub cycle_frequency: u64,
    /// Sixteen bytes whose meaning depends on the format.
    pub free_form: [u8; 16],
    /// In which order the bytes of this header and of all records are.
    pub order: ByteOrder,
}

// === impl ByteOrder ===

impl ByteOrder {
    #[inline]
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(super) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let bytes = field(bytes, at);
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(super) fn i32(self, bytes: &[u8], at: usize) -> i32 {
        self.u32(bytes, at).cast_signed()
    }

    pub(super) fn put_u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn put_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(super) fn put_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Some bytes of a record. Callers have made sure that they are there; zeros stand in for what is not.
#[inline]
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

// === impl Format ===

impl Format {
    /// Tells what a file is from its first [`PREFIX_LEN`] bytes, or all it has.
    #[must_use]
    pub fn detect(start: &[u8]) -> Self {
        if start.is_empty() {
            return Self::Empty;
        }
        if start.starts_with(&container::MAGIC) {
            return Self::Xtrace;
        }
        for order in [ByteOrder::Little, ByteOrder::Big] {
            if start.len() >= 8 && order.u64(start, 0) == super::profile::MAGIC {
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
            Self::Yaml
        } else {
            Self::Unknown
        }
    }
}

/// A block number of 0, a thread id that Linux can have and a plausible length. A log's header has a counter's rate in
/// the place of the thread id.
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

// === impl LogType ===

impl LogType {
    fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic-mode log",
            Self::Fdr => "FDR log",
        }
    }

    fn newest(self) -> u16 {
        match self {
            Self::Basic => 3,
            Self::Fdr => 5,
        }
    }
}

// === impl Header ===

impl Header {
    /// The header of a log as our machines write it, whose counter ticks so often a second.
    #[must_use]
    pub fn new(log: LogType, version: u16, cycle_frequency: u64) -> Self {
        Self {
            version,
            log,
            constant_tsc: true,
            nonstop_tsc: true,
            cycle_frequency,
            free_form: [0; 16],
            order: ByteOrder::Little,
        }
    }

    /// Reads it from the first bytes of a file.
    ///
    /// # Errors
    ///
    /// If it is not all there, is of another kind, or of a version that is not known.
    pub fn parse(start: &[u8], log: LogType) -> Result<Self, Error> {
        let order = match (Format::detect(start), log) {
            (Format::Empty, _) => return Err(Error::Empty),
            (Format::Basic(order), LogType::Basic) | (Format::Fdr(order), LogType::Fdr) => order,
            _ if start.len() < 4 => return Err(Error::short_header(start)),
            _ => {
                return Err(Error::Other {
                    wanted: log.name(),
                    start: hex(start),
                });
            }
        };
        if start.len() < HEADER_LEN {
            return Err(Error::short_header(start));
        }
        let version = order.u16(start, 0);
        if version > log.newest() {
            return Err(Error::Version {
                log: log.name(),
                version: version.into(),
                newest: log.newest().into(),
            });
        }
        let flags = order.u32(start, 4);
        Ok(Self {
            version,
            log,
            constant_tsc: flags & 1 != 0,
            nonstop_tsc: flags & 2 != 0,
            cycle_frequency: order.u64(start, 8),
            free_form: field(start, 16),
            order,
        })
    }

    /// How often the counter ticks in a second, if that is known.
    #[must_use]
    pub fn frequency(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.cycle_frequency)
    }

    /// The size of an FDR log's buffers; only version 1 depends on it.
    #[must_use]
    pub fn buffer_size(&self) -> u64 {
        self.order.u64(&self.free_form, 0)
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn write(&self, output: &mut dyn Write) -> io::Result<()> {
        let Self {
            version,
            log,
            constant_tsc,
            nonstop_tsc,
            cycle_frequency,
            free_form,
            order,
        } = self;
        let kind = match log {
            LogType::Basic => 0,
            LogType::Fdr => 1,
        };
        let flags = u32::from(*constant_tsc) | u32::from(*nonstop_tsc) << 1;
        output.write_all(&order.put_u16(*version))?;
        output.write_all(&order.put_u16(kind))?;
        output.write_all(&order.put_u32(flags))?;
        output.write_all(&order.put_u64(*cycle_frequency))?;
        output.write_all(free_form)
    }

    pub(super) fn read<R: Read>(window: &mut Window<R>, log: LogType) -> Result<Self, Error> {
        let start = window.ahead(PREFIX_LEN)?;
        let header = Self::parse(&start[..start.len().min(PREFIX_LEN)], log)?;
        window.take(HEADER_LEN);
        Ok(header)
    }
}

/// The first bytes for an error message.
pub(super) fn hex(bytes: &[u8]) -> String {
    let bytes = bytes.iter().take(8).map(|byte| format!("{byte:02x}"));
    bytes.collect::<Vec<_>>().join(" ")
}
