//! Slots for threads that have none, where memory is limited: there a part of the slots is closed at
//! first (`docs/ARCHITECTURE.md`, "Memory in the target").
//!
//! A thread without a slot counts its losses in a bucket. So that the thread loses little, the drain
//! looks for new buckets at each round, and opens slots for the threads that have one, if the limits
//! on memory allow it.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use shm_ring::SlotOwners;

use super::Drain;
use crate::session::RingBudget;

/// The least time between two looks: a target may count buckets as it likes.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(1);
/// How soon threads are looked for again that have a bucket: another thread may have taken the slot
/// that was opened for them.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same when the limits have refused more memory.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is known of closed slots and of threads that need them.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) budget: RingBudget,
    /// How often a bucket had been taken at the last look.
    buckets_taken: u64,
    /// No look before that.
    not_before: Instant,
    /// A look then, whether a bucket is taken or not.
    again: Instant,
}

// === impl Growth ===

impl Growth {
    pub(super) fn new(budget: RingBudget, now: Instant) -> Self {
        Self {
            budget,
            buckets_taken: 0,
            not_before: now,
            again: now,
        }
    }

    /// True if there may be threads that a slot could be opened for.
    fn is_due(&self, buckets_taken: u64, now: Instant) -> bool {
        let news = buckets_taken != self.buckets_taken;
        buckets_taken != 0 && now >= self.not_before && (news || now >= self.again)
    }
}

// === impl Drain ===

impl Drain {
    /// Opens slots for threads that lose their events for lack of one, and as many for the threads
    /// that come next.
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
        self.growth.not_before = now + LOOK_AT_MOST_EVERY;
        self.growth.again = now + LOOK_AGAIN_AFTER;
        let living = self.names.living();
        let waiting: HashSet<u32> = self.slots.bucket_owners().collect();
        let mut waiting: Vec<u32> = waiting.intersection(&living).copied().collect();
        // The kernel gives numbers out in this order as a rule. So no thread gets the first choice
        // of another one that begins sooner.
        waiting.sort_unstable();
        // The memory of a process that is ending cannot be read.
        let Ok(owners) = self.slots.owners(&self.memory) else {
            return;
        };
        let Some(mut owners) = SlotOwners::new(owners) else {
            return;
        };
        let mut slots: Vec<u32> = waiting
            .iter()
            .filter_map(|thread| owners.open_for(*thread))
            .collect();
        let needed = slots.len();
        if let (1.., Some(newest)) = (needed, waiting.last()) {
            slots.extend(owners.open_behind(*newest, needed));
        }
        let count = |slots: usize| u32::try_from(slots).unwrap_or(u32::MAX);
        let spare = slots.len() - needed;
        let written = self.slots.written();
        let budget = &mut self.growth.budget;
        let granted = budget.grow(count(needed), count(spare), written) as usize;
        if granted < needed {
            self.growth.not_before = now + ASK_AGAIN_AFTER;
            self.growth.again = now + ASK_AGAIN_AFTER;
        }
        for &slot in slots.iter().take(granted) {
            if let Err(error) = self.slots.open(&self.memory, slot) {
                tracing::debug!(pid = self.pid.as_raw(), slot, %error, "slot not opened");
            }
        }
        if granted > 0 {
            let (pid, open) = (self.pid.as_raw(), self.growth.budget.open_slots());
            tracing::debug!(pid, needed, granted, open, "slots opened");
        }
    }
}
