//! The time that the tracer took from the program's threads: their waits until their events were
//! read.

use std::collections::BTreeSet;

use super::Filter;
use crate::model::{Ticks, Trace};

/// The waits of threads for the tracer. Calls that were open meanwhile took longer because of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// The number of threads that waited.
    pub threads: u64,
    /// The time of all waits together, in nanoseconds.
    pub waited_ns: u64,
}

// === impl Waits ===

impl Waits {
    /// The waits of the threads and in the window that `filter` selects. Waits that are only partly
    /// in the window count in proportion. `None` if there are none.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter) -> Option<Self> {
        let (mut threads, mut waited_ns) = (BTreeSet::new(), 0_u64);
        for wait in &trace.coverage().waits {
            let chosen = filter.threads.as_ref();
            if chosen.is_some_and(|chosen| !chosen.contains(&wait.thread)) {
                continue;
            }
            let from = wait.from.max(filter.since.unwrap_or(wait.from));
            let until = wait.until.min(filter.until.unwrap_or(wait.until));
            let Some(within) = until.0.checked_sub(from.0).filter(|within| *within > 0) else {
                continue;
            };
            // Not 0, for `from` is before `until`.
            let all = u128::from(wait.until.0 - wait.from.0);
            let ticks = u128::from(wait.waited) * u128::from(within) / all;
            let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
            let ns = |at: Ticks| trace.clock().monotonic_ns(at);
            let end = Ticks(from.0.saturating_add(ticks));
            waited_ns = waited_ns.saturating_add(ns(end).saturating_sub(ns(from)));
            threads.insert(wait.thread);
        }
        (waited_ns > 0).then_some(Self {
            threads: threads.len() as u64,
            waited_ns,
        })
    }
}
