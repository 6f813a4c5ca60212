//! Threads that have ended: reads their rings to the end, and frees their slots, filter pages and
//! buckets for other threads.
//!
//! The kernel reuses thread ids at any moment. A thread with the id of an ended thread finds that
//! thread's slot as its own, and continues in its ring. So a ring is bound to the start time of its
//! thread. Its slot is *withdrawn* before its ring is read for the last time: the slot's owner
//! becomes an id that no thread has.
//!
//! ```text
//!  owned ──► withdrawn ──► read to the end ──► free
//!                │                              ▲
//!                │ a thread has the id now      │ that thread has ended
//!                ▼                              │
//!            left to that thread ───────────────┘
//! ```
//!
//! The thread with the reused id may stand in a trampoline with the withdrawn slot. Its next event
//! gets another slot.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use shm_ring::layout::slot::{PAUSED, WITHDRAWN};

use super::{chore_times::RARE, owners::RingOwners, rings::Rings};
use crate::{
    collect::{names::Bearer, ring::Ring},
    store::Handover,
};

/// Threads whose rings are taken back at once. Then other rings and requests have their turn.
const ENDS_AT_ONCE: usize = 128;
/// Ended threads are looked for when one in this many of the open slots was taken since the last
/// look. Threads that live for a moment only would otherwise use up all slots before the next
/// chores.
const SLOTS_PER_LOOK: usize = 16;
/// Slots of the table that are read at once.
const SWEEP_SLOTS: u32 = 4096;
/// Rings in one chore whose thread's start time is read, though a listing shows its id. Each read
/// takes 6 µs.
const ASKED_AT_ONCE: usize = 16;
/// The same of a chore after a rest. It takes 1.5 ms at most.
const ASKED_AFTER_REST: usize = 256;
/// Time in which all rings have their turn while chores are rare. The kernel reuses an id when it
/// has given out all others.
const ASK_ALL_IN: Duration = Duration::from_secs(30);

impl RingOwners {
    /// Takes up the rings of threads that were killed between claiming a slot and beginning a
    /// chunk. Only the table names such a thread. Its ring is then taken back like others.
    pub(super) fn take_up_unused(&mut self) {
        let slots = self.rings.geometry().slots();
        for first in (0..slots).step_by(SWEEP_SLOTS as usize) {
            self.take_up_unused_from(first);
        }
    }

    fn take_up_unused_from(&mut self, first: u32) {
        // The memory of an ending process cannot be read. Then there is nothing to free.
        let Ok(claims) = self.rings.slots.claims(&self.memory, first, SWEEP_SLOTS) else {
            return;
        };
        let unused = |&(index, _): &(u32, u32)| !self.rings.by_slot.contains_key(&index);
        let mut claims: Vec<_> = claims.into_iter().filter(unused).collect();
        if claims.is_empty() {
            return;
        }
        let living = self.names.living();
        claims.retain(|&(_, owner)| !living.contains(&owner) && self.names.is_gone(owner, None));
        for (index, owner) in claims {
            match owner {
                // An earlier collector has read the ring to its end, and was killed before it freed
                // the slot.
                WITHDRAWN => self.free_slot(index),
                // The thread has paused the slot, and its id stands in the control line.
                PAUSED if self.rings.slots.owner(index) != 0 => {}
                PAUSED => self.free_slot(index),
                owner => self.take_up(index, owner),
            }
        }
    }

    /// True if so many threads came, or ended, that [`Self::retire_dead`] is needed before the next
    /// chores.
    pub(super) fn should_look_for_ended(&self) -> bool {
        let slots = self.growth.budget.open_slots() as usize;
        let taken = self.rings.by_slot.len().saturating_sub(self.rings_seen);
        self.more_ended || taken >= (slots / SLOTS_PER_LOOK).max(1)
    }

    /// True if a thread may have ended since the last call of [`Self::retire_dead`]. The number of
    /// threads stays the same if another one has begun. That one shows when it gets a ring.
    pub(super) fn may_have_ended(&self) -> bool {
        let is_same = self.threads_seen.is_some() && self.names.count() == self.threads_seen;
        !is_same || self.rings.by_slot.len() != self.rings_seen || self.are_unsettled()
    }

    /// True if ended threads wait for the next call of [`Self::retire_dead`].
    pub(super) fn are_unsettled(&self) -> bool {
        self.more_ended || self.names.miss_threads()
    }

    /// Takes back the rings of threads that no listing shows any more.
    pub(super) fn retire_dead(&mut self) {
        self.more_ended = false;
        // A thread that ends meanwhile shows at the next look.
        self.threads_seen = self.names.count();
        self.rings_seen = self.rings.by_slot.len();
        let living = self.names.living();
        if living.is_empty() {
            // The process is ending. The controller reports that.
            return;
        }
        let mut ended = HashSet::new();
        let rings = &self.rings;
        for ring in rings
            .order
            .iter()
            .filter_map(|index| rings.by_slot.get(index))
        {
            // A listing may miss a living thread while others come and go (P1).
            if !living.contains(&ring.owner)
                && !ended.contains(&ring.owner)
                && self.names.is_gone(ring.owner, ring.began)
            {
                ended.insert(ring.owner);
            }
            if ended.len() == ENDS_AT_ONCE {
                self.more_ended = true;
                break;
            }
        }
        self.end_threads(&ended);
        self.rings_seen = self.rings.by_slot.len();
    }

