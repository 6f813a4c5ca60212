//! The blocks of one thread, reduced to calls of some functions that begin at some moment or later.
//! Calls are kept or left out as a whole.

use super::{Block, BlockEncoder};
use crate::model::{CallKind, Event, EventBody, FunctionId, Ticks};

/// The most open calls of which it is remembered whether they were kept. Those further in are left
/// out.
const MOST_OPEN: usize = 1 << 17;

/// Reduces the blocks of a thread, one after the other.
#[derive(Debug, Default)]
pub struct Chosen {
    /// The open calls that began since the first block, outermost first, and whether they were
    /// kept.
    open: Vec<(FunctionId, bool)>,
    /// Calls further in than [`MOST_OPEN`].
    beyond: u64,
    /// The next event is an exit of no open call.
    astray: bool,
    /// Events were lost since the calls begin that are kept: the entry of an exit may be among
    /// them.
    lost: bool,
}

// === impl Chosen ===

impl Chosen {
    /// Whether nothing has to be remembered up to the next block.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.beyond == 0 && !self.lost
    }

    /// What is kept of the next block: what happens in and to calls of `wanted` functions that
    /// began at `since` or later, and losses since then.
    pub fn of(
        &mut self,
        block: &Block,
        since: Ticks,
        mut wanted: impl FnMut(FunctionId) -> bool,
    ) -> Option<Block> {
        let mut encoder = BlockEncoder::new(block.thread);
        // Which the writer of a block does not divide from its exit.
        self.astray = false;
        let mut events = block.events();
        let mut all = true;
        while let Some(Ok(event)) = events.next() {
            match self.kept(&event, since, &mut wanted) {
                Kept::No => all = false,
                Kept::Yes => encoder.push(&event, &events, |id| id),
                Kept::Astray => {
                    encoder.push_astray(event.ticks);
                    encoder.push(&event, &events, |id| id);
                }
                Kept::Unwound(calls) => {
                    all &= event.body == EventBody::Unwound { calls };
                    encoder.push_unwound(event.ticks, calls);
                }
            }
        }
        let reduced = encoder.finish();
        match all {
            true => Some(block.clone()),
            false => reduced,
        }
    }

    fn kept(
        &mut self,
        event: &Event,
        since: Ticks,
        wanted: &mut impl FnMut(FunctionId) -> bool,
    ) -> Kept {
        let in_time = event.ticks >= since;
        let astray = std::mem::take(&mut self.astray);
        let kept = match event.body {
            EventBody::Call {
                function,
                kind: CallKind::Enter,
                ..
            } => {
                let kept = in_time && wanted(function);
                if self.open.len() < MOST_OPEN {
                    self.open.push((function, kept));
                    kept
                } else {
                    self.beyond = self.beyond.saturating_add(1);
                    false
                }
            }
            // Of a call that began before, or whose begin was lost.
            EventBody::Call { function, .. } if astray => {
                return match self.lost && wanted(function) {
                    true => Kept::Astray,
                    false => Kept::No,
                };
            }
            EventBody::Call { function, .. } => self
                .exit(function)
                .unwrap_or_else(|| self.lost && wanted(function)),
            EventBody::Unwound { calls } => {
                return match self.leave(calls) {
                    0 => Kept::No,
                    kept => Kept::Unwound(kept),
                };
            }
            EventBody::Astray => {
                self.astray = true;
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
            true => Kept::Yes,
            false => Kept::No,
        }
    }

    /// A call ends, and those within it: whether its exit is kept. `None` if its begin is not
    /// known.
    fn exit(&mut self, function: FunctionId) -> Option<bool> {
        if self.beyond > 0 {
            self.beyond -= 1;
            return Some(false);
        }
        // As a rule it is the innermost one; an exit of none that is open ends none.
        let at = self.open.iter().rposition(|(open, _)| *open == function);
        at.map(|at| {
            let kept = self.open[at].1;
            self.open.truncate(at);
            kept
        })
    }

    /// So many of the innermost calls are over: how many of them were kept.
    fn leave(&mut self, calls: u64) -> u64 {
        let beyond = self.beyond.min(calls);
        self.beyond -= beyond;
        let calls = usize::try_from(calls - beyond).unwrap_or(usize::MAX);
        let keep = self.open.len().saturating_sub(calls);
        let left = self.open.drain(keep..);
        left.filter(|(_, kept)| *kept).count() as u64
    }
}

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
    /// It is kept, as an exit of no open call.
    Astray,
    /// So many of the calls were kept that it says to be over.
    Unwound(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ThreadId;

    const THREAD: ThreadId = ThreadId(1);

    fn call(encoder: &mut BlockEncoder, at: u64, function: i32) {
        let kind = match function > 0 {
            true => CallKind::Enter,
            false => CallKind::Exit,
        };
        encoder.push_call(Ticks(at), FunctionId(function.unsigned_abs()), kind, None);
    }

    fn shown(block: Option<Block>) -> Vec<(u64, String)> {
        let events = block.iter().flat_map(|block| block.events());
        let shown = events.map(|event| {
            let event = event.unwrap();
            let what = match event.body {
                EventBody::Call { function, kind, .. } => match kind {
                    CallKind::Enter => format!("+{}", function.0),
                    _ => format!("-{}", function.0),
                },
                EventBody::Unwound { calls } => format!("unwound {calls}"),
                EventBody::Lost { events } => format!("lost {events}"),
                other => format!("{other:?}"),
            };
            (event.ticks.0, what)
        });
        shown.collect()
    }

    /// Others' functions, calls that began before, and what was before are left out, over several
    /// blocks.
    #[test]
    fn whole_calls_of_what_is_wanted_are_kept_from_a_moment_on() {
        let mut encoder = BlockEncoder::new(THREAD);
        let mut chosen = Chosen::default();
        let wanted = |id: FunctionId| id.0 <= 2;
        for (at, function) in [(5, -2), (10, 1), (11, 9), (20, 2), (21, 9), (22, -9)] {
            call(&mut encoder, at, function);
        }
        encoder.push_lost(Ticks(12), 7);
        let first = encoder.finish().unwrap();
        // A time before the latest event's is taken to be that event's.
        let expected = [(20, "+2".to_owned()), (22, "lost 7".to_owned())];
        assert_eq!(shown(chosen.of(&first, Ticks(15), wanted)), expected);
        for (at, function) in [(30, -2), (31, -1), (32, 2), (33, 9), (34, 1)] {
            call(&mut encoder, at, function);
        }
        encoder.push_unwound(Ticks(35), 2);
        encoder.push_astray(Ticks(36));
        for (at, function) in [(36, -2), (40, -2)] {
            call(&mut encoder, at, function);
        }
        let second = encoder.finish().unwrap();
        // The entries of the first two may be among the lost events.
        let expected = [
            (30, "-2"),
            (31, "-1"),
            (32, "+2"),
            (34, "+1"),
            (35, "unwound 1"),
            (36, "Astray"),
            (36, "-2"),
            (40, "-2"),
        ];
        let expected = expected.map(|(at, what)| (at, what.to_owned()));
        assert_eq!(shown(chosen.of(&second, Ticks(15), wanted)), expected);
    }

    #[test]
    fn a_block_of_which_everything_is_kept_stays_as_it_is() {
        let mut encoder = BlockEncoder::new(THREAD);
        for (at, function) in [(10, 1), (11, 2), (12, -2), (13, -1)] {
            call(&mut encoder, at, function);
        }
        let block = encoder.finish().unwrap();
        let mut chosen = Chosen::default();
        assert_eq!(chosen.of(&block, Ticks(10), |_| true), Some(block.clone()));
        assert_eq!(chosen.of(&block, Ticks(10), |_| false), None);
    }
}
