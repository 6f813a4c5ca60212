//! Anchors: the same moment on the time stamp counter and on the clocks of the kernel. The clock of
//! a trace is made of them.

/// A reading of the time stamp counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

/// The same moment on three clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockAnchor {
    /// The time stamp counter.
    pub ticks: Ticks,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970-01-01 UTC.
    pub wall_ns: u64,
}
