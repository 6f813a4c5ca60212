//! The time for which functions themselves had a processor, from the blocks and the run times of a
//! live trace.
//!
//! The time between two events of a thread belongs to the innermost function that is open then. The
//! kernel's switches tell for which part of that time the thread had a processor.
//!
//! ```text
//!  events     enter f ──────────── enter g ───────── exit g ────────── exit f
//!  switches          ── off ──                 off ───────────
//!  on         f f            f f f g g g g g g                f f f f f
//! ```

use std::collections::{HashMap, VecDeque};

use xray_trace::container::{Block, Item, RunsPart};
use xray_trace::model::{CallKind, Clock, ClockAnchor, EventBody, FunctionId, RunState, ThreadId};

/// The most open calls of a thread that are followed.
const MOST_DEPTH: usize = 1 << 16;
/// The most bytes of blocks that wait to be read. Beyond that they are left out.
const MOST_WAITING: usize = 256 << 20;
/// The thread that the daemon names for events that a reader did not take in time.
const READER: ThreadId = ThreadId(u32::MAX);
/// The intervals whose times are not known after such a loss: it is reported before older events.
const AFFECTED: u32 = 2;
/// A thread whose run times stand still for so long has ended, in nanoseconds. So has one without
/// run times, after the second time without an event.
const STALE_NS: u64 = 2_000_000_000;
const SILENT_NS: u64 = 60_000_000_000;

/// The time of a function in an interval, without its callees, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FunctionTime {
    /// The time for which its threads had a processor.
    pub(crate) on_ns: u64,
    /// The time for which they had none.
    pub(crate) off_ns: u64,
    /// The time of which that is not known.
    pub(crate) unknown_ns: u64,
}

/// The times of an interval.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalTimes {
    /// The times of the functions that were innermost, by name.
    pub(crate) functions: HashMap<String, FunctionTime>,
    /// True if events are missing, so that the times are of no use.
    pub(crate) is_incomplete: bool,
}

/// What a live trace has shown so far.
#[derive(Debug, Default)]
pub(crate) struct FunctionTimes {
    names: HashMap<FunctionId, String>,
    anchors: Vec<ClockAnchor>,
    /// Made of the anchors; `None` if there are new ones.
    clock: Option<Clock>,
    threads: HashMap<ThreadId, ThreadTime>,
    /// The bytes of all blocks that wait.
    waiting: usize,
    /// The times of the interval that is under way.
    times: HashMap<FunctionId, FunctionTime>,
    /// The ends of intervals that are over and wait for their events, the first one first.
    ends: VecDeque<u64>,
    /// The number of intervals from now on whose times are not known.
    incomplete: u32,
}

/// What is known of one thread.
#[derive(Debug, Default)]
struct ThreadTime {
    /// Blocks that are not read to their ends, and losses between them.
    waiting: VecDeque<Waiting>,
    /// The events of the first of them that were read.
    read: usize,
    /// The open calls, outermost first.
    open: Vec<FunctionId>,
    /// The number of open calls further in.
    deeper: u64,
    /// True if the next event is the exit of a call that is not open.
    is_unmatched: bool,
    /// The end of the time that was added to functions, in nanoseconds of `CLOCK_MONOTONIC`.
    last_ns: Option<u64>,
    /// The time of the latest event.
    event_ns: u64,
    runs: Runs,
}

/// A part of the events of a thread.
#[derive(Debug)]
enum Waiting {
    Block(Block),
    Loss,
}

/// When a thread had a processor.
#[derive(Debug, Default)]
struct Runs {
    /// States and their begins, in order of time. Each lasts until the next one begins.
    states: VecDeque<(u64, State)>,
    /// The end of the known time; `None` if nothing is known.
    until_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    On,
    Off,
    /// Not known, until a switch or an event shows it.
    Unseen,
    Unknown,
}

/// Whether a thread was in a function for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// The next event shows it.
    Seen,
    /// The call may have ended unseen.
    Assumed,
}

// === impl FunctionTimes ===

