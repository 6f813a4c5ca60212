//! The sections of a profile: sums of calls, stack by stack, for a run of which no events were
//! kept.
//!
//! A section has some stacks of one thread, packed one after the other:
//!
//! ```text
//!  number  its caller's stack + 1, by its index among the thread's; 0 for none
//!  number  the function
//!  number  calls
//!  number  calls without an exit
//!  number  ticks in the function itself
//!  number  sum of the durations, in ticks; then the shortest, and how much longer the longest is
//!  number  the number of ranges with durations; for each, in order:
//!          number  its number, less that of the previous range, or less 0
//!          number  the number of its durations
//! ```

use super::payload::Payload;
use super::section::{FieldError, FieldReader, Fields};
use crate::model::{CallSums, FunctionId, MOST_RANGES, Missing, ThreadId};

/// Some stacks of a thread: one section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfilePart {
    /// The thread.
    pub thread: ThreadId,
    /// The missing data, in addition to that of other parts of the thread.
    pub missing: Missing,
    /// The index of the first stack among the thread's.
    pub first: u32,
    /// The packed stacks.
    pub stacks: Payload,
}

/// The calls of a function with the same callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfiledCalls {
    /// The caller's stack, as its index among the thread's, which is lower than its own.
    pub caller: Option<u32>,
    /// The function.
    pub function: FunctionId,
    /// The sums of its calls.
    pub sums: CallSums,
}

/// The reason why the stacks of a part cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the profile's stacks: {reason}")]
pub struct ProfileError {
    /// The place in the packed stacks.
    pub at: usize,
    /// The reason.
    pub reason: String,
}

/// Packs the stacks of one thread, the callers first.
#[derive(Debug)]
pub struct ProfileEncoder {
    thread: ThreadId,
    missing: Missing,
    first: u32,
    count: u32,
    bytes: Vec<u8>,
    finished: Vec<ProfilePart>,
}

/// The approximate length at which a section is ended, in bytes.
const LONG: usize = 256 << 10;

// === impl ProfilePart ===

impl ProfilePart {
    /// Passes its stacks to `take`, in order, and stops at the first error.
    ///
    /// # Errors
    ///
    /// If the stacks cannot be read from the file, or are damaged; and the errors of `take`.
    pub fn each(
        &self,
        mut take: impl FnMut(ProfiledCalls) -> Result<(), String>,
    ) -> Result<(), ProfileError> {
        let bytes = self.stacks.load().map_err(|error| ProfileError {
            at: 0,
            reason: error.to_string(),
        })?;
        let mut fields = FieldReader::new(&bytes);
        let mut own = self.first;
        while fields.position() < bytes.len() {
            let at = fields.position();
            let calls = stack(&mut fields, own).map_err(|error| ProfileError {
                at: error.at,
                reason: error.reason,
            })?;
            take(calls).map_err(|reason| ProfileError { at, reason })?;
            own = own.saturating_add(1);
        }
        Ok(())
    }
}

/// Reads the stack with this index.
fn stack(fields: &mut FieldReader<'_>, own: u32) -> Result<ProfiledCalls, FieldError> {
    let at = fields.position();
    let invalid = |reason: &str| FieldError {
        at,
        reason: reason.to_owned(),
        short: false,
    };
    let caller = fields.number32("caller")?.checked_sub(1);
    if caller.is_some_and(|caller| caller >= own) {
        return Err(invalid("a caller does not come before its callee"));
    }
    let function = FunctionId(fields.number32("function")?);
    let mut sums = CallSums {
        calls: fields.number("calls")?,
        unfinished: fields.number("calls without an exit")?,
        self_ticks: fields.number("self time")?,
        total_ticks: fields.number("total time")?,
        min_ticks: fields.number("shortest call")?,
        ..CallSums::default()
    };
    if sums.unfinished > sums.calls {
        return Err(invalid("more calls without an exit than calls"));
    }
    sums.max_ticks = sums
        .min_ticks
        .saturating_add(fields.number("longest call")?);
    let mut range = 0_usize;
    for nth in 0..fields.number("ranges")? {
        let step = usize::try_from(fields.number("range")?).unwrap_or(usize::MAX);
        range = range.saturating_add(step);
        if range >= MOST_RANGES || nth > 0 && step == 0 {
            return Err(invalid("a range of durations does not exist"));
        }
        sums.durations.add_to(range, fields.number("durations")?);
    }
    Ok(ProfiledCalls {
        caller,
        function,
        sums,
    })
}

// === impl ProfileEncoder ===

impl ProfileEncoder {
    /// An encoder without stacks. `missing` is the missing data of the thread.
    #[must_use]
    pub fn new(thread: ThreadId, missing: Missing) -> Self {
        Self {
            thread,
            missing,
            first: 0,
            count: 0,
            bytes: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Adds the next stack. `caller` is the index of an earlier one.
    pub fn push(&mut self, caller: Option<u32>, function: FunctionId, sums: &CallSums) {
        let CallSums {
            calls,
            unfinished,
            self_ticks,
            total_ticks,
            min_ticks,
            max_ticks,
            durations,
        } = sums;
        let mut out = Fields(&mut self.bytes);
        out.number(caller.map_or(0, |caller| caller.saturating_add(1)))
            .number(function.0)
            .number(*calls)
            .number(*unfinished)
            .number(*self_ticks)
            .number(*total_ticks)
            .number(*min_ticks)
            .number(max_ticks.saturating_sub(*min_ticks))
            .number(durations.ranges().count() as u64);
        let mut before = 0;
        for (range, count) in durations.ranges() {
            out.number((range - before) as u64).number(count);
            before = range;
        }
        self.count += 1;
        if self.bytes.len() >= LONG {
            self.finish_part();
        }
    }

    /// The sections, in order; at least one.
    #[must_use]
    pub fn finish(mut self) -> Vec<ProfilePart> {
        if !self.bytes.is_empty() || self.finished.is_empty() {
            self.finish_part();
        }
        self.finished
    }

    fn finish_part(&mut self) {
        self.finished.push(ProfilePart {
            thread: self.thread,
            missing: std::mem::take(&mut self.missing),
            first: self.first,
            stacks: Payload::from(std::mem::take(&mut self.bytes)),
        });
        self.first += std::mem::take(&mut self.count);
    }
}

/// A part without its stacks, and the begin of these.
pub(super) fn part_fields(payload: &[u8]) -> Result<(ProfilePart, usize), FieldError> {
    let mut fields = FieldReader::new(payload);
    let part = ProfilePart {
        thread: ThreadId(fields.number32("thread")?),
        missing: Missing {
            exits_without_entry: fields.number("exits without an entry")?,
            lost: fields.number("lost events")?,
            too_deep: fields.number("calls too deep")?,
        },
        first: fields.number32("first stack")?,
        stacks: Payload::from([]),
    };
    Ok((part, fields.position()))
}

pub(super) fn put_part(out: &mut Fields<'_>, part: &ProfilePart) {
    let Missing {
        exits_without_entry,
        lost,
        too_deep,
    } = part.missing;
    out.number(part.thread.0)
        .number(exits_without_entry)
        .number(lost)
        .number(too_deep)
        .number(part.first);
}
