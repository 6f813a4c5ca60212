//! On which processor a thread ran, for formats that say it with each record.

use crate::analysis::Steps;

/// What is told where a format does not say it.
pub(super) const UNSAID: &str = "on which processor a thread ran";

/// Follows what is said of one thread.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Processor {
    /// How often the thread was said to run on some processor, up to the latest record.
    seen: u64,
    /// How often a record said so.
    said: u64,
}

// === impl Processor ===

impl Processor {
    /// The processor of a record that is made of the step that was just taken; 0 if it is not known.
    pub(super) fn of_record(&mut self, steps: &Steps<'_>) -> u16 {
        let seen = steps.processors();
        if seen != self.seen {
            self.seen = seen;
            self.said += 1;
        }
        steps.processor().unwrap_or(0)
    }

    /// How often a thread, all of whose steps were taken, was said to run on some processor and no record could say so.
    pub(super) fn unsaid(self, steps: &Steps<'_>) -> u64 {
        steps.processors().saturating_sub(self.said)
    }
}
