//! The table of the reference producer: the contents of a target's private mapping, in ordinary
//! memory. The collector does not use it.

use crate::{
    layout::{Geometry, slot},
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// The slots of all threads of one target.
#[derive(Debug)]
pub struct Table {
    /// Not 0 while events are recorded. Set when the table is made, cleared by [`Table::wipe`].
    live: AtomicU64,
    /// When a context closed recording; 0 if none has.
    closed_at: AtomicU64,
    slots: Box<[Slot]>,
}

/// The slot of one thread. `layout::slot` names the fields and their writers.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) tid: AtomicU32,
    pub(crate) view: AtomicU32,
    pub(crate) head: AtomicU64,
    pub(crate) limit: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) reported: AtomicU64,
    pub(crate) since: AtomicU64,
    pub(crate) base: AtomicU64,
    pub(crate) waited: AtomicU32,
    pub(crate) expired: AtomicU32,
}

// === impl Table ===

impl Table {
    /// An empty table that is live.
    pub fn new(geometry: Geometry) -> Self {
        let slots = (0..geometry.slots()).map(|_| Slot::default()).collect();
        Self {
            live: AtomicU64::new(1),
            closed_at: AtomicU64::new(0),
            slots,
        }
    }

    /// Wipes the table, as a forked child finds it.
    pub fn wipe(&self) {
        self.live.store(0, Ordering::Relaxed);
        self.closed_at.store(0, Ordering::Relaxed);
        for index in 0..self.slots.len() {
            self.clear(&self.slots[index]);
        }
    }

    /// Frees a slot whose thread is gone, as the collector does, owner last.
    pub fn free(&self, index: u32) {
        self.clear(self.slot(index));
    }

    /// Closes a slot that is free, as the collector does where memory is limited.
    pub fn close(&self, index: u32) {
        self.slot(index).tid.store(slot::CLOSED, Ordering::Release);
    }

    /// Pauses a slot, as its thread does when it finds recording closed.
    pub fn pause(&self, index: u32) {
        self.slot(index).tid.store(slot::PAUSED, Ordering::Release);
    }

    /// The owner of the slot; 0 for a free slot.
    pub fn owner(&self, index: u32) -> u32 {
        self.slot(index).tid.load(Ordering::Relaxed)
    }

    /// True if a context is in the slow path of the slot.
    pub fn is_parked(&self, index: u32) -> bool {
        self.slot(index).head.load(Ordering::Relaxed) & slot::PARKED != 0
    }

    /// Ticks that the slot's thread has waited in a full ring and that no wait word has reported.
    pub fn unreported_wait(&self, index: u32) -> u64 {
        self.slot(index).waited.load(Ordering::Relaxed).into()
    }

    /// When a context closed recording; 0 if none has.
    pub fn closed_at(&self) -> u64 {
        self.closed_at.load(Ordering::Relaxed)
    }

    pub(crate) fn note_closed(&self, at: u64) {
        self.closed_at.store(at, Ordering::Relaxed);
    }

    /// Begins or ends recording.
    pub fn set_live(&self, live: bool) {
        self.live.store(u64::from(live), Ordering::Relaxed);
    }

    /// True while contexts record.
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    fn clear(&self, slot: &Slot) {
        let Slot {
            tid,
            view,
            head,
            limit,
            started,
            reported,
            since,
            base,
            waited,
            expired,
        } = slot;
        for field in [view, waited, expired] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [limit, head, started, reported, since, base] {
            field.store(0, Ordering::Relaxed);
        }
        // Pairs with the claim.
        tid.store(0, Ordering::Release);
    }
}

impl Clone for Table {
    fn clone(&self) -> Self {
        let copy = |field: &AtomicU64| AtomicU64::new(field.load(Ordering::Relaxed));
        let copy32 = |field: &AtomicU32| AtomicU32::new(field.load(Ordering::Relaxed));
        let slots = self.slots.iter().map(|slot| Slot {
            tid: copy32(&slot.tid),
            view: copy32(&slot.view),
            head: copy(&slot.head),
            limit: copy(&slot.limit),
            started: copy(&slot.started),
            reported: copy(&slot.reported),
            since: copy(&slot.since),
            base: copy(&slot.base),
            waited: copy32(&slot.waited),
            expired: copy32(&slot.expired),
        });
        Self {
            live: copy(&self.live),
            closed_at: copy(&self.closed_at),
            slots: slots.collect(),
        }
    }
}
