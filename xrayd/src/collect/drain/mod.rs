//! The drain of a session: reads every ring of a target in turn, decodes words into blocks, and
//! publishes the blocks. It waits for a reader of the blocks only if threads wait for it, too. It
//! is a task of the pool of collectors, so any thread of that pool runs it, and one at a time.
//!
//! The less there is to read, the longer the drain rests. It does not rest while a ring fills up,
//! and is woken when threads record something (`rest.rs`, `../activity.rs`).
//!
//! In mode `flight`, rings keep the newest events by themselves. The drain then looks after the
//! target's threads only. It reads a ring when the ring's thread or the session ends, and copies it
//! for a snapshot.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | a round, the requests, and the order of chores |
//! | `task.rs` | the steps of the drain in the pool |
//! | `rest.rs` | for how long the drain rests, and for which news it is woken |
//! | `modes.rs` | the change of the mode |
//! | `copies.rs` | copies of rings, for snapshots |
//! | `samples.rs` | samples of what tracing costs |
//! | `rings.rs` | the rings that were taken up: reading, and reports about them |
//! | `call_counts.rs` | what trampolines count beside rings |
//! | `added_calls.rs` | what trampolines add up in the program |
//! | `kept_sums.rs` | sums of ended threads, for the next daemon and of an earlier one |
//! | `owners.rs` | the threads that own the rings: found, chosen, given slots |
//! | `endings.rs` | threads that have ended |
//! | `growth.rs` | the opening of slots, where memory is limited |
//! | `chore_times.rs` | the times of chores |
//! | `handle.rs` | the drain as other threads see it |

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use chore_times::ChoreTimes;
use handle::Request;
pub(crate) use handle::{Asked, DrainCaller, DrainHandle};
pub(crate) use kept_sums::SumsKeeper;
use owners::RingOwners;
use rest::{LastLook, Rest, Situation};
use rings::{Busy, Rings};
use shm_ring::{SharedMemory, layout};
pub(crate) use task::spawn;
use xray_trace::model::Ticks;

use super::{SiteTable, activity::News, ring::Ring, ring_budget::RingBudget, slots::Slots};
use crate::{
    pid::Pid,
    store::{Ask, EventStore, Handover},
    sys::{Memory, now_anchor, ticks_now},
    types::Mode,
};

mod added_calls;
mod call_counts;
mod chore_times;
mod copies;
mod endings;
#[cfg(fuzzing)]
mod fuzzing;
mod growth;
mod handle;
mod kept_sums;
mod modes;
mod owners;
mod rest;
mod rings;
mod samples;
mod task;

#[cfg(fuzzing)]
pub use fuzzing::drain_rings;

/// The reason why a session with broken rings ends.
const LOST_RINGS: &str =
    "a process has cut the memory of the rings, or the system had no memory for them";

/// The state of the drain.
#[derive(Debug)]
pub(crate) struct Drain {
    /// The rings, and the threads that own them.
    owners: RingOwners,
    /// True if the mode is [`Mode::Profile`](crate::types::Mode::Profile).
    profile: bool,
    /// True if the mode is [`Mode::Count`](crate::types::Mode::Count).
    counting: bool,
    times: ChoreTimes,
    last: LastLook,
}

/// The time from which on events in adopted rings belong to a new session.
///
/// A collector that died leaves its events to the next session, however old they are. A session
/// that let the process go left all functions off. A thread that lost its processor in the middle
/// of a trampoline may store an event of that session at any later time. Such an event counts as
/// lost, since its site has no meaning at its time.
pub(crate) fn events_since(rings: &impl SharedMemory) -> Ticks {
    match rings.load(layout::rings::LET_GO) {
        0 => Ticks(0),
        _ => ticks_now(),
    }
}

// === impl Drain ===

impl Drain {
    /// A drain that has read nothing so far.
    fn new(
        pid: Pid,
        memory: Arc<Memory>,
        slots: Slots,
        budget: RingBudget,
        sites: SiteTable,
        output: Arc<EventStore>,
    ) -> Self {
        slots.rings.store(layout::rings::LET_GO, 0);
        let rings = Rings::new(pid, slots, sites, output);
        Self {
            owners: RingOwners::new(rings, memory, budget),
            profile: false,
            counting: false,
            times: ChoreTimes::new(),
            last: LastLook::none(),
        }
    }

