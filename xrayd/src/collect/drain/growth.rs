//! Slots for threads that have none, where memory is limited: there a part of the slots is closed
//! (`docs/design/memory.md`, "Closed slots").
//!
//! A thread without a slot counts its losses in a bucket. So that threads lose little, the drain
//! looks for new buckets and for new rings at each round. It opens slots for the threads that have a
//! bucket, and for those that come next, if the limits on memory allow it. The slot of a thread that
//! has ended is closed again.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use shm_ring::SlotOwners;

use super::Drain;
use crate::collect::ring_budget::RingBudget;

/// The pause between two looks is so many times as long as the last look took, within these bounds.
/// A look may have taken long because the thread got no processor.
const PAUSES: u32 = 20;
const LEAST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How soon threads are looked for again that have a bucket: another thread may have taken the slot
/// that was opened for them.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same when the limits have refused more memory.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// So many threads at least that come next find their first choice open, and as many as have a slot.
const AHEAD: usize = 16;
/// So many slots may be open and free at most, or twice as many as threads have, before more are
/// opened for threads that come next. Threads may come with other numbers than expected.
const MOST_FREE: usize = 128;

/// What is known of closed slots and of threads that need them.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) budget: RingBudget,
    /// How often a bucket had been taken at the last look.
    buckets_taken: u64,
    /// Of the threads that have got a ring since the last look, the one with the highest number.
    newcomer: Option<u32>,
    /// No look before that.
    not_before: Instant,
    /// A look then, if a bucket is taken, whether that is news or not.
    again: Instant,
}

// === impl Growth ===

impl Growth {
    pub(super) fn new(budget: RingBudget, now: Instant) -> Self {
        Self {
            budget,
            buckets_taken: 0,
            newcomer: None,
            not_before: now,
            again: now,
        }
    }

    /// A thread has got a ring.
    pub(super) fn expect_more_than(&mut self, thread: u32) {
        self.newcomer = self.newcomer.max(Some(thread));
    }

    /// A look that began and ended then has, or has not, been refused memory.
    fn has_looked(&mut self, began: Instant, ended: Instant, refused: bool) {
        let pause = ended.duration_since(began).saturating_mul(PAUSES);
        self.not_before = ended + pause.clamp(LEAST_PAUSE, LONGEST_PAUSE);
        self.again = ended
            + match refused {
                false => LOOK_AGAIN_AFTER,
                true => ASK_AGAIN_AFTER,
            };
    }

    /// True if there may be threads that a slot could be opened for.
    fn is_due(&self, buckets_taken: u64, now: Instant) -> bool {
        let news = self.newcomer.is_some() || buckets_taken != self.buckets_taken;
        now >= self.not_before && (news || buckets_taken != 0 && now >= self.again)
    }
}

// === impl Drain ===

impl Drain {
    /// Opens slots for threads that lose their events for lack of one, and for the threads that come
    /// next.
    pub(super) fn open_slots(&mut self) {
        if !self.growth.budget.has_closed() {
            return;
        }
        let buckets_taken = self.slots.buckets_taken();
        let now = Instant::now();
        if !self.growth.is_due(buckets_taken, now) {
            return;
        }
        self.growth.buckets_taken = buckets_taken;
        let opened = self.open_slots_now();
        self.growth
            .has_looked(now, Instant::now(), matches!(opened, Err(Refused)));
    }

