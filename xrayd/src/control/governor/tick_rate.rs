//! The duration of a tick of the processor's counter, measured since a moment.

use std::time::Instant;

use xray_trace::model::Ticks;

use super::measure::float;
use crate::sys::ticks_now;

/// Both clocks at one moment.
#[derive(Debug)]
pub(super) struct TickRate(Instant, Ticks);

// === impl TickRate ===

impl TickRate {
    /// Begins to measure.
    pub(super) fn begin() -> Self {
        Self(Instant::now(), ticks_now())
    }

    /// Nanoseconds of a tick.
    pub(super) fn tick_ns(&self) -> f64 {
        let Self(begun, ticks) = self;
        let ns = begun.elapsed().as_secs_f64() * 1e9;
        let ticks = ticks_now().0.saturating_sub(ticks.0);
        ns / float(ticks).max(1.0)
    }
}
