//! The kinds of sections, and the encoding of their fields. The fields of each kind are in
//! `tables`.

use std::fmt;

use super::varint::{self, VarintError};
use super::{MAX_SECTION_LEN, MAX_TEXT_LEN};
use crate::model::Ticks;

/// A kind of section: four bytes, readable in a dump.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SectionKind(pub [u8; 4]);

// === impl SectionKind ===

impl SectionKind {
    /// A process.
    pub const PROCESS: Self = Self(*b"PROC");
    /// The origin of a process.
    pub const ORIGIN: Self = Self(*b"ORIG");
    /// A module.
    pub const MODULE: Self = Self(*b"MODL");
    /// A time for which a module was loaded.
    pub const LIFETIME: Self = Self(*b"LIFE");
    /// A time for which a function was suppressed to keep to a budget.
    pub const SUPPRESSION: Self = Self(*b"SUPP");
    /// A time of a duty cycle in which all functions recorded.
    pub const DUTY: Self = Self(*b"DUTY");
    /// A filter that was in force from a moment on.
    pub const FILTER: Self = Self(*b"FILT");
    /// A time in which an unknown number of events was lost.
    pub const GAP: Self = Self(*b"GAPS");
    /// A function.
    pub const FUNCTION: Self = Self(*b"FUNC");
    /// A thread.
    pub const THREAD: Self = Self(*b"THRD");
    /// The name of a typed event's type.
    pub const EVENT_TYPE: Self = Self(*b"ETYP");
    /// A clock anchor.
    pub const ANCHOR: Self = Self(*b"ANCH");
    /// A block of events.
    pub const BLOCK: Self = Self(*b"BLCK");
    /// A time in which a thread waited for the tracer.
    pub const WAIT: Self = Self(*b"WAIT");
    /// Losses whose place among the events is unknown.
    pub const LOST: Self = Self(*b"LOST");
    /// Events that newer ones have overwritten.
    pub const OVERWRITTEN: Self = Self(*b"OVWR");
    /// The window of a snapshot.
    pub const SNAPSHOT: Self = Self(*b"SNAP");
    /// The time of a recording of a process with other recordings.
    pub const RECORDING: Self = Self(*b"RECD");
    /// The calls that are open at the begins of blocks.
    pub const OPEN: Self = Self(*b"OPEN");
    /// When a thread had a processor.
    pub const RUNS: Self = Self(*b"RUNS");
    /// A kernel tracepoint.
    pub const TRACEPOINT: Self = Self(*b"TRPT");
    /// Events of kernel tracepoints.
    pub const KERNEL: Self = Self(*b"KERN");
    /// Sums of calls, by stack.
    pub const PROFILE: Self = Self(*b"PROF");
    /// The end of a finished trace.
    pub const END: Self = Self(*b"END ");
}

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectionKind({self})")
    }
}

/// Appends the fields of a section.
#[derive(Debug)]
pub struct Fields<'a>(pub(super) &'a mut Vec<u8>);

// === impl Fields ===

impl Fields<'_> {
    pub(super) fn number(&mut self, value: impl Into<u64>) -> &mut Self {
        varint::put(self.0, value.into());
        self
    }

    /// Appends bytes after their length, at most as many as a reader accepts.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let bytes = &bytes[..bytes.len().min(MAX_TEXT_LEN)];
        varint::put(self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a text. A text that is longer than a reader accepts is cut at a character's
    /// boundary.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let whole = (0..=text.len().min(MAX_TEXT_LEN))
            .rev()
            .find(|at| text.is_char_boundary(*at));
        self.bytes(&text.as_bytes()[..whole.unwrap_or(0)])
    }

    /// Appends 1 and the moment, or 0 for none.
    pub(super) fn optional_ticks(&mut self, ticks: Option<Ticks>) -> &mut Self {
        self.optional_number(ticks.map(|ticks| ticks.0))
    }

    /// Appends 1 and the number, or 0 for none.
    pub(super) fn optional_number(&mut self, number: Option<u64>) -> &mut Self {
        match number {
            None => self.number(0_u8),
            Some(number) => self.number(1_u8).number(number),
        }
    }

    /// Appends 1 and the text, or 0 for none.
    pub(super) fn optional_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            None => self.number(0_u8),
            Some(text) => self.number(1_u8).text(text),
        }
    }
}

