//! The blocks of one thread, reduced to a window of time, with the calls that are open when it
//! begins and when it ends.
//!
//! ```text
//!  events     ( ( )   (    since ( )  ( )   until   ( )
//!  excerpt      (     (          ( )  ( )   |
//!               └─────┴ open at `since`: their entries, at their true times
//!                                           └ calls that are still open are marked so
//! ```
//!
//! Entries of open calls may be in no block any more, and be known nevertheless. The caller
//! provides these entries, and no exit in the blocks ends their calls.

use super::{Block, BlockEncoder, OpenCall};
use crate::function_map::FunctionMap;
use crate::model::{CallKind, Event, EventBody, FunctionId, ThreadId, Ticks};

/// The most open calls of a thread that are followed. If a thread has more at the begin of the
/// window, none of them is in the excerpt.
const MOST_OPEN: usize = 1 << 17;

/// Makes an excerpt. The thread's blocks are added in order of time.
#[derive(Debug)]
pub struct Excerpt {
    since: Ticks,
    until: Ticks,
    /// The encoder for blocks that are not taken unchanged.
    encoder: BlockEncoder,
    /// The open calls, outermost first.
    open: Vec<OpenCall>,
    /// The number of open calls of each function.
    counts: FunctionMap<u32>,
    /// The number of outermost calls whose entries are in no block. They are open at the end.
    older: usize,
    /// The number of calls further in than [`MOST_OPEN`].
    beyond: u64,
    /// True after the begin of the window: the calls that were open then are in `blocks`.
    begun: bool,
    /// True if the next event is an exit of a call that is not open.
    unmatched_exit: bool,
    /// The time of the latest event of the window.
    last: Ticks,
    /// True if events after the window were left out.
    later: bool,
    /// The number of lost events reported there.
    lost: u64,
    blocks: Vec<Block>,
}

/// The state of the thread at the window's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadEnd<'a> {
    /// The thread had ended, so no call is open.
    Ended,
    /// The thread was alive, and its events show the open calls.
    There,
    /// The thread was alive, and after its last event these calls were open, outermost first. Other
    /// calls without an exit may have ended.
    Open(&'a [OpenCall]),
}

// === impl Excerpt ===

impl Excerpt {
    /// Begins the excerpt of a thread, from `since` to `until`, both included. `older` are the open
    /// calls whose entries are in no block, outermost first.
    #[must_use]
    pub fn new(thread: ThreadId, (since, until): (Ticks, Ticks), older: &[OpenCall]) -> Self {
        let mut this = Self {
            since,
            until,
            encoder: BlockEncoder::new(thread),
            open: Vec::new(),
            counts: FunctionMap::default(),
            older: 0,
            beyond: 0,
            begun: false,
            unmatched_exit: false,
            last: since,
            later: false,
            lost: 0,
            blocks: Vec::new(),
        };
        for call in older {
            this.enter(*call);
        }
        this.older = this.open.len();
        this
    }

    /// Adds the next block.
    pub fn add(&mut self, block: &Block) {
        if block.first > self.until {
            self.later = true;
            self.lost = self.lost.saturating_add(block.lost);
            return;
        }
        let whole = block.first >= self.since && block.last <= self.until;
        if whole && !self.begun {
            self.begin();
        }
        let as_it_is = whole && self.older == 0;
        let mut events = block.events();
        let mut lost = 0_u64;
        while let Some(Ok(event)) = events.next() {
            if event.ticks > self.until {
                self.later = true;
                break;
            }
            if let EventBody::Lost { events } = event.body {
                lost = lost.saturating_add(events);
            }
            if event.ticks >= self.since && !self.begun {
                self.begin();
            }
            if as_it_is || !self.begun {
                self.follow(&event);
                continue;
            }
            match (event.body, self.follow(&event)) {
                (EventBody::UnmatchedExit, _) => {}
                (EventBody::Unwound { .. }, Follows::Left(calls)) => {
                    self.encoder.push_unwound(event.ticks, calls);
                }
                (_, follows) => {
                    if follows == Follows::Stray {
                        self.encoder.push_unmatched_exit(event.ticks);
                    }
                    self.encoder.push(&event, &events, |id| id);
                }
            }
        }
        if self.later {
            self.lost = self.lost.saturating_add(block.lost.saturating_sub(lost));
        }
        if as_it_is {
            self.blocks.push(block.clone());
        }
        if self.begun {
            self.last = self.last.max(block.last.min(self.until));
        }
        self.blocks.extend(self.encoder.finish());
    }

