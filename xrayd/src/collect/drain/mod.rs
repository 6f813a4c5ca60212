//! The thread `drain-<pid>`: reads every ring of a target in turn, decodes words into blocks, and
//! publishes the blocks. It never waits for a reader of the blocks.
//!
//! The less there is to read, the longer the thread sleeps. It does not sleep while a ring fills
//! up.
//!
//! In mode `flight`, rings keep the newest events by themselves. The thread then looks after the
//! target's threads only. It reads a ring when the ring's thread or the session ends, and copies it
//! for a snapshot.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

use growth::{Growth, SlotTable};
use handle::Request;
pub(crate) use handle::{Asked, DrainCaller, DrainHandle};
use shm_ring::{Producer, SharedMemory, layout, newest};
use xray_trace::model::Ticks;

use super::{
    SiteTable,
    names::{Bearer, Names},
    numbers::Numbers,
    ring::{Around, Ring, TURN_WORDS, turns},
    ring_budget::RingBudget,
    slots::Slots,
    thread_decoder::ThreadDecoder,
    thread_decoders::ThreadDecoders,
};
use crate::{
    inject::{Installed, Layout},
    liveness::{Liveness, MOST_REQUESTS},
    panics::message_of,
    pid::Pid,
    quotas::Ticket,
    store::{Ask, EventStore},
    sys::{Memory, now_anchor, ticks_now},
    types::ThreadChoice,
};

mod call_counts;
mod copies;
mod endings;
#[cfg(fuzzing)]
mod fuzzing;
mod growth;
mod handle;
mod modes;

#[cfg(fuzzing)]
pub use fuzzing::drain_rings;

/// Sleep between two rounds: while many events come, while few come or may come, and while no
/// function is on. A function of 20 ns fills a ring of 1 MiB in 1.3 ms. Waking up takes about 40 µs
/// of processor time in a virtual machine.
const SHORT_SLEEP: Duration = Duration::from_micros(300);
const ARMED_SLEEP: Duration = Duration::from_micros(700);
const IDLE_SLEEP: Duration = Duration::from_millis(20);
/// A round that reads one in this many of a ring's words is followed by a short sleep. In a ring of
/// 1 MiB or more, that is enough for the next round to begin at once.
const MANY: u64 = 8;
/// Time between two rounds of chores: looking for ended threads, freeing stuck slow paths, and so
/// on.
const CHORES_EVERY: Duration = Duration::from_millis(100);
const ANCHOR_EVERY: Duration = Duration::from_secs(1);
/// Time between two reads of the counts of all threads and sites.
const COUNT_EVERY: Duration = Duration::from_millis(500);
/// Time between two reads of thread names, while threads are chosen by name.
const CHOOSE_EVERY: Duration = Duration::from_secs(1);
/// Time between two transfers of sums to the observers that measure calls. The pause is this many
/// times as long as the last transfer took, within these bounds.
const MEASURE_PAUSES: u32 = 50;
const MEASURE_EVERY: Duration = Duration::from_secs(1);
const LONGEST_MEASURE_PAUSE: Duration = Duration::from_secs(10);
/// The drain looks for ended threads when one in this many of the open slots was taken since the
/// last look. Threads that live for a moment only would otherwise use up all slots before the next
/// chores.
const SLOTS_PER_LOOK: usize = 16;

/// The reason why a session with broken rings ends.
const LOST_RINGS: &str =
    "a process has cut the memory of the rings, or the system had no memory for them";

