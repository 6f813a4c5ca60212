//! The processor of a thread, for formats that store it with each record.

use crate::analysis::Steps;
use crate::model::{ThreadId, ThreadRuns, Trace};

/// The report's text for formats without the processor.
pub(super) const LEFT_OUT: &str = "processors on which threads ran";
/// The report's text for formats that have a processor in each record.
pub(super) const UNKNOWN: &str =
    "processors of records, because the trace does not have them (0 stands in their place)";

/// Tracks the processor of one thread: by its run times if the trace has any, or else by its
/// processor events.
#[derive(Debug, Clone, Default)]
pub(super) struct Processor {
    runs: Option<ThreadRuns>,
    /// The number of processor events of the thread, up to the latest record.
    seen: u64,
    /// The number of processor events that a record reflects.
    reported: u64,
    /// The number of records whose processor is not known.
    unknown: u64,
}

// === impl Processor ===

impl Processor {
    /// The processor of this thread.
    pub(super) fn of(trace: &Trace, thread: ThreadId) -> Self {
        Self {
            runs: trace.thread_runs(thread),
            ..Self::default()
        }
    }

    /// The processor of a record at `ns` for the step that was just taken; 0 if unknown.
    pub(super) fn of_record(&mut self, steps: &Steps<'_>, ns: u64) -> u16 {
        self.note(steps);
        self.at(steps.processor(), ns)
    }

    /// Notes that records reflect the steps that were just taken.
    pub(super) fn note(&mut self, steps: &Steps<'_>) {
        let seen = steps.processors();
        if seen != self.seen {
            self.seen = seen;
            self.reported += 1;
        }
    }

    /// The processor of a record at `ns`; 0 if unknown. The latest processor event has `by_event`.
    pub(super) fn at(&mut self, by_event: Option<u16>, ns: u64) -> u16 {
        let processor = match &self.runs {
            Some(runs) => runs.processor_at(ns),
            None => by_event,
        };
        self.unknown += u64::from(processor.is_none());
        processor.unwrap_or(0)
    }

    /// The number of processor events that no record reflects, after all steps of a thread were
    /// taken.
    pub(super) fn left_out(&self, steps: &Steps<'_>) -> u64 {
        steps.processors().saturating_sub(self.reported)
    }

    /// The number of records whose processor is not known.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }
}