    /// The blocks of the excerpt, and the number of lost events reported after its end.
    #[must_use]
    pub fn finish(mut self, end: ThreadEnd<'_>) -> (Vec<Block>, u64) {
        let open = match end {
            ThreadEnd::Ended => 0,
            // Later events may have ended some of them.
            ThreadEnd::Open(open) if !self.later && self.beyond == 0 => {
                let same = self.open.iter().zip(open);
                let same = same.take_while(|(here, there)| {
                    (here.function, here.start) == (there.function, there.start)
                });
                same.count()
            }
            ThreadEnd::Open(_) | ThreadEnd::There => self.open.len(),
        };
        let over = (self.open.len() - open) as u64;
        let until = match end {
            ThreadEnd::Ended => self.last,
            ThreadEnd::There | ThreadEnd::Open(_) => self.until,
        };
        if !self.begun {
            self.leave(over);
            self.begin();
            if !self.open.is_empty() {
                self.encoder.push_unwound(until, 0);
            }
        } else if !self.open.is_empty() {
            // Up to the time of this event the other calls are known to be open.
            self.encoder.push_unwound(until, over);
        }
        self.blocks.extend(self.encoder.finish());
        (self.blocks, self.lost)
    }

    /// Begins the window: writes the entries of the open calls.
    fn begin(&mut self) {
        self.begun = true;
        if std::mem::take(&mut self.beyond) > 0 {
            self.forget();
        }
        for call in &self.open {
            self.encoder
                .push_call(call.start, call.function, CallKind::Enter, call.args);
        }
        self.blocks.extend(self.encoder.finish());
    }

    fn follow(&mut self, event: &Event) -> Follows {
        let unmatched_exit = std::mem::take(&mut self.unmatched_exit);
        match event.body {
            EventBody::Call {
                function,
                kind: CallKind::Enter,
                values,
            } => {
                self.enter(OpenCall {
                    function,
                    start: event.ticks,
                    args: values,
                });
                Follows::Well
            }
            EventBody::Call { .. } if unmatched_exit => Follows::Stray,
            EventBody::Call { function, .. } => self.exit(function),
            EventBody::Unwound { calls } => {
                let most = (self.open.len() - self.older) as u64 + self.beyond;
                let calls = calls.min(most);
                self.leave(calls);
                Follows::Left(calls)
            }
            EventBody::UnmatchedExit => {
                self.unmatched_exit = true;
                Follows::Well
            }
            EventBody::Lost { .. } => {
                self.forget();
                Follows::Well
            }
            EventBody::Data { .. } | EventBody::Cpu { .. } => Follows::Well,
        }
    }

    fn enter(&mut self, call: OpenCall) {
        if self.open.len() < MOST_OPEN {
            *self.counts.entry(call.function) += 1;
            self.open.push(call);
        } else {
            self.beyond = self.beyond.saturating_add(1);
        }
    }

    fn exit(&mut self, function: FunctionId) -> Follows {
        if self.beyond > 0 {
            self.beyond -= 1;
            return Follows::Well;
        }
        if *self.counts.entry(function) > 0 {
            let newer = self.open.get(self.older..).unwrap_or_default();
            if let Some(at) = newer.iter().rposition(|call| call.function == function) {
                self.leave((newer.len() - at) as u64);
                return Follows::Well;
            }
        }
        match self.older {
            // A reader does not find a call for it either.
            0 => Follows::Well,
            _ => Follows::Stray,
        }
    }

