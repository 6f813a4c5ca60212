//! Ranges of durations, whose width grows with the duration. Everything that counts durations by
//! range numbers the ranges in this way. The counts, and the reasons for each precision, are in the
//! files that count.
//!
//! ```text
//!  BITS = 2   duration  0 1 2 3 │ 4 5 6 7 │ 8… 10… 12… 14… │ 16… 20… 24… 28… │ 32…
//!             range     0 1 2 3 │ 4 5 6 7 │ 8  9   10  11  │ 12  13  14  15  │ 16
//! ```

/// A scale of which each power of two has `1 << BITS` ranges. The width of a range is at most
/// `1 / (1 << BITS)` of its durations. Durations below `2 << BITS` have a range each.
#[derive(Debug)]
pub(crate) struct DurationScale<const BITS: u32>;

// === impl DurationScale ===

impl<const BITS: u32> DurationScale<BITS> {
    /// The number of ranges of each power of two.
    pub(crate) const PER_POWER: usize = 1 << BITS;
    /// The number of all ranges.
    pub(crate) const RANGES: usize = ((u64::BITS - BITS + 1) as usize) << BITS;

    /// The number of the range of a duration.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are fewer than 4000 ranges"
    )]
    pub(crate) fn range(duration: u64) -> usize {
        let power = duration.max(1 << BITS).ilog2() - BITS;
        let within = duration >> power;
        ((u64::from(power) << BITS) + within) as usize
    }

    /// The shortest duration of a range.
    pub(crate) fn shortest(range: usize) -> u64 {
        let power = Self::power(range);
        (range as u64 - (power << BITS)) << power
    }

    /// The number of durations of a range.
    pub(crate) fn width(range: usize) -> u64 {
        1 << Self::power(range)
    }

    /// The power of two that is the width of a range.
    fn power(range: usize) -> u64 {
        (range as u64 >> BITS).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const BITS: u32>() {
        let mut next = 0_u64;
        for range in 0..DurationScale::<BITS>::RANGES {
            let shortest = DurationScale::<BITS>::shortest(range);
            let width = DurationScale::<BITS>::width(range);
            assert_eq!(shortest, next, "{range}");
            assert!(width == 1 || width <= shortest >> BITS, "{range}");
            let longest = shortest + (width - 1);
            assert_eq!(DurationScale::<BITS>::range(shortest), range);
            assert_eq!(DurationScale::<BITS>::range(longest), range);
            next = longest.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last range ends with the longest duration");
    }

    #[test]
    fn ranges_cover_every_duration_once_and_are_narrow() {
        check::<2>();
        check::<4>();
        check::<6>();
    }
}
