//! The event store of one session: counts the drain's blocks, retains them up to a limit, and
//! subscriptions them to live readers. It does not decode events, and does not read rings.

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use xray_trace::{
    analysis::StackSums,
    container::{Block, BlockEncoder, ClosedBlock, StackChange},
    model::{ClockAnchor, ClockFault, EventType, FunctionId, Origin, ProcessId, ThreadId, Ticks},
};

use super::{
    calls::Calls,
    counts::Counts,
    event_types::EventTypes,
    profiles::Profiles,
    retained::{Retained, Snapshot},
    subscription::{ProcessPublisher, PublishedBlock, StreamItem},
};
use crate::{
    lock::lock,
    triggers::Triggers,
    types::{LeaseId, Mode, ThreadLoss},
};

/// The numbers of a session. Written by the drain alone, and read by any thread.
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

/// What becomes of the events of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventUses {
    /// They become blocks.
    pub(crate) blocks: bool,
    /// They are added up.
    pub(crate) sums: bool,
}

/// The event store of one session.
#[derive(Debug)]
pub(crate) struct EventStore {
    process: ProcessId,
    /// Written by `retain`.
    retain_bytes: AtomicU64,
    events: AtomicU64,
    /// The events among them that the collector left out because of a filter.
    filtered: AtomicU64,
    /// Calls and user events that the program itself left out because of a filter.
    left_out: AtomicU64,
    /// Losses in the stream.
    lost: AtomicU64,
    /// The most losses that were ever known: losses in the stream, and losses that rings have
    /// counted beyond it. A ring's losses come into the stream at any moment. So both are added up
    /// at the moment when both are known.
    lost_known: AtomicU64,
    threads: AtomicU32,
    ring_use_permille: AtomicU32,
    /// True if some function is on, so that events may come at any time. Written by the control
    /// thread.
    armed: AtomicBool,
    /// The index of the mode in [`Mode::ALL`]. Written by the thread that sets a mode.
    mode: AtomicUsize,
    pub(crate) profiles: Profiles,
    pub(crate) calls: Calls,
    pub(crate) triggers: Triggers,
    /// Readers that will subscribe at once.
    coming: AtomicU32,
    /// Estimated events in rings that are not read, in mode `flight`; and events that were
    /// overwritten in rings that were read or given up since. Written by the drain.
    unread: AtomicU64,
    overwritten: AtomicU64,
    /// Events among `unread` that are overwritten.
    unread_overwritten: AtomicU64,
    /// Calls, by function.
    counts: Counts,
    pub(crate) event_types: EventTypes,
    retained: Mutex<Retained>,
    /// The thread that stands for losses without a ring, once there are any.
    ringless: OnceLock<ThreadId>,
    /// `None` once nothing more will come.
    subscriptions: Mutex<Option<Vec<ProcessPublisher>>>,
    rate: Mutex<Rate>,
    /// The reason why nothing is read any more though the process lives. Written by the drain's
    /// last act.
    failure: OnceLock<String>,
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    events: u64,
    per_second: f64,
}

// === impl EventStore ===

impl EventStore {
    pub(crate) fn new(process: ProcessId, functions: usize, retain_bytes: u64) -> Self {
        Self {
            process,
            retain_bytes: AtomicU64::new(retain_bytes),
            events: AtomicU64::new(0),
            filtered: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lost_known: AtomicU64::new(0),
            threads: AtomicU32::new(0),
            ring_use_permille: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            mode: AtomicUsize::new(Mode::default().index()),
            profiles: Profiles::new(process),
            calls: Calls::default(),
            triggers: Triggers::default(),
            coming: AtomicU32::new(0),
            unread: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            unread_overwritten: AtomicU64::new(0),
            counts: Counts::new(functions),
            event_types: EventTypes::new(),
            retained: Mutex::default(),
            ringless: OnceLock::new(),
            subscriptions: Mutex::new(Some(Vec::new())),
            rate: Mutex::new(Rate {
                since: Instant::now(),
                events: 0,
                per_second: 0.0,
            }),
            failure: OnceLock::new(),
        }
    }

    // --- by the drain

