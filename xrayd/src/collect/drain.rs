//! The thread `drain-<pid>`: reads every ring of a target in turn, turns words into blocks, and publishes them.
//!
//! It sleeps longer the less there is to read, and not at all while a ring fills up. It never waits for a reader.

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    CallSite, SiteTable,
    lane::Lane,
    room::Room,
    slots::{Names, Slots},
};
use crate::{
    inject::{Installed, Layout},
    pid::Pid,
    session::Output,
    sys::{Memory, now_anchor, ticks_now},
};
use shm_ring::{Consumer, Item, Producer};
use xray_trace::model::{ThreadId, Ticks};

/// Words read from one ring before the next one has its turn.
const TURN_WORDS: u64 = 1 << 16;
/// Sleep between rounds: while events come, the longest while they may come, and while nothing is on. A function of 20 ns
/// fills a ring of 1 MiB in 1.3 ms.
const SHORT_SLEEP: Duration = Duration::from_micros(300);
const ARMED_SLEEP: Duration = Duration::from_micros(700);
const IDLE_SLEEP: Duration = Duration::from_millis(20);
/// How often threads are looked for, clocks are read, stuck slow paths are freed.
const CHORES_EVERY: Duration = Duration::from_millis(100);
const ANCHOR_EVERY: Duration = Duration::from_secs(1);
/// One in so many slots taken since the last look for ended threads calls for the next one: threads that live for a
/// moment only would have used up all slots by the time of the chores.
const SLOTS_PER_LOOK: usize = 16;
/// Rings that are taken back at once; then the others, and whoever asks for something, have their turn.
const ENDS_AT_ONCE: usize = 128;
/// Slots of the table that are read in one chore.
const SWEEP_SLOTS: u32 = 4096;

/// What the control thread asks of the drain.
#[derive(Debug)]
enum Request {
    /// Events are about to come.
    Wake,
    /// Sites of a library that has just been loaded, and a moment before the first of them is switched on.
    Learn(Vec<CallSite>, Ticks, SyncSender<()>),
    /// Read until nothing is left, close all blocks, answer.
    Flush(SyncSender<()>),
    /// The producers are gone for good (`Gone`) or switched off (`Alive`): read the rest, give memory back, end.
    Finish(Producer, SyncSender<()>),
}

/// The drain thread, as its owner sees it.
#[derive(Debug)]
pub(crate) struct DrainHandle {
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

/// One ring under way.
#[derive(Debug)]
struct Ring {
    consumer: Consumer,
    lane: Lane,
    /// As the target knows it.
    owner: u32,
    /// LOST at the last chore, to notice a slow path that a jump left.
    lost_seen: u64,
    /// Where the consumer stood then: in a ring that is merely overloaded it moves.
    cursor_seen: u64,
    /// A sign of that was seen at the last chore.
    suspicious: bool,
}

/// A thread that found no slot. It may have got one later.
#[derive(Debug)]
struct Ringless {
    thread: ThreadId,
    /// As of when its losses were told last, 0 if that was in order with its events.
    told: Ticks,
}

/// The thread's state.
#[derive(Debug)]
pub(crate) struct Drain {
    pid: Pid,
    memory: Arc<Memory>,
    slots: Slots,
    sites: SiteTable,
    output: Arc<Output>,
    names: Names,
    /// By slot index.
    rings: HashMap<u32, Ring>,
    /// Threads that have lost something because they found no slot, by their id in the target. Those whose buckets are free again are taken out.
    ringless: HashMap<u32, Ringless>,
    /// For what is open in their threads.
    room: Room,
    /// Rings there were after the last look for threads that have ended.
    rings_seen: usize,
    /// More threads had ended at that look than rings are taken back at once.
    more_ended: bool,
    /// Where the search for claims that nobody used goes on.
    swept: u32,
    started: Instant,
    last_chores: Instant,
    /// When the clocks are read next: soon at first, so that an early reader has two points, then every second.
    next_anchor: Instant,
}

// === impl DrainHandle ===

impl DrainHandle {
    /// Says that events are about to come.
    pub(crate) fn wake(&self) {
        // If the thread is gone, no event will be read, which its owner finds out when it asks for something.
        let _ = self.requests.try_send(Request::Wake);
    }

    /// Makes known what sites mean from `since` on. When this returns they may be switched on.
    pub(crate) fn learn(&self, sites: Vec<CallSite>, since: Ticks) {
        self.ask(|answer| Request::Learn(sites, since, answer));
    }

    /// Reads everything that is there now and publishes it.
    pub(crate) fn flush(&self) {
        self.ask(Request::Flush);
    }