/// Reads the fields of a section in order. Bytes behind the last field that is read belong to a
/// later minor revision of the format, and are ignored.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    payload: &'a [u8],
    at: usize,
}

/// The reason why a field cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldError {
    /// The offset in the payload.
    pub(super) at: usize,
    /// The reason.
    pub(super) reason: String,
    /// Whether more bytes might have helped.
    pub(super) short: bool,
}

// === impl FieldReader ===

impl<'a> FieldReader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        debug_assert!(
            payload.len() <= MAX_SECTION_LEN,
            "the frame was checked before"
        );
        Self { payload, at: 0 }
    }

    /// True if no field follows.
    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.payload.len()
    }

    /// The begin of the next field.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn error(&self, field: &str, problem: &str) -> FieldError {
        FieldError {
            at: self.at,
            reason: format!("{field}: {problem}"),
            short: false,
        }
    }

    pub(super) fn number(&mut self, field: &str) -> Result<u64, FieldError> {
        let rest = self.payload.get(self.at..).unwrap_or_default();
        let (value, len) = varint::read(rest).map_err(|error| match error {
            VarintError::Short => FieldError {
                short: true,
                ..self.error(field, "the section ends inside this field")
            },
            VarintError::TooLong => self.error(field, "the number does not fit into 64 bits"),
        })?;
        self.at += len;
        Ok(value)
    }

    pub(super) fn number32(&mut self, field: &str) -> Result<u32, FieldError> {
        self.narrow(field, "32 bits")
    }

    pub(super) fn number16(&mut self, field: &str) -> Result<u16, FieldError> {
        self.narrow(field, "16 bits")
    }

    fn narrow<N: TryFrom<u64>>(&mut self, field: &str, width: &str) -> Result<N, FieldError> {
        let start = self.at;
        let value = self.number(field)?;
        N::try_from(value).map_err(|_| FieldError {
            at: start,
            ..self.error(field, &format!("{value} does not fit into {width}"))
        })
    }

    pub(super) fn bytes(&mut self, field: &str) -> Result<&'a [u8], FieldError> {
        let start = self.at;
        let len = self.number(field)?;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= MAX_TEXT_LEN)
            .ok_or_else(|| {
                let problem =
                    format!("its length is {len} bytes, but the maximum is {MAX_TEXT_LEN}");
                FieldError {
                    at: start,
                    ..self.error(field, &problem)
                }
            })?;
        let bytes = self
            .payload
            .get(self.at..self.at + len)
            .ok_or_else(|| FieldError {
                short: true,
                ..self.error(field, "the section ends inside this field")
            })?;
        self.at += len;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, field: &str) -> Result<String, FieldError> {
        let start = self.at;
        let bytes = self.bytes(field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(FieldError {
                at: start,
                ..self.error(field, "not UTF-8")
            }),
        }
    }

    pub(super) fn present(&mut self, field: &str) -> Result<bool, FieldError> {
        let start = self.at;
        match self.number(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(FieldError {
                at: start,
                ..self.error(
                    field,
                    &format!("{other} is neither 0 (absent) nor 1 (present)"),
                )
            }),
        }
    }

    pub(super) fn optional_ticks(&mut self, field: &str) -> Result<Option<Ticks>, FieldError> {
        Ok(self.optional_number(field)?.map(Ticks))
    }

    pub(super) fn optional_number(&mut self, field: &str) -> Result<Option<u64>, FieldError> {
        if self.present(field)? {
            self.number(field).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(super) fn optional_text(&mut self, field: &str) -> Result<Option<String>, FieldError> {
        if self.present(field)? {
            self.text(field).map(Some)
        } else {
            Ok(None)
        }
    }
}
