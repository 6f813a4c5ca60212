//! The modes of a session, as the drain carries them out: rings keep the newest events or are read,
//! and events that are read become blocks, sums or counts. Clients set the mode in the event store.

use std::sync::atomic::Ordering::Relaxed;

use super::{Drain, rest::LIVE};
use crate::{
    collect::thread_decoder::BLOCK_AGE,
    store::{Ask, ProfileSums},
    sys::ticks_now,
    types::Mode,
};

impl Drain {
    /// Applies the mode, if it has changed, or if a reader has come or gone.
    pub(super) fn settle_mode(&mut self) {
        let begun = self.owners.begun;
        let rings = &mut self.owners.rings;
        let beside = rings.output.records_beside.load(Relaxed);
        let was_beside = std::mem::replace(&mut rings.records_beside, beside);
        // An earlier daemon may have had the program record beside the sums.
        let was_beside = was_beside || !begun && rings.output.mode() == Mode::Profile;
        let newest = rings.output.keeps_newest();
        match newest {
            _ if newest == rings.newest => {}
            true => rings.keep_newest(),
            false => {
                if was_beside {
                    rings.drop_unread();
                }
                rings.read_along();
            }
        }
        let keeps = rings.output.keeps();
        if rings.decoders.keeps() != keeps {
            rings.close_blocks();
        }
        rings.decoders.keep(keeps, &rings.output);
        rings.settle_wait();
        rings.decoders.watch(&rings.output);
        rings
            .decoders
            .close_blocks_at(match rings.output.is_live() {
                true => LIVE,
                false => BLOCK_AGE,
            });
        let profile = rings.output.mode() == Mode::Profile;
        if profile != self.profile {
            self.profile = profile;
            // What was added up so far belongs to the earlier requests.
            self.hand_over();
            let output = &self.owners.rings.output;
            match profile {
                true => {
                    output.profiles.begin_kept(ticks_now(), 0);
                    output.with_retained(|retained| retained.shrink_to(0));
                }
                false => output.profiles.drop_kept(),
            }
        }
        let output = &self.owners.rings.output;
        let counting = output.mode() == Mode::Count;
        if counting != self.counting {
            self.counting = counting;
            match counting {
                // Calls that were counted before the drain saw the mode belong to it, too.
                true => output.calls.restart(),
                false => {
                    self.owners.discover();
                    self.owners.rings.count();
                }
            }
        }
        self.owners.rings.settle_log();
    }

    /// Transfers what the decoders have added up to the event store.
    pub(super) fn hand_over(&mut self) {
        let rings = &mut self.owners.rings;
        for decoder in rings.decoders.iter_mut() {
            decoder.hand_over(&rings.output);
        }
        rings.note_held_sums();
    }

    /// Answers a profile request. Everything in the rings is in the sums of earlier requests, and
    /// in no later ones.
    pub(super) fn profile(&mut self, ask: Ask) -> Option<ProfileSums> {
        self.flush();
        self.hand_over();
        let answer = self.owners.rings.output.profiles.answer(ask);
        self.settle_mode();
        answer
    }
}