    fn open_slots_now(&mut self) -> Result<(), Refused> {
        let newcomer = self.growth.newcomer.take();
        let living = self.names.living();
        let waiting: HashSet<u32> = self.slots.bucket_owners().collect();
        let mut waiting: Vec<u32> = waiting.intersection(&living).copied().collect();
        // The kernel gives numbers out in this order as a rule. So no thread gets the first choice
        // of another one that begins sooner.
        waiting.sort_unstable();
        // The memory of a process that is ending cannot be read.
        let Ok(owners) = self.slots.owners(&self.memory) else {
            return Ok(());
        };
        let Some(mut owners) = SlotOwners::new(owners) else {
            return Ok(());
        };
        let mut slots: Vec<u32> = waiting
            .iter()
            .filter_map(|thread| owners.open_for(*thread))
            .collect();
        let needed = slots.len();
        if let Some(newest) = newcomer.max(waiting.last().copied()) {
            slots.extend(open_ahead(&mut owners, newest));
        }
        let spare = slots.len() - needed;
        let written = self.slots.written();
        let budget = &mut self.growth.budget;
        let granted = budget.grow(needed, spare, written);
        slots.truncate(granted);
        for &slot in &slots {
            if let Err(error) = self.slots.open(&self.memory, slot) {
                tracing::debug!(pid = self.pid.as_raw(), slot, %error, "slot not opened");
            }
        }
        if granted > 0 {
            let (pid, open) = (self.pid.as_raw(), self.growth.budget.open_slots());
            tracing::debug!(pid, needed, granted, open, "slots opened");
        }
        match granted < needed {
            true => Err(Refused),
            false => Ok(()),
        }
    }

    /// Makes the slot of a thread that has ended free for another one. Where slots are closed, it is
    /// closed: the next threads look at others first. But then a thread that has passed over it
    /// would not find its own slot, so there it becomes free.
    pub(super) fn free_slot(&mut self, index: u32) {
        let closes = self.growth.budget.has_closed() && !self.is_passed_over(index);
        let freed = match closes {
            true => self.slots.close(&self.memory, index),
            false => self.slots.retire(&self.memory, index),
        };
        match freed {
            Ok(()) if closes => self.growth.budget.close_one(),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(pid = self.pid.as_raw(), index, %error, "slot not freed");
            }
        }
    }

    fn is_passed_over(&self, index: u32) -> bool {
        let owners = self.slots.owners(&self.memory).ok();
        let owners = owners.and_then(SlotOwners::new);
        owners.is_none_or(|owners| owners.is_passed_over(index))
    }
}

/// The limits have left threads without a slot.
struct Refused;

/// Opens slots for the threads that come after this one, unless half of the first [`AHEAD`] of them
/// have one.
fn open_ahead(owners: &mut SlotOwners, newest: u32) -> Vec<u32> {
    if owners.free_behind(newest, AHEAD) >= AHEAD / 2 {
        return Vec::new();
    }
    let taken = owners.taken();
    let most = MOST_FREE.max(2 * taken).saturating_sub(owners.free());
    owners.open_behind(newest, taken.max(AHEAD).min(most))
}

#[cfg(test)]
mod tests {
    use shm_ring::Geometry;

    use super::*;

    #[test]
    fn a_look_that_took_long_does_not_put_off_the_next_one_for_long() {
        let began = Instant::now();
        let budget = RingBudget::unlimited(Geometry::new(1 << 16, 64).unwrap(), 32);
        let mut growth = Growth::new(budget, began);
        let mut is_due_after = |took: Duration, pause: Duration, news: bool| {
            let ended = began + took;
            growth.has_looked(began, ended, false);
            growth.newcomer = news.then_some(1);
            growth.buckets_taken = 1;
            growth.is_due(1, ended + pause)
        };
        let milliseconds = Duration::from_millis;
        // What a look costs decides, while that is little.
        assert!(!is_due_after(milliseconds(2), milliseconds(39), true));
        assert!(is_due_after(milliseconds(2), milliseconds(40), true));
        assert!(!is_due_after(Duration::ZERO, Duration::ZERO, true));
        // A thread that waits for a slot is looked for again, also without news.
        assert!(!is_due_after(milliseconds(2), milliseconds(99), false));
        assert!(is_due_after(milliseconds(2), milliseconds(100), false));
        // The thread that looks waited for a processor for a minute.
        let minute = Duration::from_secs(60);
        assert!(is_due_after(minute, milliseconds(100), true));
        assert!(is_due_after(minute, milliseconds(100), false));
    }
}
