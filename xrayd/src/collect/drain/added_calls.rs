//! Calls that threads add up in the program: they are read when they are wanted, and when a thread
//! ends. Events in rings are not read here.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use shm_ring::{
    layout,
    profile::{LongCall, LongCalls},
};
use xray_trace::model::{ThreadId, Ticks};

use super::{Drain, rings::Rings};
use crate::{
    collect::{
        profile_reader::{AddUp, NewCalls, ProfileReader},
        ring_budget::Need,
    },
    store::Handover,
    sys::ticks_now,
    triggers::{Awaited, EventOrigin},
};

/// The memory for what was seen of the profiles of all threads. If it takes more, the program
/// records events again.
const SEEN_BYTES: usize = 256 << 20;
/// The most memory until it does.
const MOST_SEEN_BYTES: usize = 2 * SEEN_BYTES;
/// The time after which periodic looks at profiles are broken off.
const MOST_TIME: Duration = Duration::from_secs(2);

// === impl Drain ===

impl Drain {
    /// Prepares for calls that are added up in the program. Returns false if the program's control
    /// group has no room for the sums.
    pub(super) fn begin_profiles(&mut self, from: AddUp) -> bool {
        self.owners.discover();
        let written = self.owners.rings.slots.written();
        // What an earlier daemon was promised is written already.
        let need = match from {
            AddUp::Anew => Need::Room,
            AddUp::GoOn => Need::Counted,
        };
        if !self.owners.growth.budget.add_profiles(written, need) {
            return false;
        }
        let rings = &mut self.owners.rings;
        rings.slots.profiled = true;
        if from == AddUp::Anew {
            rings.slots.clear_profiles();
        }
        for ring in rings.by_slot.values_mut() {
            ring.profile = ProfileReader::default();
            ring.reading = None;
            ring.notes_seen = 0;
        }
        rings.adds_up = true;
        rings.output.adds_up.store(true, Relaxed);
        if from == AddUp::GoOn {
            rings.add_up_earlier();
        }
        true
    }

    /// Reads what was added up to its end: nothing more comes.
    pub(super) fn end_profiles(&mut self) {
        self.owners.discover();
        let rings = &mut self.owners.rings;
        rings.add_up(Handover::Last);
        rings.keep_and_clear_sums();
        rings.adds_up = false;
        rings.output.adds_up.store(false, Relaxed);
        for ring in rings.by_slot.values_mut() {
            ring.reading = None;
        }
        // First: nothing is promised to this memory afterwards.
        rings.slots.clear_profiles();
        self.owners.growth.budget.drop_profiles();
    }

    /// Has events recorded if there is no memory for the profiles of new threads, but for their
    /// rings.
    pub(super) fn check_room(&mut self) {
        let rings = &self.owners.rings;
        if rings.adds_up && self.owners.growth.budget.lacks_profiles() {
            rings.output.lacks_room.store(true, Relaxed);
            rings.output.control.wake();
        }
    }
}

// === impl Rings ===

impl Rings {
    /// Adds what threads have added up since the last call to the sums of the event store.
    pub(super) fn add_up(&mut self, handover: Handover) {
        self.add_up_for(handover, Duration::MAX);
    }

    /// The same for as many threads as there is time for. The next call goes on with the other
    /// threads, so that a large process does not keep requests waiting. Returns true if no thread
    /// is left.
    pub(super) fn add_up_some(&mut self) -> bool {
        self.add_up_for(Handover::Interim, MOST_TIME);
        self.next_added == 0
    }

    fn add_up_for(&mut self, handover: Handover, most: Duration) {
        if !self.adds_up {
            return;
        }
        let begun = Instant::now();
        let mut seen = self.seen_bytes();
        let first = std::mem::take(&mut self.next_added);
        let mut has_read = false;
        for step in 0..self.order.len() {
            let at = (first + step) % self.order.len();
            has_read |= self.add_up_thread(self.order[at], handover, &mut seen);
            if begun.elapsed() > most && at + 1 < self.order.len() {
                self.next_added = at + 1;
                break;
            }
        }
        if has_read {
            self.slots.let_go_profiles();
        }
    }

    /// The same for the thread of one ring.
    pub(super) fn add_up_ring(&mut self, index: u32, handover: Handover) {
        if self.adds_up {
            let mut seen = self.seen_bytes();
            self.add_up_thread(index, handover, &mut seen);
        }
    }

