//! The thread `drain-<pid>`: reads every ring of a target in turn, turns words into blocks, and publishes them.
//!
//! It sleeps longer the less there is to read, and not at all while a ring fills up. It never waits for a reader.
//!
//! In flight, rings keep the newest events by themselves, and nobody reads them until their thread or the session ends, or a picture is wanted: then it
//! looks after threads only.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use growth::Growth;
use shm_ring::{Producer, SharedMemory, layout, newest};
use xray_trace::model::Ticks;

use super::{
    CallSite, Keep, SiteTable, Switches,
    names::{Bearer, Names},
    numbers::Numbers,
    ring::{Around, Ring, TURN_WORDS, turns},
    ring_budget::RingBudget,
    ring_copies::{Moment, RingCopies},
    sample::{Look, Sample},
    slots::Slots,
    thread_decoder::ThreadDecoder,
    thread_decoders::ThreadDecoders,
};
use crate::{
    inject::{Installed, Layout},
    panics::message_of,
    pid::Pid,
    store::{Ask, EventStore, ProfileSums},
    sys::{Memory, now_anchor, ticks_now},
    types::ThreadChoice,
};

mod copies;
mod endings;
mod fronts;
#[cfg(fuzzing)]
mod fuzzing;
mod growth;
mod modes;

#[cfg(fuzzing)]
pub use fuzzing::drain_rings;

/// Sleep between rounds: while many events come, while few come or may, and while nothing is on. A function of 20 ns
/// fills a ring of 1 MiB in 1.3 ms; waking up takes some 40 us of a processor in a virtual machine.
const SHORT_SLEEP: Duration = Duration::from_micros(300);
const ARMED_SLEEP: Duration = Duration::from_micros(700);
const IDLE_SLEEP: Duration = Duration::from_millis(20);
/// A round that reads one in so many of a ring's words has read many: the next one comes soon. Of rings of 1 MiB and more that is as much as makes the next one come at once.
const MANY: u64 = 8;
/// How often threads are looked for, clocks are read, stuck slow paths are freed.
const CHORES_EVERY: Duration = Duration::from_millis(100);
const ANCHOR_EVERY: Duration = Duration::from_secs(1);
/// How often counts are read, of all threads and sites.
const COUNT_EVERY: Duration = Duration::from_millis(500);
/// How often the names of threads are read that choose which are recorded.
const CHOOSE_EVERY: Duration = Duration::from_secs(1);
/// How often sums are handed to who measures calls. The pause is so many times as long as the last
/// time took, within these bounds.
const MEASURE_PAUSES: u32 = 50;
const MEASURE_EVERY: Duration = Duration::from_secs(1);
const LONGEST_MEASURE_PAUSE: Duration = Duration::from_secs(10);
/// One in so many slots taken since the last look for ended threads calls for the next one: threads that live for a
/// moment only would have used up all slots by the time of the chores.
const SLOTS_PER_LOOK: usize = 16;

/// Why a session ends whose rings are broken.
const LOST_RINGS: &str = "the memory of its rings was taken away, or the system had none for them";

/// What the control thread asks of the drain.
#[derive(Debug)]
enum Request {
    /// Events are about to come.
    Wake,
    /// Sites of a library that has just been loaded, and a moment before the first of them is switched on.
    Learn(Vec<CallSite>, Ticks, SyncSender<()>),
    /// Read until nothing is left, close all blocks, answer.
    Flush(SyncSender<()>),
    /// From now on keep these events, or all, of what is recorded from now on.
    Keep(Option<Arc<Keep>>, Option<Arc<ThreadChoice>>, SyncSender<()>),
    /// Forget what is open in the sight of the trampolines' filter.
    RenewFilters(SyncSender<()>),
    /// Calls are about to be counted.
    BeginCounts(SyncSender<()>),
    /// Copy what rings, at most so many bytes, and the output hold.
    RingCopies(u64, Moment, SyncSender<RingCopies>),
    /// Say how much rings were given, and what, as far as that is asked.
    Sample(Look, SyncSender<Sample>),
    /// Read what is there, have it added up, and answer.
    Profile(Ask, SyncSender<Option<ProfileSums>>),
    /// The producers are gone for good or switched off: read the rest, give memory back, end.
    Finish(SyncSender<()>),
    /// The rings are another tracer's: publish what was read, and end.
    Abandon(SyncSender<()>),
}

