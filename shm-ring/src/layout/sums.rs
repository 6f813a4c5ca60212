//! The sums that outlive the collector: sums of threads whose counts and profiles are gone.
//!
//! The collector writes them as a trace, into one of two halves at the end of the rings' mapping.
//! If that half is full, it writes all sums anew, into the other half. A word in the rings' header
//! has the end of the trace. Whatever lies behind the end is not part of it.
//!
//! ```text
//!  half 0  ┌─────────────────────┬──────────────┐   generation 2: is not used any more
//!          └─────────────────────┴──────────────┘
//!  half 1  ┌────────────┬───────────────────────┐   generation 3
//!          └────────────┴───────────────────────┘
//!                       ▲ the word in the header: generation 3, its length
//! ```
//!
//! In this order the collector keeps the sums of a thread that has ended:
//!
//! 1. It writes the sums behind the end.
//! 2. It stores the new end in the thread's [`SUMS`](super::mark::SUMS).
//! 3. It stores the new end in the header.
//! 4. It clears the thread's counts and profile.
//!
//! So the next collector finds the sums of a thread in the trace or in the thread's own memory, and
//! counts them once ([`End::has`]).

use super::Geometry;

/// The most bytes of a half, see [`Geometry::sums_half`].
pub const MOST_BYTES: u64 = 64 << 20;

/// In the word: some sums are missing, since both halves were too small.
const IS_INCOMPLETE: u64 = 1 << 63;

/// The end of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// How often sums were written anew. Never 0 in a word. The lowest bit is the half.
    pub generation: u32,
    /// Bytes of the trace.
    pub length: u32,
    /// True if sums are missing in it.
    pub is_incomplete: bool,
}

// === impl End ===

impl End {
    /// The end in a word. `None`: there are no sums, or the word is none that
    /// [`Self::to_word`] returns.
    pub fn of_word(word: u64) -> Option<Self> {
        let length = u32::try_from(word & u64::from(u32::MAX)).ok()?;
        let generation = u32::try_from((word & !IS_INCOMPLETE) >> 32).ok()?;
        let is_possible = generation != 0 && u64::from(length) <= MOST_BYTES;
        is_possible.then_some(Self {
            generation,
            length,
            is_incomplete: word & IS_INCOMPLETE != 0,
        })
    }

    /// The word in the header, and in a mark.
    pub const fn to_word(self) -> u64 {
        let incomplete = match self.is_incomplete {
            true => IS_INCOMPLETE,
            false => 0,
        };
        incomplete | (self.generation as u64) << 32 | self.length as u64
    }

    /// True if the trace with this end has the sums for which `mark` was stored.
    pub fn has(self, mark: Self) -> bool {
        mark.generation == self.generation && mark.length <= self.length
    }

    /// The end of the empty trace in the other half.
    #[must_use]
    pub const fn next(self) -> Self {
        let next = (self.generation + 1) & (u32::MAX >> 1);
        Self {
            // 0 stands for no sums. 2 is in the same half.
            generation: if next == 0 { 2 } else { next },
            length: 0,
            is_incomplete: self.is_incomplete,
        }
    }

    /// The offset in the rings' mapping of the half.
    pub const fn half_offset(self, geometry: Geometry) -> u64 {
        geometry.sums_offset() + (self.generation & 1) as u64 * geometry.sums_half()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_what_its_word_is() {
        let ends = [(1, 0), (2, 1), (7, 1 << 26), (u32::MAX >> 1, 5)];
        for (generation, length) in ends {
            for is_incomplete in [false, true] {
                let end = End {
                    generation,
                    length,
                    is_incomplete,
                };
                assert_eq!(End::of_word(end.to_word()), Some(end));
            }
        }
        for word in [0, 5, IS_INCOMPLETE, (1 << 32) | ((1 << 26) + 1), u64::MAX] {
            assert_eq!(End::of_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn halves_take_turns() {
        let geometry = Geometry::new(1 << 16, 1).unwrap();
        let end = |generation, length| End {
            generation,
            length,
            is_incomplete: false,
        };
        for generation in [1, 2, (u32::MAX >> 1) - 1, u32::MAX >> 1] {
            let next = end(generation, 9).next();
            assert_ne!(next.generation, 0);
            assert_ne!(
                next.half_offset(geometry),
                end(generation, 9).half_offset(geometry)
            );
            assert!(!next.has(end(generation, 0)));
        }
        assert!(end(4, 9).has(end(4, 9)) && end(4, 9).has(end(4, 1)));
        assert!(!end(4, 9).has(end(4, 10)) && !end(4, 9).has(end(5, 0)));
        let other = end(1, 0).half_offset(geometry);
        assert_eq!(other + geometry.sums_half(), geometry.rings_bytes());
    }
}
