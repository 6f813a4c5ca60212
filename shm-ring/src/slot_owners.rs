//! Which slots of a table threads may take: pure arithmetic over a copy of the slots' owners.
//!
//! Where memory is limited, a table has more slots than there is memory for. The slots without
//! memory are closed: their owner is [`CLOSED`]. This module chooses which of them are opened. It
//! goes by how a thread looks for its slot: from its first choice on, which is its number modulo
//! the number of slots, it looks at [`PROBES`] slots.

use crate::layout::{Geometry, PROBES, slot::CLOSED};

/// The owners of all slots: thread numbers, 0 for a free slot, or what [`crate::layout::slot`]
/// says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOwners(Vec<u32>);

// === impl SlotOwners ===

impl SlotOwners {
    /// A table whose slots are all closed.
    pub fn all_closed(geometry: Geometry) -> Self {
        Self((0..geometry.slots()).map(|_| CLOSED).collect())
    }

    /// A table as it was read. `None` if the number of slots is no power of two.
    pub fn new(owners: Vec<u32>) -> Option<Self> {
        owners.len().is_power_of_two().then_some(Self(owners))
    }

    /// The closed slots.
    pub fn closed(&self) -> impl Iterator<Item = u32> {
        let slots = (0..).zip(&self.0);
        slots.filter_map(|(index, owner)| (*owner == CLOSED).then_some(index))
    }

    /// Opens the closed slot that the thread looks at first, for that thread. `None` if the thread
    /// has a slot already, looks at a free one, or looks at no closed one.
    ///
    /// A free slot that the thread looks at counts as the thread's afterwards.
    pub fn open_for(&mut self, thread: u32) -> Option<u32> {
        let mut free = None;
        let mut closed = None;
        for place in self.order_of(thread).take(PROBES as usize) {
            match self.0[place] {
                owner if owner == thread => return None,
                0 => free = free.or(Some(place)),
                CLOSED => closed = closed.or(Some(place)),
                _ => {}
            }
        }
        let place = free.or(closed)?;
        self.0[place] = thread;
        match free {
            Some(_) => None,
            None => u32::try_from(place).ok(),
        }
    }

    /// Opens the first closed slots behind the first choice of a thread, at most so many: the
    /// kernel gives the next numbers to the threads that come next.
    pub fn open_behind(&mut self, thread: u32, most: usize) -> Vec<u32> {
        let places: Vec<usize> = self.order_of(thread).skip(1).collect();
        self.open(places, most)
    }

    /// Opens closed slots, at most so many, as far from each other as can be.
    pub fn open_spread(&mut self, most: usize) -> Vec<u32> {
        let shift = usize::BITS - self.0.len().trailing_zeros();
        let slots = self.0.len();
        // Counting with the bits reversed: each power of two of places is evenly spread.
        let places = (0..slots).map(|count| count.reverse_bits().checked_shr(shift).unwrap_or(0));
        self.open(places, most)
    }

    fn open(&mut self, places: impl IntoIterator<Item = usize>, most: usize) -> Vec<u32> {
        let mut opened = Vec::new();
        for place in places {
            if opened.len() == most {
                break;
            }
            if self.0[place] == CLOSED {
                self.0[place] = 0;
                opened.extend(u32::try_from(place));
            }
        }
        opened
    }

    /// All places, in the order in which the thread looks at them.
    fn order_of(&self, thread: u32) -> impl Iterator<Item = usize> + use<> {
        let slots = self.0.len();
        let first = thread as usize;
        (0..slots).map(move |step| first.wrapping_add(step) & (slots - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(threads: u32) -> SlotOwners {
        SlotOwners::all_closed(Geometry::new(1 << 16, threads).unwrap())
    }

    #[test]
    fn a_thread_gets_its_first_choice_or_the_next_one() {
        let mut owners = closed(64);
        assert_eq!(owners.closed().count(), 128);
        assert_eq!(owners.open_for(1000), Some(1000 % 128));
        // It has it.
        assert_eq!(owners.open_for(1000), None);
        // Another one with the same first choice.
        assert_eq!(owners.open_for(1000 + 128), Some(1000 % 128 + 1));
        assert_eq!(owners.closed().count(), 126);
        // Around the end.
        assert_eq!(owners.open_for(127), Some(127));
        assert_eq!(owners.open_for(255), Some(0));
    }

    #[test]
    fn a_free_slot_in_reach_is_not_another_one() {
        let mut owners = closed(64);
        assert_eq!(owners.open_behind(9, 2), [10, 11]);
        // It is the first one's then.
        assert_eq!(owners.open_for(5), None);
        assert_eq!(owners.open_for(6), None);
        assert_eq!(owners.open_for(7), Some(7));
        // Out of reach.
        let mut owners = closed(64);
        owners.open_behind(9, 1);
        assert_eq!(owners.open_for(11), Some(11));
    }

    #[test]
    fn no_slot_is_opened_out_of_reach_or_twice() {
        let mut owners = SlotOwners::new(vec![7; 128]).unwrap();
        owners.0[80] = CLOSED;
        assert_eq!(owners.open_for(3), None);
        assert_eq!(owners.open_for(80 - 63), Some(80));
        assert_eq!(owners.open_for(80), None);
        assert_eq!(owners.open_behind(0, 9), []);
        assert_eq!(owners.open_spread(9), []);
        assert_eq!(SlotOwners::new(vec![0; 100]), None);
        assert_eq!(SlotOwners::new(Vec::new()), None);
    }

    #[test]
    fn spread_slots_are_in_reach_of_each_thread() {
        for (threads, count) in [(64, 2), (64, 3), (1024, 32), (1024, 64), (4096, 128)] {
            let mut owners = closed(threads);
            let mut opened = owners.open_spread(count);
            assert_eq!(opened.len(), count);
            opened.sort_unstable();
            opened.push(opened[0] + threads * 2);
            let gap = opened.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(gap.unwrap() <= PROBES, "{count} of {threads}: {gap:?}");
        }
        let mut owners = closed(64);
        let mut all = owners.open_spread(usize::MAX);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..128));
    }

    #[test]
    fn slots_behind_a_thread_are_those_of_the_next_numbers() {
        let mut owners = closed(64);
        assert_eq!(owners.open_behind(1000 * 128 + 125, 4), [126, 127, 0, 1]);
        assert_eq!(owners.open_behind(126, 2), [2, 3]);
    }
}