/// The drain thread, as its owner sees it.
#[derive(Debug)]
pub(crate) struct DrainHandle {
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
    switches: Arc<Switches>,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Drain {
    pid: Pid,
    memory: Arc<Memory>,
    slots: Slots,
    /// Which of them are open, and how more may be.
    growth: Growth,
    sites: Arc<SiteTable>,
    output: Arc<EventStore>,
    names: Names,
    /// Rings keep the newest events by themselves.
    newest: bool,
    /// The mode is [`Mode::Profile`].
    profile: bool,
    /// The mode is [`Mode::Count`].
    counting: bool,
    /// Which threads are recorded; `None` for all.
    threads: Option<Arc<ThreadChoice>>,
    /// Not all are, or were when that was last looked at.
    choosing: bool,
    /// What the numbers of counted sites mean.
    numbers: Numbers,
    /// Rings that an earlier session left are known.
    begun: bool,
    /// By slot index.
    rings: HashMap<u32, Ring>,
    /// The rings' slot indexes. Of one thread's rings, those that it has left come first.
    order: Vec<u32>,
    decoders: ThreadDecoders,
    /// Rings there were after the last look for threads that have ended.
    rings_seen: usize,
    /// More threads had ended at that look than rings are taken back at once.
    more_ended: bool,
    /// Where the search for claims that nobody used goes on.
    swept: u32,
    /// Where in `order` the search goes on for rings whose thread's number is another thread's now.
    asked: usize,
    started: Instant,
    last_chores: Instant,
    /// When the clocks are read next: soon at first, so that an early reader has two points, then every second.
    next_anchor: Instant,
    /// When counts are read next.
    next_count: Instant,
    /// When the names of threads are read next that choose which are recorded.
    next_choice: Instant,
    /// When sums are handed to who measures calls.
    next_measuring: Instant,
}

/// From when on events in adopted rings are a new session's. Those that a collector left that died
/// are the next one's, however old. After a session that let the process go nothing was on. A
/// thread that was kept from a processor in the middle of a trampoline may store an event of that
/// session at any time later. It is counted as lost then, since its site meant nothing at that
/// time.
pub(crate) fn events_since(rings: &impl SharedMemory) -> Ticks {
    match rings.load(layout::rings::LET_GO) {
        0 => Ticks(0),
        _ => ticks_now(),
    }
}

// === impl DrainHandle ===

impl DrainHandle {
    /// Says that events are about to come.
    pub(crate) fn wake(&self) {
        // If the thread is gone, no event will be read, which its owner finds out when it asks for something.
        let _ = self.requests.try_send(Request::Wake);
    }

    /// When functions were switched, for who switches them.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        Arc::clone(&self.switches)
    }

    /// Makes known what sites mean from `since` on. When this returns they may be switched on.
    pub(crate) fn learn(&self, sites: Vec<CallSite>, since: Ticks) {
        self.ask(|answer| Request::Learn(sites, since, answer));
    }

    /// From now on these events are kept, or all. What was recorded before is kept as it was then, but in flight, where nobody has read it.
    pub(crate) fn keep(&self, keep: Option<Arc<Keep>>, threads: Option<Arc<ThreadChoice>>) {
        self.ask(|answer| Request::Keep(keep, threads, answer));
    }

    /// Calls are counted from now on: what was counted before is another's.
    pub(crate) fn begin_counts(&self) {
        self.ask(Request::BeginCounts);
    }

    /// Forgets what is open in the sight of the trampolines' filter, while nobody is in it.
    pub(crate) fn renew_filters(&self) {
        self.ask(Request::RenewFilters);
    }

