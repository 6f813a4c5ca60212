//! Reduces the blocks of one thread to a recording: calls of selected functions that begin in the
//! recording's time, and their events until it ends. Events that are left out are counted.
//!
//! A block that is kept as a whole, as the facts about it show, is not unpacked.

use super::{BegunCalls, Block, BlockEncoder, ClosedBlock, OpenCall, StackChange};
use crate::model::{CallKind, Event, EventBody, FunctionId, Ticks, Values};

/// The most open calls whose entries are remembered. Calls further in are kept if their functions
/// are selected.
const MOST_OPEN: usize = 1 << 17;

/// The time of a recording. Both ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedTime {
    /// The begin. Calls that began before it are left out, and so are their exits.
    pub since: Ticks,
    /// The end. Later events are left out. `None` while it is unknown.
    pub until: Option<Ticks>,
}

/// Events of selected functions that are in the recording's blocks, but not in the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Excluded {
    /// Exits of calls that began before the recording.
    pub earlier_exits: u64,
    /// Entries and exits after its end.
    pub later_events: u64,
    /// Losses after its end.
    pub later_lost: u64,
}

/// The kept part of a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// `None` if no event is kept.
    pub block: Option<Block>,
    /// Events that were lost between the thread's last event before the end and the end, or after
    /// it. The thread reported them after the end, before any other event.
    pub lost: u64,
}

/// The kept part of a block, with the facts about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedPart {
    /// `None` if no event is kept. Its change of the open calls is that of the kept parts.
    pub closed: Option<ClosedBlock>,
    /// As [`Part::lost`].
    pub lost: u64,
}

/// Reduces the blocks of a thread, in order.
#[derive(Debug, Default)]
pub struct Chosen {
    /// The open calls that began since the first block, outermost first.
    open: Vec<ChosenCall>,
    /// The arguments of calls that have any, by their place in `open`.
    args: Vec<(usize, Values)>,
    /// The number of kept calls in `open`.
    kept: usize,
    /// The least number of kept calls that were open in the block under way.
    least_kept: usize,
    /// True if the kept calls may differ from the open calls of a reader of the kept parts. Reset
    /// when no call is open.
    is_uncertain: bool,
    /// The number of calls further in than [`MOST_OPEN`].
    beyond: u64,
    /// True if the next event is an exit of a call that is not open.
    unmatched_exit: bool,
    /// True if events were lost since the begin of the kept calls. The entry of an exit may be
    /// among them.
    lost: bool,
    /// True after an event after the recording's end. Later losses happened after the end.
    over: bool,
    /// The events that were left out so far.
    excluded: Excluded,
}

/// An open call, with the treatment of its entry.
#[derive(Debug, Clone, Copy)]
struct ChosenCall {
    function: FunctionId,
    entry: Entry,
    start: Ticks,
}

/// The treatment of an open call's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Treatment,
    /// The entry is before the recording.
    Earlier,
    /// The function is not selected.
    Unwanted,
}

// === impl RecordedTime ===

impl RecordedTime {
    fn is_over(self, at: Ticks) -> bool {
        self.until.is_some_and(|until| at > until)
    }
}

// === impl Excluded ===

impl Excluded {
    /// Adds the events that were left out elsewhere.
    pub fn add(&mut self, other: Self) {
        let Self {
            earlier_exits,
            later_events,
            later_lost,
        } = other;
        self.earlier_exits = self.earlier_exits.saturating_add(earlier_exits);
        self.later_events = self.later_events.saturating_add(later_events);
        self.later_lost = self.later_lost.saturating_add(later_lost);
    }
}

// === impl Chosen ===

