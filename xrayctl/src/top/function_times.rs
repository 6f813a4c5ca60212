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

/// The time of a function in an interval, without its callees, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FunctionTime {
    /// The time for which its threads had a processor.
    pub(crate) on_ns: u64,
    /// The time of which that is not known.
    pub(crate) unknown_ns: u64,
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
}

/// What is known of one thread.
#[derive(Debug, Default)]
struct ThreadTime {
    /// Blocks that are not read to their ends.
    blocks: VecDeque<Block>,
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
    runs: Runs,
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
                thread.blocks.push_back(block);
                if self.waiting > MOST_WAITING {
                    self.leave_out();
                }
            }
            Item::Runs(part) => {
                let thread = self.threads.entry(part.thread).or_default();
                thread.runs.add(&part);
            }
            Item::Lost { thread, .. } => {
                if let Some(thread) = self.threads.get_mut(&thread) {
                    thread.forget();
                }
            }
            _ => {}
        }
    }

    /// Forgets all blocks that wait, and the open calls: events are missing from here on.
    fn leave_out(&mut self) {
        self.waiting = 0;
        for thread in self.threads.values_mut() {
            thread.blocks.clear();
            thread.read = 0;
            thread.forget();
        }
    }

    /// True if the kernel's switches up to this moment are there, of all threads with open calls
    /// that have any.
    pub(crate) fn is_known(&self, until_ns: u64) -> bool {
        let mut threads = self.threads.values();
        threads.all(|thread| {
            let is_idle = thread.open.is_empty() && thread.blocks.is_empty();
            is_idle || thread.runs.until_ns.is_none_or(|known| known >= until_ns)
        })
    }

    /// Reads the events up to a moment, which must be a while ago: all of them must be there.
    pub(crate) fn read_until(&mut self, until_ns: u64) {
        if self.anchors.len() < 2 {
            return;
        }
        let anchors = &self.anchors;
        let clock = self
            .clock
            .get_or_insert_with(|| Clock::new(anchors.clone()));
        self.waiting = 0;
        for thread in self.threads.values_mut() {
            thread.read_until(until_ns, clock, &mut self.times);
            let blocks = thread.blocks.iter().map(Block::encoded_len);
            self.waiting += blocks.sum::<usize>();
        }
    }

    /// The bytes of the blocks that are not read.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Ends the interval at this moment, and begins the next one. Returns the times of the
    /// functions that were innermost, by name.
    pub(crate) fn end_interval(&mut self, at_ns: u64) -> HashMap<String, FunctionTime> {
        self.read_until(at_ns);
        for thread in self.threads.values_mut() {
            thread.pass(at_ns, &mut self.times);
            thread.runs.drop_before(at_ns);
        }
        // Threads that have nothing to show come back with their next block.
        self.threads.retain(|_, thread| {
            !thread.open.is_empty()
                || !thread.blocks.is_empty()
                || thread.runs.until_ns.is_some_and(|known| known >= at_ns)
        });
        let mut by_name = HashMap::<String, FunctionTime>::new();
        for (id, time) in std::mem::take(&mut self.times) {
            let Some(name) = self.names.get(&id) else {
                continue;
            };
            let sum = by_name.entry(name.clone()).or_default();
            sum.on_ns = sum.on_ns.saturating_add(time.on_ns);
            sum.unknown_ns = sum.unknown_ns.saturating_add(time.unknown_ns);
        }
        by_name
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

    fn read_until(
        &mut self,
        until_ns: u64,
        clock: &Clock,
        times: &mut HashMap<FunctionId, FunctionTime>,
    ) {
        let until = clock.ticks_at(until_ns);
        while let Some(block) = self.blocks.pop_front() {
            let read = std::mem::take(&mut self.read);
            let mut events = block.events();
            for at in 0.. {
                match events.next() {
                    Some(Ok(event)) if event.ticks > until && at >= read => {
                        self.read = at;
                        self.blocks.push_front(block);
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

    fn event(&mut self, body: EventBody, ns: u64, times: &mut HashMap<FunctionId, FunctionTime>) {
        match body {
            EventBody::Call { function, kind, .. } => {
                self.runs.was_running(ns);
                self.pass(ns, times);
                match kind {
                    CallKind::Enter if self.open.len() < MOST_DEPTH && self.deeper == 0 => {
                        self.open.push(function);
                    }
                    CallKind::Enter => self.deeper += 1,
                    CallKind::Exit | CallKind::TailExit => self.exit(function),
                }
            }
            EventBody::Data { .. } => {
                self.runs.was_running(ns);
                self.pass(ns, times);
            }
            EventBody::Unwound { calls } => {
                self.pass(ns, times);
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

    /// Adds the time up to a moment to the innermost function.
    fn pass(&mut self, ns: u64, times: &mut HashMap<FunctionId, FunctionTime>) {
        let last = self.last_ns.unwrap_or(ns);
        // A block may come late.
        self.last_ns = Some(last.max(ns));
        if let Some(innermost) = self.open.last() {
            let time = times.entry(*innermost).or_default();
            self.runs.add_time(last, ns, time);
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

    /// Adds the time between two moments to the time of a function.
    fn add_time(&self, from_ns: u64, until_ns: u64, time: &mut FunctionTime) {
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
            match state {
                State::On => time.on_ns = time.on_ns.saturating_add(part),
                State::Off => {}
                State::Unseen | State::Unknown => continue,
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

    fn of(on_ns: u64, unknown_ns: u64) -> FunctionTime {
        FunctionTime { on_ns, unknown_ns }
    }

    #[test]
    fn time_without_a_processor_is_left_out_of_the_innermost_function() {
        use CallKind::{Enter, Exit};
        use RunState::{Running, Waiting};
        let mut times = times();
        times.take(block(&[call(1000, F, Enter), call(2000, G, Enter)]));
        times.take(runs(500, &[(1200, Waiting), (1500, Running)], 2500));
        assert!(times.is_known(2500) && !times.is_known(2501));
        let first = times.end_interval(2400);
        assert_eq!(first["f"], of(700, 0));
        assert_eq!(first["g"], of(400, 0));
        // The call of g goes on. The thread waits from 2,600 on, and was not seen to go on.
        times.take(block(&[
            call(2450, G, Exit),
            call(4000, F, Exit),
            call(4200, G, Enter),
        ]));
        times.take(runs(2500, &[(2600, Waiting)], 3000));
        times.take(runs(3000, &[], 3500));
        times.take(runs(3500, &[(3900, Running)], 4100));
        let second = times.end_interval(3000);
        assert_eq!(second["g"], of(50, 0));
        assert_eq!(second["f"], of(150, 0));
        let third = times.end_interval(5000);
        assert_eq!(third["f"], of(100, 0));
        // Nothing is known after 4,100.
        assert_eq!(third["g"], of(0, 800));
        assert_eq!(times.waiting(), 0);
    }

    #[test]
    fn nothing_is_guessed_of_a_thread_that_was_not_seen_running() {
        use CallKind::{Enter, Exit};
        let mut times = times();
        // The kernel's records begin after the entry. The thread may wait at that moment.
        times.take(block(&[call(1000, F, Enter)]));
        times.take(runs(1500, &[], 3000));
        assert_eq!(times.end_interval(2000)["f"], of(0, 1000));
        // It has not switched up to this event, so it was running all the time.
        times.take(block(&[call(2500, G, Enter), call(2600, G, Exit)]));
        let then = times.end_interval(3000);
        assert_eq!((then["f"], then["g"]), (of(900, 0), of(100, 0)));
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
        let all = times.end_interval(3000);
        assert_eq!((all.get("f"), all["g"]), (None, of(100, 0)));
    }
}
