//! The event store of one session: counts the drain's blocks, retains them up to a limit, and sends
//! them to live readers. It does not decode events, and does not read rings.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use xray_trace::{
    analysis::StackSums,
    container::{BlockEncoder, ClosedBlock, StackChange},
    model::{ClockAnchor, EventType, FunctionId, ProcessId, Thread, ThreadId, Ticks},
};

use super::{
    archive::{Archive, EarlierEvents},
    calls::Calls,
    counts::Counts,
    event_counters::{Counters, EventCounters},
    event_types::EventTypes,
    live_readers::LiveReaders,
    position::{Position, StreamBegin},
    profiles::{Handover, OTHERS, Profiles},
    retained::{Piece, Retained, Snapshot},
    subscription::{ProcessPublisher, PublishedBlock, StreamItem},
};
use crate::{
    lock::lock,
    sys::ticks_now,
    tasks::LateWaker,
    triggers::{EventNeed, TriggerMatcher, Triggers},
    types::Mode,
};

/// What becomes of the events of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventUses {
    /// They become blocks.
    pub(crate) blocks: bool,
    /// They are added up.
    pub(crate) sums: bool,
    /// They count as events, and as calls of their functions. Otherwise the program's sums have
    /// them.
    pub(crate) counts: bool,
}

/// The event store of one session.
#[derive(Debug)]
pub(crate) struct EventStore {
    process: ProcessId,
    pub(crate) counters: EventCounters,
    /// Calls, by function.
    pub(crate) counts: Counts,
    /// Calls, by thread and function.
    pub(crate) calls: Calls,
    pub(crate) profiles: Profiles,
    pub(crate) triggers: Triggers,
    pub(crate) readers: LiveReaders,
    pub(crate) event_types: EventTypes,
    /// True if some function is on, so that events may come at any time. Written by the control
    /// thread.
    pub(crate) armed: AtomicBool,
    /// True if scrapes read the counters, at any time. Written before there is a drain.
    pub(crate) is_metered: AtomicBool,
    /// True while a limit on the overhead is in force. Written by the controller.
    pub(crate) limits_overhead: AtomicBool,
    /// True while the drain reads what is added up in the program. Written by the drain.
    pub(crate) adds_up: AtomicBool,
    /// True while calls that are added up in the program are recorded, too, in rings that keep the
    /// newest events. Written by the controller.
    pub(crate) records_beside: AtomicBool,
    /// True if memory is missing for calls to be added up in the program. Written by the drain and
    /// by the controller.
    pub(crate) lacks_room: AtomicBool,
    /// The index of the mode in [`Mode::ALL`]. Written by the thread that sets a mode.
    mode: AtomicUsize,
    /// Limit on retained bytes. Written by `retain`.
    retain_bytes: AtomicU64,
    retained: Mutex<Retained>,
    /// True if events outlive the daemon. Written before there is a drain.
    is_archived: AtomicBool,
    /// The fingerprints of the last blocks of an earlier daemon's threads.
    earlier: OnceLock<HashSet<u64>>,
    /// The thread that stands for losses without a ring, once there are any.
    ringless: OnceLock<ThreadId>,
    /// Wakes the drain, which rests while no events come.
    pub(crate) drain: LateWaker,
    /// Wakes the controller: an event type has no name, or nothing is read any more.
    pub(crate) control: LateWaker,
    /// The reason why nothing is read any more though the process lives. Written by the drain's
    /// last act.
    pub(crate) failure: OnceLock<String>,
}

/// A live reader, or one that will subscribe at once, until it is dropped.
#[derive(Debug)]
pub(crate) struct ExpectedReader(Arc<EventStore>);

// === impl ExpectedReader ===

impl Drop for ExpectedReader {
    fn drop(&mut self) {
        self.0.readers.unexpect();
    }
}

// === impl EventStore ===

