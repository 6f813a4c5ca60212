//! The times of sweeps of `/proc`, and the share of time that looks may take.

use std::time::{Duration, Instant};

/// Divisor of the time that looks may take.
pub(super) const SHARE: u32 = 10;
/// Time between two sweeps, where perf events tell of processes.
const SWEEP: Duration = Duration::from_secs(60);
/// The same bounds where they do not.
const SWEEP_WITHOUT_PERF: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));
/// The shortest time between two sweeps because perf events were lost.
const SWEEP_AFTER_LOSS: Duration = Duration::from_secs(1);
/// Divisor of the time that sweeps without perf events may take.
const SHARE_WITHOUT_PERF: u32 = 100;

/// The times of sweeps.
#[derive(Debug)]
pub(super) struct Sweeps {
    pub(super) next: Instant,
    last: Instant,
    took: Duration,
}

// === impl Sweeps ===

impl Sweeps {
    /// The first sweep is due now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next: now,
            last: now,
            took: Duration::ZERO,
        }
    }

    /// True if the last sweep began then.
    pub(super) fn was_at(&self, begun: Instant) -> bool {
        self.last == begun
    }

    /// Puts the next sweep off, because the last one has failed.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.next = now + SWEEP_WITHOUT_PERF.1;
    }

    /// Brings the next sweep forward, because perf events were lost.
    pub(super) fn bring_forward(&mut self) {
        let pause = self.took.saturating_mul(SHARE).max(SWEEP_AFTER_LOSS);
        self.next = self.next.min(self.last + pause);
    }

    /// Notes a sweep that began then and is over.
    pub(super) fn note(&mut self, begun: Instant, has_perf: bool) {
        (self.last, self.took) = (begun, begun.elapsed());
        let (least, most) = SWEEP_WITHOUT_PERF;
        let pause = match has_perf {
            true => SWEEP,
            false => self
                .took
                .saturating_mul(SHARE_WITHOUT_PERF)
                .clamp(least, most),
        };
        self.next = begun + pause;
    }
}
