//! How often each function was entered, and whether any event of it was seen. The drain alone
//! writes, any thread reads. Functions may be added. Counts by thread are in `calls`.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use xray_trace::model::FunctionId;

/// Functions in one added part.
const PART: usize = 1 << 12;
/// The most parts.
const PARTS: usize = 1 << 10;
/// Set if an event that is no entry was seen.
const SEEN: u64 = 1 << 63;

/// The counts of all functions of a session.
#[derive(Debug)]
pub(crate) struct Counts {
    /// The functions that were there at the attach.
    first: Vec<AtomicU64>,
    /// The functions that came later.
    later: OnceLock<Box<[OnceLock<Part>]>>,
}

/// The counts of [`PART`] functions.
type Part = Box<[AtomicU64]>;

// === impl Counts ===

impl Counts {
    /// The most functions that can be added to those at the attach.
    pub(crate) const MOST_LATER: usize = PART * PARTS;

    /// Counts that are all 0.
    pub(crate) fn new(functions: usize) -> Self {
        Self {
            first: zeros(functions).collect(),
            later: OnceLock::new(),
        }
    }

    /// Makes room for this many functions in all. Functions beyond the limit are not counted.
    pub(crate) fn grow(&self, functions: usize) {
        let parts = functions.saturating_sub(self.first.len()).div_ceil(PART);
        if parts == 0 {
            return;
        }
        let later = self.later.get_or_init(|| {
            let none = std::iter::repeat_with(OnceLock::new);
            none.take(PARTS).collect()
        });
        for part in later.iter().take(parts) {
            part.get_or_init(|| zeros(PART).collect());
        }
    }

    /// Counts one entry of a function.
    #[inline]
    pub(crate) fn count_call(&self, function: FunctionId) {
        if let Some(count) = self.of(function) {
            // The drain is the only writer: no locked instruction is needed.
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Adds entries of a function that were counted elsewhere.
    pub(crate) fn count_calls(&self, function: FunctionId, calls: u64) {
        if let Some(count) = self.of(function) {
            let before = count.load(Relaxed);
            let sum = (before & !SEEN).saturating_add(calls).min(SEEN - 1);
            count.store(before & SEEN | sum, Relaxed);
        }
    }

    /// Notes another event of a function.
    #[inline]
    pub(crate) fn mark_seen(&self, function: FunctionId) {
        if let Some(count) = self.of(function) {
            count.store(count.load(Relaxed) | SEEN, Relaxed);
        }
    }

    /// The entries of a function.
    pub(crate) fn calls(&self, function: FunctionId) -> u64 {
        self.of(function)
            .map_or(0, |count| count.load(Relaxed) & !SEEN)
    }

    /// True if any event of a function was seen.
    pub(crate) fn was_seen(&self, function: FunctionId) -> bool {
        self.of(function)
            .is_some_and(|count| count.load(Relaxed) != 0)
    }

    #[inline]
    fn of(&self, function: FunctionId) -> Option<&AtomicU64> {
        let index = function.0 as usize;
        self.first.get(index).or_else(|| {
            let index = index.checked_sub(self.first.len())?;
            let later = self.later.get()?;
            later.get(index / PART)?.get()?.get(index % PART)
        })
    }
}

fn zeros(count: usize) -> impl Iterator<Item = AtomicU64> {
    std::iter::repeat_with(|| AtomicU64::new(0)).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_come_later_are_counted_as_well() {
        let counts = Counts::new(3);
        let ids = [0, 2, 3, 4, 3 + u32::try_from(PART).unwrap()].map(FunctionId);
        counts.grow(3 + PART + 1);
        for id in ids {
            assert!(!counts.was_seen(id));
            counts.mark_seen(id);
            assert!(counts.was_seen(id));
            assert_eq!(counts.calls(id), 0);
            counts.count_call(id);
            assert_eq!(counts.calls(id), 1);
        }
        assert!(!counts.was_seen(FunctionId(1)));
        // There is no room for it.
        let beyond = FunctionId(3 + 2 * u32::try_from(PART).unwrap());
        counts.count_call(beyond);
        assert_eq!(counts.calls(beyond), 0);
    }
}
