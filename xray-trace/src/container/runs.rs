//! The sections of run times: the kernel's switches of one thread between processors and rest.
//!
//! ```text
//!  number  thread
//!  number  from: nanoseconds of CLOCK_MONOTONIC
//!  number  length, in nanoseconds
//!  then switches, each:
//!  number  nanoseconds since the switch before or `from`, times 4, plus the state that begins:
//!          0 the thread runs, 1 it is ready to run, 2 it waits
//!  number  the processor
//! ```

use std::sync::Arc;

use super::payload::Payload;
use super::section::{FieldError, FieldReader, Fields};
use super::timed_part::{PartPacker, TimedPart};
use crate::model::{ContextSwitch, RunState, ThreadId};

/// All switches of a thread in a time: one section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunsPart {
    /// The thread.
    pub thread: ThreadId,
    /// The begin of the time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub from_ns: u64,
    /// The end of the time, likewise. A part that begins at the end of another part continues it.
    pub until_ns: u64,
    /// The packed switches.
    pub switches: Payload,
}

/// The reason why the switches of a part cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the switches: {reason}")]
pub struct RunsError {
    /// The place in the packed switches.
    pub at: usize,
    /// The reason.
    pub reason: String,
}

/// Packs the switches of one thread.
#[derive(Debug, Clone)]
pub struct RunsEncoder(PartPacker);

const STATES: [RunState; 3] = [RunState::Running, RunState::Ready, RunState::Waiting];

// === impl RunsPart ===

impl RunsPart {
    fn of(part: TimedPart, switches: impl Into<Arc<[u8]>>) -> Self {
        Self {
            thread: part.thread,
            from_ns: part.from_ns,
            until_ns: part.until_ns,
            switches: Payload::from(switches),
        }
    }

    /// Passes its switches to `take`, in order, up to the first error.
    ///
    /// # Errors
    ///
    /// If the switches cannot be read from the file, or are damaged.
    pub fn each(&self, mut take: impl FnMut(ContextSwitch)) -> Result<(), RunsError> {
        let bytes = self.switches.load().map_err(|error| RunsError {
            at: 0,
            reason: error.to_string(),
        })?;
        let mut fields = FieldReader::new(&bytes);
        let mut at_ns = self.from_ns;
        while fields.position() < bytes.len() {
            take(switch(&mut fields, &mut at_ns).map_err(|error| RunsError {
                at: error.at,
                reason: error.reason,
            })?);
        }
        Ok(())
    }
}

/// Reads the switch after the one at `at_ns`.
fn switch(fields: &mut FieldReader<'_>, at_ns: &mut u64) -> Result<ContextSwitch, FieldError> {
    let at = fields.position();
    let both = fields.number("time and state")?;
    let state = usize::try_from(both & 3).unwrap_or(usize::MAX);
    let to = STATES.get(state).copied().ok_or_else(|| FieldError {
        at,
        reason: format!("a thread has no state {state}"),
        short: false,
    })?;
    *at_ns = at_ns.saturating_add(both >> 2);
    Ok(ContextSwitch {
        at_ns: *at_ns,
        to,
        processor: fields.number16("processor")?,
    })
}

// === impl RunsEncoder ===

impl RunsEncoder {
    /// An encoder without switches, for the time from `from_ns` on.
    #[must_use]
    pub fn new(from_ns: u64) -> Self {
        Self(PartPacker::new(from_ns))
    }

    /// Adds a switch. One that is not after the one before counts as at the same time.
    pub fn push(&mut self, switch: ContextSwitch) {
        let (passed, mut fields) = self.0.begin(switch.at_ns, u64::MAX >> 2);
        let state = match switch.to {
            RunState::Running => 0,
            RunState::Ready => 1,
            RunState::Waiting => 2,
        };
        fields.number(passed << 2 | state).number(switch.processor);
    }

    /// The begin of the time, in nanoseconds.
    #[must_use]
    pub fn from_ns(&self) -> u64 {
        self.0.from_ns
    }

    /// The time of the latest switch, or the begin of the time, in nanoseconds.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.0.last_ns
    }

    /// The length of the packed switches, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no switches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The part up to `until_ns`, or to the latest switch if that is later. The encoder continues
    /// there.
    pub fn take(&mut self, thread: ThreadId, until_ns: u64) -> RunsPart {
        let (part, bytes) = self.0.take(thread, until_ns);
        RunsPart::of(part, bytes)
    }
}

/// A part without its switches, and the begin of these.
pub(super) fn runs_fields(payload: &[u8]) -> Result<(RunsPart, usize), FieldError> {
    let (part, begin) = TimedPart::read(payload)?;
    Ok((RunsPart::of(part, []), begin))
}

pub(super) fn put_runs(out: &mut Fields<'_>, part: &RunsPart) {
    let timed = TimedPart {
        thread: part.thread,
        from_ns: part.from_ns,
        until_ns: part.until_ns,
    };
    timed.put(out);
}
