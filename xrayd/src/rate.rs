//! A token bucket: limits how often something happens, and counts what it drops.
//!
//! It has no clock of its own.

use std::time::{Duration, Instant};

/// A rate with bursts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Events that may pass at once after a long pause.
    pub(crate) burst: u32,
    /// Events per second after that.
    pub(crate) per_second: u32,
}

/// The remaining tokens of a rate, and the number of drops.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: u32,
    /// The time of the last refill.
    refilled: Instant,
    /// Drops since the last [`Self::take_dropped`].
    dropped: u64,
}

// === impl Bucket ===

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            refilled: now,
            dropped: 0,
        }
    }

    /// Takes a token, or counts a drop.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.refill(rate, now);
        let left = self.tokens.checked_sub(1);
        match left {
            Some(left) => self.tokens = left,
            None => self.dropped += 1,
        }
        left.is_some()
    }

    /// Counts a drop that has another reason.
    pub(crate) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// Drops since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// True if the bucket equals a new one.
    pub(crate) fn is_fresh(&mut self, rate: Rate, now: Instant) -> bool {
        self.refill(rate, now);
        self.tokens == rate.burst && self.dropped == 0
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let interval = Duration::from_secs(1) / rate.per_second;
        let passed = now.saturating_duration_since(self.refilled);
        let tokens = passed.as_nanos() / interval.as_nanos();
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let missing = rate.burst - self.tokens;
        if tokens >= missing {
            self.tokens = rate.burst;
            self.refilled = now;
        } else {
            self.tokens += tokens;
            self.refilled += interval * tokens;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate_and_counts_the_rest() {
        let rate = Rate {
            burst: 5,
            per_second: 10,
        };
        let start = Instant::now();
        let mut bucket = Bucket::full(rate, start);
        let mut taken = |after: u64, attempts: usize| {
            let now = start + Duration::from_millis(after);
            let taken = (0..attempts).filter(|_| bucket.take(rate, now)).count();
            (taken, bucket.take_dropped())
        };
        assert_eq!(taken(0, 7), (5, 2));
        assert_eq!(taken(99, 1), (0, 1));
        assert_eq!(taken(101, 2), (1, 1));
        // The fraction of a token that had passed is not lost.
        assert_eq!(taken(200, 2), (1, 1));
        assert_eq!(taken(3_600_000, 9), (5, 4));
        let now = start + Duration::from_secs(3601);
        assert!(bucket.is_fresh(rate, now));
    }
}
