//! The report of a sink: the calls in its file, and the data that its format cannot hold. It is for
//! the user; the file does not contain it.

use super::processor;
use crate::analysis::{Notes, Steps};
use crate::model::{Profile, Trace};

/// How the report names damaged blocks.
pub(super) const DAMAGED_BLOCKS: &str = "damaged blocks, of which some events cannot be decoded";

/// How the report names kernel events.
const KERNEL_EVENTS: &str = "events of kernel tracepoints";

/// The report of a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of calls.
    pub calls: u64,
    /// Data that the format cannot hold, or not exactly: a description and a count. No count is 0,
    /// and no description occurs twice.
    pub left_out: Vec<(String, u64)>,
}

// === impl Report ===

impl Report {
    /// Adds `count` to the data that was left out.
    pub(super) fn leave_out(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self
            .left_out
            .iter_mut()
            .find(|(reported, _)| reported == what)
        {
            Some((_, reported)) => *reported = reported.saturating_add(count),
            None => self.left_out.push((what.to_owned(), count)),
        }
    }

    /// Counts the data that the steps of a thread left out. All of them have been taken.
    pub(super) fn leave_out_of_steps(&mut self, steps: &Steps<'_>) {
        self.leave_out_of_notes(&steps.notes());
        self.leave_out(processor::LEFT_OUT, steps.processors());
    }

    /// The same, for formats that have the processor of a thread.
    pub(super) fn leave_out_of_notes(&mut self, notes: &Notes) {
        self.leave_out(
            "exits of calls that began before the trace or in a gap, or that were closed earlier",
            notes.exits_without_entry,
        );
        self.leave_out(DAMAGED_BLOCKS, notes.damaged_blocks);
    }

    /// Counts the kernel events, for formats that cannot hold them.
    pub(super) fn leave_out_kernel_events(&mut self, trace: &Trace) {
        self.leave_out(KERNEL_EVENTS, trace.kernel_event_counts().values().sum());
    }

    /// The report for a profile of which every stack was written.
    pub(super) fn of_profile(profile: &Profile) -> Self {
        let calls = profile.stacks().iter().map(|stack| stack.calls);
        Self {
            calls: calls.fold(0, u64::saturating_add),
            left_out: Vec::new(),
        }
    }

    /// Counts lost events without an event for the loss.
    pub(super) fn leave_out_unplaced(&mut self, trace: &Trace) {
        for (_, events) in &trace.coverage().losses {
            self.leave_out("lost events at an unknown place", *events);
        }
    }
}