    /// Reads everything that is there now and publishes it.
    pub(crate) fn flush(&self) {
        self.ask(Request::Flush);
    }

    /// Asks what rings, at most so many bytes, and the output hold now; of rings that are read, after that was done. `None` if the thread is gone;
    /// then nothing comes out of the receiver either.
    pub(crate) fn ask_for_pictures(
        &self,
        bytes: u64,
        moment: Moment,
    ) -> Option<Receiver<RingCopies>> {
        let (answer, answered) = sync_channel(1);
        let request = Request::RingCopies(bytes, moment, answer);
        self.requests.send(request).ok()?;
        Some(answered)
    }

    /// How much rings were given so far, and what is in those that were given the most. `None` if the
    /// thread is gone.
    pub(crate) fn sample(&self, look: Look) -> Option<Sample> {
        let (answer, answered) = sync_channel(1);
        self.requests.send(Request::Sample(look, answer)).ok()?;
        answered.recv().ok()
    }

    /// What somebody asks of sums, once everything that is there now is in them. `None` if the thread is gone.
    pub(crate) fn profile(&self, ask: Ask) -> Option<Option<ProfileSums>> {
        let (answer, answered) = sync_channel(1);
        self.requests.send(Request::Profile(ask, answer)).ok()?;
        answered.recv().ok()
    }

    /// Reads the rest and ends the thread.
    pub(crate) fn finish(mut self) {
        self.ask(Request::Finish);
        // A panic was caught where it happened, and is told by the output.
        let _ = self.thread.take().map(JoinHandle::join);
    }

    /// Ends the thread without another look at the rings.
    pub(crate) fn abandon(mut self) {
        self.ask(Request::Abandon);
        // As above.
        let _ = self.thread.take().map(JoinHandle::join);
    }

    fn ask(&self, request: impl FnOnce(SyncSender<()>) -> Request) {
        let (answer, answered) = sync_channel(1);
        // Either side's error means that the thread is gone; it was logged when it went.
        if self.requests.send(request(answer)).is_ok() && answered.recv().is_err() {
            tracing::warn!("a drain thread ended without an answer");
        }
    }
}

// === impl Drain ===

impl Drain {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn spawn(
        pid: Pid,
        memory: Arc<Memory>,
        installed: Installed,
        budget: RingBudget,
        sites: SiteTable,
        output: Arc<EventStore>,
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
        let (requests, received) = sync_channel(4);
        let thread = std::thread::Builder::new()
            .name(format!("drain-{pid}"))
            .spawn(move || {
                let output = Arc::clone(&drain.output);
                // Nothing of the drain is used after a panic, and what it shares is whole between statements.
                let ran = catch_unwind(AssertUnwindSafe(|| drain.run(&received)));
                if let Err(payload) = ran {
                    output.fail(format!("a bug in xrayd: {}", message_of(&*payload)));
                }
            })?;
        Ok(DrainHandle {
            requests,
            thread: Some(thread),
            switches,
        })
    }

    /// Nothing is read so far.
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

