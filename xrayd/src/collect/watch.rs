//! What triggers see of one thread: the open watched calls, and the begin and end of calls and user
//! events. The conditions themselves are in `triggers`.
//!
//! The thread's shadow stack decides whether a call is open. A watched call is kept with its depth,
//! and is over when fewer calls are open.

use std::sync::Arc;

use xray_trace::{
    event_format::RecordedData,
    model::{FunctionId, ThreadId, Ticks},
};

use crate::triggers::{ConditionMask, EventOrigin, TriggerMatcher};

/// The most watched calls of a thread that are kept for a trigger. A call within all of them is
/// shorter than they are.
const MOST_OPEN: usize = 256;

/// All triggers of one thread.
#[derive(Debug)]
pub(super) struct Watch {
    thread: ThreadId,
    each: Vec<One>,
}

#[derive(Debug)]
struct One {
    armed: Arc<TriggerMatcher>,
    marks: Arc<ConditionMask>,
    /// The open watched calls, outermost first.
    open: Vec<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    /// The number of open calls, including this one.
    depth: u64,
    function: FunctionId,
    since: Ticks,
    /// The conditions of its function.
    bits: u8,
}

// === impl Watch ===

impl Watch {
    /// Watches for the triggers that are armed now. Of triggers in `before`, the open calls are
    /// known.
    pub(super) fn new(
        thread: ThreadId,
        armed: &[Arc<TriggerMatcher>],
        before: Option<Self>,
    ) -> Self {
        let mut before = before.map_or_else(Vec::new, |before| before.each);
        let each = armed.iter().map(|armed| {
            let known = before
                .iter()
                .position(|one| Arc::ptr_eq(&one.armed, armed))
                .map(|at| before.swap_remove(at));
            known.unwrap_or_else(|| One {
                armed: Arc::clone(armed),
                marks: armed.marks(),
                open: Vec::new(),
            })
        });
        Self {
            thread,
            each: each.collect(),
        }
    }

    /// Begins a call, with which `depth` calls are open.
    #[inline]
    pub(super) fn enter(&mut self, function: FunctionId, at: Ticks, depth: u64) {
        for one in &mut self.each {
            one.close(depth.saturating_sub(1));
            let bits = one.bits(function);
            if bits == 0 {
                continue;
            }
            if one.armed.at_exit(bits) != 0 && one.open.len() < MOST_OPEN {
                one.open.push(Open {
                    depth,
                    function,
                    since: at,
                    bits,
                });
            }
            let place = EventOrigin::new(self.thread, function);
            one.armed.enters(bits, place, at);
        }
    }

    /// Ends the innermost call, after which `depth` calls are open.
    #[inline]
    pub(super) fn exit(&mut self, function: FunctionId, at: Ticks, depth: u64) {
        for one in &mut self.each {
            one.close(depth + 1);
            let its = |open: &mut Open| open.depth == depth + 1;
            if let Some(open) = one.open.pop_if(its)
                && open.function == function
            {
                let place = EventOrigin::new(self.thread, function);
                one.armed.exits(open.bits, place, (open.since, at));
            }
        }
    }

    /// Handles a user event with this data within `depth` open calls.
    pub(super) fn user_event(
        &mut self,
        (number, data): (Option<u16>, RecordedData<'_>),
        function: FunctionId,
        at: Ticks,
        depth: u64,
    ) {
        let place = EventOrigin::new(self.thread, function);
        for one in &mut self.each {
            one.close(depth);
            one.armed.user_event(number, data, place, at);
        }
    }

    /// Notes that only `depth` calls are open.
    pub(super) fn close(&mut self, depth: u64) {
        self.each.iter_mut().for_each(|one| one.close(depth));
    }
}

// === impl One ===

impl One {
    #[inline]
    fn close(&mut self, depth: u64) {
        while self.open.pop_if(|open| open.depth > depth).is_some() {}
    }

    #[inline]
    fn bits(&mut self, function: FunctionId) -> u8 {
        match self.marks.of(function) {
            Some(bits) => bits,
            None => self.learn(function),
        }
    }

