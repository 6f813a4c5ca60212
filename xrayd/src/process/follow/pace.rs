//! How often it is looked, and what that may cost.

use std::time::Duration;

/// Between looks where nobody says when to look, and for a while after somebody did: what was heard of may take that long to show.
pub(super) const PACE: Duration = Duration::from_millis(4);
pub(super) const WHILE: Duration = Duration::from_millis(100);
/// Looking for nothing in particular takes one in so many parts of the time at most, looking for what was heard of, and seeing
/// what programs have loaded.
const SHARE: u32 = 100;
const SHARE_IF_HEARD: u32 = 10;
const SHARE_OF_READING: u32 = 2;
/// No pause is longer.
pub(super) const SELDOM: Duration = Duration::from_secs(1);

/// How long a look took, without attaching.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// To see who is there.
    pub(super) looking: Duration,
    /// To see what programs have loaded, which includes parsing their files when they come for the first time.
    pub(super) reading: Duration,
}

/// Why the next look comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// Something was heard.
    Heard,
    /// Something may have come, and nobody says so.
    Poll,
}

// === impl Cost ===

impl Cost {
    /// From the beginning of one look to that of the next.
    pub(super) fn pause(self, pace: Pace) -> Duration {
        let Self { looking, reading } = self;
        let looking = match pace {
            Pace::Heard => looking.saturating_mul(SHARE_IF_HEARD),
            Pace::Poll => looking.saturating_mul(SHARE).max(PACE),
        };
        // However long it took: the machine may have been busy, or asleep.
        looking
            .max(reading.saturating_mul(SHARE_OF_READING))
            .min(SELDOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is looked for is found within a second, also if the last look took minutes.
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
        let heard = |looking, reading| cost(looking, reading).pause(Pace::Heard);
        assert_eq!(pause(10, 0), PACE);
        assert_eq!(pause(100, 0), Duration::from_millis(10));
        assert_eq!(pause(10, 100_000), Duration::from_millis(200));
        assert_eq!(pause(10, 3_000_000), SELDOM);
        assert_eq!(pause(60_000_000, 0), SELDOM);
        assert_eq!(pause(u64::MAX, u64::MAX), SELDOM);
        assert_eq!(heard(50, 0), Duration::from_micros(500));
        assert_eq!(heard(50, 1000), Duration::from_millis(2));
        assert_eq!(heard(60_000_000, 0), SELDOM);
    }
}