    fn run(&mut self, requests: &Receiver<Request>) {
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
            self.open_slots();
            self.chores();
            if self.slots.rings.is_broken() {
                self.output.fail(LOST_RINGS.to_owned());
                return;
            }
            sleep = match busy {
                Busy::Full => Duration::ZERO,
                Busy::Some => SHORT_SLEEP,
                Busy::Little => ARMED_SLEEP,
                Busy::Idle if self.newest || self.counting => IDLE_SLEEP,
                Busy::Idle if self.output.is_armed() => ARMED_SLEEP,
                Busy::Idle => (sleep.max(SHORT_SLEEP) * 2).min(IDLE_SLEEP),
            };
            match requests.recv_timeout(sleep) {
                Ok(Request::Wake) => {}
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
                Ok(Request::Keep(keep, threads, answer)) => {
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
                    let _ = answer.send(self.profile(ask));
                }
                Ok(Request::Finish(answer)) => {
                    self.finish();
                    let _ = answer.send(());
                    return;
                }
                Ok(Request::Abandon(answer)) => {
                    self.decoders
                        .iter_mut()
                        .for_each(|decoder| decoder.end(&self.output));
                    self.anchor();
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

    /// Every ring once.
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
            .ring_use(fullest, self.layout().geometry.ring_bytes());
        busy
    }

    /// Does something with a ring and the decoder of its owner; `None` if there is none.
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

    /// Rings claimed since the last time.
    fn discover(&mut self) {
        self.names.expect_news();
        let slots = 0..self.layout().geometry.slots();
        let owners = slots.map(|index| (index, self.slots.owner(index)));
        let news = owners.filter(|(index, owner)| *owner != 0 && !self.rings.contains_key(index));
        let mut news: Vec<(u32, u32)> = news.collect();
        // Of one thread's the one that it has left comes first: it goes on to slots that it looks at sooner.
        let mask = self.layout().geometry.slots() - 1;
        news.sort_by_key(|&(index, owner)| Reverse(index.wrapping_sub(owner) & mask));
        for &(index, owner) in &news {
            self.take_up(index, owner);
            self.growth.expect_more_than(owner);
        }
        if !news.is_empty() {
            // What they lost before they had a ring comes first.
            self.publish_without_slot();
        }
    }

    /// A ring from now on belongs to the thread `owner`. It may have had one: a thread takes the first slot that is free, which one
    /// of a thread that has ended may be, before it comes to its own, and goes on there. All that is in the one that it has left was
    /// recorded before, but by a slow path that a handler interrupted and took the other slot in: its event comes late, as of the time
    /// when it comes.
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
            // What an earlier session left out is its own.
            ring.take_left_out(&self.slots);
        }
        self.rings.insert(index, ring);
        self.order.push(index);
        if self.threads.is_some() {
            self.choose_thread(index, owner);
        }
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
        self.count_untold();
        self.count_unread();
        self.output.measure_rate();
        if self.next_anchor <= self.last_chores {
            self.next_anchor = self.last_chores + ANCHOR_EVERY;
            self.anchor();
        }
        self.measure();
    }

    /// Says how many losses there are that nothing has told so far.
    fn count_untold(&self) {
        let rings = self.rings.values();
        let untold = rings.map(|ring| ring.untold_losses(&self.slots));
        let untold = untold.fold(0, u64::saturating_add);
        self.output.untold_losses(untold);
    }

    /// Hands what was added up to who measures calls, if it is time.
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

    /// A thread that has lost events and records no more has no gap word to say so: its functions were switched off, or it
    /// waits. Who reads the stream is told all the same.
    fn tell_quiet(&mut self) {
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], Ring::tell_if_quiet);
        }
    }

    /// A handler that left the slow path by `longjmp` leaves it marked busy: losses grow in a ring that has room.
    fn free_stuck(&mut self) {
        for ring in self.rings.values_mut() {
            if ring.is_stuck(&self.slots) {
                ring.unstick(&self.slots);
                tracing::info!(
                    pid = self.pid.as_raw(),
                    tid = ring.owner,
                    "freed a slow path that was never left"
                );
            }
        }
    }

    /// Tells what threads lost that found no slot.
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
        // A stream that ends now has the losses, too.
        for at in 0..self.order.len() {
            self.with_ring(self.order[at], Ring::tell_if_read);
        }
        for decoder in self.decoders.iter_mut() {
            decoder.tell_early(now);
            decoder.publish(&self.output);
        }
        // Those that no event has followed so far: what is said of losses now is true now.
        self.count_untold();
        self.anchor();
    }

    fn finish(&mut self) {
        self.discover();
        self.publish_without_slot();
        if self.counting {
            self.count();
        }
        self.tell_left_out();
        // Else a thread that stands in a trampoline would still take chunks back.
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
        self.output.ring_use(0, 1);
    }
}

/// How much there was to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Busy {
    Idle,
    Little,
    Some,
    Full,
}

#[cfg(test)]
mod tests;
