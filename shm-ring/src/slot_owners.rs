//! The slots of a table that threads may take: pure arithmetic over a copy of the slots' owners.
//!
//! Where memory is limited, a table has more slots than there is memory for. The slots without
//! memory are closed: their owner is [`CLOSED`]. This module chooses which of them are opened. It
//! follows the search of a thread for its slot. The first choice of a thread is its number modulo
//! the number of slots. From there on the thread looks at [`PROBES`] slots, and takes the first one
//! that is its own or free. A closed slot ends its search.
//!
//! So a thread gets no slot behind a closed one, and never moves on to one that is opened.

use crate::layout::{
    Geometry, PROBES,
    slot::{CLOSED, PAUSED, WITHDRAWN},
};

/// The owners of all slots: thread numbers, 0 for a free slot, or one of the marks in
/// [`crate::layout::slot`].
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

    /// The number of free slots.
    pub fn free(&self) -> usize {
        self.0.iter().filter(|owner| **owner == 0).count()
    }

    /// The number of slots that are neither free nor closed.
    pub fn taken(&self) -> usize {
        let taken = |owner: &&u32| !matches!(**owner, 0 | CLOSED);
        self.0.iter().filter(taken).count()
    }

    /// The number of threads, among the next `count` thread numbers, whose first choice is free.
    pub fn free_behind(&self, thread: u32, count: usize) -> usize {
        let places = self.order_of(thread).skip(1).take(count);
        places.filter(|place| self.0[*place] == 0).count()
    }

    /// Opens the closed slot that ends the search of a thread. `None` if the thread has a slot
    /// already, finds a free one, or looks only at taken ones.
    ///
    /// The slot that was opened or found counts as the thread's afterwards.
    pub fn open_for(&mut self, thread: u32) -> Option<u32> {
        let mut places = self.order_of(thread).take(PROBES as usize);
        let found = |owner: u32| owner == thread || matches!(owner, 0 | CLOSED);
        let place = places.find(|place| found(self.0[*place]))?;
        match std::mem::replace(&mut self.0[place], thread) {
            CLOSED => u32::try_from(place).ok(),
            _ => None,
        }
    }

    /// Opens the first closed slots behind the first choice of a thread, at most `most`. The kernel
    /// gives the next numbers to the threads that come next.
    pub fn open_behind(&mut self, thread: u32, most: usize) -> Vec<u32> {
        let mut opened = Vec::new();
        for place in self.order_of(thread).skip(1) {
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

    /// True if a thread has a slot behind this one and looks at this one sooner. If this one were
    /// closed, the thread would not find its own slot any more.
    pub fn is_passed_over(&self, slot: u32) -> bool {
        let mask = self.0.len() - 1;
        let place = slot as usize & mask;
        let behind = (1..PROBES as usize).map(|steps| (steps, (place + steps) & mask));
        let mut behind = behind.map(|(steps, place)| (steps, place, self.0[place]));
        behind.any(|(steps, place, owner)| {
            let looked_at = place.wrapping_sub(owner as usize) & mask;
            !matches!(owner, 0 | CLOSED | PAUSED | WITHDRAWN)
                && (steps..PROBES as usize).contains(&looked_at)
        })
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
        // The thread has it.
        assert_eq!(owners.open_for(1000), None);
        // Another thread with the same first choice.
        assert_eq!(owners.open_for(1000 + 128), Some(1000 % 128 + 1));
        assert_eq!(owners.closed().count(), 126);
        // Around the end of the table.
        assert_eq!(owners.open_for(127), Some(127));
        assert_eq!(owners.open_for(255), Some(0));
    }

    #[test]
    fn a_thread_finds_no_slot_behind_a_closed_one() {
        let mut owners = closed(64);
        assert_eq!(owners.open_behind(9, 2), [10, 11]);
        assert_eq!(owners.open_for(5), Some(5));
        // The slot is this thread's then.
        assert_eq!(owners.open_for(10), None);
        assert_eq!(owners.open_for(10), None);
        assert_eq!(owners.open_for(10 + 128), None);
        assert_eq!(owners.open_for(10 + 256), Some(12));
    }

    #[test]
    fn no_slot_is_opened_out_of_reach_or_twice() {
        let mut owners = SlotOwners::new(vec![7; 128]).unwrap();
        owners.0[80] = CLOSED;
        assert_eq!(owners.open_for(3), None);
        assert_eq!(owners.open_for(80 - 63), Some(80));
        assert_eq!(owners.open_for(80), None);
        assert_eq!(owners.open_behind(0, 9), []);
        assert_eq!(SlotOwners::new(vec![0; 100]), None);
        assert_eq!(SlotOwners::new(Vec::new()), None);
    }

    #[test]
    fn a_slot_that_a_thread_has_passed_over_is_known() {
        let mut owners = closed(64);
        owners.0[1] = 126;
        let passed = |owners: &SlotOwners| {
            let slots = (0..128).filter(|slot| owners.is_passed_over(*slot));
            slots.collect::<Vec<u32>>()
        };
        assert_eq!(passed(&owners), [0, 126, 127]);
        // A thread that has its first choice passes over none, and neither does one whose number
        // cannot be here.
        owners.0 = vec![0; 128];
        owners.0[5] = WITHDRAWN;
        owners.0[10] = 60;
        owners.0[11] = 11;
        assert_eq!(passed(&owners), []);
    }

    #[test]
    fn slots_behind_a_thread_are_those_of_the_next_numbers() {
        let mut owners = closed(64);
        assert_eq!(owners.open_behind(1000 * 128 + 125, 4), [126, 127, 0, 1]);
        assert_eq!(owners.open_behind(126, 2), [2, 3]);
    }

    #[test]
    fn slots_are_counted() {
        let mut owners = closed(64);
        assert_eq!(owners.open_behind(126, 4), [127, 0, 1, 2]);
        assert_eq!(owners.open_for(1), None);
        assert_eq!(owners.open_for(50), Some(50));
        assert_eq!((owners.free(), owners.taken()), (3, 2));
        assert_eq!(
            (owners.free_behind(126, 3), owners.free_behind(125, 9)),
            (2, 3)
        );
    }
}