impl EventStore {
    pub(crate) fn new(process: ProcessId, functions: usize, retain_bytes: u64) -> Self {
        Self {
            process,
            counters: EventCounters::default(),
            counts: Counts::new(functions),
            calls: Calls::default(),
            profiles: Profiles::new(process),
            triggers: Triggers::default(),
            readers: LiveReaders::new(),
            event_types: EventTypes::new(),
            armed: AtomicBool::new(false),
            is_metered: AtomicBool::new(false),
            limits_overhead: AtomicBool::new(false),
            adds_up: AtomicBool::new(false),
            records_beside: AtomicBool::new(false),
            lacks_room: AtomicBool::new(false),
            mode: AtomicUsize::new(Mode::default().index()),
            retain_bytes: AtomicU64::new(retain_bytes),
            retained: Mutex::default(),
            is_archived: AtomicBool::new(false),
            earlier: OnceLock::new(),
            ringless: OnceLock::new(),
            drain: LateWaker::default(),
            control: LateWaker::default(),
            failure: OnceLock::new(),
        }
    }

    /// Has rings keep words until their blocks are retained, without an archive.
    #[cfg(fuzzing)]
    pub(crate) fn hold_words(&self) {
        self.is_archived.store(true, Relaxed);
    }

    // --- by the drain

    /// True if events outlive the daemon.
    pub(crate) fn is_archived(&self) -> bool {
        self.is_archived.load(Relaxed)
    }

    /// True if the block with this fingerprint is the last one of a thread that an earlier daemon
    /// has archived.
    pub(crate) fn has_earlier(&self, block: u64) -> bool {
        self.earlier
            .get()
            .is_some_and(|blocks| blocks.contains(&block))
    }

    /// Adds a thread, and returns its id.
    pub(crate) fn new_thread(&self, tid: u32, name: String) -> ThreadId {
        self.counters.add_thread();
        self.add_thread(tid, name)
    }

    /// Notes that a thread's ring was taken back.
    pub(crate) fn thread_ended(&self, thread: ThreadId) {
        self.calls.end(thread);
        self.counters.remove_thread();
        lock(&self.retained).end_thread(thread);
    }

    fn add_thread(&self, tid: u32, name: String) -> ThreadId {
        let mut retained = lock(&self.retained);
        let thread = retained.add_thread(self.process, tid, name);
        let id = thread.id;
        self.readers.send(&StreamItem::Thread(thread));
        id
    }