    /// Returns false if there is nothing new.
    fn add_up_thread(&mut self, index: u32, handover: Handover, seen: &mut usize) -> bool {
        let Some((thread, news)) = self.read_profile(index, handover, seen) else {
            return false;
        };
        for (function, calls) in news.calls {
            self.output.counts.count_calls(function, calls);
        }
        let events = news.events.saturating_sub(news.lost);
        self.output.count(thread, events, news.lost);
        if !news.sums.is_empty() {
            self.output.hand_over(thread, Handover::Interim, &news.sums);
        }
        true
    }

    /// Has the program record events instead of adding calls up, until the mode is set again.
    pub(super) fn record_events(&self, why: &str) {
        if !self.output.lacks_room.swap(true, Relaxed) {
            let pid = self.pid.as_raw();
            tracing::warn!(
                pid,
                why,
                "the program records events instead of adding calls up"
            );
            self.output.control.wake();
        }
    }

    /// Adds what was added up for an earlier daemon to the kept sums, and to nothing else: that
    /// daemon has shown these calls to its clients.
    fn add_up_earlier(&mut self) {
        let mut seen = self.seen_bytes();
        for at in 0..self.order.len() {
            let read = self.read_profile(self.order[at], Handover::Interim, &mut seen);
            if let Some((thread, news)) = read {
                self.output.keep_sums(thread, &news.sums);
            }
        }
        self.slots.let_go_profiles();
    }

    /// The bytes that are kept of all profiles.
    fn seen_bytes(&self) -> usize {
        self.by_slot.values().map(|ring| ring.profile.bytes()).sum()
    }

    /// The calls that the thread of a ring has added up since the last look; `None` if there is
    /// nothing new. `seen` is the number of bytes that are kept of all profiles. If they become too
    /// many, the program records events from then on. Beyond a second limit, a thread is read at
    /// its end only.
    fn read_profile(
        &mut self,
        index: u32,
        handover: Handover,
        seen: &mut usize,
    ) -> Option<(ThreadId, NewCalls)> {
        if !self.adds_up {
            return None;
        }
        let ring = self.by_slot.get_mut(&index)?;
        let is_interim = handover == Handover::Interim;
        if !ring.profile.has_news(self.slots.profile_state(index)) && is_interim {
            return None;
        }
        if is_interim && *seen > SEEN_BYTES {
            self.record_events("it has too many stacks");
        }
        let ring = self.by_slot.get_mut(&index)?;
        if is_interim && *seen > MOST_SEEN_BYTES {
            return None;
        }
        let thread = self.decoders.get_mut(ring.owner)?.thread;
        let profile = self.slots.profile(index);
        if profile.is_empty() {
            return None;
        }
        let (now, sites) = (ticks_now(), &self.sites);
        let find = |site| sites.find(site, now).map(|site| site.function);
        let room = self.output.profiles.room();
        let log = self.log.as_ref().filter(|_| handover == Handover::Last);
        if log.is_some_and(|log| log.is_for(layout::rings::PROFILES)) {
            let mut whole = ProfileReader::default();
            let whole = whole.take(profile.clone(), handover, find, room.clone());
            ring.whole_sums = Some(whole.sums);
        }
        let before = ring.profile.bytes();
        let news = ring.profile.take(profile, handover, find, room);
        *seen = (*seen + ring.profile.bytes()).saturating_sub(before);
        Some((thread, news))
    }

    /// Shows triggers the long calls that threads have noted since the last look.
    pub(super) fn read_long_calls(&mut self) {
        if self.records_beside {
            let awaited = self.output.triggers.awaited();
            for at in 0..self.order.len() {
                self.read_long_calls_of(self.order[at], &awaited);
            }
        }
    }

    fn read_long_calls_of(&mut self, index: u32, awaited: &Awaited) {
        let Some(ring) = self.by_slot.get_mut(&index) else {
            return;
        };
        let Some(decoder) = self.decoders.get(ring.owner) else {
            return;
        };
        let LongCalls { calls, missed } = self.slots.long_calls(index, &mut ring.notes_seen);
        let now = ticks_now();
        for LongCall { site, ended, ticks } in calls {
            // The program can write any moment there.
            let ended = Ticks(ended).min(now);
            if let Some(site) = self.sites.find(site, ended) {
                let begun = Ticks(ended.0.saturating_sub(ticks));
                let origin = EventOrigin::new(decoder.thread, site.function);
                awaited.exits(origin, (begun, ended));
            }
        }
        if missed > 0 {
            awaited.miss_any(missed);
        }
    }
}
