//! The rings of a target's threads, and the decoders of those threads: what the drain reads, and
//! what it reports about rings. Which thread has which ring is settled in `owners`.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::{Geometry, Producer, SharedMemory, layout, newest};
use xray_trace::model::Ticks;

use super::chore_times::RARE;
use crate::{
    collect::{
        CallSite, SiteTable,
        numbers::Numbers,
        ring::{Around, Ring, TURN_WORDS, turns},
        slots::Slots,
        sums_log::SumsLog,
        thread_decoder::ThreadDecoder,
        thread_decoders::ThreadDecoders,
    },
    pid::Pid,
    store::{EventStore, Handover},
    sys::ticks_now,
};

/// A round that reads one in this many of a ring's words is followed by a short sleep. In a ring of
/// 1 MiB or more, that is enough for the next round to begin at once.
const MANY: u64 = 8;

/// The rings that were taken up, and all that is needed to read them.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) pid: Pid,
    pub(super) slots: Slots,
    pub(super) sites: Arc<SiteTable>,
    pub(super) output: Arc<EventStore>,
    pub(super) decoders: ThreadDecoders,
    /// The rings, by slot index.
    pub(super) by_slot: HashMap<u32, Ring>,
    /// The slot indexes of the rings. Among the rings of one thread, those that it has left come
    /// first.
    pub(super) order: Vec<u32>,
    /// True while rings keep the newest events by themselves.
    pub(super) newest: bool,
    /// True while a ring fills faster than it is read.
    pub(super) is_filling: bool,
    /// The ticks for which threads wait for room in a full ring; `None` before they were set.
    wait: Option<u64>,
    /// The index in `order` of the ring to read first.
    next_read: usize,
    /// The number of times that all rings were read. Further turns begin at another ring each time.
    sweeps: usize,
    /// True if words stay in the rings until their events are archived.
    holds: bool,
    /// The sites of the numbers under which threads count calls.
    pub(super) numbers: Numbers,
    /// True while threads add calls up in the program.
    pub(super) adds_up: bool,
    /// True while they record these calls, too, in rings that keep the newest events.
    pub(super) records_beside: bool,
    /// Events before this are dropped unread: the sums of the program have them.
    dropped_until: Ticks,
    /// The sums of ended threads for the next daemon, if there may be one.
    pub(super) log: Option<SumsLog>,
    /// The index in `order` of the next profile to be read.
    pub(super) next_added: usize,
    /// The first of the threads that have their turn in a sample of sums.
    pub(super) sampled_first: usize,
    /// The index in `order` of the next ring whose memory is looked at.
    next_freed: usize,
    started: Instant,
}

/// The rings whose memory is freed in one round of chores while threads record much, and after a
/// rest. It takes 0.1 ms for a ring of 1 MiB.
const FREED_AT_ONCE: usize = 16;
const FREED_AFTER_REST: usize = 256;

/// A ring fills once this part of it is unread, until less than that part is.
const FILLING: u64 = 4;
const EMPTY: u64 = 16;

/// The words that the drain reads in about the time of a look at an idle ring.
const LOOK_WORDS: u64 = 16;

/// The amount of work that a round found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Busy {
    Idle,
    Little,
    Some,
    Full,
}

// === impl Rings ===

