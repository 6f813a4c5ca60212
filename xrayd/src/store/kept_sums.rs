//! Sums of ended threads that outlive the daemon. `export` writes and reads them as a trace, and
//! `collect` keeps the trace in the rings' memory.

use std::{fmt, io};

use shm_ring::layout::sums::End;
use xray_trace::{
    analysis::{MORE_STACKS, StackSums},
    model::{Thread, Ticks},
};

use super::{event_store::EventStore, profiles::Handover};
use crate::types::Mode;

/// The writer of such a trace. The bytes that it returns follow each other in the trace.
pub(crate) trait SumsTrace: fmt::Debug + Send {
    /// Begins the trace, and returns its first bytes.
    ///
    /// # Errors
    /// The process cannot be described. The trace must be begun again.
    fn begin(&mut self) -> io::Result<Vec<u8>>;

    /// Adds sums of a thread, and returns their bytes. Each function of them is in the bytes, too,
    /// unless the trace has it already.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn add(&mut self, thread: &Thread, sums: &StackSums) -> io::Result<Vec<u8>>;
}

/// Sums that an earlier daemon has kept.
#[derive(Debug)]
pub(crate) struct EarlierSums {
    /// The time from which on calls are in them.
    pub(crate) since: Ticks,
    /// The number of daemons that have taken a part of them along.
    pub(crate) taken_along: u64,
    /// The threads, and their sums by the functions of this daemon.
    pub(crate) threads: Vec<(Thread, StackSums)>,
    /// The end of the sums in the rings' memory; `None` if there are none.
    pub(crate) end: Option<End>,
    /// True if sums are missing.
    pub(crate) is_incomplete: bool,
}

// === impl EventStore ===

impl EventStore {
    /// Adds sums of ended threads that an earlier daemon has kept to the kept sums, or to the
    /// counts of mode `count`, and to nothing else: that daemon has shown these calls to its
    /// clients. Returns the threads as they are numbered here.
    pub(crate) fn adopt_sums(&self, earlier: EarlierSums) -> Vec<(Thread, StackSums)> {
        let mode = self.mode();
        if mode == Mode::Profile {
            self.profiles.begin_kept(earlier.since, earlier.taken_along);
        }
        let threads = earlier.threads.into_iter().map(|(thread, sums)| {
            let thread = self.add_ended_thread(thread);
            match mode {
                Mode::Count => {
                    let calls = sums.calls();
                    let calls = calls.map(|(function, sums)| {
                        let function = Some(function).filter(|id| *id != MORE_STACKS);
                        (function, sums.calls)
                    });
                    let unnamed = [(None, sums.missing().lost)].into_iter();
                    self.calls.add(&thread, calls.chain(unnamed));
                    self.calls.end(thread.id);
                }
                _ => self.profiles.keep(&thread, Handover::Last, &sums),
            }
            (thread, sums)
        });
        threads.collect()
    }
}