impl FunctionTimes {
    /// Takes the next section of the trace in.
    pub(crate) fn take(&mut self, item: Item) {
        match item {
            Item::Function(function) => {
                self.names.insert(function.id, function.name);
            }
            Item::Anchor(anchor) => {
                self.anchors.push(anchor);
                self.clock = None;
            }
            Item::Block(block) => {
                self.waiting += block.encoded_len();
                let thread = self.threads.entry(block.thread).or_default();
                thread.waiting.push_back(Waiting::Block(block));
                if self.waiting > MOST_WAITING {
                    self.leave_out();
                }
            }
            Item::Runs(part) => {
                let thread = self.threads.entry(part.thread).or_default();
                thread.runs.add(&part);
            }
            Item::Lost { thread: READER, .. } => self.leave_out(),
            Item::Lost { thread, .. } => {
                if let Some(thread) = self.threads.get_mut(&thread) {
                    thread.waiting.push_back(Waiting::Loss);
                }
            }
            _ => {}
        }
    }

    /// Forgets all blocks that wait, and the open calls: events are missing somewhere.
    fn leave_out(&mut self) {
        self.waiting = 0;
        self.incomplete = AFFECTED;
        for thread in self.threads.values_mut() {
            thread.waiting.clear();
            thread.read = 0;
            thread.forget();
        }
    }

    /// Notes that an interval ends at this moment. [`Self::end_interval`] follows, once its events
    /// have arrived.
    pub(crate) fn plan_end(&mut self, at_ns: u64) {
        self.ends.push_back(at_ns);
    }

    /// True if the kernel's switches up to this moment are there, of all threads with open calls
    /// that have any.
    pub(crate) fn is_known(&self, until_ns: u64) -> bool {
        let mut threads = self.threads.values();
        threads.all(|thread| {
            let is_idle = thread.open.is_empty() && thread.waiting.is_empty();
            let known = thread.runs.until_ns;
            is_idle || known.is_none_or(|known| known >= until_ns) || thread.is_over(until_ns)
        })
    }

    /// Reads events up to a moment which must be a while ago, as far as they are not of a later
    /// interval and the run times are there. So they take no memory until the end of the interval.
    pub(crate) fn read_ahead(&mut self, until_ns: u64) {
        let until_ns = self.ends.front().map_or(until_ns, |end| until_ns.min(*end));
        self.read(|thread| {
            thread
                .runs
                .until_ns
                .map_or(until_ns, |known| known.min(until_ns))
        });
    }

    /// Reads the events of each thread up to a moment.
    fn read(&mut self, until_ns: impl Fn(&ThreadTime) -> u64) {
        if self.anchors.len() < 2 {
            return;
        }
        let anchors = &self.anchors;
        let clock = self
            .clock
            .get_or_insert_with(|| Clock::new(anchors.clone()));
        self.waiting = 0;
        for thread in self.threads.values_mut() {
            thread.read_until(until_ns(thread), clock, &mut self.times);
            let blocks = thread.waiting.iter().map(Waiting::bytes);
            self.waiting += blocks.sum::<usize>();
        }
    }

    /// The bytes of the blocks that are not read.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Ends the interval at this moment, and begins the next one. All of its events should have
    /// arrived.
    pub(crate) fn end_interval(&mut self, at_ns: u64) -> IntervalTimes {
        self.ends.retain(|end| *end > at_ns);
        self.read(|_| at_ns);
        for thread in self.threads.values_mut() {
            if thread.is_over(at_ns) {
                thread.forget();
            }
            // Another event would show whether the call goes on.
            let innermost = thread.innermost();
            thread.pass(at_ns, innermost, Stay::Assumed, &mut self.times);
            thread.runs.drop_before(at_ns);
        }
        // Threads that have nothing to show come back with their next block.
        self.threads.retain(|_, thread| {
            let is_idle = thread.open.is_empty() && thread.waiting.is_empty();
            !is_idle || thread.runs.until_ns.is_some_and(|known| known >= at_ns)
        });
        let mut by_name = HashMap::<String, FunctionTime>::new();
        for (id, time) in std::mem::take(&mut self.times) {
            let Some(name) = self.names.get(&id) else {
                continue;
            };
            let sum = by_name.entry(name.clone()).or_default();
            sum.on_ns = sum.on_ns.saturating_add(time.on_ns);
            sum.off_ns = sum.off_ns.saturating_add(time.off_ns);
            sum.unknown_ns = sum.unknown_ns.saturating_add(time.unknown_ns);
        }
        let is_incomplete = self.incomplete > 0;
        self.incomplete = self.incomplete.saturating_sub(1);
        IntervalTimes {
            functions: by_name,
            is_incomplete,
        }
    }
}

