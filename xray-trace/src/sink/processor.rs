//! The processor of a thread, for formats that store it with each record.

use crate::analysis::Steps;

/// The report's text for formats without the processor.
pub(super) const LEFT_OUT: &str = "processors on which threads ran";

/// Tracks the processor of one thread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Processor {
    /// The number of processor events of the thread, up to the latest record.
    seen: u64,
    /// The number of processor events that a record reflects.
    reported: u64,
}

// === impl Processor ===

impl Processor {
    /// The processor of a record for the step that was just taken; 0 if unknown.
    pub(super) fn of_record(&mut self, steps: &Steps<'_>) -> u16 {
        let seen = steps.processors();
        if seen != self.seen {
            self.seen = seen;
            self.reported += 1;
        }
        steps.processor().unwrap_or(0)
    }

    /// The number of processor events that no record reflects, after all steps of a thread were
    /// taken.
    pub(super) fn left_out(self, steps: &Steps<'_>) -> u64 {
        steps.processors().saturating_sub(self.reported)
    }
}
