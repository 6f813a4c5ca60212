//! The numbers of a session: events, losses, threads and rates. The drain alone writes them, and
//! any thread reads them.

use std::{
    sync::{
        Mutex,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use super::retained::Retained;
use crate::lock::lock;

/// Counters whose rate was computed longer ago may be old. A drain that reads events computes the
/// rate once a second.
const OLD: Duration = Duration::from_millis(1200);

/// The numbers of a session at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) threads: u32,
    /// In mode `flight` an estimate, since not all events are read.
    pub(crate) events: u64,
    pub(crate) events_per_second: f64,
    /// Events that the collector left out because of a filter.
    pub(crate) filtered: u64,
    /// Calls and user events that the program itself left out because of a filter.
    pub(crate) left_out: u64,
    pub(crate) lost: u64,
    pub(crate) ring_use_permille: u32,
    pub(crate) retained_bytes: u64,
    pub(crate) retained_events: u64,
    pub(crate) overwritten_events: u64,
}

/// The numbers of a session.
#[derive(Debug, Default)]
pub(crate) struct EventCounters {
    events: AtomicU64,
    filtered: AtomicU64,
    left_out: AtomicU64,
    /// Losses in the stream.
    lost: AtomicU64,
    /// The most losses that were ever known: losses in the stream, and losses that rings have
    /// counted beyond it. A ring's losses come into the stream at any moment. So both are added up
    /// at the moment when both are known.
    lost_known: AtomicU64,
    threads: AtomicU32,
    ring_use_permille: AtomicU32,
    /// Estimated events in rings that are not read, in mode `flight`; and events that were
    /// overwritten in rings that were read or given up since.
    unread: AtomicU64,
    overwritten: AtomicU64,
    /// Events among `unread` that are overwritten.
    unread_overwritten: AtomicU64,
    rate: Mutex<Rate>,
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    events: u64,
    per_second: f64,
}

// === impl EventCounters ===

impl EventCounters {
    pub(super) fn add_thread(&self) {
        self.threads.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_thread(&self) {
        // It is 0 already if the store was closed before the last thread ended.
        let less = |threads: u32| threads.checked_sub(1);
        let _ = self.threads.fetch_update(Relaxed, Relaxed, less);
    }

    pub(super) fn add_events(&self, events: u64) {
        add(&self.events, events);
    }

    pub(super) fn add_lost(&self, events: u64) {
        add(&self.lost, events);
    }

    /// Adds calls and user events that the program itself left out.
    pub(crate) fn add_left_out(&self, calls: u64) {
        add(&self.left_out, calls);
    }

    /// Adds events that the collector left out because of a filter. They are among the events
    /// already, so that a reader finds no more left out than there are.
    pub(crate) fn add_filtered(&self, events: u64) {
        let filtered = self.filtered.load(Relaxed).saturating_add(events);
        self.filtered.store(filtered, Release);
    }

    /// Notes how many losses rings have counted that are not in the stream now.
    pub(crate) fn note_unreported_losses(&self, lost: u64) {
        let known = self.lost.load(Relaxed).saturating_add(lost);
        self.lost_known.fetch_max(known, Relaxed);
    }

    /// Sets the fill level of the fullest ring of this round.
    pub(crate) fn set_ring_use(&self, bytes: u64, of: u64) {
        let permille = bytes.saturating_mul(1000) / of.max(1);
        self.ring_use_permille
            .store(u32::try_from(permille).unwrap_or(1000), Relaxed);
    }

    /// Sets the estimated number of events in rings that are not read, and how many of them are
    /// overwritten.
    pub(crate) fn set_unread(&self, events: u64, overwritten: u64) {
        self.unread.store(events, Relaxed);
        self.unread_overwritten.store(overwritten, Relaxed);
    }

    /// True if some ring has events that were not read when it was last looked at.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.load(Relaxed) > 0
    }

    /// Adds events of a ring that were overwritten before the ring was read, an estimate.
    pub(crate) fn add_overwritten(&self, events: u64) {
        add(&self.overwritten, events);
    }

    /// Computes the rate if a second has passed.
    pub(crate) fn measure_rate(&self) {
        let mut rate = lock(&self.rate);
        let elapsed = rate.since.elapsed().as_secs_f64();
        if elapsed < 1.0 {
            return;
        }
        let events = self.all_events();
        // An estimate is replaced by an exact count in the end, which may be lower.
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let per_second = events.saturating_sub(rate.events) as f64 / elapsed;
        *rate = Rate {
            since: Instant::now(),
            events,
            per_second,
        };
    }

    /// True if the rate was not computed for some time.
    pub(crate) fn are_old(&self) -> bool {
        lock(&self.rate).since.elapsed() > OLD
    }

    /// Notes that no thread is recorded any more.
    pub(super) fn close(&self) {
        lock(&self.rate).per_second = 0.0;
        self.threads.store(0, Relaxed);
    }

    /// The numbers now. `retained` has the numbers of retained events.
    pub(super) fn read(&self, retained: &Retained) -> Counters {
        // Before the events, of which they are a part: see `add_filtered`.
        let filtered = self.filtered.load(Acquire);
        Counters {
            threads: self.threads.load(Relaxed),
            events: self.all_events(),
            events_per_second: lock(&self.rate).per_second,
            filtered,
            left_out: self.left_out.load(Relaxed),
            lost: self.lost.load(Relaxed).max(self.lost_known.load(Relaxed)),
            ring_use_permille: self.ring_use_permille.load(Relaxed),
            retained_bytes: retained.bytes(),
            retained_events: retained.events(),
            overwritten_events: retained
                .evicted()
                .saturating_add(self.overwritten.load(Relaxed))
                .saturating_add(self.unread_overwritten.load(Relaxed)),
        }
    }

    fn all_events(&self) -> u64 {
        let parts = [&self.events, &self.unread, &self.overwritten];
        let parts = parts.iter().map(|part| part.load(Relaxed));
        parts.fold(0, u64::saturating_add)
    }
}

impl Default for Rate {
    /// A rate from now on.
    fn default() -> Self {
        Self {
            since: Instant::now(),
            events: 0,
            per_second: 0.0,
        }
    }
}

/// Adds to a counter that one thread writes. A target can report any number, so the sum saturates.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).saturating_add(more), Relaxed);
}