    /// Takes up what is there before the first round. `goes_on`: the session of an earlier daemon
    /// goes on, with its counts.
    fn begin(&mut self, goes_on: bool) {
        // The counts of the earlier daemon are there already.
        self.counting = goes_on && self.owners.rings.output.mode() == Mode::Count;
        self.settle_mode();
        self.owners.discover();
        match self.counting {
            true if goes_on => self.go_on_counting(),
            true => self.owners.rings.begin_counts(),
            false => {}
        }
        self.owners.begun = true;
    }

    /// The rest after a look that found so much work and these news.
    fn rest(&self, busy: Busy, news: News) -> Rest {
        let owners = &self.owners;
        let rings = &owners.rings;
        let mut all = rings.by_slot.values();
        let situation = Situation {
            is_silent: rings.newest || self.counting || rings.adds_up,
            is_asked: self.last.is_asked && (self.counting || rings.adds_up),
            is_armed: rings.output.armed.load(Relaxed),
            is_live: rings.output.is_live(),
            awaits_long_calls: rings.records_beside,
            was_quiet: self.last.was_quiet,
            has_block: rings.decoders.have_block(),
            is_unread: !rings.newest && all.clone().any(Ring::is_unread),
            is_unsettled: owners.are_unsettled()
                || all.any(|ring| ring.stands_at_hole() || ring.is_unsettled(&rings.slots)),
            is_counted: self.counting || rings.slots.filtered || rings.adds_up,
            opens_slots: owners.growth.budget.has_closed(),
            is_measured: rings.output.profiles.are_measured(),
            is_metered: rings.output.is_metered.load(Relaxed),
            chooses_threads: owners.chosen.is_some(),
        };
        situation.rest(busy, news)
    }

    /// Carries a request out. Returns false if it was the last one.
    fn carry_out(&mut self, request: Request) -> bool {
        match request {
            Request::Wake => {}
            Request::Learn(sites, since, answer) => {
                // All counts and profiles are read before their sites get another meaning.
                self.owners.discover();
                if self.counting {
                    self.owners.rings.count();
                }
                self.owners.rings.learn(sites, since);
                let _ = answer.send(());
            }
            Request::Flush(answer) => {
                self.flush();
                // The asker may have given up waiting.
                let _ = answer.send(());
            }
            Request::EventFilter(keep, threads, answer) => {
                self.flush();
                self.owners.rings.decoders.filter(keep);
                self.owners.chosen = threads;
                self.owners.choose_threads();
                let _ = answer.send(());
            }
            Request::BeginCounts(answer) => {
                self.begin_counts();
                let _ = answer.send(());
            }
            Request::BeginProfiles(from, answer) => {
                let _ = answer.send(self.begin_profiles(from));
            }
            Request::EndProfiles(answer) => {
                self.end_profiles();
                let _ = answer.send(());
            }
            Request::RenewFilters(answer) => {
                self.owners.discover();
                self.owners.rings.renew_filters();
                let _ = answer.send(());
            }
            Request::RingCopies(bytes, moment, answer) => {
                let _ = answer.send(self.copy_rings(bytes, moment));
            }
            Request::Sample(look, answer) => {
                let _ = answer.send(self.sample(&look));
            }
            Request::Profile(ask, answer) => {
                let is_given_up = answer.send(self.profile(ask)).is_err();
                if let (true, Ask::Begin(number)) = (is_given_up, ask) {
                    // No client knows of the sums.
                    self.owners.rings.output.profiles.answer(Ask::End(number));
                }
            }
            Request::Finish(answer) => {
                self.finish();
                let _ = answer.send(());
                return false;
            }
            Request::Abandon(answer) => {
                self.publish_last();
                let _ = answer.send(());
                return false;
            }
        }
        true
    }

    /// Looks for rings, and reads every ring once.
    fn round(&mut self) -> Busy {
        self.owners.discover();
        self.read(false)
    }

