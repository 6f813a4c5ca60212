//! Calls that threads add up in the program: they are read when they are wanted, and when a thread
//! ends. Events in rings are not read here.

use super::{Drain, rings::Rings};
use crate::{
    collect::profile_reader::{AddUp, NewCalls, ProfileReader},
    store::Handover,
    sys::ticks_now,
};

/// The most memory for what was seen of the profiles of all threads.
const SEEN_BYTES: usize = 256 << 20;

// === impl Drain ===

impl Drain {
    /// Prepares for calls that are added up in the program. Returns false if the program's control
    /// group has no room for the sums.
    pub(super) fn begin_profiles(&mut self, from: AddUp) -> bool {
        self.owners.discover();
        let written = self.owners.rings.slots.written();
        let has_room = self.owners.rings.geometry().has_profiles()
            && self.owners.growth.budget.add_profiles(written);
        if !has_room && (from == AddUp::Anew || !self.owners.rings.geometry().has_profiles()) {
            return false;
        }
        let rings = &mut self.owners.rings;
        rings.slots.profiled = true;
        if from == AddUp::Anew {
            rings.slots.clear_profiles();
        }
        for ring in rings.by_slot.values_mut() {
            ring.profile = ProfileReader::default();
        }
        rings.adds_up = true;
        true
    }

    /// Reads what was added up to its end: nothing more comes.
    pub(super) fn end_profiles(&mut self) {
        self.owners.discover();
        let rings = &mut self.owners.rings;
        rings.add_up(Handover::Last);
        rings.adds_up = false;
        self.owners.growth.budget.drop_profiles();
    }
}

// === impl Rings ===

impl Rings {
    /// Adds what threads have added up since the last call to the sums of the event store.
    pub(super) fn add_up(&mut self, look: Handover) {
        for at in 0..self.order.len() {
            self.add_up_ring(self.order[at], look);
        }
    }

    /// The same for the thread of one ring.
    pub(super) fn add_up_ring(&mut self, index: u32, look: Handover) {
        if !self.adds_up {
            return;
        }
        let most = SEEN_BYTES / self.by_slot.len().max(1);
        let Some(ring) = self.by_slot.get_mut(&index) else {
            return;
        };
        if !ring.profile.has_news(self.slots.profile_state(index)) && look == Handover::Interim {
            return;
        }
        let Some(decoder) = self.decoders.get_mut(ring.owner) else {
            return;
        };
        let profile = self.slots.profile(index);
        if profile.is_empty() {
            return;
        }
        if look == Handover::Interim && ProfileReader::bytes_of(&profile) > most {
            let pid = self.pid.as_raw();
            tracing::debug!(
                pid,
                tid = ring.owner,
                "the sums of a thread are read at its end"
            );
            return;
        }
        let (now, sites) = (ticks_now(), &self.sites);
        let find = |site| sites.find(site, now).map(|site| site.function);
        let NewCalls {
            sums,
            calls,
            events,
            lost,
        } = ring
            .profile
            .take(profile, look, find, self.output.profiles.room());
        for (function, calls) in calls {
            self.output.counts.count_calls(function, calls);
        }
        self.output.count(decoder.thread, events, lost);
        if !sums.is_empty() {
            self.output
                .hand_over(decoder.thread, Handover::Interim, &sums);
        }
    }
}