impl Rings {
    /// No rings so far.
    pub(super) fn new(pid: Pid, slots: Slots, sites: SiteTable, output: Arc<EventStore>) -> Self {
        Self {
            pid,
            newest: newest::keeps_newest(&slots.rings),
            is_filling: false,
            slots,
            sites: Arc::new(sites),
            decoders: ThreadDecoders::new(Arc::default(), output.keeps()),
            wait: None,
            next_read: 0,
            sweeps: 0,
            holds: output.is_archived(),
            output,
            by_slot: HashMap::new(),
            order: Vec::new(),
            numbers: Numbers::default(),
            adds_up: false,
            records_beside: false,
            dropped_until: Ticks(0),
            log: None,
            next_added: 0,
            sampled_first: 0,
            next_freed: 0,
            started: Instant::now(),
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.slots.layout.geometry
    }

    /// Calls `work` with a ring and the decoder of its owner; `None` if there is none.
    pub(super) fn with_ring<T>(
        &mut self,
        index: u32,
        work: impl FnOnce(&mut Ring, &mut ThreadDecoder, &Around<'_>) -> T,
    ) -> Option<T> {
        let turn_words = self.turn_words();
        let ring = self.by_slot.get_mut(&index)?;
        let decoder = self.decoders.get_mut(ring.owner)?;
        let around = Around {
            slots: &self.slots,
            sites: &self.sites,
            output: &self.output,
            started: self.started,
            newest: self.newest,
            counts: !self.records_beside,
            dropped_until: self.dropped_until,
            holds: self.holds,
            turn_words,
        };
        Some(work(ring, decoder, &around))
    }

    /// Calls `work` with each ring in turn.
    fn with_each(&mut self, mut work: impl FnMut(&mut Ring, &mut ThreadDecoder, &Around<'_>)) {
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], &mut work);
        }
    }

    /// Makes the meaning of sites known, from `since` on.
    pub(super) fn learn(&mut self, sites: Vec<CallSite>, since: Ticks) {
        // What was added up so far has the meaning that sites had so far.
        self.add_up(Handover::Interim);
        let table = Arc::make_mut(&mut self.sites);
        for site in sites {
            table.insert(site, since);
        }
        if self.sites.has_events() {
            self.by_slot.values_mut().for_each(Ring::expect_payloads);
        }
    }

    /// Sets the time for which threads wait for room, if it has changed.
    pub(super) fn settle_wait(&mut self) {
        let wait = match self.newest {
            true => 0,
            false => self.output.wait(),
        };
        if self.wait.replace(wait) != Some(wait) {
            self.slots.rings.store(layout::rings::WAIT, wait);
        }
    }

    /// True if threads wait for room.
    fn is_waited_for(&self) -> bool {
        self.wait.is_some_and(|wait| wait > 0)
    }

    /// The words read from one ring before the next one has its turn. Where threads wait for room,
    /// each ring in turn gives a chunk back. So no thread waits for long while others keep their
    /// rings full.
    fn turn_words(&self) -> u64 {
        match self.is_waited_for() {
            true => TURN_WORDS.min(self.geometry().chunk_bytes() / 8),
            false => TURN_WORDS,
        }
    }

    /// The number of turns that read a ring which was full at the start, and a little more.
    pub(super) fn turns(&self) -> u64 {
        turns(self.geometry(), self.turn_words())
    }

    /// True if threads wait for a reader that is behind. Rings are not read meanwhile: their
    /// threads wait, or count what they lose.
    fn is_held_back(&self) -> bool {
        self.is_waited_for() && self.output.readers_are_behind()
    }

    /// Reads every ring for one turn. Where turns are short, rings with more words have further
    /// ones, for about as long as the looks at all rings took. `for_readers`: only the first of
    /// them, until a lossless reader is behind. The next call then goes on with the others.
    pub(super) fn read(&mut self, for_readers: bool) -> Busy {
        let ring_words = self.geometry().ring_bytes() / 8;
        self.note_use(8 * ring_words);
        let turn_words = self.turn_words();
        let first = std::mem::take(&mut self.next_read).min(self.order.len());
        let (mut most, mut full) = (0, Vec::new());
        for at in (first..self.order.len()).chain(0..first) {
            if for_readers && self.is_held_back() {
                self.next_read = at;
                return Busy::Some;
            }
            let index = self.order[at];
            let words = self.read_ring(index);
            most = most.max(words);
            if words >= turn_words {
                full.push(index);
            }
        }
        // The looks at a thousand idle rings take longer than a turn of a busy one. Rings that are
        // not full now may soon be, so further turns have to be few.
        let mut further_turns = LOOK_WORDS * self.order.len() as u64 / turn_words;
        if let Some(begin) = self.sweeps.checked_rem(full.len()) {
            full.rotate_left(begin);
        }
        self.sweeps = self.sweeps.wrapping_add(1);
        while further_turns > 0 && !full.is_empty() {
            full.retain(|&index| {
                let goes_on = further_turns > 0 && !(for_readers && self.is_held_back());
                further_turns = further_turns.saturating_sub(1);
                goes_on && self.read_ring(index) >= turn_words
            });
        }
        match most {
            0 => Busy::Idle,
            _ if for_readers && self.is_held_back() => Busy::Some,
            words if words >= turn_words.min(TURN_WORDS / 4) => Busy::Full,
            words if words >= ring_words / MANY => Busy::Some,
            _ => Busy::Little,
        }
    }