    /// Adds a thread, and returns its id.
    pub(crate) fn new_thread(&self, tid: u32, name: String) -> ThreadId {
        self.threads.fetch_add(1, Relaxed);
        self.add_thread(tid, name)
    }

    /// Notes that a thread's ring was taken back.
    pub(crate) fn thread_ended(&self, thread: ThreadId) {
        self.calls.end(thread);
        // It is 0 already if the store was closed before the last thread ended.
        let less = |threads: u32| threads.checked_sub(1);
        let _ = self.threads.fetch_update(Relaxed, Relaxed, less);
        lock(&self.retained).end_thread(thread);
    }

    fn add_thread(&self, tid: u32, name: String) -> ThreadId {
        let mut retained = lock(&self.retained);
        let thread = retained.add_thread(self.process, tid, name);
        let id = thread.id;
        self.subscription(&StreamItem::Thread(thread));
        id
    }

    /// Counts one entry of a function.
    #[inline]
    pub(crate) fn count_call(&self, function: FunctionId) {
        self.counts.count_call(function);
    }

    /// Adds calls of a thread that were counted and not recorded. `None` stands for functions
    /// without a known name.
    pub(crate) fn count_calls(
        &self,
        thread: ThreadId,
        calls: impl Iterator<Item = (Option<FunctionId>, u64)>,
    ) {
        let thread = lock(&self.retained).thread(thread).cloned();
        let Some(thread) = thread else {
            return;
        };
        let mut all = 0_u64;
        let calls = calls.inspect(|&(function, calls)| {
            all = all.saturating_add(calls);
            if let Some(function) = function {
                self.counts.count_calls(function, calls);
            }
        });
        self.calls.add(&thread, calls);
        add(&self.events, all);
    }

    /// Notes another event of a function.
    #[inline]
    pub(crate) fn mark_seen(&self, function: FunctionId) {
        self.counts.mark_seen(function);
    }

    /// Adds events and losses of a thread.
    pub(crate) fn count(&self, thread: ThreadId, events: u64, lost: u64) {
        add(&self.events, events);
        if lost == 0 {
            return;
        }
        add(&self.lost, lost);
        // After the sum, so that no thread has lost more than all threads.
        lock(&self.retained).add_lost(thread, lost);
    }

    /// Adds calls and user events that the program itself left out.
    pub(crate) fn left_out(&self, calls: u64) {
        add(&self.left_out, calls);
    }

    /// Adds events that the collector left out because of a filter.
    pub(crate) fn count_filtered(&self, events: u64) {
        if events > 0 {
            self.filtered.fetch_add(events, Relaxed);
        }
    }

    /// Notes how many losses rings have counted that are not in the stream now.
    pub(crate) fn unreported_losses(&self, lost: u64) {
        let known = self.lost.load(Relaxed).saturating_add(lost);
        self.lost_known.fetch_max(known, Relaxed);
    }

    /// Sets the fill level of the fullest ring of this round.
    pub(crate) fn ring_use(&self, bytes: u64, of: u64) {
        let permille = bytes.saturating_mul(1000) / of.max(1);
        self.ring_use_permille
            .store(u32::try_from(permille).unwrap_or(1000), Relaxed);
    }

    /// Retains a complete block and subscriptions it to live readers.
    pub(crate) fn publish(&self, published: PublishedBlock) {
        let mut retained = lock(&self.retained);
        retained.push(&published, self.retain_bytes.load(Relaxed));
        // Under the lock, so that a new reader sees a block either as retained or in its
        // subscription.
        self.subscription(&StreamItem::Block(published));
    }

    /// Reports events that were lost because no slot was free, by unknown threads.
    pub(crate) fn lost_without_ring(&self, events: u64) {
        let thread = *self
            .ringless
            .get_or_init(|| self.add_thread(0, "(threads without a ring)".to_owned()));
        self.lost_by(thread, events);
    }

    /// Reports events that a thread without a ring has lost. Returns the time of the report.
    pub(crate) fn lost_by(&self, thread: ThreadId, events: u64) -> Ticks {
        let now = crate::sys::ticks_now();
        let mut encoder = BlockEncoder::new(thread);
        encoder.push_lost(now, events);
        self.count(thread, 0, events);
        if self.keeps().sums {
            let sums = StackSums::of_losses(self.profiles.room(), events);
            self.hand_over(thread, false, &sums);
        }
        if let Some(closed) = encoder.close() {
            let stack = Some(StackChange::cleared());
            self.publish(PublishedBlock::new(ClosedBlock { stack, ..closed }, 0));
        }
        now
    }

