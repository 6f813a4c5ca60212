//! The header that basic and FDR logs share.
//!
//! ```text
//!  0  u16  version
//!  2  u16  type: 0 basic, 1 FDR
//!  4  u32  bit 0 constant counter, bit 1 nonstop counter; the runtime leaves the others undefined
//!  8  u64  ticks of the counter per second, 0 if unknown
//! 16  16 B free: the size of a buffer (u64) in FDR logs, uninitialised in basic ones
//! ```
//!
//! The numbers are in the byte order of the machine that wrote the log. Versions are small, so the
//! place of the version's zero byte shows the order.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;

use super::byte_order::{ByteOrder, field};
use super::error::Error;
use super::format::{Format, PREFIX_LEN};
use super::window::Window;

/// Bytes of the header.
pub const HEADER_LEN: usize = 32;

/// The kind of a log.
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
    /// True if the counter ticks at a constant rate, according to the runtime.
    pub constant_tsc: bool,
    /// True if the counter never stops, according to the runtime.
    pub nonstop_tsc: bool,
    /// Ticks per second, 0 if unknown.
    pub cycle_frequency: u64,
    /// Sixteen bytes whose meaning depends on the format.
    pub free_form: [u8; 16],
    /// The byte order of this header and of all records.
    pub order: ByteOrder,
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
    /// The header of a log as our machines write it, with this number of ticks per second.
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

    /// Decodes the header at the begin of a file.
    ///
    /// # Errors
    ///
    /// If it is incomplete, of another kind, or of an unknown version.
    pub fn parse(start: &[u8], log: LogType) -> Result<Self, Error> {
        let order = match (Format::detect(start), log) {
            (Format::Empty, _) => return Err(Error::Empty),
            (Format::Basic(order), LogType::Basic) | (Format::Fdr(order), LogType::Fdr) => order,
            _ if start.len() < 4 => return Err(short_header(start)),
            _ => {
                return Err(Error::other(log.name(), start));
            }
        };
        if start.len() < HEADER_LEN {
            return Err(short_header(start));
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

    /// The ticks of the counter per second, if known.
    #[must_use]
    pub fn frequency(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.cycle_frequency)
    }

    /// The size of an FDR log's buffers. Only version 1 depends on it.
    #[must_use]
    pub fn buffer_size(&self) -> u64 {
        self.order.u64(&self.free_form, 0)
    }

    /// Writes the header.
    ///
    /// # Errors
    ///
    /// The errors of the output.
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

/// The error for a file that ends in its header.
fn short_header(start: &[u8]) -> Error {
    Error::ShortHeader {
        has: start.len(),
        needs: HEADER_LEN,
    }
}