    /// Reads the rest and ends the thread.
    pub(crate) fn finish(mut self, producer: Producer) {
        self.ask(|answer| Request::Finish(producer, answer));
        // A panic was caught where it happened, and is told by the output.
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

// === impl Ring ===

impl Ring {
    /// Tells the losses that no gap word has told, and those that no event has followed.
    fn tell_losses(&mut self, slots: &Slots, sites: &SiteTable, output: &Output) {
        let Self { consumer, lane, .. } = self;
        consumer.tell_losses(&slots.rings, |item| lane.take(item, sites, output));
        lane.tell_early(ticks_now());
    }

    /// The same of a thread that goes on, if all that it has recorded was read.
    fn tell_quiet_losses(&mut self, slots: &Slots, sites: &SiteTable, output: &Output) {
        let Self { consumer, lane, .. } = self;
        if consumer.untold_losses(&slots.rings) == 0 && !lane.has_early() {
            return;
        }
        let now = ticks_now();
        let take = |item| lane.take(item, sites, output);
        if consumer.tell_quiet_losses(&slots.rings, take) {
            lane.tell_early(now);
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
        sites: SiteTable,
        output: Arc<Output>,
    ) -> std::io::Result<DrainHandle> {
        let Installed {
            layout,
            rings,
            rings_file,
            ..
        } = installed;
        let slots = Slots::new(layout, rings, rings_file);
        let mut drain = Self::new(pid, memory, slots, sites, output);
        let (requests, received) = sync_channel(4);
        let thread = std::thread::Builder::new()
            .name(format!("drain-{pid}"))
            .spawn(move || {
                let output = Arc::clone(&drain.output);
                // Nothing of the drain is used after a panic, and what it shares is whole between statements.
                let ran = catch_unwind(AssertUnwindSafe(|| drain.run(&received)));
                if let Err(payload) = ran {
                    output.fail(what_it_said(&*payload));
                }
            })?;
        Ok(DrainHandle {
            requests,
            thread: Some(thread),
        })
    }

    /// Nothing is read so far.
    fn new(
        pid: Pid,
        memory: Arc<Memory>,
        slots: Slots,
        sites: SiteTable,
        output: Arc<Output>,
    ) -> Self {
        let now = Instant::now();
        Self {
            pid,
            memory,
            slots,
            sites,
            output,
            names: Names::of(pid),
            rings: HashMap::new(),
            ringless: HashMap::new(),
            room: Room::new(),
            rings_seen: 0,
            more_ended: false,
            swept: 0,
            started: now,
            last_chores: now,
            next_anchor: now,
        }
    }

    fn layout(&self) -> &Layout {
        &self.slots.layout
    }

    fn run(&mut self, requests: &Receiver<Request>) {
        self.discover();
        let mut sleep = SHORT_SLEEP;
        loop {
            let busy = self.round();
            self.chores();
            sleep = match busy {
                Busy::Full => Duration::ZERO,
                Busy::Some => SHORT_SLEEP,
                Busy::Idle if self.output.is_armed() => ARMED_SLEEP,
                Busy::Idle => (sleep.max(SHORT_SLEEP) * 2).min(IDLE_SLEEP),
            };
            match requests.recv_timeout(sleep) {
                Ok(Request::Wake) => {}
                Ok(Request::Learn(sites, since, answer)) => {
                    for site in sites {
                        self.sites.insert(site, since);
                    }
                    if self.sites.has_events() {
                        let rings = self.rings.values_mut();
                        rings.for_each(|ring| ring.consumer.expect_payloads());
                    }
                    let _ = answer.send(());
                }
                Ok(Request::Flush(answer)) => {
                    self.flush();
                    // The asker may have given up waiting.
                    let _ = answer.send(());
                }
                Ok(Request::Finish(producer, answer)) => {
                    self.finish(producer);
                    let _ = answer.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.finish(Producer::Alive);
                    return;
                }
            }
        }
    }

    /// Every ring once.
    fn round(&mut self) -> Busy {
        self.discover();
        let mut busy = Busy::Idle;
        let mut fullest = 0;
        let indexes: Vec<u32> = self.rings.keys().copied().collect();
        for index in indexes {
            let Some(ring) = self.rings.get_mut(&index) else {
                continue;
            };
            let backlog = ring.consumer.backlog(&self.slots.rings);
            let words = drain_ring(
                ring,
                &self.slots,
                &self.sites,
                &self.output,
                self.started,
                Producer::Alive,
            );
            fullest = fullest.max(backlog);
            if words > 0 {
                busy = busy.max(if words >= TURN_WORDS / 4 {
                    Busy::Full
                } else {
                    Busy::Some
                });
            }
        }
        self.output
            .ring_use(fullest, self.layout().geometry.ring_bytes());
        busy
    }

    /// Turns that read a ring which was full at the start, and a little more.
    fn turns(&self) -> u64 {
        self.layout().geometry.ring_bytes() / 8 / TURN_WORDS + 2
    }

    /// Rings claimed since the last time.
    fn discover(&mut self) {
        self.names.expect_news();
        let slots = 0..self.layout().geometry.slots();
        let owners = slots.map(|index| (index, self.slots.owner(index)));
        let news = owners.filter(|(index, owner)| *owner != 0 && !self.rings.contains_key(index));
        let news: Vec<(u32, u32)> = news.collect();
        for &(index, owner) in &news {
            self.take_up(index, owner);
        }
        if !news.is_empty() {
            // What they lost before they had a ring comes first.
            self.publish_without_slot();
        }
    }

    /// A ring from now on belongs to the thread `owner`. A thread can have two: it takes the first slot that is free, which one
    /// of a thread that has ended may be, before it comes to its own. What the two say is in no order: each is a thread's.
    fn take_up(&mut self, index: u32, owner: u32) {
        let has_one = |known: &&Ringless| {
            let mut lanes = self.rings.values().map(|ring| &ring.lane);
            lanes.any(|lane| lane.thread() == known.thread)
        };
        let known = self.ringless.get(&owner).filter(|known| !has_one(known));
        let (thread, told) = match known {
            Some(known) => (known.thread, known.told),
            None => (self.new_thread(owner), Ticks(0)),
        };
        let mut consumer = Consumer::resume(&self.slots.rings, self.layout().geometry, index);
        if self.sites.has_events() {
            consumer.expect_payloads();
        }
        let ring = Ring {
            consumer,
            lane: Lane::new(thread, told, &self.room),
            owner,
            lost_seen: self.slots.lost(index),
            cursor_seen: 0,
            suspicious: false,
        };
        self.rings.insert(index, ring);
    }

    fn new_thread(&mut self, owner: u32) -> ThreadId {
        let (tid, name) = self.names.describe(owner);
        self.output.new_thread(tid, name)
    }

    fn chores(&mut self) {
        if self.last_chores.elapsed() < CHORES_EVERY {
            let slots = self.layout().geometry.slots() as usize;
            let taken = self.rings.len().saturating_sub(self.rings_seen);
            if self.more_ended || taken >= slots / SLOTS_PER_LOOK {
                self.retire_dead();
            }
            return;
        }
        self.last_chores = Instant::now();
        self.take_up_unused();
        self.retire_dead();
        self.tell_quiet();
        self.free_stuck();
        self.retire_ringless();
        let lost: u64 = self
            .rings
            .values()
            .map(|ring| ring.consumer.untold_losses(&self.slots.rings))
            .fold(0, u64::saturating_add);
        self.output.untold_losses(lost);
        self.output.measure_rate();
        if self.next_anchor <= self.last_chores {
            self.next_anchor = self.last_chores + ANCHOR_EVERY;
            self.anchor();
        }
    }

    fn anchor(&self) {
        match now_anchor() {
            Ok(anchor) => self.output.anchor(anchor),
            Err(error) => tracing::warn!(%error, "cannot read the clock"),
        }
    }

    /// A thread that was killed between claiming a slot and beginning a chunk has left its name in the table alone. Its
    /// ring is taken up, so that it is taken back like others. Looks at a part of the table at a time.
    fn take_up_unused(&mut self) {
        let first = self.swept;
        self.swept = match first.saturating_add(SWEEP_SLOTS) {
            next if next < self.layout().geometry.slots() => next,
            _ => 0,
        };
        // The memory of a process that is ending cannot be read; then there is nothing to be freed.
        let Ok(claims) = self.slots.claims(&self.memory, first, SWEEP_SLOTS) else {
            return;
        };
        let unused = |&(index, _): &(u32, u32)| !self.rings.contains_key(&index);
        let mut claims: Vec<_> = claims.into_iter().filter(unused).collect();
        if claims.is_empty() {
            return;
        }
        let living = self.names.living();
        claims.retain(|&(_, owner)| !living.contains(&owner) && self.names.is_gone(owner));
        for (index, owner) in claims {
            self.take_up(index, owner);
        }
    }

    /// Takes the rings of threads that have ended.
    fn retire_dead(&mut self) {
        self.more_ended = false;
        self.rings_seen = self.rings.len();
        let living = self.names.living();
        if living.is_empty() {
            // The process is ending; the control thread will say so.
            return;
        }
        let dead: Vec<u32> = self
            .rings
            .iter()
            .filter(|(_, ring)| !living.contains(&ring.owner))
            // A listing may miss a living thread while others come and go (P1).
            .filter(|(_, ring)| self.names.is_gone(ring.owner))
            .map(|(&index, _)| index)
            .take(ENDS_AT_ONCE)
            .collect();
        self.more_ended = dead.len() == ENDS_AT_ONCE;
        for index in dead {
            self.end_ring(index, Producer::Gone);
            if let Err(error) = self.slots.retire(&self.memory, index) {
                tracing::debug!(pid = self.pid.as_raw(), index, %error, "slot not freed");
            }
            if let Some(Ring { lane, owner, .. }) = self.rings.remove(&index) {
                // One whose losses are still counted elsewhere ends with those.
                let known = self.ringless.get(&owner);
                if known.is_none_or(|known| known.thread != lane.thread()) {
                    self.output.thread_ended(lane.thread());
                }
            }
        }
        self.rings_seen = self.rings.len();
    }

    /// Reads what is left in a ring and publishes it with the losses that no gap word told.
    fn end_ring(&mut self, index: u32, producer: Producer) {
        let turns = self.turns();
        let Some(ring) = self.rings.get_mut(&index) else {
            return;
        };
        // So many turns read everything that was there; a target that goes on writing is not waited for.
        for _ in 0..turns {
            let words = drain_ring(
                ring,
                &self.slots,
                &self.sites,
                &self.output,
                self.started,
                producer,
            );
            if words == 0 {
                break;
            }
        }
        ring.tell_losses(&self.slots, &self.sites, &self.output);
        ring.lane.end(&self.output);
    }

    /// A thread that has lost events and records no more has no gap word to say so: its functions were switched off, or it
    /// waits. Who reads the stream is told all the same.
    fn tell_quiet(&mut self) {
        for ring in self.rings.values_mut() {
            if ring.consumer.cursor() == ring.cursor_seen {
                ring.tell_quiet_losses(&self.slots, &self.sites, &self.output);
            }
        }
    }

    /// A handler that left the slow path by `longjmp` leaves it marked busy: losses grow in a ring that has room.
    fn free_stuck(&mut self) {
        for (&index, ring) in &mut self.rings {
            let lost = self.slots.lost(index);
            let roomy = ring.consumer.backlog(&self.slots.rings)
                < self.slots.layout.geometry.ring_bytes() / 2;
            let still = ring.consumer.cursor() == ring.cursor_seen;
            let could_be = roomy && still && self.slots.busy(index);
            let sign = could_be && lost > ring.lost_seen;
            ring.cursor_seen = ring.consumer.cursor();
            if sign && ring.suspicious {
                self.slots.clear_busy(index);
                tracing::info!(
                    pid = self.pid.as_raw(),
                    tid = ring.owner,
                    "freed a slow path that was never left"
                );
            }
            // A thread may call rarely: no loss since is no sign that the slow path was left.
            ring.suspicious = sign || could_be && ring.suspicious;
            ring.lost_seen = lost;
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
        let rings = self.rings.iter();
        let rings: HashMap<u32, u32> = rings.map(|(&index, ring)| (ring.owner, index)).collect();
        let told: Vec<(u32, u64)> = self.slots.take_lost_in_buckets().collect();
        for &(owner, lost) in &told {
            let index = rings.get(&owner);
            if let Some(ring) = index.and_then(|index| self.rings.get_mut(index)) {
                let known = Ringless {
                    thread: ring.lane.thread(),
                    told: Ticks(0),
                };
                self.ringless.entry(owner).or_insert(known);
                if lost > 0 {
                    ring.lane.take(Item::Lost(lost), &self.sites, &self.output);
                }
                continue;
            }
            if lost == 0 {
                continue;
            }
            let thread = match self.ringless.get(&owner) {
                Some(known) => known.thread,
                None => self.new_thread(owner),
            };
            let told = self.output.lost_by(thread, lost);
            self.ringless.insert(owner, Ringless { thread, told });
        }
        let owners: HashSet<u32> = told.into_iter().map(|(owner, _)| owner).collect();
        let lanes = self.rings.values().map(|ring| ring.lane.thread());
        let recording: HashSet<ThreadId> = lanes.collect();
        self.ringless.retain(|owner, known| {
            let stays = owners.contains(owner);
            if !stays && !recording.contains(&known.thread) {
                self.output.thread_ended(known.thread);
            }
            stays
        });
    }

    /// Tells what threads lost that found no slot, and frees the buckets of those that have ended.
    fn retire_ringless(&mut self) {
        let mut gone: HashSet<u32> = self.slots.bucket_owners().collect();
        if !gone.is_empty() {
            let living = self.names.living();
            // As for rings: an empty list is that of a process that is ending.
            let ended = |owner: &u32| !living.contains(owner) && self.names.is_gone(*owner);
            gone.retain(|owner| !living.is_empty() && ended(owner));
        }
        // Those that are gone lose nothing more.
        self.publish_without_slot();
        if !gone.is_empty() {
            self.slots.free_buckets(&gone);
        }
    }

    fn flush(&mut self) {
        let now = ticks_now();
        for _ in 0..self.turns() {
            if self.round() != Busy::Full {
                break;
            }
        }
        self.publish_without_slot();
        for ring in self.rings.values_mut() {
            ring.lane.tell_early(now);
            ring.lane.publish(&self.output);
        }
        self.anchor();
    }

    fn finish(&mut self, producer: Producer) {
        self.discover();
        let indexes: Vec<u32> = self.rings.keys().copied().collect();
        self.publish_without_slot();
        for &index in &indexes {
            self.end_ring(index, producer);
        }
        self.anchor();
        for index in indexes {
            self.slots.give_back(index);
            if let Some(ring) = self.rings.get(&index) {
                ring.consumer.leave_view(&self.slots.rings);
            }
        }
        self.output.ring_use(0, 1);
    }
}

/// What a panic says: `panic!` has either kind of text.
fn what_it_said(payload: &(dyn Any + Send)) -> String {
    let literal = payload.downcast_ref::<&str>().copied();
    literal
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
        .to_owned()
}

/// How much there was to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Busy {
    Idle,
    Some,
    Full,
}

/// One turn of one ring; returns the words read.
fn drain_ring(
    ring: &mut Ring,
    slots: &Slots,
    sites: &SiteTable,
    output: &Output,
    started: Instant,
    producer: Producer,
) -> u64 {
    let now = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Ring { consumer, lane, .. } = ring;
    let drained = consumer.drain(&slots.rings, producer, now, TURN_WORDS, |item| {
        lane.take(item, sites, output);
    });
    lane.settle(output);
    drained.words
}

#[cfg(test)]
mod tests {
    use shm_ring::{Geometry, Mapping, SharedMemory, layout};
    use xray_trace::model::ProcessId;

    use super::*;

    /// No thread has such an id.
    const ENDED: u32 = 0x3fff_ffff;

    /// A drain of this process, whose rings are empty.
    fn drain() -> Drain {
        let geometry = Geometry::new(1 << 16, 8).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(geometry.rings_bytes()).unwrap();
        let rings = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
        let layout = Layout {
            table: 0,
            rings: 0,
            rings_map: (0, geometry.rings_bytes()),
            geometry,
            tid_offset: 0,
        };
        let pid = Pid::this();
        let memory = Arc::new(Memory::open(pid, pid.leader()).unwrap());
        let slots = Slots::new(layout, rings, file);
        let output = Arc::new(Output::new(ProcessId(0), 0, 1 << 20));
        Drain::new(pid, memory, slots, SiteTable::new(), output)
    }

    /// A thread that found no slot first, and then two, as it may when others end meanwhile: each of its rings is told as a
    /// thread of its own, since what they say is in no order, and each of them ends once.
    #[test]
    fn two_rings_of_one_thread_are_told_as_two() {
        for rings_end_first in [true, false] {
            let mut drain = drain();
            let g = drain.slots.layout.geometry;
            let store = |drain: &Drain, place, value| drain.slots.rings.store(place, value);
            store(
                &drain,
                g.bucket_offset(1) + layout::bucket::TID,
                ENDED.into(),
            );
            store(&drain, g.bucket_offset(1) + layout::bucket::LOST, 3);
            store(&drain, layout::rings::BUCKETS_TAKEN, 1);
            drain.publish_without_slot();
            let known = drain.ringless[&ENDED].thread;
            for index in [4, 6] {
                store(
                    &drain,
                    g.control_offset(index) + layout::control::OWNER,
                    ENDED.into(),
                );
                drain.discover();
            }
            let threads = [4, 6].map(|index| drain.rings[&index].lane.thread());
            assert_eq!(threads[0], known);
            assert_ne!(threads[1], known);
            assert_eq!(drain.output.counters().threads, 2);
            if rings_end_first {
                drain.retire_dead();
                assert_eq!(drain.output.counters().threads, 1);
            }
            // Frees the bucket, then notices that it is free.
            drain.retire_ringless();
            drain.retire_ringless();
            assert!(drain.ringless.is_empty());
            drain.retire_dead();
            assert!(drain.rings.is_empty());
            assert_eq!(drain.output.counters().threads, 0);
        }
    }
}
