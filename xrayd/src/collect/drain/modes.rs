//! The modes of a session, as the drain carries them out: rings keep the newest events or are read,
//! and events that are read become blocks, sums or counts. Clients set the mode in the event store.

use shm_ring::newest;

use super::Drain;
use crate::{
    store::{Ask, ProfileSums},
    types::Mode,
};

impl Drain {
    /// Applies the mode, if it has changed, or if a reader has come or gone.
    pub(super) fn settle_mode(&mut self) {
        let newest = self.output.keeps_newest();
        match newest {
            _ if newest == self.newest => {}
            true => self.fly(),
            false => self.read_along(),
        }
        self.decoders.keep(self.output.keeps(), &self.output);
        self.decoders.watch(&self.output);
        let profile = self.output.mode() == Mode::Profile;
        if profile != self.profile {
            self.enter_profile(profile);
        }
        let counting = self.output.mode() == Mode::Count;
        if counting != self.counting {
            self.counting = counting;
            match counting {
                // Calls that were counted before the drain saw the mode belong to it, too.
                true => self.output.calls.restart(),
                false => {
                    self.discover();
                    self.count();
                }
            }
        }
    }

    /// Begins to add up events, and drops retained events; or stops adding up.
    fn enter_profile(&mut self, profile: bool) {
        self.profile = profile;
        // What was added up so far belongs to the earlier requests.
        self.hand_over();
        self.output.profiles.keep(profile);
        if profile {
            self.output.with_retained(|retained| retained.shrink_to(0));
        }
    }

    pub(super) fn hand_over(&mut self) {
        for decoder in self.decoders.iter_mut() {
            decoder.hand_over(&self.output);
        }
    }

    /// Answers a profile request. Everything in the rings is in the sums of earlier requests, and
    /// in no later ones.
    pub(super) fn profile(&mut self, ask: Ask) -> Option<ProfileSums> {
        self.flush();
        self.hand_over();
        let answer = self.output.profiles.answer(ask);
        self.settle_mode();
        answer
    }

    /// Leaves the rings to keep the newest events by themselves. Drops what was read before: there
    /// may be a gap between that and the later contents of a ring.
    fn fly(&mut self) {
        self.newest = true;
        for ring in self.rings.values_mut() {
            ring.end_reading(&self.slots);
        }
        for decoder in self.decoders.iter_mut() {
            decoder.restart(&self.output);
        }
        newest::keep_newest(&self.slots.rings, true);
        self.output.counters.set_ring_use(0, 1);
        self.output.with_retained(|retained| retained.shrink_to(0));
    }

    /// Begins to read rings, each once its thread does not take a chunk back any more. Everything
    /// that is in them comes first.
    fn read_along(&mut self) {
        self.newest = false;
        newest::keep_newest(&self.slots.rings, false);
        self.count_unread();
    }

    /// Reports how much of what was written to rings was not read.
    pub(super) fn count_unread(&mut self) {
        let (mut events, mut overwritten) = (0_u64, 0_u64);
        for ring in self.rings.values_mut() {
            let unread = ring.unread(&self.slots);
            events = events.saturating_add(unread.events);
            overwritten = overwritten.saturating_add(unread.overwritten);
        }
        self.output.counters.set_unread(events, overwritten);
    }
}