    /// Adds calls of a thread that were counted and not recorded. `None` stands for functions
    /// without a known name.
    pub(crate) fn count_calls(
        &self,
        thread: ThreadId,
        calls: impl Iterator<Item = (Option<FunctionId>, u64)>,
    ) {
        let Some(thread) = self.thread(thread) else {
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
        self.counters.add_events(all);
    }

    /// The same for calls that an earlier daemon has shown to its clients. They count in mode
    /// `count` alone.
    pub(crate) fn keep_counts(
        &self,
        thread: ThreadId,
        calls: impl Iterator<Item = (Option<FunctionId>, u64)>,
    ) {
        if let Some(thread) = self.thread(thread) {
            self.calls.add(&thread, calls);
        }
    }

    /// Adds events and losses of a thread.
    pub(crate) fn count(&self, thread: ThreadId, events: u64, lost: u64) {
        self.counters.add_events(events);
        if lost == 0 {
            return;
        }
        self.counters.add_lost(lost);
        // After the sum, so that no thread has lost more than all threads.
        lock(&self.retained).add_lost(thread, lost);
    }

    /// Retains a complete block, and sends it to live readers.
    pub(crate) fn publish(&self, mut published: PublishedBlock) {
        let mut retained = lock(&self.retained);
        let position = retained.push(&published, self.retain_bytes.load(Relaxed));
        published.position = Some(position);
        // Under the lock, so that a new reader sees a block either as retained or in its
        // subscription.
        self.readers.send(&StreamItem::Block(published));
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
        let now = ticks_now();
        let mut encoder = BlockEncoder::new(thread);
        encoder.push_lost(now, events);
        self.count(thread, 0, events);
        let keeps = self.keeps();
        if keeps.sums || !keeps.counts {
            let sums = StackSums::of_losses(self.profiles.room(), events);
            self.hand_over(thread, Handover::Interim, &sums);
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
            tracing::warn!(
                from_ns = fault.from_ns,
                to_ns = fault.to_ns,
                kind = ?fault.kind,
                "the processor's counter did not keep time: durations are wrong"
            );
        }
        self.readers.send(&StreamItem::Anchor(anchor));
    }

    /// Notes that nothing will be read any more, because of the bug in `message`.
    pub(crate) fn fail(&self, message: String) {
        // This can happen once: the drain's thread ends with it.
        let _ = self.failure.set(message);
        self.control.wake();
        self.counters.set_ring_use(0, 1);
    }

    /// Notes an event of this type. The controller reads its name, if it has none.
    pub(crate) fn meet_event_type(&self, number: u16) {
        if self.event_types.meet(number) {
            self.control.wake();
        }
    }

    /// Ends every subscription: nothing more will come.
    pub(crate) fn close(&self) {
        self.counters.close();
        self.profiles.close();
        self.readers.close();
    }

    /// True if rings are to keep the newest events by themselves, since no reader wants events.
    pub(crate) fn keeps_newest(&self) -> bool {
        self.records_beside.load(Relaxed)
            || self.mode() == Mode::Flight && !self.profiles.are_asked_for() && !self.is_live()
    }

    /// True if a live reader or a trigger waits for events that are read.
    pub(crate) fn is_live(&self) -> bool {
        self.readers.has_any()
            || match self.triggers.need() {
                EventNeed::Nothing => false,
                // Threads that add calls up note long ones.
                EventNeed::LongCalls(_) => !self.adds_up.load(Relaxed),
                EventNeed::Events => true,
            }
    }

    /// The ticks for which threads wait for room in their full rings; 0 for none. While a limit on
    /// the overhead is in force, no thread waits.
    pub(crate) fn wait(&self) -> u64 {
        match self.limits_overhead.load(Relaxed) {
            true => 0,
            false => self.readers.wait(),
        }
    }

    /// True if a lossless reader is behind, and goes on.
    pub(crate) fn readers_are_behind(&self) -> bool {
        self.readers.are_behind()
    }

    /// What becomes of events that are read.
    pub(crate) fn keeps(&self) -> EventUses {
        let profile = self.mode() == Mode::Profile;
        let beside = self.records_beside.load(Relaxed);
        EventUses {
            blocks: !profile || beside || self.is_live(),
            sums: !beside && (profile || self.profiles.are_asked_for()),
            counts: !beside,
        }
    }

    /// Adds a thread's sums since the last call.
    pub(crate) fn hand_over(&self, thread: ThreadId, handover: Handover, sums: &StackSums) {
        if let Some(thread) = self.thread(thread) {
            self.profiles.hand_over(thread, handover, sums);
        }
    }

    /// The same for sums that the daemon has made of events. The program has none of these calls.
    pub(crate) fn hand_over_events(&self, thread: ThreadId, handover: Handover, sums: &StackSums) {
        if !sums.is_empty() {
            self.profiles.hold();
        }
        self.hand_over(thread, handover, sums);
    }

    /// Adds sums of a thread to the kept sums of mode `profile`, and to no others.
    pub(crate) fn keep_sums(&self, thread: ThreadId, sums: &StackSums) {
        if let Some(thread) = self.thread(thread) {
            self.profiles.keep(&thread, Handover::Interim, sums);
        }
    }

    /// A thread that may have a ring.
    pub(crate) fn thread(&self, id: ThreadId) -> Option<Thread> {
        lock(&self.retained).thread(id).cloned()
    }

    /// Adds a thread that ended while an earlier daemon ran. Returns it with an id of this one.
    pub(super) fn add_ended_thread(&self, thread: Thread) -> Thread {
        if thread.id == OTHERS {
            return thread;
        }
        let mut retained = lock(&self.retained);
        let thread = retained.add_thread(self.process, thread.tid, thread.name);
        retained.end_thread(thread.id);
        thread
    }

    // --- by the controller

    /// Adds a name that a module of the program gives to a number of event types. True if it is
    /// new.
    pub(crate) fn name_event_type(&self, number: u16, name: &str) -> bool {
        // Under the lock: a new reader gets a name either with all others or in its subscription.
        let mut retained = lock(&self.retained);
        let full = self.event_types.name(number, name);
        let is_new = full.is_some();
        if let Some(name) = full {
            let named = EventType {
                process: self.process,
                number,
                name,
            };
            self.triggers.named(&named);
            retained.add_event_type(&named);
            self.readers.send(&StreamItem::EventType(named));
        }
        is_new
    }

    // --- by any thread

    /// The mode of the session.
    pub(crate) fn mode(&self) -> Mode {
        let index = self.mode.load(Relaxed);
        Mode::ALL.get(index).copied().unwrap_or_default()
    }

    /// Sets the mode. The drain notices it soon.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode.index(), Relaxed);
        self.drain.wake();
    }