// === impl Waiting ===

impl Waiting {
    fn bytes(&self) -> usize {
        match self {
            Self::Block(block) => block.encoded_len(),
            Self::Loss => 0,
        }
    }
}

// === impl ThreadTime ===

impl ThreadTime {
    /// Events are missing: which calls are open is not known.
    fn forget(&mut self) {
        self.open.clear();
        self.deeper = 0;
        self.is_unmatched = false;
        self.last_ns = None;
    }

    /// True if the thread has most likely ended, with calls open.
    fn is_over(&self, now_ns: u64) -> bool {
        let end = match self.runs.until_ns {
            Some(known) => known.saturating_add(STALE_NS),
            None => self.event_ns.saturating_add(SILENT_NS),
        };
        self.waiting.is_empty() && end < now_ns
    }

    fn read_until(
        &mut self,
        until_ns: u64,
        clock: &Clock,
        times: &mut HashMap<FunctionId, FunctionTime>,
    ) {
        let until = clock.ticks_at(until_ns);
        while let Some(next) = self.waiting.pop_front() {
            let read = std::mem::take(&mut self.read);
            let block = match next {
                Waiting::Block(block) => block,
                Waiting::Loss => {
                    self.forget();
                    continue;
                }
            };
            let mut events = block.events();
            for at in 0.. {
                match events.next() {
                    Some(Ok(event)) if event.ticks > until && at >= read => {
                        // It shows to whom the time before it belongs.
                        let owner = self.owner_before(event.body);
                        self.runs.was_running(clock.monotonic_ns(event.ticks));
                        self.pass(until_ns, owner, Stay::Seen, times);
                        self.read = at;
                        self.waiting.push_front(Waiting::Block(block));
                        return;
                    }
                    Some(Ok(event)) if at >= read => {
                        self.event(event.body, clock.monotonic_ns(event.ticks), times);
                    }
                    Some(Ok(_)) => {}
                    // The rest of the block is damaged.
                    Some(Err(_)) => {
                        self.forget();
                        break;
                    }
                    None => break,
                }
            }
        }
    }

    /// The innermost open call. `None` if it is not followed.
    fn innermost(&self) -> Option<FunctionId> {
        self.open.last().copied().filter(|_| self.deeper == 0)
    }

    /// The function that the thread was in before this event, since the event before. Calls that
    /// the event shows to be over ended at some time in between.
    fn owner_before(&self, body: EventBody) -> Option<FunctionId> {
        match body {
            EventBody::Call {
                function,
                kind: CallKind::Exit | CallKind::TailExit,
                ..
            } if !self.is_unmatched && self.deeper == 0 => {
                let is_open = self.open.contains(&function);
                if is_open {
                    Some(function)
                } else {
                    self.innermost()
                }
            }
            EventBody::Unwound { calls } => {
                let left = usize::try_from(calls.checked_sub(self.deeper)?).ok()?;
                let kept = self.open.len().checked_sub(left)?;
                self.open.get(kept.checked_sub(1)?).copied()
            }
            EventBody::Lost { .. } => None,
            _ => self.innermost(),
        }
    }

