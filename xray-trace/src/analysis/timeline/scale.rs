//! The division of a timeline's time into slices. `lanes` may make the slices of a thread longer
//! later.

use crate::analysis::Filter;
use crate::model::Trace;

/// The most slices that the time is divided into.
const FINEST: u64 = 1 << 14;

/// The division of the shown time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// The time that the timeline counts from.
    pub(super) origin_ns: u64,
    /// The beginning of the time that is shown.
    pub(super) since_ns: u64,
    /// The end of the time that is shown; `None` if the filter has no end.
    pub(super) until_ns: Option<u64>,
    /// The length of a slice at first, as a power of 2 in nanoseconds.
    pub(super) slice_power: u32,
}

// === impl Scale ===

impl Scale {
    /// The scale for the part of the trace that the filter selects.
    pub(super) fn new(trace: &Trace, filter: &Filter, origin_ns: u64) -> Self {
        let clock = trace.clock();
        let since = filter.since.map(|since| clock.monotonic_ns(since));
        let since_ns = since.unwrap_or(origin_ns).max(origin_ns);
        let last = trace.blocks().iter().map(|block| block.last).max();
        let until = filter.until.into_iter().chain(last).min();
        let last_ns = until.map_or(since_ns, |until| clock.monotonic_ns(until));
        let slice = (last_ns.saturating_sub(since_ns) / FINEST).max(1);
        Self {
            origin_ns,
            since_ns,
            until_ns: filter.until.map(|until| clock.monotonic_ns(until)),
            slice_power: slice.ilog2(),
        }
    }
}