/// The state of the drain thread.
#[derive(Debug)]
pub(crate) struct Drain {
    pid: Pid,
    memory: Arc<Memory>,
    slots: Slots,
    /// Which slots are open, and how more slots are opened.
    growth: Growth,
    sites: Arc<SiteTable>,
    output: Arc<EventStore>,
    names: Names,
    /// True while rings keep the newest events by themselves.
    newest: bool,
    /// True if the mode is [`Mode::Profile`](crate::types::Mode::Profile).
    profile: bool,
    /// True if the mode is [`Mode::Count`](crate::types::Mode::Count).
    counting: bool,
    /// The recorded threads; `None` for all.
    threads: Option<Arc<ThreadChoice>>,
    /// True if a choice of threads was in force at the last look at thread names.
    choosing: bool,
    /// The sites of the numbers under which threads count calls.
    numbers: Numbers,
    /// True once the rings that an earlier session left are taken up.
    begun: bool,
    /// The rings, by slot index.
    rings: HashMap<u32, Ring>,
    /// The slot indexes of the rings. Among the rings of one thread, those that it has left come
    /// first.
    order: Vec<u32>,
    decoders: ThreadDecoders,
    /// The number of rings after the last look for ended threads.
    rings_seen: usize,
    /// True if that look found more ended threads than are taken back at once.
    more_ended: bool,
    /// The slot at which the search for unused claims continues.
    swept: u32,
    /// The place in `order` at which the search continues for rings whose thread id was reused.
    asked: usize,
    started: Instant,
    last_chores: Instant,
    /// Time of the next clock reading. The first one follows the attach soon, so that an early
    /// reader has two points. Later ones are a second apart.
    next_anchor: Instant,
    /// Time of the next read of counts.
    next_count: Instant,
    /// Time of the next read of thread names.
    next_choice: Instant,
    /// Time of the next transfer of sums.
    next_measuring: Instant,
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
    /// Starts the thread. It holds the session's ticket, because it can outlive the session while
    /// it hangs.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn spawn(
        pid: Pid,
        memory: Arc<Memory>,
        installed: Installed,
        budget: RingBudget,
        sites: SiteTable,
        (output, ticket): (Arc<EventStore>, Arc<Ticket>),
    ) -> std::io::Result<DrainHandle> {
        let Installed {
            layout,
            rings,
            rings_file,
            adopted,
            ..
        } = installed;
        let mut slots = Slots::new(layout, rings, rings_file);
        slots.filtered = adopted;
        let mut drain = Self::new(pid, memory, slots, budget, sites, output);
        let switches = Arc::clone(drain.decoders.switches());
        let (requests, received) = sync_channel(MOST_REQUESTS);
        let liveness = Liveness::new(pid);
        let of_thread = Arc::clone(&liveness);
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let abandoned = Arc::clone(&is_abandoned);
        let is_woken = Arc::new(AtomicBool::new(false));
        let woken = Arc::clone(&is_woken);
        let thread = std::thread::Builder::new()
            .name(format!("drain-{pid}"))
            .spawn(move || {
                let _ticket = ticket;
                let _end = of_thread.until_end();
                let output = Arc::clone(&drain.output);
                // Nothing uses the drain after a panic. What it shares is consistent between
                // statements.
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    drain.run(&received, &of_thread, (&abandoned, &woken));
                }));
                if let Err(payload) = ran {
                    output.fail(format!("a bug in xrayd: {}", message_of(&*payload)));
                }
            })?;
        Ok(DrainHandle {
            caller: DrainCaller {
                requests,
                liveness,
                is_woken,
            },
            is_abandoned,
            thread: Some(thread),
            switches,
        })
    }

    /// A drain that has read nothing so far.
    fn new(
        pid: Pid,
        memory: Arc<Memory>,
        slots: Slots,
        budget: RingBudget,
        sites: SiteTable,
        output: Arc<EventStore>,
    ) -> Self {
        let now = Instant::now();
        slots.rings.store(layout::rings::LET_GO, 0);
        Self {
            pid,
            memory,
            newest: newest::keeps_newest(&slots.rings),
            profile: false,
            counting: false,
            threads: None,
            choosing: false,
            numbers: Numbers::default(),
            begun: false,
            slots,
            growth: Growth::new(budget, now),
            sites: Arc::new(sites),
            decoders: ThreadDecoders::new(Arc::default(), output.keeps()),
            output,
            names: Names::of(pid),
            rings: HashMap::new(),
            order: Vec::new(),
            rings_seen: 0,
            more_ended: false,
            swept: 0,
            asked: 0,
            started: now,
            last_chores: now,
            next_anchor: now,
            next_count: now,
            next_choice: now,
            next_measuring: now,
        }
    }

    fn layout(&self) -> &Layout {
        &self.slots.layout
    }

    fn run(
        &mut self,
        requests: &Receiver<Request>,
        liveness: &Liveness,
        (is_abandoned, is_woken): (&AtomicBool, &AtomicBool),
    ) {
        liveness.looks_for_requests();
        self.settle_mode();
        self.discover();
        if self.counting {
            self.begin_counts();
        }
        self.begun = true;
        let mut sleep = SHORT_SLEEP;
        loop {
            self.settle_mode();
            let busy = self.round();
            // Each may hang in the target's memory, which another tracer may have by then.
            for step in [Self::open_slots, Self::chores] {
                if is_abandoned.load(Relaxed) {
                    self.abandon();
                    return;
                }
                step(self);
            }
            if self.slots.rings.is_broken() {
                self.output.fail(LOST_RINGS.to_owned());
                return;
            }
            sleep = match busy {
                Busy::Full => Duration::ZERO,
                Busy::Some => SHORT_SLEEP,
                Busy::Little => ARMED_SLEEP,
                Busy::Idle if self.newest || self.counting => IDLE_SLEEP,
                Busy::Idle if self.output.armed.load(Relaxed) => ARMED_SLEEP,
                Busy::Idle => (sleep.max(SHORT_SLEEP) * 2).min(IDLE_SLEEP),
            };
            liveness.looks_for_requests();
            let request = requests.recv_timeout(sleep);
            if is_abandoned.load(Relaxed) {
                self.abandon();
                return;
            }
            match request {
                Ok(Request::Wake) => is_woken.store(false, Relaxed),
                Ok(Request::Learn(sites, since, answer)) => {
                    let table = Arc::make_mut(&mut self.sites);
                    for site in sites {
                        table.insert(site, since);
                    }
                    if self.sites.has_events() {
                        self.rings.values_mut().for_each(Ring::expect_payloads);
                    }
                    let _ = answer.send(());
                }
                Ok(Request::Flush(answer)) => {
                    self.flush();
                    // The asker may have given up waiting.
                    let _ = answer.send(());
                }
                Ok(Request::EventFilter(keep, threads, answer)) => {
                    self.flush();
                    self.decoders.filter(keep);
                    self.threads = threads;
                    self.choose_threads();
                    let _ = answer.send(());
                }
                Ok(Request::BeginCounts(answer)) => {
                    self.begin_counts();
                    let _ = answer.send(());
                }
                Ok(Request::RenewFilters(answer)) => {
                    self.renew_filters();
                    let _ = answer.send(());
                }
                Ok(Request::RingCopies(bytes, moment, answer)) => {
                    let _ = answer.send(self.pictures(bytes, moment));
                }
                Ok(Request::Sample(look, answer)) => {
                    let _ = answer.send(self.sample(&look));
                }
                Ok(Request::Profile(ask, answer)) => {
                    let is_given_up = answer.send(self.profile(ask)).is_err();
                    if let (true, Ask::Begin(number)) = (is_given_up, ask) {
                        // No client knows of the sums.
                        self.output.profiles.answer(Ask::End(number));
                    }
                }
                Ok(Request::Finish(answer)) => {
                    self.finish();
                    let _ = answer.send(());
                    return;
                }
                Ok(Request::Abandon(answer)) => {
                    self.abandon();
                    let _ = answer.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.finish();
                    return;
                }
            }
        }
    }

    /// Publishes what was read, and leaves the rings to another tracer.
    fn abandon(&mut self) {
        self.decoders
            .iter_mut()
            .for_each(|decoder| decoder.end(&self.output));
        self.anchor();
    }

    /// Reads every ring once.
    fn round(&mut self) -> Busy {
        self.discover();
        if self.newest {
            return Busy::Idle;
        }
        let mut busy = Busy::Idle;
        let mut fullest = 0;
        let many = self.layout().geometry.ring_bytes() / 8 / MANY;
        for at in 0..self.order.len() {
            let read = self.with_ring(self.order[at], |ring, decoder, around| {
                let backlog = ring.backlog(around.slots);
                (backlog, ring.read(decoder, around, Producer::Alive))
            });
            let Some((backlog, words)) = read else {
                continue;
            };
            fullest = fullest.max(backlog);
            if words > 0 {
                busy = busy.max(match words {
                    _ if words >= TURN_WORDS / 4 => Busy::Full,
                    _ if words >= many => Busy::Some,
                    _ => Busy::Little,
                });
            }
        }
        self.output
            .counters
            .set_ring_use(fullest, self.layout().geometry.ring_bytes());
        busy
    }

    /// Calls `work` with a ring and the decoder of its owner; `None` if there is none.
    fn with_ring<T>(
        &mut self,
        index: u32,
        work: impl FnOnce(&mut Ring, &mut ThreadDecoder, &Around<'_>) -> T,
    ) -> Option<T> {
        let ring = self.rings.get_mut(&index)?;
        let decoder = self.decoders.get_mut(ring.owner)?;
        let around = Around {
            slots: &self.slots,
            sites: &self.sites,
            output: &self.output,
            started: self.started,
            newest: self.newest,
        };
        Some(work(ring, decoder, &around))
    }

    /// Takes up the rings that were claimed since the last call.
    fn discover(&mut self) {
        self.names.expect_news();
        let slots = 0..self.layout().geometry.slots();
        let owners = slots.map(|index| (index, self.slots.owner(index)));
        let news = owners.filter(|(index, owner)| *owner != 0 && !self.rings.contains_key(index));
        let mut news: Vec<(u32, u32)> = news.collect();
        // Of two rings of one thread, the one that it has left comes first. A thread only moves to
        // slots that it probes earlier.
        let mask = self.layout().geometry.slots() - 1;
        news.sort_by_key(|&(index, owner)| Reverse(index.wrapping_sub(owner) & mask));
        for &(index, owner) in &news {
            self.take_up(index, owner);
            self.growth.expect_more_than(owner);
        }
        if !news.is_empty() {
            // Losses from before a thread had a ring come first.
            self.publish_without_slot();
        }
    }

    /// Takes up a ring that belongs to the thread `owner` from now on.
    ///
    /// The thread may have had another ring. A thread takes the first free slot on its probe
    /// sequence. When the slot of an ended thread becomes free, the thread may find it before its
    /// own slot, and continues there. Everything in the ring that it left was recorded before. The
    /// exception is a slow path that a signal handler interrupted, if the handler took the other
    /// slot: the event of that slow path comes late, and counts as of the time when it comes.
    fn take_up(&mut self, index: u32, owner: u32) {
        let began = match self.names.bearer(owner) {
            Bearer::Alive(began) => Some(began),
            Bearer::Gone | Bearer::Unseen => None,
        };
        if self.decoders.get(owner).is_some() && began.is_some() {
            let others =
                |ring: &Ring| ring.owner == owner && ring.began.is_some() && ring.began != began;
            if self.rings.values().any(others) {
                self.end_threads(&HashSet::from([owner]));
            }
        }
        let left = self
            .decoders
            .open(owner, index, &mut self.names, &self.output);
        if let Some(left) = left {
            self.with_ring(left, Ring::leave);
        }
        let before = match self.begun {
            true => newest::Words::default(),
            false => newest::Words::of(&self.slots.rings, self.layout().geometry, index),
        };
        let mut ring = Ring::new(index, (owner, began), &self.slots, before);
        if !self.begun && self.slots.filtered {
            // Calls that an earlier session left out belong to that session.
            ring.take_left_out(&self.slots);
        }
        self.rings.insert(index, ring);
        self.order.push(index);
        if self.threads.is_some() {
            self.choose_thread(index, owner);
        }
    }

    /// The table of slots, and the parts of the drain that change with it.
    fn slot_table(&mut self) -> (SlotTable<'_>, &mut Growth, &mut Names) {
        let table = SlotTable {
            pid: self.pid,
            memory: &self.memory,
            slots: &self.slots,
        };
        (table, &mut self.growth, &mut self.names)
    }

    /// Opens slots for threads that have none.
    fn open_slots(&mut self) {
        let (table, growth, names) = self.slot_table();
        growth.open_slots(&table, names);
    }

    /// Frees the slot of an ended thread.
    fn free_slot(&mut self, index: u32) {
        let (table, growth, _) = self.slot_table();
        growth.free_slot(&table, index);
    }

    fn chores(&mut self) {
        if self.last_chores.elapsed() < CHORES_EVERY {
            let slots = self.growth.budget.open_slots() as usize;
            let taken = self.rings.len().saturating_sub(self.rings_seen);
            if self.more_ended || taken >= (slots / SLOTS_PER_LOOK).max(1) {
                self.retire_dead();
            }
            return;
        }
        self.last_chores = Instant::now();
        self.take_up_unused();
        if self.next_choice <= self.last_chores {
            self.next_choice = self.last_chores + CHOOSE_EVERY;
            self.choose_threads();
        }
        self.tell_left_out();
        if self.counting && self.next_count <= self.last_chores {
            self.next_count = self.last_chores + COUNT_EVERY;
            self.count();
        }
        self.retire_dead();
        self.retire_replaced();
        self.tell_quiet();
        self.free_stuck();
        self.retire_ringless();
        self.count_unreported();
        self.count_unread();
        self.output.counters.measure_rate();
        if self.next_anchor <= self.last_chores {
            self.next_anchor = self.last_chores + ANCHOR_EVERY;
            self.anchor();
        }
        self.measure();
    }

    /// Reports the losses that rings have counted and that are not in the stream so far.
    fn count_unreported(&self) {
        let rings = self.rings.values();
        let unreported = rings.map(|ring| ring.unreported_losses(&self.slots));
        let unreported = unreported.fold(0, u64::saturating_add);
        self.output.counters.note_unreported_losses(unreported);
    }

    /// Transfers sums to the observers that measure calls, if it is time.
    fn measure(&mut self) {
        let begun = Instant::now();
        if begun < self.next_measuring || !self.output.profiles.are_measured() {
            return;
        }
        self.hand_over();
        let ended = Instant::now();
        let pause = ended.duration_since(begun).saturating_mul(MEASURE_PAUSES);
        self.next_measuring = ended + pause.clamp(MEASURE_EVERY, LONGEST_MEASURE_PAUSE);
    }

    fn anchor(&self) {
        match now_anchor() {
            Ok(anchor) => self.output.anchor(anchor),
            Err(error) => tracing::warn!(%error, "cannot read the clock"),
        }
    }

    /// Reports the losses of threads that record no more. Such a thread writes no gap word: its
    /// functions were switched off, or it waits.
    fn tell_quiet(&mut self) {
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], Ring::tell_if_quiet);
        }
    }

    /// Frees slow paths that a signal handler left by `longjmp`. Such a slow path stays marked
    /// busy, and losses grow in a ring that has room.
    fn free_stuck(&mut self) {
        for ring in self.rings.values_mut() {
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

    /// Reports the losses of threads that found no slot.
    fn publish_without_slot(&mut self) {
        let news = self.slots.take_lost_without_slot();
        if news > 0 {
            self.output.lost_without_ring(news);
        }
        if !self.slots.has_buckets() {
            return;
        }
        let losses: Vec<(u32, u64)> = self.slots.take_lost_in_buckets().collect();
        let Self {
            names,
            sites,
            output,
            ..
        } = self;
        self.decoders.lost_in_buckets(&losses, names, sites, output);
    }

    fn flush(&mut self) {
        self.settle_mode();
        let now = ticks_now();
        for _ in 0..turns(self.layout().geometry) {
            if self.round() != Busy::Full {
                break;
            }
        }
        self.publish_without_slot();
        if self.counting {
            self.count();
        }
        self.tell_left_out();
        // A stream that ends now contains the losses, too.
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], Ring::tell_if_read);
        }
        for decoder in self.decoders.iter_mut() {
            decoder.tell_early(now);
            decoder.publish(&self.output);
        }
        // Losses that no event has followed so far are counted as well: the report is exact now.
        self.count_unreported();
        self.anchor();
    }

    fn finish(&mut self) {
        self.discover();
        self.publish_without_slot();
        if self.counting {
            self.count();
        }
        self.tell_left_out();
        // Otherwise a thread in a trampoline would still take chunks back.
        newest::keep_newest(&self.slots.rings, false);
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], Ring::read_last);
        }
        self.newest = false;
        self.count_unread();
        for decoder in self.decoders.iter_mut() {
            decoder.end(&self.output);
        }
        self.anchor();
        for &index in &self.order {
            self.slots.give_back(index);
            if let Some(ring) = self.rings.get(&index) {
                ring.leave_view(&self.slots);
            }
        }
        self.slots.rings.store(layout::rings::LET_GO, 1);
        self.output.counters.set_ring_use(0, 1);
    }
}

/// The amount of work that a round found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Busy {
    Idle,
    Little,
    Some,
    Full,
}

#[cfg(test)]
mod tests;