    fn event(&mut self, body: EventBody, ns: u64, times: &mut HashMap<FunctionId, FunctionTime>) {
        self.event_ns = ns;
        let owner = self.owner_before(body);
        if let EventBody::Call { .. } | EventBody::Data { .. } = body {
            self.runs.was_running(ns);
        }
        match body {
            EventBody::Call { function, kind, .. } => {
                self.pass(ns, owner, Stay::Seen, times);
                match kind {
                    CallKind::Enter if self.open.len() < MOST_DEPTH && self.deeper == 0 => {
                        self.open.push(function);
                    }
                    CallKind::Enter => self.deeper += 1,
                    CallKind::Exit | CallKind::TailExit => self.exit(function),
                }
            }
            EventBody::Data { .. } => self.pass(ns, owner, Stay::Seen, times),
            EventBody::Unwound { calls } => {
                self.pass(ns, owner, Stay::Seen, times);
                let deeper = calls.min(self.deeper);
                self.deeper -= deeper;
                let left = usize::try_from(calls - deeper).unwrap_or(usize::MAX);
                self.open.truncate(self.open.len().saturating_sub(left));
            }
            EventBody::UnmatchedExit => self.is_unmatched = true,
            EventBody::Lost { .. } => self.forget(),
            EventBody::Cpu { .. } => {}
        }
    }

    fn exit(&mut self, function: FunctionId) {
        if std::mem::take(&mut self.is_unmatched) {
            return;
        }
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        let open = self.open.iter().rposition(|open| *open == function);
        self.open.truncate(open.unwrap_or(self.open.len()));
    }

    /// Adds the time up to a moment to the function that the thread was in.
    fn pass(
        &mut self,
        ns: u64,
        owner: Option<FunctionId>,
        stay: Stay,
        times: &mut HashMap<FunctionId, FunctionTime>,
    ) {
        let last = self.last_ns.unwrap_or(ns);
        // A block may come late.
        self.last_ns = Some(last.max(ns));
        if let Some(owner) = owner.filter(|_| ns > last) {
            let time = times.entry(owner).or_default();
            self.runs.add_time(last, ns, stay, time);
        }
    }
}

// === impl Runs ===

impl Runs {
    fn add(&mut self, part: &RunsPart) {
        if self.until_ns != Some(part.from_ns) {
            if let Some(until) = self.until_ns {
                self.states.push_back((until, State::Unknown));
            }
            self.states.push_back((part.from_ns, State::Unseen));
        }
        let mut latest = part.from_ns;
        let read = part.each(|switch| {
            latest = switch.at_ns.min(part.until_ns);
            let (before, after) = match switch.to {
                RunState::Running => (State::Off, State::On),
                RunState::Ready | RunState::Waiting => (State::On, State::Off),
            };
            if let Some((_, last @ State::Unseen)) = self.states.back_mut() {
                *last = before;
            }
            self.states.push_back((latest, after));
        });
        // The rest of a damaged part is not known.
        self.until_ns = Some(match read {
            Ok(()) => part.until_ns,
            Err(_) => latest,
        });
    }

    /// The thread had an event at this moment. If it has not switched before that, it was running
    /// all the time.
    fn was_running(&mut self, ns: u64) {
        if self.until_ns.is_none_or(|until| ns > until) {
            return;
        }
        let after = self.states.partition_point(|(from, _)| *from <= ns);
        let state = after.checked_sub(1).and_then(|at| self.states.get_mut(at));
        if let Some((_, state @ State::Unseen)) = state {
            *state = State::On;
        }
    }

    /// Adds the time between two moments to the time of a function. A thread without a processor
    /// stays where it is.
    fn add_time(&self, from_ns: u64, until_ns: u64, stay: Stay, time: &mut FunctionTime) {
        let mut all = until_ns.saturating_sub(from_ns);
        let first = self.states.partition_point(|(from, _)| *from <= from_ns);
        let known = self.until_ns.unwrap_or(0);
        for at in first.saturating_sub(1)..self.states.len() {
            let Some(&(from, state)) = self.states.get(at).filter(|(from, _)| *from < until_ns)
            else {
                break;
            };
            let next = self.states.get(at + 1).map_or(known, |(next, _)| *next);
            let (from, until) = (from.max(from_ns), next.min(until_ns));
            let part = until.saturating_sub(from);
            match (state, stay) {
                (State::On, Stay::Seen) => time.on_ns = time.on_ns.saturating_add(part),
                (State::Off, _) => time.off_ns = time.off_ns.saturating_add(part),
                (State::On, Stay::Assumed) | (State::Unseen | State::Unknown, _) => continue,
            }
            all = all.saturating_sub(part);
        }
        time.unknown_ns = time.unknown_ns.saturating_add(all);
    }