    /// Reads a ring for one turn, and returns the number of words that it went on.
    fn read_ring(&mut self, index: u32) -> u64 {
        self.prepare_late_words(index);
        let words = self.with_ring(index, |ring, decoder, around| {
            ring.read(decoder, around, Producer::Alive)
        });
        words.unwrap_or(0)
    }

    /// Notes how full the fullest ring is.
    fn note_use(&mut self, ring_bytes: u64) {
        let rings = self.by_slot.values();
        let fullest = rings.map(|ring| ring.backlog(&self.slots)).max();
        let fullest = fullest.unwrap_or(0);
        self.output.counters.set_ring_use(fullest, ring_bytes);
        let enough = match self.is_filling {
            true => ring_bytes / EMPTY,
            false => ring_bytes / FILLING,
        };
        self.is_filling = fullest >= enough;
    }

    /// Closes the blocks of all threads, after the losses that were recorded by `now`.
    pub(super) fn publish(&mut self, now: Ticks) {
        // A stream that ends now contains the losses, too.
        self.with_each(Ring::tell_if_read);
        for decoder in self.decoders.iter_mut() {
            decoder.tell_early(now);
        }
        self.close_blocks();
        // Losses that no event has followed so far are counted as well: the report is exact now.
        self.count_unreported();
    }

    /// Closes the block of the thread of a ring, if the thread has gone on to another ring and this
    /// one has words again. So a block has words of one ring only.
    pub(super) fn prepare_late_words(&mut self, index: u32) {
        let ring = self.by_slot.get(&index);
        let ring = ring.filter(|ring| self.holds && ring.has_late_words(&self.slots));
        if let Some(owner) = ring.map(|ring| ring.owner) {
            self.close_block_of(owner);
        }
    }

    /// Closes the block of a thread, by the ring that it writes to.
    pub(super) fn close_block_of(&mut self, owner: u32) {
        if let Some(latest) = self.decoders.latest(owner) {
            self.with_ring(latest, Ring::close_block);
        }
    }

    /// Closes the blocks of all threads.
    pub(super) fn close_blocks(&mut self) {
        self.with_each(|ring, decoder, around| {
            if !ring.is_left() {
                ring.close_block(decoder, around);
            }
        });
        // Threads whose rings are left may have blocks of losses without a ring.
        for decoder in self.decoders.iter_mut() {
            decoder.publish(&self.output);
        }
    }

    /// Reports the losses of threads that record no more. Such a thread writes no gap word: its
    /// functions were switched off, or it waits.
    pub(super) fn report_quiet(&mut self) {
        self.with_each(Ring::tell_if_quiet);
    }

    /// Reports the losses that rings have counted and that are not in the stream so far.
    pub(super) fn count_unreported(&self) {
        let rings = self.by_slot.values();
        let unreported = rings.map(|ring| ring.unreported_losses(&self.slots));
        let unreported = unreported.fold(0, u64::saturating_add);
        self.output.counters.note_unreported_losses(unreported);
    }