    /// Adds an anchor: counter and clocks now.
    pub(crate) fn anchor(&self, anchor: ClockAnchor) {
        let mut retained = lock(&self.retained);
        for fault in retained.add_anchor(anchor) {
            let ClockFault {
                from_ns,
                to_ns,
                kind,
            } = fault;
            tracing::warn!(
                from_ns,
                to_ns,
                ?kind,
                "the processor's counter did not keep time: durations are wrong"
            );
        }
        self.subscription(&StreamItem::Anchor(anchor));
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

    /// Notes that nothing will be read any more, because of the bug in `message`.
    pub(crate) fn fail(&self, message: String) {
        // This can happen once: the drain's thread ends with it.
        let _ = self.failure.set(message);
        self.ring_use(0, 1);
    }

    /// Ends every subscription: nothing more will come.
    pub(crate) fn close(&self) {
        lock(&self.rate).per_second = 0.0;
        self.threads.store(0, Relaxed);
        self.profiles.close();
        // A reader without room for this receives the end when it has read everything.
        self.subscription(&StreamItem::Ended);
        *lock(&self.subscriptions) = None;
    }

    /// Begins a lease. Its subscriptions contain nothing from before.
    pub(crate) fn begin_lease(&self, lease: LeaseId) {
        self.mark_now(lease, StreamItem::Begin);
    }

    /// Marks the end of a lease. Its subscriptions contain nothing from after it.
    pub(crate) fn stop_lease(&self, lease: LeaseId) {
        self.mark_now(lease, StreamItem::Until);
    }

    /// Sends the present moment to the subscriptions of a lease. The moment is taken while no block
    /// can go to them, so no earlier block has a later event.
    fn mark_now(&self, lease: LeaseId, mark: impl Fn(Ticks) -> StreamItem) {
        if let Some(subscriptions) = &mut *lock(&self.subscriptions) {
            let now = crate::sys::ticks_now();
            subscriptions.retain_mut(|subscription| {
                !subscription.is_for(lease) || subscription.send(mark(now))
            });
        }
    }

    /// True if a subscription for this lease is open.
    pub(crate) fn is_fed(&self, lease: LeaseId) -> bool {
        let subscriptions = lock(&self.subscriptions);
        let mut subscriptions = subscriptions.iter().flatten();
        subscriptions.any(|subscription| subscription.is_for(lease))
    }

    /// Ends the subscriptions of a lease, once everything that was recorded on it is published.
    pub(crate) fn end_lease(&self, lease: LeaseId) {
        if let Some(subscriptions) = &mut *lock(&self.subscriptions) {
            subscriptions.retain_mut(|subscription| {
                let over = subscription.is_for(lease);
                if over {
                    // A reader without room for this receives it when it has read everything.
                    subscription.send(StreamItem::Ended);
                }
                !over
            });
        }
    }

    /// Announces the origin of the process's session.
    pub(crate) fn origin(&self, origin: Origin) {
        self.subscription(&StreamItem::Origin(origin));
    }

    fn subscription(&self, item: &StreamItem) {
        if let Some(subscriptions) = &mut *lock(&self.subscriptions) {
            subscriptions.retain_mut(|subscription| subscription.send(item.clone()));
        }
    }

    fn all_events(&self) -> u64 {
        let parts = [&self.events, &self.unread, &self.overwritten];
        let parts = parts.iter().map(|part| part.load(Relaxed));
        parts.fold(0, u64::saturating_add)
    }

    /// Takes out the retained blocks, in a store without threads.
    pub(crate) fn take_blocks(&self) -> Vec<Block> {
        lock(&self.retained).take_blocks()
    }

    /// Sets the estimated number of events in rings that are not read, and how many of them are
    /// overwritten.
    pub(crate) fn unread(&self, events: u64, overwritten: u64) {
        self.unread.store(events, Relaxed);
        self.unread_overwritten.store(overwritten, Relaxed);
    }

    /// Adds events of a ring that were overwritten before the ring was read, an estimate.
    pub(crate) fn overwritten(&self, events: u64) {
        add(&self.overwritten, events);
    }

    /// Drops everything that is retained.
    pub(crate) fn evict_all(&self) {
        lock(&self.retained).shrink_to(0);
    }

    /// True if rings are to keep the newest events by themselves, since no reader wants events.
    pub(crate) fn keeps_newest(&self) -> bool {
        self.mode() == Mode::Flight && !self.profiles.are_asked_for() && !self.is_wanted()
    }

    /// What becomes of events that are read.
    pub(crate) fn keeps(&self) -> EventUses {
        let profile = self.mode() == Mode::Profile;
        EventUses {
            blocks: !profile || self.is_wanted(),
            sums: profile || self.profiles.are_asked_for(),
        }
    }

    /// Adds a thread's sums since the last call.
    pub(crate) fn hand_over(&self, thread: ThreadId, ended: bool, sums: &StackSums) {
        let thread = lock(&self.retained).thread(thread).cloned();
        if let Some(thread) = thread {
            self.profiles.hand_over(thread, ended, sums);
        }
    }

    /// True if a reader or trigger receives events, or will at once.
    fn is_wanted(&self) -> bool {
        self.coming.load(Relaxed) > 0 || self.triggers.see_events() || self.is_read()
    }

    fn is_read(&self) -> bool {
        let subscriptions = lock(&self.subscriptions);
        subscriptions
            .as_ref()
            .is_some_and(|subscriptions| !subscriptions.is_empty())
    }

    /// True if events may come.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    // --- by the control thread

    /// Sets whether events may come.
    pub(crate) fn arm(&self, armed: bool) {
        self.armed.store(armed, Relaxed);
    }

    /// Makes room for this many functions.
    pub(crate) fn grow(&self, functions: usize) {
        self.counts.grow(functions);
    }

    /// Adds a name that a module of the program gives to a number of event types.
    pub(crate) fn name_event_type(&self, number: u16, name: &str) {
        // Under the lock: a new reader gets a name either with all others or in its subscription.
        let _retained = lock(&self.retained);
        if let Some(name) = self.event_types.name(number, name) {
            let named = self.event_type(number, name);
            self.triggers.named(&named);
            self.subscription(&StreamItem::EventType(named));
        }
    }

    // --- by any thread

    /// The mode of the session.
    pub(crate) fn mode(&self) -> Mode {
        let index = self.mode.load(Relaxed);
        Mode::ALL.get(index).copied().unwrap_or_default()
    }

    /// Sets the mode. The drain notices it by itself, soon.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode.index(), Relaxed);
    }

