//! The common frame of sections about one thread in a time of `CLOCK_MONOTONIC`: run times, and
//! kernel events.
//!
//! ```text
//!  number  thread
//!  number  from: nanoseconds of CLOCK_MONOTONIC
//!  number  length, in nanoseconds
//!  then packed records, each with its time since the record before or `from`
//! ```

use super::section::{FieldError, FieldReader, Fields};
use crate::model::ThreadId;

/// The thread and the time of a section.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedPart {
    pub(super) thread: ThreadId,
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
}

/// Packs the records of one thread.
#[derive(Debug, Clone)]
pub(super) struct PartPacker {
    pub(super) from_ns: u64,
    /// The time of the latest record, or `from_ns`.
    pub(super) last_ns: u64,
    bytes: Vec<u8>,
}

// === impl TimedPart ===

impl TimedPart {
    /// The thread and the time of a section, and the begin of its records.
    pub(super) fn read(payload: &[u8]) -> Result<(Self, usize), FieldError> {
        let mut fields = FieldReader::new(payload);
        let thread = ThreadId(fields.number32("thread")?);
        let from_ns = fields.number("from")?;
        let part = Self {
            thread,
            from_ns,
            until_ns: from_ns.saturating_add(fields.number("length")?),
        };
        Ok((part, fields.position()))
    }

    pub(super) fn put(self, out: &mut Fields<'_>) {
        out.number(self.thread.0)
            .number(self.from_ns)
            .number(self.until_ns.saturating_sub(self.from_ns));
    }
}

// === impl PartPacker ===

impl PartPacker {
    /// A packer without records, for the time from `from_ns` on.
    pub(super) fn new(from_ns: u64) -> Self {
        Self {
            from_ns,
            last_ns: from_ns,
            bytes: Vec::new(),
        }
    }

    /// Begins a record at this time, at most so many nanoseconds after the record before, and not
    /// before that. Returns the nanoseconds since then, and the place for the record's fields.
    pub(super) fn begin(&mut self, at_ns: u64, most_ns: u64) -> (u64, Fields<'_>) {
        let passed = at_ns.saturating_sub(self.last_ns).min(most_ns);
        self.last_ns = self.last_ns.saturating_add(passed);
        (passed, Fields(&mut self.bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The time up to `until_ns`, or to the latest record if that is later, and its records. The
    /// packer continues there.
    pub(super) fn take(&mut self, thread: ThreadId, until_ns: u64) -> (TimedPart, Vec<u8>) {
        let until_ns = until_ns.max(self.last_ns);
        let Self { from_ns, bytes, .. } = std::mem::replace(self, Self::new(until_ns));
        let part = TimedPart {
            thread,
            from_ns,
            until_ns,
        };
        (part, bytes)
    }
}