    /// Counts as a live reader until the returned value is dropped.
    pub(crate) fn expect_reader(self: &Arc<Self>) -> ExpectedReader {
        self.readers.expect();
        self.wake_both();
        ExpectedReader(Arc::clone(self))
    }

    /// Arms one more trigger.
    pub(crate) fn arm(&self, armed: Arc<TriggerMatcher>) {
        self.triggers.arm(armed);
        self.wake_both();
    }

    /// Wakes the drain and the controller: whether events are wanted may have changed.
    fn wake_both(&self) {
        self.drain.wake();
        self.control.wake();
    }

    /// The event types that have names.
    pub(crate) fn event_types(&self) -> Vec<EventType> {
        let process = self.process;
        let names = self.event_types.all().into_iter();
        let named = names.map(|(number, name)| EventType {
            process,
            number,
            name,
        });
        named.collect()
    }

    /// Sets the limit on retained bytes.
    pub(crate) fn retain(&self, bytes: u64) {
        self.retain_bytes.store(bytes, Relaxed);
        lock(&self.retained).shrink_to(bytes);
    }

    /// Sends everything from now on to `publisher` as well. The threads seen so far come first.
    pub(crate) fn subscribe(&self, mut publisher: ProcessPublisher) {
        let retained = lock(&self.retained);
        // A thread without a ring will have no block.
        for thread in retained.living_threads() {
            publisher.send(StreamItem::Thread(thread.clone()));
        }
        for event_type in self.event_types() {
            publisher.send(StreamItem::EventType(event_type));
        }
        self.readers.add(publisher);
        drop(retained);
        self.wake_both();
    }

    /// Gives the session its number, which positions have. Later daemons go on with it.
    pub(crate) fn identify(&self, session: u64) {
        lock(&self.retained).identify(session, ticks_now().0);
    }

    /// The place at which a stream begins. True if nothing is missing between what the reader has
    /// got and this place, except for what is dropped. `is_damaged`: blocks of earlier daemons are
    /// missing.
    pub(super) fn begin_stream(&self, begin: StreamBegin, is_damaged: bool) -> (Position, bool) {
        let retained = lock(&self.retained);
        match begin {
            StreamBegin::Now => (retained.newest(), false),
            StreamBegin::Since(since) => (retained.since(since), false),
            StreamBegin::After(after) => {
                let (at, is_found) = retained.find(&after);
                (at, is_found && !(is_damaged && retained.is_earlier(&after)))
            }
        }
    }

    /// The first retained blocks after a place, `most` at most. If the newest block is among them,
    /// what follows goes to `publisher`. The threads are those of the blocks, and, with the newest
    /// block, those that may have later ones.
    pub(super) fn retained_after(
        &self,
        at: &Position,
        most: usize,
        publisher: ProcessPublisher,
    ) -> (Piece, Vec<Thread>) {
        let retained = lock(&self.retained);
        let piece = retained.after(at, most);
        let of_blocks = piece.blocks.iter();
        let of_blocks = of_blocks.filter_map(|item| retained.thread(item.block.thread));
        let mut threads: Vec<Thread> = of_blocks.cloned().collect();
        if piece.is_last {
            threads.extend(retained.living_threads().cloned());
            self.readers.add(publisher);
        }
        (piece, threads)
    }

    /// Reads or changes what is retained.
    pub(crate) fn with_retained<R>(&self, with: impl FnOnce(&mut Retained) -> R) -> R {
        with(&mut lock(&self.retained))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (mut snapshot, earlier) = {
            let retained = lock(&self.retained);
            let (mut snapshot, earlier) = retained.snapshot(self.process);
            snapshot.event_types = self.event_types();
            (snapshot, earlier)
        };
        if !earlier.is_empty() {
            let blocks = std::mem::take(&mut snapshot.blocks).into_iter().enumerate();
            let blocks = blocks.filter_map(|(at, block)| match earlier.get(&at) {
                Some(numbers) => numbers.apply(block),
                None => Some(block),
            });
            snapshot.blocks = blocks.collect();
        }
        snapshot
    }