    /// Ends some of the innermost calls.
    fn leave(&mut self, calls: u64) {
        let beyond = self.beyond.min(calls);
        self.beyond -= beyond;
        let calls = usize::try_from(calls - beyond).unwrap_or(usize::MAX);
        for _ in 0..calls {
            let Some(call) = self.open.pop() else { break };
            *self.counts.entry(call.function) -= 1;
        }
        self.older = self.older.min(self.open.len());
    }

    /// Closes all calls after a loss, because the open calls are unknown.
    fn forget(&mut self) {
        self.leave(u64::MAX);
    }
}

/// The effect of an event on the open calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// A reader of the excerpt interprets the event correctly.
    Well,
    /// The event is an exit of a call whose entry is in no block, and a reader could match it with
    /// another call.
    Stray,
    /// This number of the innermost calls were left.
    Left(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Steps;
    use crate::model::{Clock, DataKind, Values};

    const THREAD: ThreadId = ThreadId(3);

    fn call(function: u32, start: u64) -> OpenCall {
        OpenCall {
            function: FunctionId(function),
            start: Ticks(start),
            args: Values::NONE,
        }
    }

    /// Blocks of these events: a function that is entered (+) or left (-), or `0` for a new block.
    fn blocks(events: &[(u64, i32)]) -> Vec<Block> {
        let mut encoder = BlockEncoder::new(THREAD);
        let mut blocks = Vec::new();
        for &(at, what) in events {
            let function = FunctionId(what.unsigned_abs());
            match what {
                0 => blocks.extend(encoder.finish()),
                1.. => encoder.push_call(Ticks(at), function, CallKind::Enter, None),
                _ => encoder.push_call(Ticks(at), function, CallKind::Exit, None),
            }
        }
        blocks.extend(encoder.finish());
        blocks
    }

    /// The calls of an excerpt: function, begin, end; and the number of exits without an entry.
    fn calls(
        events: &[(u64, i32)],
        window: (u64, u64),
        older: &[OpenCall],
        end: ThreadEnd<'_>,
    ) -> (Vec<(u32, u64, u64)>, u64) {
        let mut excerpt = Excerpt::new(THREAD, (Ticks(window.0), Ticks(window.1)), older);
        for block in &blocks(events) {
            excerpt.add(block);
        }
        let (blocks, _) = excerpt.finish(end);
        let clock = Clock::new(Vec::new());
        let mut steps = Steps::new(&clock, THREAD, blocks.iter().collect());
        let mut calls = Vec::new();
        for step in steps.by_ref() {
            if let crate::analysis::Step::Leave(call) = step {
                calls.push((call.open.function.0, call.open.start.0, call.end.0));
            }
        }
        calls.sort_by_key(|&(_, begin, _)| begin);
        (calls, steps.notes().exits_without_entry)
    }

    /// A call that began long before the window and goes on is in the excerpt, with its true begin,
    /// and open until the window's end.
    #[test]
    fn open_calls_are_in_every_window_however_long_ago_they_began() {
        let events = [(10, 1), (11, 2), (12, -2), (20, 3)];
        for window in [(0, 1000), (11, 1000), (500, 1000), (1000, 1000)] {
            let (found, strays) = calls(&events, window, &[], ThreadEnd::There);
            let open: Vec<_> = found.iter().filter(|call| call.0 != 2).collect();
            assert_eq!(open, [&(1, 10, 1000), &(3, 20, 1000)], "{window:?}");
            assert_eq!(found.len(), if window.0 <= 11 { 3 } else { 2 });
            assert_eq!(strays, 0);
        }
        // A thread that has ended has no open calls.
        let (found, _) = calls(&events, (500, 1000), &[], ThreadEnd::Ended);
        assert_eq!(found, []);
    }

    /// A call that is open at the begin of the window, and ends in it, is complete.
    #[test]
    fn calls_that_end_in_the_window_are_whole() {
        let events = [(10, 1), (20, 2), (0, 0), (60, -2), (70, 3), (80, -3)];
        let (found, strays) = calls(&events, (50, 100), &[], ThreadEnd::There);
        assert_eq!(found, [(1, 10, 100), (2, 20, 60), (3, 70, 80)]);
        assert_eq!(strays, 0);
        let (found, _) = calls(&events, (50, 65), &[], ThreadEnd::There);
        assert_eq!(found, [(1, 10, 65), (2, 20, 60)]);
    }

    /// Exits of other calls of the same function that also began before do not end calls whose
    /// entries are in no block any more.
    #[test]
    fn calls_whose_entries_are_gone_are_open_to_the_end() {
        let events = [(50, -7), (60, 7), (70, -7), (80, -8), (90, 9)];
        let older = [call(7, 3), call(6, 4)];
        let open = [call(7, 3), call(6, 4), call(9, 90)];
        for since in [0, 55, 95] {
            let (found, _) = calls(&events, (since, 100), &older, ThreadEnd::Open(&open));
            let open = [(7, 3, 100), (6, 4, 100), (9, 90, 100)];
            let shown: Vec<_> = found.iter().filter(|call| call.1 != 60).collect();
            assert_eq!(shown, open.iter().collect::<Vec<_>>(), "since {since}");
        }
        let (found, strays) = calls(&events, (0, 100), &older, ThreadEnd::Open(&open));
        assert!(found.contains(&(7, 60, 70)));
        assert_eq!(strays, 2);
    }

    /// A call that may have ended unseen is not marked as open.
    #[test]
    fn calls_that_are_not_known_to_be_open_end_with_their_last_event() {
        let events = [(10, 1), (20, 2), (30, 3), (31, -3)];
        let open = [call(1, 10)];
        let (found, _) = calls(&events, (0, 100), &[], ThreadEnd::Open(&open));
        assert_eq!(found, [(1, 10, 100), (2, 20, 31), (3, 30, 31)]);
        let (found, _) = calls(&events, (50, 100), &[], ThreadEnd::Open(&open));
        assert_eq!(found, [(1, 10, 100)]);
        // The thread was in other calls when its open calls were read.
        let (found, _) = calls(&events, (0, 25), &[], ThreadEnd::Open(&open));
        assert_eq!(found, [(1, 10, 25), (2, 20, 25)]);
    }

    #[test]
    fn a_block_is_cut_between_events_and_no_loss_goes() {
        let mut encoder = BlockEncoder::new(THREAD);
        encoder.push_call(Ticks(10), FunctionId(1), CallKind::Enter, Some(7));
        encoder.push_lost(Ticks(30), 5);
        encoder.push_user_event(Ticks(40), DataKind::Custom, None, 4, b"said");
        encoder.push_unwound(Ticks(50), 1);
        encoder.push_unmatched_exit(Ticks(60));
        encoder.push_call(Ticks(60), FunctionId(2), CallKind::Exit, None);
        encoder.push_lost(Ticks(70), 9);
        let whole = encoder.finish().unwrap();
        for until in 0..=80 {
            let mut excerpt = Excerpt::new(THREAD, (Ticks(0), Ticks(until)), &[]);
            excerpt.add(&whole);
            let (blocks, lost) = excerpt.finish(ThreadEnd::Open(&[]));
            let reported: u64 = blocks.iter().map(|block| block.lost).sum();
            assert_eq!(reported + lost, 14, "up to {until}");
            assert_eq!(blocks.is_empty(), until < 10);
            let events = blocks.iter().flat_map(|block| block.events());
            let last = events.map(|event| event.unwrap().ticks.0).max();
            assert!(last.unwrap_or(0) <= until);
        }
    }

    #[test]
    fn a_recursion_without_end_is_survived() {
        let deep = u64::try_from(MOST_OPEN).unwrap() + 5;
        let mut events: Vec<(u64, i32)> = (0..deep).map(|at| (at, 1)).collect();
        events.extend((deep..deep + 9).map(|at| (at, -1)));
        let (found, _) = calls(&events, (deep - 2, deep + 100), &[], ThreadEnd::There);
        assert!(found.len() <= 2, "{}", found.len());
        let (found, _) = calls(&events, (deep + 50, deep + 100), &[], ThreadEnd::There);
        assert_eq!(found.len(), MOST_OPEN - 4);
    }
}