    /// Reports how much of what was written to rings was not read. Calls that are added up in the
    /// program were read as sums.
    pub(super) fn count_unread(&mut self) {
        if self.records_beside {
            return;
        }
        let (mut events, mut overwritten) = (0_u64, 0_u64);
        for ring in self.by_slot.values_mut() {
            let unread = ring.unread(&self.slots);
            events = events.saturating_add(unread.events);
            overwritten = overwritten.saturating_add(unread.overwritten);
        }
        self.output.counters.set_unread(events, overwritten);
    }

    /// Reports how much is still unread, if something was: events that have been read since then
    /// would count twice.
    pub(super) fn recount_unread(&mut self) {
        if self.output.counters.has_unread() {
            self.count_unread();
        }
    }

    /// Gives memory back that the rings of slow threads do not need. `begins`: looks at all rings
    /// anew, if the last look at them is over. `since_last` is the time since the last call.
    pub(super) fn free_unused(&mut self, begins: bool, since_last: Duration) {
        let is_over = self.next_freed >= self.order.len();
        if begins && is_over {
            self.next_freed = 0;
        }
        let most = match since_last < RARE {
            true => FREED_AT_ONCE,
            false => FREED_AFTER_REST,
        };
        let mut freed = 0;
        while freed < most
            && let Some(index) = self.order.get(self.next_freed)
        {
            let ring = self.by_slot.get_mut(index);
            freed += usize::from(ring.is_some_and(|ring| ring.free_unused(&self.slots)));
            self.next_freed += 1;
        }
    }

    /// Frees slow paths that a signal handler left by `longjmp`. Such a slow path stays marked
    /// busy, and losses grow in a ring that has room.
    pub(super) fn free_stuck(&mut self) {
        for ring in self.by_slot.values_mut() {
            if ring.is_stuck(&self.slots) {
                ring.unstick(&self.slots);
                tracing::info!(
                    pid = self.pid.as_raw(),
                    tid = ring.owner,
                    "freed the ring of a slow path that never ended"
                );
            }
        }
    }

    /// Leaves the rings to keep the newest events by themselves. Drops what was read before: there
    /// may be a gap between that and the later contents of a ring.
    pub(super) fn keep_newest(&mut self) {
        self.close_blocks();
        self.with_each(Ring::end_reading);
        self.newest = true;
        self.is_filling = false;
        for decoder in self.decoders.iter_mut() {
            decoder.restart(&self.output);
        }
        newest::keep_newest(&self.slots.rings);
        self.output.counters.set_ring_use(0, 1);
        self.output.with_retained(|retained| retained.shrink_to(0));
    }

    /// Drops what rings hold once they are read: the sums of the program have it. Nothing more is
    /// recorded now.
    pub(super) fn drop_unread(&mut self) {
        self.dropped_until = ticks_now();
        for ring in self.by_slot.values_mut() {
            ring.drop_unread(&self.slots);
        }
    }

    /// Begins to read rings, each once its thread does not take a chunk back any more. Everything
    /// that is in them comes first.
    pub(super) fn read_along(&mut self) {
        self.newest = false;
        newest::keep_unread(&self.slots.rings);
        self.count_unread();
    }

    /// Reads the rest of all rings.
    pub(super) fn read_last(&mut self) {
        // No thread waits for what is not read any more.
        self.slots.rings.store(layout::rings::WAIT, 0);
        // Otherwise a thread in a trampoline would still take chunks back.
        newest::keep_unread(&self.slots.rings);
        self.with_each(Ring::read_last);
        self.newest = false;
        self.count_unread();
    }

    /// Gives the memory of all rings back to the system, and leaves the rings to a later session.
    pub(super) fn give_back(&self) {
        for &index in &self.order {
            self.slots.give_back(index);
            if let Some(ring) = self.by_slot.get(&index) {
                ring.leave_view(&self.slots);
            }
        }
        self.slots.rings.store(layout::rings::WAIT, 0);
        self.slots.rings.store(layout::rings::LET_GO, 1);
        self.output.counters.set_ring_use(0, 1);
    }
}