    /// Takes back the rings of threads whose id another thread has by now. Each call looks at a
    /// part of the rings, the smaller the rarer chores are.
    pub(super) fn retire_replaced(&mut self, since_last: Duration) {
        let rings = self.rings.order.len();
        let due = match since_last < RARE {
            true => ASKED_AT_ONCE,
            false => {
                let elapsed = self.asked_at.elapsed().as_millis();
                let share = elapsed.saturating_mul(rings as u128);
                let share = usize::try_from(share / ASK_ALL_IN.as_millis());
                share.map_or(ASKED_AFTER_REST, |share| share.min(ASKED_AFTER_REST))
            }
        };
        if due == 0 {
            return;
        }
        self.asked_at = Instant::now();
        let mut replaced = HashSet::new();
        for _ in 0..rings.min(due) {
            self.asked = match self.asked + 1 {
                next if next < self.rings.order.len() => next,
                _ => 0,
            };
            let Some(ring) = self.rings.by_slot.get_mut(&self.rings.order[self.asked]) else {
                continue;
            };
            if let Bearer::Alive(now) = self.names.bearer(ring.owner)
                && *ring.began.get_or_insert(now) != now
            {
                replaced.insert(ring.owner);
            }
        }
        self.end_threads(&replaced);
    }

    /// Ends the threads with these ids, whose ids other threads may have now.
    pub(super) fn end_threads(&mut self, numbers: &HashSet<u32>) {
        if numbers.is_empty() {
            return;
        }
        self.rings.read_long_calls();
        let mut rings: HashMap<u32, Vec<u32>> = HashMap::new();
        for &index in &self.rings.order {
            let owner = self.rings.by_slot.get(&index).map(|ring| ring.owner);
            if let Some(owner) = owner.filter(|owner| numbers.contains(owner)) {
                rings.entry(owner).or_default().push(index);
            }
        }
        for (number, indexes) in rings {
            self.end_thread(number, &indexes);
        }
        let Rings { order, by_slot, .. } = &mut self.rings;
        order.retain(|index| by_slot.contains_key(index));
    }

    /// Ends the threads that have had this id. `indexes` are the slots of all their rings.
    fn end_thread(&mut self, number: u32, indexes: &[u32]) {
        let now = self.names.bearer(number);
        let has_ended = |ring: &Ring| match now {
            Bearer::Alive(now) => ring.began.is_some_and(|began| began != now),
            Bearer::Gone | Bearer::Unseen => true,
        };
        let (mut ended, mut others) = (Vec::new(), Vec::new());
        for &index in indexes {
            match self.rings.by_slot.get(&index).is_some_and(has_ended) {
                true => ended.push(index),
                false => others.push(index),
            }
        }
        if ended.is_empty() {
            return;
        }
        for &index in &ended {
            if let Err(error) = self.rings.slots.withdraw(&self.memory, index) {
                // The process is ending: it has no more threads.
                let pid = self.rings.pid.as_raw();
                tracing::debug!(pid, index, %error, "cannot withdraw a slot");
            }
        }
        // A thread that got the id before a slot was withdrawn may stand in that slot's ring. A
        // thread that came later cannot.
        let heir = match self.names.bearer(number) {
            Bearer::Alive(began) => Some(began),
            Bearer::Gone | Bearer::Unseen => None,
        };
        let withdrawn_before = |ring: &Ring| ring.withdrawn;
        let (free, left): (Vec<u32>, Vec<u32>) = ended.into_iter().partition(|index| {
            heir.is_none() || self.rings.by_slot.get(index).is_some_and(withdrawn_before)
        });
        for &index in free.iter().chain(&left) {
            self.rings.count_ring(index);
            let is_free = free.contains(&index);
            let look = if is_free {
                Handover::Last
            } else {
                Handover::Interim
            };
            self.rings.add_up_ring(index, look);
            if self.rings.slots.filtered
                && let Some(ring) = self.rings.by_slot.get_mut(&index)
            {
                self.rings
                    .output
                    .counters
                    .add_left_out(ring.take_left_out(&self.rings.slots));
            }
        }
        // A block has words of one ring only.
        self.rings.close_block_of(number);
        for &index in &free {
            self.rings.with_ring(index, Ring::read_last);
            self.rings.keep_sums(index);
            self.rings.by_slot.remove(&index);
            self.free_slot(index);
        }
        for &index in &left {
            self.rings.with_ring(index, |ring, decoder, around| {
                ring.leave_to_heir(decoder, around, heir);
            });
        }
        self.rings.decoders.close(number, &self.rings.output);
        if heir.is_some() {
            // From now on the bucket counts for the thread that has the id now.
            self.rings.decoders.forget(number, &self.rings.output);
        }
        for index in left.into_iter().chain(others) {
            self.rings
                .decoders
                .open(number, index, &mut self.names, &self.rings.output);
            if self.chosen.is_some() {
                self.choose_thread(index, number);
            }
        }
    }

    /// Reports the losses of threads that found no slot, and frees the buckets of ended threads.
    pub(super) fn retire_ringless(&mut self) {
        let mut gone: HashSet<u32> = self.rings.slots.buckets().owners().collect();
        if !gone.is_empty() {
            let living = self.names.living();
            // As for rings, an empty listing means that the process is ending.
            gone.retain(|owner| {
                !living.is_empty() && !living.contains(owner) && self.names.is_gone(*owner, None)
            });
        }
        // Ended threads lose nothing more. Other threads with their ids may.
        self.report_without_slot();
        if !gone.is_empty() {
            self.rings.slots.buckets().free(&gone);
        }
    }
}
