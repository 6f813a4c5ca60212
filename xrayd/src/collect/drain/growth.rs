//! Slots for threads without one, where memory is limited and a part of the slots is closed
//! (`docs/design/memory.md`, "Closed slots").
//!
//! A thread without a slot counts its losses in a bucket. To keep the losses small, the drain looks
//! for new buckets and for new rings in each round. It opens slots for the threads that have a
//! bucket, and for the threads that come next, if the limits on memory allow it. When a thread has
//! ended, its slot is closed again. The limits themselves are in `ring_budget`.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use shm_ring::SlotOwners;

use crate::{
    collect::{names::Names, ring_budget::RingBudget, slots::Slots},
    pid::Pid,
    sys::Memory,
};

/// The pause between two looks is this many times as long as the last look took, within these
/// bounds. A look may have taken long because the drain got no processor.
const PAUSES: u32 = 20;
const LEAST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Time until the next look for threads that have a bucket. Another thread may have taken the slot
/// that was opened for them.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same, after the limits have refused memory.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Slots are opened ahead for this many of the next threads, or for as many as threads have slots,
/// if that is more.
const AHEAD: usize = 16;
/// The most slots that may be open and free before more are opened for coming threads, or twice as
/// many as threads have, if that is more. Threads may come with other ids than expected.
const MOST_FREE: usize = 128;

/// Closed slots, and the threads that need them.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) budget: RingBudget,
    /// How often threads had taken a bucket by the last look.
    buckets_taken: u64,
    /// The highest id among the threads that have got a ring since the last look.
    newcomer: Option<u32>,
    /// No look before this time.
    not_before: Instant,
    /// A look at this time if a bucket is taken, whether it is a new one or not.
    again: Instant,
}

/// The slots of a process, where its memory has them.
#[derive(Debug)]
pub(super) struct SlotTable<'a> {
    pub(super) pid: Pid,
    pub(super) memory: &'a Memory,
    pub(super) slots: &'a Slots,
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

    /// A look is over, with this result.
    fn has_looked(&mut self, began: Instant, ended: Instant, opened: Result<(), Refused>) {
        let pause = ended.duration_since(began).saturating_mul(PAUSES);
        self.not_before = ended + pause.clamp(LEAST_PAUSE, LONGEST_PAUSE);
        self.again = ended
            + match opened {
                Ok(()) => LOOK_AGAIN_AFTER,
                Err(Refused) => ASK_AGAIN_AFTER,
            };
    }

    /// True if there may be threads to open a slot for.
    fn is_due(&self, buckets_taken: u64, now: Instant) -> bool {
        let news = self.newcomer.is_some() || buckets_taken != self.buckets_taken;
        now >= self.not_before && (news || buckets_taken != 0 && now >= self.again)
    }

    /// Opens slots for threads that lose their events for lack of one, and for the threads that
    /// come next.
    pub(super) fn open_slots(&mut self, table: &SlotTable<'_>, names: &mut Names) {
        if !self.budget.has_closed() {
            return;
        }
        let buckets_taken = table.slots.buckets().taken();
        let now = Instant::now();
        if !self.is_due(buckets_taken, now) {
            return;
        }
        self.buckets_taken = buckets_taken;
        let opened = self.open_slots_now(table, names);
        self.has_looked(now, Instant::now(), opened);
    }

    fn open_slots_now(&mut self, table: &SlotTable<'_>, names: &mut Names) -> Result<(), Refused> {
        let SlotTable { pid, memory, slots } = *table;
        let newcomer = self.newcomer.take();
        let living = names.living();
        let waiting: HashSet<u32> = slots.buckets().owners().collect();
        let mut waiting: Vec<u32> = waiting.intersection(&living).copied().collect();
        // The kernel assigns ids in ascending order as a rule. So no thread gets the first choice
        // of another thread that begins sooner.
        waiting.sort_unstable();
        // The memory of an ending process cannot be read.
        let Ok(owners) = slots.owners(memory) else {
            return Ok(());
        };
        let Some(mut owners) = SlotOwners::new(owners) else {
            return Ok(());
        };
        let mut opening: Vec<u32> = waiting
            .iter()
            .filter_map(|thread| owners.open_for(*thread))
            .collect();
        let needed = opening.len();
        if let Some(newest) = newcomer.max(waiting.last().copied()) {
            opening.extend(open_ahead(&mut owners, newest));
        }
        let spare = opening.len() - needed;
        let granted = self.budget.grow(needed, spare, slots.written());
        opening.truncate(granted);
        for &slot in &opening {
            if let Err(error) = slots.open(memory, slot) {
                tracing::debug!(pid = pid.as_raw(), slot, %error, "cannot open a slot");
            }
        }
        if granted > 0 {
            let (pid, open) = (pid.as_raw(), self.budget.open_slots());
            tracing::debug!(pid, needed, granted, open, "opened slots");
        }
        match granted < needed {
            true => Err(Refused),
            false => Ok(()),
        }
    }

    /// Frees the slot of an ended thread for another thread. Where slots are closed, this one is
    /// closed, too, since the next threads look at others first. A slot that a thread has passed
    /// over becomes free: that thread would not find its own slot behind a closed one.
    pub(super) fn free_slot(&mut self, table: &SlotTable<'_>, index: u32) {
        let SlotTable { pid, memory, slots } = *table;
        let closes = self.budget.has_closed() && !table.is_passed_over(index);
        let freed = match closes {
            true => slots.close(memory, index),
            false => slots.retire(memory, index),
        };
        match freed {
            Ok(()) if closes => self.budget.close_one(),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(pid = pid.as_raw(), index, %error, "cannot free a slot");
            }
        }
    }
}

// === impl SlotTable ===

impl SlotTable<'_> {
    fn is_passed_over(&self, index: u32) -> bool {
        let owners = self.slots.owners(self.memory).ok();
        let owners = owners.and_then(SlotOwners::new);
        owners.is_none_or(|owners| owners.is_passed_over(index))
    }
}

/// The limits have left threads without a slot.
struct Refused;

/// Opens slots for the threads that come after `newest`, unless half of the next [`AHEAD`] threads
/// find their first choice free.
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
            growth.has_looked(began, ended, Ok(()));
            growth.newcomer = news.then_some(1);
            growth.buckets_taken = 1;
            growth.is_due(1, ended + pause)
        };
        let milliseconds = Duration::from_millis;
        // A short look is followed by a pause in proportion.
        assert!(!is_due_after(milliseconds(2), milliseconds(39), true));
        assert!(is_due_after(milliseconds(2), milliseconds(40), true));
        assert!(!is_due_after(Duration::ZERO, Duration::ZERO, true));
        // A thread that waits for a slot is looked for again, even without news.
        assert!(!is_due_after(milliseconds(2), milliseconds(99), false));
        assert!(is_due_after(milliseconds(2), milliseconds(100), false));
        // The thread that looks waited for a processor for a minute.
        let minute = Duration::from_secs(60);
        assert!(is_due_after(minute, milliseconds(100), true));
        assert!(is_due_after(minute, milliseconds(100), false));
    }
}
