//! The intervals of looks, and the share of time that looks may take.

use std::time::Duration;

/// Shortest interval of looks without perf events, and the time after a perf event in which looks
/// use it, too. A change may take that long to show.
pub(super) const PACE: Duration = Duration::from_millis(4);
pub(super) const WHILE: Duration = Duration::from_millis(100);
/// Divisors of the time that looks may take: looks without a perf event, looks after one, and
/// reading what programs have loaded.
const SHARE: u32 = 100;
const SHARE_IF_HEARD: u32 = 10;
const SHARE_OF_READING: u32 = 2;
/// Longest interval.
pub(super) const SELDOM: Duration = Duration::from_secs(1);

/// The time that a look took, without attaching.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// Time to find processes.
    pub(super) looking: Duration,
    /// Time to read what programs have loaded. It includes parsing files that are new.
    pub(super) reading: Duration,
}

/// The reason of the next look.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// A perf event came.
    Activity,
    /// A process may have come without a perf event.
    Poll,
}

// === impl Cost ===

impl Cost {
    /// Pause from the begin of one look to the begin of the next.
    pub(super) fn pause(self, pace: Pace) -> Duration {
        let Self { looking, reading } = self;
        let looking = match pace {
            Pace::Activity => looking.saturating_mul(SHARE_IF_HEARD),
            Pace::Poll => looking.saturating_mul(SHARE).max(PACE),
        };
        // The limit holds however long the look took, since the machine may have been busy or
        // asleep.
        looking
            .max(reading.saturating_mul(SHARE_OF_READING))
            .min(SELDOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new process is found within a second, also if the last look took minutes.
    #[test]
    fn a_look_that_took_long_does_not_make_blind() {
        let cost = |looking, reading| {
            let (looking, reading) = (
                Duration::from_micros(looking),
                Duration::from_micros(reading),
            );
            Cost { looking, reading }
        };
        let pause = |looking, reading| cost(looking, reading).pause(Pace::Poll);
        let received = |looking, reading| cost(looking, reading).pause(Pace::Activity);
        assert_eq!(pause(10, 0), PACE);
        assert_eq!(pause(100, 0), Duration::from_millis(10));
        assert_eq!(pause(10, 100_000), Duration::from_millis(200));
        assert_eq!(pause(10, 3_000_000), SELDOM);
        assert_eq!(pause(60_000_000, 0), SELDOM);
        assert_eq!(pause(u64::MAX, u64::MAX), SELDOM);
        assert_eq!(received(50, 0), Duration::from_micros(500));
        assert_eq!(received(50, 1000), Duration::from_millis(2));
        assert_eq!(received(60_000_000, 0), SELDOM);
    }
}