    /// Reads the conditions of a function whose library has come since.
    #[cold]
    fn learn(&mut self, function: FunctionId) -> u8 {
        self.marks = self.armed.marks();
        self.marks.of(function).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use shm_ring::{Item, Sink};
    use xray_trace::model::{CallKind, EventBody, ProcessId};

    use super::{
        super::{
            CallSite, SiteKind, SiteTable, frame_budget::FrameBudget, thread_decoder::ThreadDecoder,
        },
        *,
    };
    use crate::store::EventStore;

    const WATCHED: u32 = 2;
    const ALL: u32 = 4;
    const LEAST: u64 = 30;

    /// An entry and an exit of each function.
    fn sites() -> SiteTable {
        let mut sites = SiteTable::new();
        for function in 0..ALL {
            for (name, kind) in [
                (entry(function), CallKind::Enter),
                (entry(function) + 0x1000, CallKind::Exit),
            ] {
                let site = CallSite {
                    name,
                    function: FunctionId(function),
                    kind: SiteKind::Call(kind),
                };
                assert!(sites.insert(site, Ticks(0)));
            }
        }
        sites
    }

    fn entry(function: u32) -> u32 {
        0x1007 + function * 0x10
    }

    /// The calls of watched functions that were long enough, according to the blocks.
    fn long_calls(output: &EventStore) -> Vec<(Option<FunctionId>, Ticks, Ticks)> {
        let mut open: Vec<(FunctionId, Ticks)> = Vec::new();
        let mut long = Vec::new();
        let mut unmatched_exit = false;
        let blocks = output.snapshot().blocks;
        for event in blocks.iter().flat_map(|block| block.events()) {
            let event = event.unwrap();
            match event.body {
                EventBody::Call {
                    function,
                    kind: CallKind::Enter,
                    ..
                } => open.push((function, event.ticks)),
                EventBody::Call { function, .. } => {
                    if std::mem::take(&mut unmatched_exit) {
                        continue;
                    }
                    if let Some((its, begun)) = open.pop()
                        && its == function
                        && function.0 < WATCHED
                        && event.ticks.0 - begun.0 >= LEAST
                    {
                        long.push((Some(function), begun, event.ticks));
                    }
                }
                EventBody::Unwound { calls } => {
                    let left = open.len().saturating_sub(usize::try_from(calls).unwrap());
                    open.truncate(left);
                }
                EventBody::UnmatchedExit => unmatched_exit = true,
                EventBody::Lost { .. } => open.clear(),
                EventBody::Data { .. } | EventBody::Cpu { .. } => {}
            }
        }
        long
    }

    /// The next event: whether it is an entry, its function, an extra move up the stack in units of
    /// 64 bytes (3 and -3 only), the ticks since the last event, and 0 if events are lost before
    /// it.
    type Step = (bool, u32, i64, u64, u8);

    proptest! {
        /// Whatever a thread does, the calls that fire are those that the trace shows to have
        /// lasted as long.
        #[test]
        fn the_trigger_fires_for_the_calls_of_the_trace(
            steps in prop::collection::vec(
                (any::<bool>(), 0..ALL, -3_i64..4, 0_u64..40, 0_u8..60),
                1..300,
            )
        ) {
            check(&steps)?;
        }
    }

    fn check(steps: &[Step]) -> Result<(), TestCaseError> {
        let (sites, output) = (
            sites(),
            EventStore::new(ProcessId(0), ALL as usize, 1 << 30),
        );
        let thread = output.new_thread(1, String::new());
        let mut decoder = ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::default());
        let (matcher, mut hits) = TriggerMatcher::for_durations(WATCHED as usize, LEAST);
        decoder.watch(&[matcher]);
        let (mut ticks, mut sp) = (1000_u64, 0x7fff_0000_u64);
        for (enters, function, up, later, lost) in steps {
            ticks += later;
            if *lost == 0 {
                decoder.sink(&sites, &output).take(Item::Lost(3));
            }
            // As a stack does in most cases: down with a call, up when it ends.
            let step = if *enters { -16 } else { 16 };
            let jump = if up.abs() == 3 { up * 64 } else { 0 };
            let at = if *enters {
                sp.wrapping_add_signed(step + jump)
            } else {
                sp
            };
            let site = entry(*function) + if *enters { 0 } else { 0x1000 };
            let item = Item::Call {
                site,
                ticks,
                sp: at,
                argument: None,
            };
            decoder.sink(&sites, &output).take(item);
            sp = if *enters {
                at
            } else {
                sp.wrapping_add_signed(step + jump)
            };
        }
        decoder.end(&output);
        let mut fired = Vec::new();
        while let Some(hit) = hits.next_now() {
            fired.push(hit.call());
        }
        prop_assert_eq!(fired, long_calls(&output));
        Ok(())
    }

    /// The steps of the property may leave little open. In a plain recursion and a jump out of it,
    /// it is known which calls fire.
    #[test]
    fn a_call_that_is_left_does_not_fire_and_its_caller_does() {
        let (sites, output) = (
            sites(),
            EventStore::new(ProcessId(0), ALL as usize, 1 << 30),
        );
        let thread = output.new_thread(1, String::new());
        let mut decoder = ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::default());
        let (matcher, mut hits) = TriggerMatcher::for_durations(WATCHED as usize, LEAST);
        decoder.watch(&[matcher]);
        let mut call = |site: u32, ticks: u64, sp: u64| {
            let item = Item::Call {
                site,
                ticks,
                sp,
                argument: None,
            };
            decoder.sink(&sites, &output).take(item);
        };
        call(entry(0), 100, 0x7100);
        // Not watched; then watched, and left from within a call that is not watched.
        call(entry(3), 110, 0x70f0);
        call(entry(1), 120, 0x70e0);
        call(entry(2), 130, 0x70d0);
        call(entry(0) + 0x1000, 200, 0x7100);
        // Too short, and then long enough.
        call(entry(1), 300, 0x7100);
        call(entry(1) + 0x1000, 300 + LEAST - 1, 0x7100);
        call(entry(1), 400, 0x7100);
        call(entry(1) + 0x1000, 400 + LEAST, 0x7100);
        let mut fired = Vec::new();
        while let Some(hit) = hits.next_now() {
            fired.push(hit.call());
        }
        let (first, second) = (Some(FunctionId(0)), Some(FunctionId(1)));
        let expected = [
            (first, Ticks(100), Ticks(200)),
            (second, Ticks(400), Ticks(400 + LEAST)),
        ];
        assert_eq!(fired, expected);
    }
}