    /// Counts as a reader until the returned value is dropped.
    pub(crate) fn expect_reader(&self) -> impl Drop {
        self.coming.fetch_add(1, Relaxed);
        Coming(self)
    }

    /// The event types that have names.
    pub(crate) fn event_types(&self) -> Vec<EventType> {
        let names = self.event_types.all().into_iter();
        names
            .map(|(number, name)| self.event_type(number, name))
            .collect()
    }

    fn event_type(&self, number: u16, name: String) -> EventType {
        EventType {
            process: self.process,
            number,
            name,
        }
    }

    /// Sets the limit on retained bytes.
    pub(crate) fn retain(&self, bytes: u64) {
        self.retain_bytes.store(bytes, Relaxed);
        lock(&self.retained).shrink_to(bytes);
    }

    /// Feeds everything from now on to `sender` as well. The threads seen so far come first.
    pub(crate) fn subscribe(&self, mut sender: ProcessPublisher) {
        let retained = lock(&self.retained);
        // A thread without a ring will have no block.
        for thread in retained.living_threads() {
            sender.send(StreamItem::Thread(thread.clone()));
        }
        for event_type in self.event_types() {
            sender.send(StreamItem::EventType(event_type));
        }
        match &mut *lock(&self.subscriptions) {
            Some(subscriptions) => subscriptions.push(sender),
            None => {
                sender.send(StreamItem::Ended);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let retained = lock(&self.retained);
        Snapshot {
            event_types: self.event_types(),
            ..retained.snapshot(self.process)
        }
    }

    /// The kernel's id of a thread, and its name, until nothing of the thread is retained.
    pub(crate) fn thread(&self, id: ThreadId) -> Option<(u32, String)> {
        let retained = lock(&self.retained);
        let thread = retained.thread(id)?;
        Some((thread.tid, thread.name.clone()))
    }

    /// The message that `fail` got.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The newest faults of the counter.
    pub(crate) fn clock_faults(&self) -> Vec<ClockFault> {
        lock(&self.retained).clock_faults()
    }

    pub(crate) fn anchors(&self) -> Vec<ClockAnchor> {
        lock(&self.retained).anchors().to_vec()
    }

    pub(crate) fn calls(&self, function: FunctionId) -> u64 {
        self.counts.calls(function)
    }

    pub(crate) fn was_seen(&self, function: FunctionId) -> bool {
        self.counts.was_seen(function)
    }

    /// The threads that lost the most events, in descending order; a bounded number of them.
    pub(crate) fn losses(&self) -> Vec<ThreadLoss> {
        lock(&self.retained).losses()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters_with(&lock(&self.retained))
    }

    /// The same for a last reading, perhaps from within a call that holds the lock. The numbers of
    /// retained events are 0 if the lock is taken.
    pub(crate) fn last_counters(&self) -> Counters {
        match self.retained.try_lock() {
            Ok(retained) => self.counters_with(&retained),
            Err(_) => self.counters_with(&Retained::default()),
        }
    }

    fn counters_with(&self, retained: &Retained) -> Counters {
        Counters {
            threads: self.threads.load(Relaxed),
            events: self.all_events(),
            events_per_second: lock(&self.rate).per_second,
            filtered: self.filtered.load(Relaxed),
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
}

/// Adds to a counter that one thread writes. A target can report any number, so the sum saturates.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).saturating_add(more), Relaxed);
}

/// A reader that will subscribe at once.
struct Coming<'a>(&'a EventStore);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.coming.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::model::{CallKind, Overwritten};

    use super::*;
    use crate::store::{
        profiles::Ask,
        retained::{MOST_LOSERS, THREAD_COST, cost},
        subscription::{Source, subscription},
    };

    fn block(thread: ThreadId, calls: u32) -> PublishedBlock {
        let mut encoder = BlockEncoder::new(thread);
        for i in 0..calls {
            encoder.push_call(
                Ticks(u64::from(i) * 100),
                FunctionId(i % 7),
                CallKind::Enter,
                None,
            );
        }
        let block = encoder.finish().unwrap();
        PublishedBlock::unpacked(block)
    }

    #[test]
    fn the_oldest_blocks_go_first_and_are_counted() {
        let size = cost(&block(ThreadId(0), 1000).closed.block);
        let output = EventStore::new(ProcessId(0), 7, size * 3 + THREAD_COST);
        let thread = output.new_thread(7, String::new());
        for _ in 0..5 {
            output.publish(block(thread, 1000));
        }
        let counters = output.counters();
        assert_eq!(
            (counters.retained_events, counters.overwritten_events),
            (3000, 2000)
        );
        assert!(counters.retained_bytes <= size * 3 + THREAD_COST);
        let overwritten = Overwritten {
            thread,
            events: Some(2000),
            until: Ticks(99_900),
        };
        assert_eq!(output.snapshot().overwritten, [overwritten]);
    }

    #[test]
    fn threads_that_come_and_go_take_bounded_memory_and_nothing_goes_uncounted() {
        const BUDGET: u64 = 1 << 16;
        const THREADS: u32 = 20_000;
        let output = EventStore::new(ProcessId(0), 7, BUDGET);
        for tid in 1..=THREADS {
            let thread = output.new_thread(tid, format!("t{tid}"));
            // Every second thread does nothing.
            if tid % 2 == 0 {
                output.publish(block(thread, 3));
            }
            output.thread_ended(thread);
            assert!(output.counters().retained_bytes <= BUDGET);
        }
        let Snapshot {
            threads,
            blocks,
            overwritten,
            ..
        } = output.snapshot();
        assert!((threads.len() as u64) * THREAD_COST <= BUDGET);
        assert!(
            blocks
                .iter()
                .all(|block| threads.iter().any(|thread| thread.id == block.thread))
        );
        let kept: u64 = blocks.iter().map(|block| u64::from(block.calls)).sum();
        let gone = overwritten
            .iter()
            .filter_map(|overwritten| overwritten.events);
        let gone: u64 = gone.sum();
        assert!(kept > 0);
        assert_eq!(kept + gone, u64::from(THREADS / 2) * 3);
    }

    /// Losses that a ring has counted and that come into the stream later are the same losses.
    #[test]
    fn losses_are_counted_once() {
        let output = EventStore::new(ProcessId(0), 7, 1 << 30);
        let thread = output.new_thread(1, String::new());
        let lost = || output.counters().lost;
        output.unreported_losses(100);
        assert_eq!(lost(), 100);
        output.count(thread, 5, 60);
        assert_eq!(lost(), 100);
        output.count(thread, 5, 60);
        assert_eq!(lost(), 120);
        output.unreported_losses(10);
        assert_eq!(lost(), 130);
    }

    #[test]
    fn a_bounded_number_of_threads_with_the_most_losses_is_reported() {
        let output = EventStore::new(ProcessId(0), 7, 1 << 30);
        output.new_thread(99, "diligent".to_owned());
        let loss = |tid: u32, name: &str, lost| ThreadLoss {
            tid,
            name: name.to_owned(),
            lost,
        };
        assert_eq!(output.losses(), []);
        // A thread with a ring, a thread that never had one, and unknown threads.
        let thread = output.new_thread(1, "worker".to_owned());
        output.count(thread, 0, 2);
        output.count(thread, 7, 3);
        let late = output.new_thread(2, "late".to_owned());
        output.lost_by(late, 9);
        output.lost_without_ring(1);
        let nobody = loss(0, "(threads without a ring)", 1);
        let expected = [loss(2, "late", 9), loss(1, "worker", 5), nobody];
        assert_eq!(output.losses(), expected);
        for tid in 100..200 {
            let thread = output.new_thread(tid, String::new());
            output.count(thread, 0, u64::from(tid));
        }
        let reported = output.losses();
        assert_eq!(reported.len(), MOST_LOSERS);
        assert_eq!(reported.first(), Some(&loss(199, "", 199)));
        assert!(
            reported
                .iter()
                .map(|loss| loss.lost)
                .is_sorted_by(|a, b| a >= b)
        );
        // When nothing of a thread is retained any more, its losses are in the sum alone.
        output.retain(0);
        output.thread_ended(late);
        assert!(output.losses().iter().all(|loss| loss.tid != 2));
        assert_eq!(output.counters().lost, 15 + (100..200).sum::<u64>());
    }

    /// Also the losses of threads that never had a ring.
    #[test]
    fn losses_are_reported_in_profiles() {
        let output = EventStore::new(ProcessId(0), 7, 1 << 30);
        output.set_mode(Mode::Profile);
        output.profiles.keep(true);
        let thread = output.new_thread(1, String::new());
        output.lost_by(thread, 9);
        output.lost_without_ring(1);
        let kept = output.profiles.answer(Ask::Kept).unwrap();
        let lost = kept.threads().map(|(thread, sums)| {
            let parts = sums.parts(thread.id, |id| id);
            parts.iter().map(|part| part.missing.lost).sum::<u64>()
        });
        assert_eq!(lost.collect::<Vec<_>>(), [9, 1]);
    }

    #[tokio::test]
    async fn a_stalled_reader_learns_its_losses() {
        let output = EventStore::new(ProcessId(0), 7, 1 << 30);
        let (publisher, mut subscription) = subscription(1, None);
        output.subscribe(publisher.sender(Source::default()));
        drop(publisher);
        for _ in 0..1000 {
            output.publish(block(ThreadId(0), 10));
        }
        output.close();
        let (mut events, mut lost) = (0, 0);
        while let Some((_, item)) = subscription.next().await {
            match item {
                StreamItem::Block(published) => events += published.events(),
                StreamItem::Lost { events } => lost += events,
                _ => {}
            }
        }
        assert_eq!(events + lost, 10_000);
        assert!(lost > 0);
    }
}