    /// Adds what an earlier daemon has retained. To be called before there is a drain.
    pub(crate) fn adopt(&self, mut earlier: EarlierEvents) {
        for numbers in earlier.blocks.iter().map(|(_, numbers)| numbers) {
            for function in numbers.now() {
                self.counts.mark_seen(function);
            }
        }
        let last = std::mem::take(&mut earlier.last_blocks);
        // This is the only call.
        let _ = self.earlier.set(last.into_values().collect());
        let lost = earlier
            .blocks
            .iter()
            .map(|(archived, _)| archived.block.lost);
        self.counters.add_lost(lost.fold(0, u64::saturating_add));
        let mut retained = lock(&self.retained);
        for EventType { number, name, .. } in std::mem::take(&mut earlier.event_types) {
            if let Some(name) = self.event_types.name(number, &name) {
                let process = self.process;
                retained.add_event_type(&EventType {
                    process,
                    number,
                    name,
                });
            }
        }
        retained.adopt(earlier, self.retain_bytes.load(Relaxed));
    }

    /// Drops the blocks of an earlier daemon that are damaged, and returns their number.
    pub(crate) fn drop_damaged(&self) -> usize {
        let mut blocks = lock(&self.retained).earlier_blocks();
        // Another program may change a file meanwhile. So a block is checked whenever it is read.
        blocks.retain(|block| block.payload.load().is_err());
        if !blocks.is_empty() {
            lock(&self.retained).drop_earlier(&blocks);
        }
        blocks.len()
    }

    /// Has events outlive the daemon from now on.
    pub(crate) fn archive_in(&self, mut archive: Box<dyn Archive>) {
        for event_type in self.event_types() {
            archive.add_event_type(&event_type);
        }
        self.is_archived.store(true, Relaxed);
        lock(&self.retained).archive_in(archive);
    }

    /// Leaves everything in the archive to the next daemon. The session is given up.
    pub(crate) fn leave_archive(&self) {
        lock(&self.retained).leave_archive();
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters.read(&lock(&self.retained))
    }

    /// The same for a last reading, perhaps from within a call that holds the lock. The numbers of
    /// retained events are 0 if the lock is taken.
    pub(crate) fn last_counters(&self) -> Counters {
        match self.retained.try_lock() {
            Ok(retained) => self.counters.read(&retained),
            Err(_) => self.counters.read(&Retained::default()),
        }
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
    use crate::types::ThreadLoss;

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
        output.counters.note_unreported_losses(100);
        assert_eq!(lost(), 100);
        output.count(thread, 5, 60);
        assert_eq!(lost(), 100);
        output.count(thread, 5, 60);
        assert_eq!(lost(), 120);
        output.counters.note_unreported_losses(10);
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
        assert_eq!(output.with_retained(|retained| retained.losses()), []);
        // A thread with a ring, a thread that never had one, and unknown threads.
        let thread = output.new_thread(1, "worker".to_owned());
        output.count(thread, 0, 2);
        output.count(thread, 7, 3);
        let late = output.new_thread(2, "late".to_owned());
        output.lost_by(late, 9);
        output.lost_without_ring(1);
        let nobody = loss(0, "(threads without a ring)", 1);
        let expected = [loss(2, "late", 9), loss(1, "worker", 5), nobody];
        assert_eq!(output.with_retained(|retained| retained.losses()), expected);
        for tid in 100..200 {
            let thread = output.new_thread(tid, String::new());
            output.count(thread, 0, u64::from(tid));
        }
        let reported = output.with_retained(|retained| retained.losses());
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
        assert!(
            output
                .with_retained(|retained| retained.losses())
                .iter()
                .all(|loss| loss.tid != 2)
        );
        assert_eq!(output.counters().lost, 15 + (100..200).sum::<u64>());
    }

    /// Also the losses of threads that never had a ring.
    #[test]
    fn losses_are_reported_in_profiles() {
        let output = EventStore::new(ProcessId(0), 7, 1 << 30);
        output.set_mode(Mode::Profile);
        output.profiles.begin_kept(Ticks(0), 0);
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
        let (publisher, mut subscription) = subscription(1, None, 0);
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
                StreamItem::Lost { events, .. } => lost += events,
                _ => {}
            }
        }
        assert_eq!(events + lost, 10_000);
        assert!(lost > 0);
    }
}
