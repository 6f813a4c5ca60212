//! The threads that have rings: finds the rings that threads have claimed, opens slots for threads
//! that have none, and records the chosen threads only. The end of threads is in `endings`.

use std::{cmp::Reverse, collections::HashSet, sync::Arc, time::Instant};

use shm_ring::newest;

use super::{
    growth::{Growth, SlotTable},
    rings::Rings,
};
use crate::{
    collect::{
        names::{Bearer, Names},
        ring::Ring,
        ring_budget::RingBudget,
    },
    sys::Memory,
    types::ThreadChoice,
};

/// The rings of a target, with the threads that own them.
#[derive(Debug)]
pub(super) struct RingOwners {
    pub(super) rings: Rings,
    pub(super) memory: Arc<Memory>,
    pub(super) names: Names,
    /// Which slots are open, and how more slots are opened.
    pub(super) growth: Growth,
    /// True once the rings that an earlier session left are taken up.
    pub(super) begun: bool,
    /// The recorded threads; `None` for all.
    pub(super) chosen: Option<Arc<ThreadChoice>>,
    /// True if a choice of threads was in force at the last look at thread names.
    choosing: bool,
    /// The number of rings after the last look for ended threads.
    pub(super) rings_seen: usize,
    /// True if that look found more ended threads than are taken back at once.
    pub(super) more_ended: bool,
    /// The number of threads before that look; `None` before the first one.
    pub(super) threads_seen: Option<u64>,
    /// The place in the order of rings at which the search continues for rings whose thread id was
    /// reused.
    pub(super) asked: usize,
    /// When it continued last.
    pub(super) asked_at: Instant,
}

// === impl RingOwners ===

impl RingOwners {
    pub(super) fn new(rings: Rings, memory: Arc<Memory>, budget: RingBudget) -> Self {
        Self {
            memory,
            names: Names::of(rings.pid),
            growth: Growth::new(budget, Instant::now()),
            rings,
            begun: false,
            chosen: None,
            choosing: false,
            rings_seen: 0,
            more_ended: false,
            threads_seen: None,
            asked: 0,
            asked_at: Instant::now(),
        }
    }

    /// Takes up the rings that were claimed since the last call.
    pub(super) fn discover(&mut self) {
        self.names.expect_news();
        let rings = &self.rings;
        let mut news = rings.slots.owned();
        news.retain(|(index, _)| !rings.by_slot.contains_key(index));
        // Of two rings of one thread, the one that it has left comes first. A thread only moves to
        // slots that it probes earlier.
        let mask = rings.geometry().slots() - 1;
        news.sort_by_key(|&(index, owner)| Reverse(index.wrapping_sub(owner) & mask));
        for &(index, owner) in &news {
            self.take_up(index, owner);
            self.growth.expect_more_than(owner);
        }
        if !news.is_empty() {
            // Losses from before a thread had a ring come first.
            self.report_without_slot();
        }
    }

    /// Takes up a ring that belongs to the thread `owner` from now on.
    ///
    /// The thread may have had another ring. A thread takes the first free slot on its probe
    /// sequence. When the slot of an ended thread becomes free, the thread may find it before its
    /// own slot, and continues there. Everything in the ring that it left was recorded before. The
    /// exception is a slow path that a signal handler interrupted, if the handler took the other
    /// slot: the event of that slow path comes late, and counts as of the time when it comes.
    pub(super) fn take_up(&mut self, index: u32, owner: u32) {
        let began = match self.names.bearer(owner) {
            Bearer::Alive(began) => Some(began),
            Bearer::Gone | Bearer::Unseen => None,
        };
        if self.rings.decoders.get(owner).is_some() && began.is_some() {
            let others =
                |ring: &Ring| ring.owner == owner && ring.began.is_some() && ring.began != began;
            if self.rings.by_slot.values().any(others) {
                self.end_threads(&HashSet::from([owner]));
            }
        }
        let rings = &mut self.rings;
        let left = rings
            .decoders
            .open(owner, index, &mut self.names, &rings.output);
        if let Some(left) = left {
            rings.with_ring(left, Ring::leave);
        }
        let before = match self.begun {
            true => newest::Words::default(),
            false => newest::Words::of(&rings.slots.rings, rings.geometry(), index),
        };
        let mut ring = Ring::new(index, (owner, began), &rings.slots, before);
        if !self.begun && rings.slots.filtered {
            // Calls that an earlier session left out belong to that session.
            ring.take_left_out(&rings.slots);
        }
        rings.by_slot.insert(index, ring);
        rings.order.push(index);
        if self.chosen.is_some() {
            self.choose_thread(index, owner);
        }
    }

    /// The table of slots, and the parts that change with it.
    fn slot_table(&mut self) -> (SlotTable<'_>, &mut Growth, &mut Names) {
        let table = SlotTable {
            pid: self.rings.pid,
            memory: &self.memory,
            slots: &self.rings.slots,
        };
        (table, &mut self.growth, &mut self.names)
    }

    /// Opens slots for threads that have none.
    pub(super) fn open_slots(&mut self) {
        let (table, growth, names) = self.slot_table();
        growth.open_slots(&table, names);
    }

    /// Frees the slot of an ended thread.
    pub(super) fn free_slot(&mut self, index: u32) {
        let (table, growth, _) = self.slot_table();
        growth.free_slot(&table, index);
    }

    /// Reports the losses of threads that found no slot.
    pub(super) fn report_without_slot(&mut self) {
        let Rings {
            slots,
            sites,
            output,
            decoders,
            ..
        } = &mut self.rings;
        let buckets = slots.buckets();
        let news = buckets.take_ownerless();
        if news > 0 {
            output.lost_without_ring(news);
        }
        if buckets.taken() == 0 {
            return;
        }
        let losses: Vec<(u32, u64)> = buckets.take_owned().collect();
        decoders.lost_in_buckets(&losses, &mut self.names, sites, output);
    }

    /// Mutes and unmutes threads by the names that they have now.
    pub(super) fn choose_threads(&mut self) {
        if self.chosen.is_none() && !self.choosing {
            return;
        }
        self.choosing = self.chosen.is_some();
        self.rings.slots.filtered = true;
        let rings = self.rings.by_slot.iter();
        let owners: Vec<(u32, u32)> = rings.map(|(index, ring)| (*index, ring.owner)).collect();
        for (index, owner) in owners {
            self.choose_thread(index, owner);
        }
    }

    pub(super) fn choose_thread(&mut self, index: u32, owner: u32) {
        let muted = match &self.chosen {
            None => false,
            Some(chosen) => {
                let (tid, name) = self.names.describe(owner);
                !chosen.has(tid, &name)
            }
        };
        self.rings.decoders.set_muted(owner, muted);
        self.rings.slots.set_muted(index, muted);
    }
}
