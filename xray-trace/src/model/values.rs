//! The values of registers at the begin or the end of a call.

use std::fmt;
use std::num::NonZeroU8;

/// The recorded values of a call: the first arguments of an entry, or the result of an exit. Their
/// meaning depends on the function. A register without an argument has any value.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Values(Option<Held>);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    count: NonZeroU8,
    /// The values beyond `count` are 0.
    values: [u64; Values::MOST],
}

// === impl Values ===

impl Values {
    /// The greatest number of values: integer arguments in registers.
    pub const MOST: usize = 6;
    /// No recorded values.
    pub const NONE: Self = Self(None);

    /// The first [`Self::MOST`] of these values.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = u64>) -> Self {
        let mut held = [0; Self::MOST];
        let mut count = 0;
        for (place, value) in held.iter_mut().zip(values) {
            *place = value;
            count += 1;
        }
        let values = held;
        Self(NonZeroU8::new(count).map(|count| Held { count, values }))
    }

    /// The values, the first one first.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        let held = self.0.as_ref();
        let held = held.and_then(|held| held.values.get(..usize::from(held.count.get())));
        held.unwrap_or_default()
    }

    /// The number of values.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are no values.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The first value: the first argument, or the result.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.0.map(|held| held.values[0])
    }
}

impl From<Option<u64>> for Values {
    #[inline]
    fn from(value: Option<u64>) -> Self {
        match value {
            None => Self::NONE,
            Some(value) => Self::new([value]),
        }
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_are_held_and_more_are_not() {
        assert_eq!(Values::new([]), Values::NONE);
        assert!(Values::NONE.is_empty() && Values::NONE.first().is_none());
        let six = Values::new(1..=6);
        assert_eq!(
            (six.as_slice(), six.first()),
            (&[1, 2, 3, 4, 5, 6][..], Some(1))
        );
        assert_eq!(Values::new(1..=9), six);
        assert_eq!(Values::from(Some(0)).as_slice(), [0]);
        assert_ne!(Values::new([0]), Values::new([0, 0]));
    }

    /// The loops of the analyses copy the values with every call. Without values only the count is
    /// written.
    #[test]
    fn they_take_a_word_each_and_one_for_the_count() {
        assert_eq!(size_of::<Values>(), 8 * (Values::MOST + 1));
    }
}
