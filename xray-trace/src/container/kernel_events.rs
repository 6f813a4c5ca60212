//! The sections of kernel events: what the kernel's tracepoints recorded of one thread.
//!
//! ```text
//!  number  thread
//!  number  from: nanoseconds of CLOCK_MONOTONIC
//!  number  length, in nanoseconds
//!  then records, each:
//!  number  nanoseconds since the record before or `from`
//!  number  the tracepoint, + 1; 0: events are missing here
//!  bytes   the event's data; in place of it, if events are missing:
//!  number  how many, at most
//! ```

use std::sync::Arc;

use super::payload::Payload;
use super::section::{FieldError, FieldReader, Fields};
use super::timed_part::{PartPacker, TimedPart};
use crate::model::ThreadId;

/// All events of a thread's tracepoints in a time: one section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPart {
    /// The thread.
    pub thread: ThreadId,
    /// The begin of the time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub from_ns: u64,
    /// The end of the time, likewise.
    pub until_ns: u64,
    /// The packed records.
    pub events: Payload,
}

/// A record of a thread's tracepoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRecord {
    /// The time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
    /// What was recorded.
    pub what: KernelRecordKind,
}

/// What a record of a thread's tracepoints holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelRecordKind {
    /// An event.
    Event {
        /// The number of the tracepoint in the trace.
        tracepoint: u16,
        /// The place of the data in the packed records: first byte and length.
        data: (usize, usize),
    },
    /// Events are missing between this record and the next one.
    Lost {
        /// Their greatest possible number.
        events: u64,
    },
}

/// Reads the records of a part in order. It ends before the first one that is damaged.
#[derive(Debug)]
pub struct KernelRecords {
    bytes: Arc<[u8]>,
    at: usize,
    at_ns: u64,
}

/// Packs the records of one thread.
#[derive(Debug, Clone)]
pub struct KernelEncoder(PartPacker);

// === impl KernelPart ===

impl KernelPart {
    fn of(part: TimedPart, events: impl Into<Arc<[u8]>>) -> Self {
        Self {
            thread: part.thread,
            from_ns: part.from_ns,
            until_ns: part.until_ns,
            events: Payload::from(events),
        }
    }

    /// Its records. There are none if they cannot be read from the file, or are damaged.
    #[must_use]
    pub fn records(&self) -> KernelRecords {
        KernelRecords {
            bytes: self.events.load().unwrap_or_default(),
            at: 0,
            at_ns: self.from_ns,
        }
    }

    /// The same part, with other numbers for the tracepoints.
    #[cfg(feature = "import")]
    pub(crate) fn renumbered(&self, number: impl Fn(u16) -> u16) -> Self {
        let mut encoder = KernelEncoder::new(self.from_ns);
        let mut records = self.records();
        while let Some(KernelRecord { at_ns, what }) = records.next() {
            match what {
                KernelRecordKind::Event { tracepoint, data } => {
                    encoder.push(at_ns, number(tracepoint), records.data(data));
                }
                KernelRecordKind::Lost { events } => encoder.push_lost(at_ns, events),
            }
        }
        encoder.take(self.thread, self.until_ns)
    }
}

// === impl KernelRecords ===

impl KernelRecords {
    /// The data of an event, by its place.
    #[must_use]
    pub fn data(&self, (first, len): (usize, usize)) -> &[u8] {
        let data = self.bytes.get(first..first.saturating_add(len));
        data.unwrap_or_default()
    }

    fn read(&self) -> Result<(KernelRecord, usize), FieldError> {
        let mut fields = FieldReader::new(self.bytes.get(self.at..).unwrap_or_default());
        let at_ns = self.at_ns.saturating_add(fields.number("time")?);
        let tracepoint = fields.number("tracepoint")?;
        let what = match tracepoint.checked_sub(1) {
            None => KernelRecordKind::Lost {
                events: fields.number("events")?,
            },
            Some(tracepoint) => {
                let tracepoint = u16::try_from(tracepoint).map_err(|_| FieldError {
                    at: self.at,
                    reason: format!("{tracepoint} is no tracepoint's number"),
                    short: false,
                })?;
                let len = fields.bytes("data")?.len();
                let end = self.at.saturating_add(fields.position());
                KernelRecordKind::Event {
                    tracepoint,
                    data: (end.saturating_sub(len), len),
                }
            }
        };
        Ok((KernelRecord { at_ns, what }, fields.position()))
    }
}

impl Iterator for KernelRecords {
    type Item = KernelRecord;

    fn next(&mut self) -> Option<KernelRecord> {
        if self.at >= self.bytes.len() {
            return None;
        }
        if let Ok((record, len)) = self.read() {
            self.at = self.at.saturating_add(len);
            self.at_ns = record.at_ns;
            return Some(record);
        }
        self.at = self.bytes.len();
        None
    }
}

// === impl KernelEncoder ===

impl KernelEncoder {
    /// An encoder without records, for the time from `from_ns` on.
    #[must_use]
    pub fn new(from_ns: u64) -> Self {
        Self(PartPacker::new(from_ns))
    }

    /// Adds an event with this data, of which at most 64 KiB are kept. An event that is not after
    /// the record before counts as at the same time.
    pub fn push(&mut self, at_ns: u64, tracepoint: u16, data: &[u8]) {
        self.begin(at_ns)
            .number(u32::from(tracepoint) + 1)
            .bytes(data);
    }

    /// Records that events are missing after the latest record, this number at most.
    pub fn push_lost(&mut self, at_ns: u64, events: u64) {
        self.begin(at_ns).number(0_u8).number(events);
    }

    fn begin(&mut self, at_ns: u64) -> Fields<'_> {
        let (passed, mut fields) = self.0.begin(at_ns, u64::MAX);
        fields.number(passed);
        fields
    }

    /// The length of the packed records, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The part up to `until_ns`, or to the latest record if that is later. The encoder continues
    /// there.
    pub fn take(&mut self, thread: ThreadId, until_ns: u64) -> KernelPart {
        let (part, bytes) = self.0.take(thread, until_ns);
        KernelPart::of(part, bytes)
    }
}

/// A part without its records, and the begin of these.
pub(super) fn kernel_fields(payload: &[u8]) -> Result<(KernelPart, usize), FieldError> {
    let (part, begin) = TimedPart::read(payload)?;
    Ok((KernelPart::of(part, []), begin))
}

pub(super) fn put_kernel(out: &mut Fields<'_>, part: &KernelPart) {
    let timed = TimedPart {
        thread: part.thread,
        from_ns: part.from_ns,
        until_ns: part.until_ns,
    };
    timed.put(out);
}
