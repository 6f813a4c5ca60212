//! What becomes of events in each mode: rings keep the newest by themselves or are read, and what is
//! read is kept, added up or counted.

use shm_ring::newest;

use super::Drain;
use crate::{
    store::{Ask, ProfileSums},
    types::Mode,
};

impl Drain {
    /// Does what the mode says, if that is another one now, or if a reader has come or gone.
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
                // What was counted before the mode was known here is of it, too.
                true => self.output.calls.restart(),
                false => {
                    self.discover();
                    self.count();
                }
            }
        }
    }

    /// From now on sums are kept, and what was retained goes; or sums are not kept any more.
    fn enter_profile(&mut self, profile: bool) {
        self.profile = profile;
        // What was added up so far is for those who asked before.
        self.hand_over();
        self.output.profiles.keep(profile);
        if profile {
            self.output.evict_all();
        }
    }

    pub(super) fn hand_over(&mut self) {
        for decoder in self.decoders.iter_mut() {
            decoder.hand_over(&self.output);
        }
    }

    /// Everything that is there is in the sums of those who had asked before, and in no others'.
    pub(super) fn profile(&mut self, ask: Ask) -> Option<ProfileSums> {
        self.flush();
        self.hand_over();
        let answer = self.output.profiles.answer(ask);
        self.settle_mode();
        answer
    }

    /// From now on rings keep the newest by themselves. What was read before goes: there may be a gap
    /// between it and what a ring will hold.
    fn fly(&mut self) {
        self.newest = true;
        for ring in self.rings.values_mut() {
            ring.end_reading(&self.slots);
        }
        for decoder in self.decoders.iter_mut() {
            decoder.restart(&self.output);
        }
        newest::keep_newest(&self.slots.rings, true);
        self.output.ring_use(0, 1);
        self.output.evict_all();
    }

    /// From now on rings are read, each once its thread has left it alone. All that is in them comes
    /// first.
    fn read_along(&mut self) {
        self.newest = false;
        newest::keep_newest(&self.slots.rings, false);
        self.count_unread();
    }

    /// Tells how much of what rings were given was not read.
    pub(super) fn count_unread(&mut self) {
        let (mut events, mut overwritten) = (0_u64, 0_u64);
        for ring in self.rings.values_mut() {
            let unread = ring.unread(&self.slots);
            events = events.saturating_add(unread.events);
            overwritten = overwritten.saturating_add(unread.overwritten);
        }
        self.output.unread(events, overwritten);
    }
}
