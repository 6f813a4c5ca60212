//! The times of the drain's chores.

use std::time::{Duration, Instant};

/// Time between two rounds of chores: looking for ended threads, freeing stuck slow paths, and so
/// on. It is longer while the drain rests.
pub(super) const CHORES_EVERY: Duration = Duration::from_millis(100);
/// Chores are rare if the last ones were this long ago.
pub(super) const RARE: Duration = Duration::from_millis(500);
/// Time between two full rounds of chores, which look at what nothing tells of.
const FULL_EVERY: Duration = Duration::from_secs(30);
const ANCHOR_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two reads of the counts and profiles of all threads, and the time between
/// them while only the drain itself looks.
const COUNT_EVERY: Duration = Duration::from_millis(500);
const COUNT_UNASKED_EVERY: Duration = Duration::from_secs(60);
/// Time between two looks at the whole table of slots, for claims that no thread has told of.
const SWEEP_EVERY: Duration = Duration::from_secs(120);
/// Time between two reads of thread names, while threads are chosen by name.
const CHOOSE_EVERY: Duration = Duration::from_secs(1);
/// Time between two transfers of sums to the observers that measure calls. The pause is this many
/// times as long as the last transfer took, within these bounds.
const MEASURE_PAUSES: u32 = 50;
const MEASURE_EVERY: Duration = Duration::from_secs(1);
const LONGEST_MEASURE_PAUSE: Duration = Duration::from_secs(10);

/// When chores were done, and when some of them are to be done next.
#[derive(Debug)]
pub(super) struct ChoreTimes {
    last_chores: Instant,
    /// Time of the next full round.
    next_full: Instant,
    /// Time of the next clock reading. The first one follows the attach soon, so that an early
    /// reader has two points. Later ones are a second apart.
    next_anchor: Instant,
    /// Time of the next look at the table of slots.
    next_sweep: Instant,
    /// Times of the next read of counts: if they are wanted, and if nothing else wants them.
    next_count: Instant,
    next_unasked_count: Instant,
    /// Time of the next read of thread names.
    next_choice: Instant,
    /// Time of the next transfer of sums.
    next_measuring: Instant,
}

// === impl ChoreTimes ===

impl ChoreTimes {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            last_chores: now,
            next_full: now,
            next_anchor: now,
            next_sweep: now,
            next_count: now,
            next_unasked_count: now,
            next_choice: now,
            next_measuring: now,
        }
    }

    /// Begins a round of chores, if it is time. Returns the time since the last one.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        let elapsed = self.last_chores.elapsed();
        let is_time = elapsed >= CHORES_EVERY;
        is_time.then(|| {
            self.last_chores = Instant::now();
            elapsed
        })
    }

    /// True if this round of chores is a full one.
    pub(super) fn is_full(&mut self) -> bool {
        is_due(&mut self.next_full, self.last_chores, FULL_EVERY)
    }

    /// True if thread names are to be read in this round of chores.
    pub(super) fn chooses(&mut self) -> bool {
        is_due(&mut self.next_choice, self.last_chores, CHOOSE_EVERY)
    }

    /// True if the whole table of slots is to be looked at in this round of chores.
    pub(super) fn sweeps(&mut self) -> bool {
        is_due(&mut self.next_sweep, self.last_chores, SWEEP_EVERY)
    }

    /// True if counts are to be read in this round of chores. `is_asked`: a client or a scrape may
    /// look at them.
    pub(super) fn counts(&mut self, is_asked: bool) -> bool {
        if !is_asked && self.next_unasked_count > self.last_chores {
            return false;
        }
        let is_due = is_due(&mut self.next_count, self.last_chores, COUNT_EVERY);
        if is_due {
            self.next_unasked_count = self.last_chores + COUNT_UNASKED_EVERY;
        }
        is_due
    }

    /// Profiles were read since `begun`. The pause is as long as between two transfers of sums, if
    /// that took long.
    pub(super) fn has_counted(&mut self, begun: Instant) {
        let ended = Instant::now();
        let pause = ended.duration_since(begun).saturating_mul(MEASURE_PAUSES);
        self.next_count = ended + pause.clamp(COUNT_EVERY, LONGEST_MEASURE_PAUSE);
    }

    /// True if the clock is to be read in this round of chores.
    pub(super) fn anchors(&mut self) -> bool {
        is_due(&mut self.next_anchor, self.last_chores, ANCHOR_EVERY)
    }

    /// True if sums are to be transferred at this time.
    pub(super) fn measures(&self, now: Instant) -> bool {
        now >= self.next_measuring
    }

    /// Sums were transferred since `begun`.
    pub(super) fn has_measured(&mut self, begun: Instant) {
        let ended = Instant::now();
        let pause = ended.duration_since(begun).saturating_mul(MEASURE_PAUSES);
        self.next_measuring = ended + pause.clamp(MEASURE_EVERY, LONGEST_MEASURE_PAUSE);
    }

    /// Makes the chores due that are done more rarely than others, and the round of chores itself.
    #[cfg(any(test, fuzzing))]
    pub(super) fn make_due(&mut self) {
        let now = Instant::now();
        self.last_chores = now.checked_sub(CHORES_EVERY).unwrap_or(now);
        self.next_full = now;
        self.next_sweep = now;
        self.next_count = now;
        self.next_unasked_count = now;
        self.next_choice = now;
        self.next_measuring = now;
    }
}

/// True if it is time for a chore; then it is again after `pause`.
fn is_due(next: &mut Instant, now: Instant, pause: Duration) -> bool {
    let is_due = *next <= now;
    if is_due {
        *next = now + pause;
    }
    is_due
}