    /// Forgets states that were over at this moment.
    fn drop_before(&mut self, ns: u64) {
        while self.states.get(1).is_some_and(|(from, _)| *from <= ns) {
            self.states.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::container::{BlockEncoder, RunsEncoder};
    use xray_trace::model::{ContextSwitch, Event, Ticks, Values};

    use super::*;

    const F: FunctionId = FunctionId(1);
    const G: FunctionId = FunctionId(2);
    const THREAD: ThreadId = ThreadId(7);

    fn call(at: u64, function: FunctionId, kind: CallKind) -> Event {
        let body = EventBody::Call {
            function,
            kind,
            values: Values::NONE,
        };
        let ticks = Ticks(at);
        Event { ticks, body }
    }

    fn block(events: &[Event]) -> Item {
        let mut encoder = BlockEncoder::new(THREAD);
        for event in events {
            match event.body {
                EventBody::Call { function, kind, .. } => {
                    encoder.push_call(event.ticks, function, kind, Values::NONE);
                }
                EventBody::Lost { events } => encoder.push_lost(event.ticks, events),
                EventBody::Unwound { calls } => encoder.push_unwound(event.ticks, calls),
                _ => {}
            }
        }
        Item::Block(encoder.finish().unwrap())
    }

    fn runs(from: u64, switches: &[(u64, RunState)], until: u64) -> Item {
        let mut encoder = RunsEncoder::new(from);
        for &(at_ns, to) in switches {
            encoder.push(ContextSwitch {
                at_ns,
                to,
                processor: 0,
            });
        }
        Item::Runs(encoder.take(THREAD, until))
    }

    /// Times in which a tick is a nanosecond.
    fn times() -> FunctionTimes {
        let mut times = FunctionTimes::default();
        for at in [0, 1_000_000_000] {
            times.take(Item::Anchor(ClockAnchor {
                ticks: Ticks(at),
                monotonic_ns: at,
                wall_ns: at,
            }));
        }
        times.names = HashMap::from([(F, "f".to_owned()), (G, "g".to_owned())]);
        times
    }

    fn of(on_ns: u64, off_ns: u64, unknown_ns: u64) -> FunctionTime {
        FunctionTime {
            on_ns,
            off_ns,
            unknown_ns,
        }
    }

    fn end(times: &mut FunctionTimes, at: u64) -> HashMap<String, FunctionTime> {
        let ended = times.end_interval(at);
        assert!(!ended.is_incomplete);
        ended.functions
    }

    #[test]
    fn time_without_a_processor_is_left_out_of_the_innermost_function() {
        use CallKind::{Enter, Exit};
        use RunState::{Running, Waiting};
        let mut times = times();
        times.take(block(&[
            call(1000, F, Enter),
            call(2000, G, Enter),
            call(2450, G, Exit),
        ]));
        times.take(runs(500, &[(1200, Waiting), (1500, Running)], 2500));
        assert!(times.is_known(2500) && !times.is_known(2501));
        let first = end(&mut times, 2400);
        assert_eq!(first["f"], of(700, 300, 0));
        assert_eq!(first["g"], of(400, 0, 0));
        // The thread waits from 2,600 on, and was not seen to go on.
        times.take(block(&[call(4000, F, Exit), call(4200, G, Enter)]));
        times.take(runs(2500, &[(2600, Waiting)], 3000));
        times.take(runs(3000, &[], 3500));
        times.take(runs(3500, &[(3900, Running)], 4100));
        let second = end(&mut times, 3000);
        assert_eq!(second["g"], of(50, 0, 0));
        assert_eq!(second["f"], of(150, 400, 0));
        let third = end(&mut times, 5000);
        assert_eq!(third["f"], of(100, 900, 0));
        // Nothing is known after 4,100.
        assert_eq!(third["g"], of(0, 0, 800));
        assert_eq!(times.waiting(), 0);
    }

    #[test]
    fn nothing_is_guessed_of_a_thread_that_was_not_seen_running() {
        use CallKind::{Enter, Exit};
        let mut times = times();
        // The kernel's records begin after the entry. The thread may wait at that moment.
        times.take(block(&[call(1000, F, Enter)]));
        times.take(runs(1500, &[], 3000));
        assert_eq!(end(&mut times, 2000)["f"], of(0, 0, 1000));
        // It has not switched up to this event, so it was running all the time. No event shows
        // that the call goes on after 2,600.
        times.take(block(&[call(2500, G, Enter), call(2600, G, Exit)]));
        let then = end(&mut times, 3000);
        assert_eq!((then["f"], then["g"]), (of(500, 0, 400), of(100, 0, 0)));
    }

    #[test]
    fn time_after_a_call_that_was_left_belongs_to_its_caller() {
        use CallKind::{Enter, Exit};
        let mut times = times();
        let unwound = Event {
            ticks: Ticks(9000),
            body: EventBody::Unwound { calls: 1 },
        };
        times.take(runs(0, &[], 20_000));
        times.take(block(&[call(1000, F, Enter), call(2000, G, Enter)]));
        // g may have been left by now.
        let first = end(&mut times, 3000);
        assert_eq!((first["f"], first["g"]), (of(1000, 0, 0), of(0, 0, 1000)));
        times.take(block(&[unwound, call(9000, G, Enter), call(9500, F, Exit)]));
        let second = end(&mut times, 8000);
        assert_eq!((second["f"], second.get("g")), (of(5000, 0, 0), None));
        // The exit of f shows that g was left, too.
        assert_eq!(end(&mut times, 10_000)["f"], of(1500, 0, 0));
    }

    #[test]
    fn after_a_loss_no_call_is_open() {
        use CallKind::{Enter, Exit};
        let mut times = times();
        let lost = Event {
            ticks: Ticks(1500),
            body: EventBody::Lost { events: 3 },
        };
        times.take(runs(0, &[], 9000));
        times.take(block(&[
            call(1000, F, Enter),
            lost,
            call(2000, F, Exit),
            call(2100, G, Enter),
            call(2200, G, Exit),
        ]));
        let all = end(&mut times, 3000);
        assert_eq!((all.get("f"), all["g"]), (None, of(100, 0, 0)));
        // A loss of the reader may be anywhere.
        times.take(block(&[call(3100, F, Enter)]));
        times.take(Item::Lost {
            thread: READER,
            events: 1000,
        });
        for at in [3500, 4000] {
            assert!(times.end_interval(at).is_incomplete, "{at}");
        }
        assert_eq!(times.end_interval(5000), IntervalTimes::default());
    }

    #[test]
    fn a_thread_that_ended_in_a_call_is_forgotten() {
        let mut times = times();
        times.take(block(&[call(1000, F, CallKind::Enter)]));
        times.take(runs(0, &[], 2000));
        end(&mut times, 3000);
        assert!(!times.is_known(1_000_000_000));
        assert!(times.is_known(3_000_000_000));
        assert!(end(&mut times, 3_000_000_000).is_empty() && times.threads.is_empty());
    }

    /// Events of a later interval wait for its end, also where memory is short.
    #[test]
    fn reading_ahead_stops_at_the_end_of_an_interval() {
        use CallKind::{Enter, Exit};
        let mut times = times();
        times.take(runs(0, &[], 9000));
        times.take(block(&[call(1000, F, Enter), call(4000, F, Exit)]));
        times.plan_end(2000);
        times.read_ahead(9000);
        assert_eq!(end(&mut times, 2000)["f"], of(1000, 0, 0));
        times.read_ahead(9000);
        assert_eq!(end(&mut times, 5000)["f"], of(2000, 0, 0));
    }
}
