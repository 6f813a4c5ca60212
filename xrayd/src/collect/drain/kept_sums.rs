//! Sums of ended threads that the drain keeps for the next daemon, and those that it got from an
//! earlier one.

use shm_ring::layout;
use xray_trace::{
    analysis::StackSums,
    model::{CallSums, Missing},
};

use super::{Drain, rings::Rings};
use crate::{
    collect::{profile_reader::AddUp, sums_log::SumsLog},
    store::{EarlierSums, SumsTrace},
    sys::ticks_now,
};

/// What a drain begins with.
#[derive(Debug, Default)]
pub(crate) struct SumsKeeper {
    /// Writes sums for the next daemon; `None` if there will be no such daemon.
    pub(crate) trace: Option<Box<dyn SumsTrace>>,
    /// The sums of the earlier daemon whose session goes on.
    pub(crate) earlier: Option<EarlierSums>,
    /// True if the program adds calls up, as it did for the earlier daemon.
    pub(crate) adds_up: bool,
}

// === impl Drain ===

impl Drain {
    /// Takes up what is there before the first round. The sums of an earlier daemon go on.
    pub(super) fn begin_with(&mut self, keeper: SumsKeeper) {
        let rings = &mut self.owners.rings;
        rings.log = keeper.trace.map(SumsLog::new);
        let goes_on = keeper.earlier.is_some();
        rings.adopt_sums(keeper.earlier);
        // The mode is in force before a function is on: a small ring is full soon.
        self.begin(goes_on);
        if keeper.adds_up {
            self.begin_profiles(AddUp::GoOn);
        } else if goes_on && self.profile && self.owners.rings.slots.has_profiles() {
            // The earlier daemon was killed when adding up had ended, before it had read the sums.
            self.begin_profiles(AddUp::GoOn);
            self.end_profiles();
        }
    }

    /// Takes over the calls that were counted for an earlier daemon.
    pub(super) fn go_on_counting(&mut self) {
        let rings = &mut self.owners.rings;
        rings.slots.counted = true;
        for at in 0..rings.order.len() {
            let index = rings.order[at];
            let Some((thread, counted)) = rings.take_counts(index) else {
                continue;
            };
            rings.output.keep_counts(thread, counted.into_iter());
        }
    }
}

// === impl Rings ===

impl Rings {
    /// Takes over the sums of an earlier daemon. Without them, nothing of it counts.
    fn adopt_sums(&mut self, earlier: Option<EarlierSums>) {
        let Some(earlier) = earlier else {
            self.slots.drop_sums();
            self.slots.settle_marks(None);
            return;
        };
        let (end, is_incomplete) = (earlier.end, earlier.is_incomplete);
        self.slots.settle_marks(end);
        let threads = self.output.adopt_sums(earlier);
        if let Some(log) = &mut self.log {
            let mode = self.output.mode();
            log.go_on(&self.slots, mode, (end, is_incomplete), &threads);
        }
    }

    /// Keeps what all threads have counted or added up, and clears their memory. All of that was
    /// read for the last time, and nothing more comes. One thread after the other, so that there is
    /// one mark at a time: the log may be written anew in between.
    pub(super) fn keep_and_clear_sums(&mut self) {
        for at in 0..self.order.len() {
            let index = self.order[at];
            self.keep_sums(index);
            self.slots.clear_sums_of(index);
        }
    }

    /// Begins an empty log when the mode has changed.
    pub(super) fn settle_log(&mut self) {
        if let Some(log) = &mut self.log {
            // The begin identifies the sums, also for the next daemon.
            let since = self.output.profiles.kept_since();
            log.settle(
                &self.slots,
                self.output.mode(),
                since.unwrap_or_else(ticks_now),
            );
        }
    }

    /// Notes for the next daemon that a part of the kept sums is in this daemon's memory alone.
    pub(super) fn note_held_sums(&mut self) {
        if let Some(daemons) = self.output.profiles.newly_held() {
            self.slots.set_sums_taken(daemons);
        }
    }

    /// Ends the log: the session is over.
    pub(super) fn end_log(&mut self) {
        if let Some(mut log) = self.log.take() {
            log.clear(&self.slots);
        }
    }

    /// Keeps what the thread of this ring has counted or added up, before its memory is cleared.
    /// All of that was read for the last time.
    pub(super) fn keep_sums(&mut self, index: u32) {
        if self.log.is_none() {
            return;
        }
        let counts = self.whole_counts(index);
        let Some(ring) = self.by_slot.get_mut(&index) else {
            return;
        };
        let sums = ring.whole_sums.take().or(counts);
        let Some(decoder) = self.decoders.get_mut(ring.owner) else {
            return;
        };
        if let (Some(log), Some(sums)) = (&mut self.log, sums)
            && let Some(thread) = self.output.thread(decoder.thread)
        {
            log.keep(&self.slots, index, &thread, &sums);
        }
    }

    /// All calls that the thread of a ring has counted, as sums without durations.
    fn whole_counts(&self, index: u32) -> Option<StackSums> {
        if !self.log.as_ref()?.is_for(layout::rings::COUNTS) {
            return None;
        }
        let mut sums = StackSums::new(self.output.profiles.room());
        let now = ticks_now();
        let counted = (0..).zip(self.by_slot.get(&index)?.counted());
        for (number, &calls) in counted.filter(|(_, calls)| **calls > 0) {
            let Some(function) = self.counted_function(number, now) else {
                sums.add_missing(Missing {
                    lost: calls,
                    ..Missing::default()
                });
                continue;
            };
            let stack = sums.stack(None, function);
            let calls = CallSums {
                calls,
                ..CallSums::default()
            };
            sums.add_calls(stack, &calls);
        }
        Some(sums)
    }
}
