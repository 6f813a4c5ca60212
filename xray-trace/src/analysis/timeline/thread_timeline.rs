//! The timeline of one thread, as data: single calls, slices of time with sums, gaps, and times
//! without a processor. This file has the types; `lanes` and `off_cpu` fill them.

use crate::model::{FunctionId, OffCpu, RunState, ThreadId};

/// The times of the calls of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTimeline {
    /// The thread.
    pub thread: ThreadId,
    /// The calls that are kept, by depth and time.
    pub calls: Vec<TimelineCall>,
    /// The calls that are summed up, by depth and time.
    pub slices: Vec<Slice>,
    /// The length of a slice, as a power of 2 in nanoseconds. The first slice begins at the origin
    /// of the [`Timeline`](super::Timeline).
    pub slice_power: u32,
    /// Every call that is summed up is shorter than this, in nanoseconds; 0 if none is summed up.
    pub kept_from_ns: u64,
    /// The number of calls that are summed up.
    pub summed: u64,
    /// The number of calls that are too deep to have a lane.
    pub too_deep: u64,
    /// The places where events are missing, in order of time.
    pub gaps: Vec<Gap>,
    /// The times without a processor within the calls.
    pub off_cpu: OffCpuTimes,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineCall {
    /// The number of shown calls around the call.
    pub depth: usize,
    /// The function that was called.
    pub function: FunctionId,
    /// The beginning, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// The end. A call without an exit ends when it was last certainly open. A call that goes on
    /// ends with the shown time, or at a later moment at which it was certainly open.
    pub end_ns: u64,
    /// The call has an exit.
    pub finished: bool,
    /// The call is open at the end of the shown time. It may have an exit later, which the timeline
    /// does not have, so `finished` is false.
    pub goes_on: bool,
    /// The time within it for which its thread had no processor; `None` if that is not known.
    pub off_cpu: Option<OffCpu>,
}

/// The sum of the calls of one depth that begin within a slice of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The number of calls around them.
    pub depth: usize,
    /// The number of the slice, from 0.
    pub at: u64,
    /// The number of calls that begin in the slice.
    pub calls: u64,
    /// The time of the slice within such calls. Calls that began before the slice count too.
    pub busy_ns: u64,
    /// A function of these calls. If a function has more than half of the time, it is that one.
    pub function: FunctionId,
}

/// A place where events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The time of the last event before the gap, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// The time at which the loss was noticed.
    pub end_ns: u64,
    /// The number of missing events; 0 if it is not known.
    pub events: u64,
    /// The number of losses. If there are too many gaps, neighbours become one gap, with events
    /// between its losses.
    pub losses: u64,
}

/// The times within the calls of a thread for which the thread had no processor, as far as they
/// overlap the shown time. The calls cut them, the shown time does not. If there are too many, the
/// longest are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffCpuTimes {
    /// The times that are kept, in order of time.
    pub spans: Vec<OffCpuSpan>,
    /// Every time that is left out is shorter than this, in nanoseconds; 0 if none is left out.
    pub kept_from_ns: u64,
    /// The number of times that are left out.
    pub left_out: u64,
}

/// A time for which a thread had no processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCpuSpan {
    /// The begin, on `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// Ready or waiting; `None` if the reason is not known.
    pub state: Option<RunState>,
}

// === impl TimelineCall ===

impl TimelineCall {
    /// The length of the call, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