impl Chosen {
    /// Whether there is no state to remember for the next block.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.beyond == 0 && !self.lost && !self.over
    }

    /// Returns and resets the events that were left out.
    pub fn take_excluded(&mut self) -> Excluded {
        std::mem::take(&mut self.excluded)
    }

    /// Notes that blocks of the thread are missing here.
    pub fn miss_blocks(&mut self) {
        self.is_uncertain = !self.open.is_empty() || self.beyond > 0;
    }

    /// The kept part of the next block: entries and exits of calls of `wanted` functions that began
    /// in `time`, other events in `time`, and losses.
    pub fn of(
        &mut self,
        block: &Block,
        time: RecordedTime,
        wanted: impl FnMut(FunctionId) -> bool,
    ) -> Part {
        let ClosedPart { closed, lost } = self.unpacked(block, time, wanted);
        let block = closed.map(|closed| closed.block);
        Part { block, lost }
    }

    /// The same, with the facts about the kept part. A block is unpacked only if the facts about it
    /// do not show that all of it is kept.
    pub fn of_closed(
        &mut self,
        closed: &ClosedBlock,
        time: RecordedTime,
        mut wanted: impl FnMut(FunctionId) -> bool,
    ) -> ClosedPart {
        match self.whole(closed, time, &mut wanted) {
            None => self.unpacked(&closed.block, time, wanted),
            stack => ClosedPart {
                closed: Some(ClosedBlock {
                    stack,
                    ..closed.clone()
                }),
                lost: 0,
            },
        }
    }

    /// Takes a block that is kept as a whole. Returns its change of the kept calls. `None` if an
    /// event may be left out, and nothing was taken.
    fn whole(
        &mut self,
        closed: &ClosedBlock,
        time: RecordedTime,
        wanted: &mut impl FnMut(FunctionId) -> bool,
    ) -> Option<StackChange> {
        let block = &closed.block;
        let change = closed.stack.as_ref().filter(|change| change.nests)?;
        let open = self.open.len();
        let in_time = block.first >= time.since && !time.is_over(block.last);
        let all_kept = self.kept == open && self.beyond == 0 && !self.is_uncertain;
        if !in_time || !all_kept || !change.continues && open > 0 {
            return None;
        }
        // The calls that began before the first block stay open, so no exit is one of theirs.
        let earlier = change.before.checked_sub(open as u64)?;
        let keep = usize::try_from(change.kept.checked_sub(earlier)?).ok()?;
        let begun = change.begun.len();
        if keep > open || begun > MOST_OPEN - keep || !closed.functions.iter().all(wanted) {
            return None;
        }
        self.truncate(keep);
        for call in change.begun.iter() {
            self.push(call, Entry::Treatment);
        }
        Some(StackChange {
            before: open as u64,
            kept: keep as u64,
            begun: change.begun.clone(),
            nests: true,
            continues: true,
        })
    }

    /// The kept part of a block, event by event.
    fn unpacked(
        &mut self,
        block: &Block,
        time: RecordedTime,
        mut wanted: impl FnMut(FunctionId) -> bool,
    ) -> ClosedPart {
        let before = self.kept;
        self.least_kept = before;
        let mut encoder = BlockEncoder::new(block.thread);
        // The writer of a block does not separate the mark from its exit.
        self.unmatched_exit = false;
        let mut events = block.events();
        let mut all = true;
        let mut lost = 0_u64;
        while let Some(Ok(event)) = events.next() {
            if time.is_over(event.ticks) {
                all = false;
                lost = lost.saturating_add(self.later(&event, &mut wanted));
                continue;
            }
            match self.kept(&event, time.since, &mut wanted) {
                Treatment::No => all = false,
                Treatment::Yes => encoder.push(&event, &events, |id| id),
                Treatment::UnmatchedExit => {
                    encoder.push_unmatched_exit(event.ticks);
                    encoder.push(&event, &events, |id| id);
                }
                Treatment::Unwound(calls) => {
                    all &= event.body == EventBody::Unwound { calls };
                    encoder.push_unwound(event.ticks, calls);
                }
            }
        }
        let stack = self.change(before);
        let reduced = encoder.close();
        let closed = match (all, reduced) {
            (false, None) => None,
            (false, Some(reduced)) => Some(ClosedBlock { stack, ..reduced }),
            (true, Some(reduced)) => Some(ClosedBlock {
                block: block.clone(),
                stack,
                ..reduced
            }),
            (true, None) => Some(ClosedBlock::unpacked(block.clone())),
        };
        ClosedPart { closed, lost }
    }

    /// The change of the kept calls by the block under way, before which `before` of them were
    /// open. `None` if it is not certain.
    fn change(&mut self, before: usize) -> Option<StackChange> {
        let is_certain = !self.is_uncertain;
        if self.open.is_empty() && self.beyond == 0 {
            self.is_uncertain = false;
        }
        let kept_calls = self.open.iter().enumerate().rev();
        let kept_calls = kept_calls.filter(|(_, call)| call.entry == Entry::Treatment);
        let begun = kept_calls.take(self.kept - self.least_kept);
        let mut begun: Vec<OpenCall> = begun
            .map(|(at, call)| OpenCall {
                function: call.function,
                start: call.start,
                args: self.args_at(at),
            })
            .collect();
        begun.reverse();
        is_certain.then(|| StackChange {
            before: before as u64,
            kept: self.least_kept as u64,
            begun: BegunCalls::new(begun),
            nests: false,
            continues: true,
        })
    }

    fn args_at(&self, place: usize) -> Values {
        let at = self.args.binary_search_by_key(&place, |(place, _)| *place);
        at.map_or(Values::NONE, |at| self.args[at].1)
    }

    fn push(&mut self, call: OpenCall, entry: Entry) {
        let OpenCall {
            function,
            start,
            args,
        } = call;
        if !args.is_empty() {
            self.args.push((self.open.len(), args));
        }
        self.kept += usize::from(entry == Entry::Treatment);
        self.open.push(ChosenCall {
            function,
            entry,
            start,
        });
    }

    /// Removes all open calls but the first `keep`. Returns the number of kept calls among the
    /// removed ones.
    fn truncate(&mut self, keep: usize) -> usize {
        let gone = self.open.drain(keep.min(self.open.len())..);
        let kept = gone.filter(|call| call.entry == Entry::Treatment).count();
        while self.args.pop_if(|(place, _)| *place >= keep).is_some() {}
        self.kept -= kept;
        self.least_kept = self.least_kept.min(self.kept);
        kept
    }

    /// Counts an event after the end. Returns the number of lost events that may have happened
    /// before the end.
    fn later(&mut self, event: &Event, wanted: &mut impl FnMut(FunctionId) -> bool) -> u64 {
        let was_over = std::mem::replace(&mut self.over, true);
        match event.body {
            EventBody::Lost { events } if was_over => {
                let lost = &mut self.excluded.later_lost;
                *lost = lost.saturating_add(events);
            }
            EventBody::Lost { events } => return events,
            EventBody::Call { function, .. } => {
                self.excluded.later_events += u64::from(wanted(function));
            }
            EventBody::Data { .. }
            | EventBody::Cpu { .. }
            | EventBody::Unwound { .. }
            | EventBody::UnmatchedExit => {}
        }
        0
    }

    fn kept(
        &mut self,
        event: &Event,
        since: Ticks,
        wanted: &mut impl FnMut(FunctionId) -> bool,
    ) -> Treatment {
        let in_time = event.ticks >= since;
        let unmatched_exit = std::mem::take(&mut self.unmatched_exit);
        let kept = match event.body {
            EventBody::Call {
                function,
                kind: CallKind::Enter,
                values: args,
            } => {
                let entry = match in_time {
                    _ if !wanted(function) => Entry::Unwanted,
                    true => Entry::Treatment,
                    false => Entry::Earlier,
                };
                if self.open.len() < MOST_OPEN {
                    let start = event.ticks;
                    let call = OpenCall {
                        function,
                        start,
                        args,
                    };
                    self.push(call, entry);
                } else {
                    self.beyond = self.beyond.saturating_add(1);
                    self.is_uncertain = true;
                }
                entry == Entry::Treatment
            }
            // An exit of a call that began before, or whose entry was lost.
            EventBody::Call { function, .. } if unmatched_exit => {
                let kept = wanted(function) && self.may_be_of_lost(in_time);
                return match kept {
                    true => Treatment::UnmatchedExit,
                    false => Treatment::No,
                };
            }
            EventBody::Call { function, .. } => match self.exit(function) {
                Some(Entry::Treatment) => true,
                Some(Entry::Unwanted) => false,
                Some(Entry::Earlier) => {
                    self.excluded.earlier_exits += u64::from(in_time);
                    false
                }
                None => {
                    // An exit of a call that is too far in to be remembered, or that began before.
                    let beyond = self.beyond > 0;
                    self.beyond = self.beyond.saturating_sub(1);
                    wanted(function) && (beyond && in_time || self.may_be_of_lost(in_time))
                }
            },
            EventBody::Unwound { calls } => {
                return match self.leave(calls) {
                    0 => Treatment::No,
                    kept => Treatment::Unwound(kept),
                };
            }
            EventBody::UnmatchedExit => {
                self.unmatched_exit = true;
                false
            }
            EventBody::Lost { .. } => {
                self.leave(u64::MAX);
                self.lost |= in_time;
                in_time
            }
            EventBody::Data { data, .. } => in_time && data.function().is_none_or(&mut *wanted),
            EventBody::Cpu { .. } => in_time,
        };
        match kept {
            true => Treatment::Yes,
            false => Treatment::No,
        }
    }

    /// Whether the missing entry of a selected function's exit may have been lost since the
    /// recording began. If not, the call began before the recording, and the exit is counted.
    fn may_be_of_lost(&mut self, in_time: bool) -> bool {
        if !self.lost {
            self.excluded.earlier_exits += u64::from(in_time);
        }
        self.lost
    }

    /// Ends a call and the calls within it. Returns the treatment of its entry; `None` if unknown.
    fn exit(&mut self, function: FunctionId) -> Option<Entry> {
        if self.beyond > 0 {
            return None;
        }
        // Usually it is the innermost one. An exit of a call that is not open ends no call.
        let at = self.open.iter().rposition(|call| call.function == function);
        at.map(|at| {
            let entry = self.open[at].entry;
            let kept = self.truncate(at);
            // The exit is left out, so a reader of the kept parts does not see that they ended.
            self.is_uncertain |= entry != Entry::Treatment && kept > 0;
            entry
        })
    }

    /// Ends some of the innermost calls. Returns the number of kept calls among them.
    fn leave(&mut self, calls: u64) -> u64 {
        let beyond = self.beyond.min(calls);
        self.beyond -= beyond;
        let calls = usize::try_from(calls - beyond).unwrap_or(usize::MAX);
        let keep = self.open.len().saturating_sub(calls);
        self.truncate(keep) as u64
    }
}

/// The treatment of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Yes,
    No,
    /// It is kept, as an exit of a call that is not open.
    UnmatchedExit,
    /// It ends calls, and this number of them were kept.
    Unwound(u64),
}

#[cfg(test)]
mod tests;