    /// Reads every ring once. `for_readers`: as long as no lossless reader is behind.
    fn read(&mut self, for_readers: bool) -> Busy {
        match self.owners.rings.newest {
            true => Busy::Idle,
            false => {
                let busy = self.owners.rings.read(for_readers);
                self.owners.rings.recount_unread();
                busy
            }
        }
    }

    fn chores(&mut self) {
        let Some(since_last) = self.times.begin() else {
            if self.owners.should_look_for_ended() {
                self.owners.retire_dead();
            }
            return;
        };
        self.check_room();
        let is_full = self.times.is_full();
        if is_full {
            self.owners.discover();
        }
        if self.times.sweeps() {
            self.owners.take_up_unused();
        }
        if self.times.chooses() {
            self.owners.choose_threads();
        }
        self.owners.rings.report_left_out();
        let has_counted = self.read_counts();
        if is_full || self.owners.may_have_ended() {
            self.owners.retire_dead();
        }
        self.owners.retire_replaced(since_last);
        self.owners.rings.report_quiet();
        self.owners.rings.free_stuck();
        self.owners.rings.free_unused(is_full, since_last);
        self.owners.retire_ringless();
        self.owners.rings.count_unreported();
        self.owners.rings.count_unread();
        if has_counted {
            self.owners.rings.output.counters.measure_rate();
        }
        if self.times.anchors() {
            self.anchor();
        }
        self.measure();
    }

    /// Reads what threads count and add up, if it is time. Returns false if there is something that
    /// was not read: the counters are old.
    fn read_counts(&mut self) -> bool {
        let rings = &mut self.owners.rings;
        if !self.counting && !rings.adds_up {
            return true;
        }
        let is_asked = self.last.is_asked || rings.output.is_metered.load(Relaxed);
        if !self.times.counts(is_asked) {
            return false;
        }
        if self.counting {
            rings.count();
        }
        let mut is_whole = true;
        if rings.adds_up {
            let begun = Instant::now();
            is_whole = rings.add_up_some();
            self.times.has_counted(begun);
        }
        self.last.is_asked &= !is_whole;
        is_whole
    }

    /// Transfers sums to the observers that measure calls, if it is time.
    fn measure(&mut self) {
        let begun = Instant::now();
        let profiles = &self.owners.rings.output.profiles;
        if self.times.measures(begun) && profiles.are_measured() {
            self.owners.rings.add_up_some();
            self.hand_over();
            self.times.has_measured(begun);
        }
    }

    fn anchor(&self) {
        match now_anchor() {
            Ok(anchor) => self.owners.rings.output.anchor(anchor),
            Err(error) => tracing::warn!(%error, "cannot read the clock"),
        }
    }

    /// Clears what was counted so far. If calls are counted already, it is read before.
    fn begin_counts(&mut self) {
        self.owners.discover();
        let rings = &mut self.owners.rings;
        if self.counting {
            rings.count();
            rings.keep_and_clear_sums();
        }
        rings.begin_counts();
    }

    /// Reports what is counted beside rings: losses of threads without one, calls, and calls that
    /// were left out.
    fn report_counts(&mut self) {
        self.owners.report_without_slot();
        if self.counting {
            self.owners.rings.count();
        }
        self.owners.rings.add_up(Handover::Interim);
        self.owners.rings.read_long_calls();
        self.owners.rings.report_left_out();
    }

    fn flush(&mut self) {
        self.settle_mode();
        let now = ticks_now();
        for _ in 0..self.owners.rings.turns() {
            if self.round() != Busy::Full {
                break;
            }
        }
        self.report_counts();
        self.owners.rings.publish(now);
        self.anchor();
    }

    fn finish(&mut self) {
        self.owners.discover();
        self.report_counts();
        self.owners.rings.end_log();
        self.owners.rings.add_up(Handover::Last);
        self.owners.rings.read_last();
        self.publish_last();
        self.owners.rings.give_back();
    }

    /// Publishes what was read, and reads no more.
    fn publish_last(&mut self) {
        let rings = &mut self.owners.rings;
        rings.close_blocks();
        for decoder in rings.decoders.iter_mut() {
            decoder.end(&rings.output);
        }
        self.anchor();
    }
}

#[cfg(test)]
mod tests;
