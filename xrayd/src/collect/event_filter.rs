//! The filter on events that were read: by function, and by a window of time.
//!
//! A call is kept or left out as a whole, by its entry. The exit of a kept call is kept as well,
//! even after the window's end. The exit of a call that was left out is left out. So the kept calls
//! nest as the program's calls do, and durations are true.
//!
//! All events show which calls ended without an exit (`shadow_stack`). The trace reports it for the
//! kept calls. Calls that the program itself leaves out are not handled here.

use std::{ops::Range, sync::Arc};

use xray_trace::model::{FunctionId, Ticks};

/// The most changes between kept and left-out calls that are remembered, in the open calls of one
/// thread. A call beyond them is treated as the call around it.
const MOST_RUNS: usize = 1 << 12;

/// The filter: which events are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventFilter {
    /// Sorted and disjoint ranges of ids; `None` for all functions.
    functions: Option<Vec<Range<u32>>>,
    /// From its start on, and before its end.
    window: Range<Ticks>,
}

/// Which of a thread's open calls were kept.
#[derive(Debug)]
pub(super) struct KeptCalls {
    /// `None` once everything is kept again.
    keep: Option<Arc<EventFilter>>,
    /// The open calls in runs of kept or left-out calls, outermost first. No run is empty, and
    /// neighbours differ.
    runs: Vec<Run>,
    /// The number of calls in `runs`.
    open: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    kept: bool,
    calls: u64,
}

// === impl EventFilter ===

impl EventFilter {
    /// Keeps events of functions with these ids, or of all functions, in this window.
    pub(crate) fn new(functions: Option<Vec<Range<u32>>>, window: Range<Ticks>) -> Self {
        let functions = functions.map(|mut ranges| {
            ranges.retain(|range| !range.is_empty());
            ranges.sort_unstable_by_key(|range| range.start);
            ranges.dedup_by(|next, before| {
                let touches = next.start <= before.end;
                if touches {
                    before.end = before.end.max(next.end);
                }
                touches
            });
            ranges
        });
        Self { functions, window }
    }

    /// Keeps no events.
    pub(super) fn nothing() -> Self {
        Self::new(Some(Vec::new()), Ticks(0)..Ticks(0))
    }

    fn keeps(&self, FunctionId(id): FunctionId, ticks: u64) -> bool {
        self.window.contains(&Ticks(ticks))
            && self.functions.as_ref().is_none_or(|ranges| {
                let after = ranges.partition_point(|range| range.start <= id);
                let range = after.checked_sub(1).and_then(|at| ranges.get(at));
                range.is_some_and(|range| range.contains(&id))
            })
    }
}

// === impl KeptCalls ===

impl KeptCalls {
    /// The state with `open` open calls, all of which were kept.
    pub(super) fn new(open: u64) -> Self {
        let mut kept = Self {
            keep: None,
            runs: Vec::new(),
            open: 0,
        };
        kept.push(Run {
            kept: true,
            calls: open,
        });
        kept
    }

    /// Sets the filter for the next events; `None` keeps all.
    pub(super) fn keep(&mut self, keep: Option<Arc<EventFilter>>) {
        self.keep = keep;
    }

    /// True if everything is kept and every open call was: there is nothing to remember.
    pub(super) fn is_over(&self) -> bool {
        self.keep.is_none() && self.runs.iter().all(|run| run.kept)
    }

    /// For each open call, outermost first, whether it was kept.
    pub(super) fn calls(&self) -> impl Iterator<Item = bool> {
        let runs = self.runs.iter();
        runs.flat_map(|run| (0..run.calls).map(|_| run.kept))
    }

    /// True if an event outside of open calls' entries and exits is kept.
    pub(super) fn keeps(&self, function: FunctionId, ticks: u64) -> bool {
        let keep = self.keep.as_ref();
        keep.is_none_or(|keep| keep.keeps(function, ticks))
    }

    /// Begins a call; true if it is kept.
    pub(super) fn enter(&mut self, function: FunctionId, ticks: u64) -> bool {
        let kept = self.keeps(function, ticks);
        self.push(Run { kept, calls: 1 })
    }

    /// Handles an exit, or an event that looks like one, after which `open` calls are open. True if
    /// the exit is kept.
    pub(super) fn exit(&mut self, open: u64, function: FunctionId, ticks: u64) -> bool {
        match self.open.checked_sub(open) {
            Some(ended @ 1..) => {
                // Of several calls, the exit belongs to the outermost one.
                self.leave(ended - 1);
                self.leave(1) > 0
            }
            _ => self.keeps(function, ticks),
        }
    }

    /// Ends this many of the innermost calls. Returns the number of kept calls among them.
    pub(super) fn leave(&mut self, calls: u64) -> u64 {
        let (mut left, mut kept) = (calls, 0_u64);
        while left > 0
            && let Some(run) = self.runs.last_mut()
        {
            let now = run.calls.min(left);
            left -= now;
            run.calls -= now;
            self.open -= now;
            if run.kept {
                kept += now;
            }
            if run.calls == 0 {
                self.runs.pop();
            }
        }
        kept
    }

    /// Forgets the open calls.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.open = 0;
    }

    /// Adds open calls within the others; true if they count as kept.
    fn push(&mut self, added: Run) -> bool {
        let Run { kept, calls } = added;
        if calls == 0 {
            return kept;
        }
        self.open = self.open.saturating_add(calls);
        let full = self.runs.len() >= MOST_RUNS;
        match self.runs.last_mut() {
            Some(run) if run.kept == kept || full => {
                run.calls = run.calls.saturating_add(calls);
                run.kept
            }
            _ => {
                self.runs.push(added);
                kept
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shm_ring::{Item, Sink};
    use xray_trace::model::{CallKind, EventBody, ProcessId};

    use super::*;
    use crate::{
        collect::{
            CallSite, SiteKind, SiteTable, frame_budget::FrameBudget, thread_decoder::ThreadDecoder,
        },
        store::EventStore,
        types::Mode,
    };

    const ALWAYS: Range<Ticks> = Ticks(0)..Ticks(u64::MAX);

    fn kept(functions: Range<u32>, window: Range<Ticks>) -> KeptCalls {
        let mut kept = KeptCalls::new(0);
        let keep = EventFilter::new(Some(vec![functions]), window);
        kept.keep(Some(Arc::new(keep)));
        kept
    }

    #[test]
    fn functions_are_kept_by_their_ranges_whatever_order_these_have() {
        let ranges = [20..30, 3..3, 5..10, 8..12, 12..13, 40..41];
        let keep = EventFilter::new(Some(ranges.to_vec()), ALWAYS);
        assert_eq!(keep.functions, Some(vec![5..13, 20..30, 40..41]));
        let kept = (0..50).filter(|id| keep.keeps(FunctionId(*id), 7));
        let expected = (5..13).chain(20..30).chain(40..41);
        assert!(kept.eq(expected));
        let none = EventFilter::new(Some(Vec::new()), ALWAYS);
        assert!(!none.keeps(FunctionId(0), 7));
        let all = EventFilter::new(None, ALWAYS);
        assert!(all.keeps(FunctionId(u32::MAX), 7));
    }

    #[test]
    fn a_window_has_a_begin_and_no_end() {
        let keep = EventFilter::new(None, Ticks(10)..Ticks(20));
        let kept = (0..30).filter(|ticks| keep.keeps(FunctionId(1), *ticks));
        assert!(kept.eq(10..20));
    }

    #[test]
    fn a_call_is_kept_or_left_out_as_a_whole() {
        let mut kept = kept(0..9, Ticks(10)..Ticks(20));
        let (one, other) = (FunctionId(1), FunctionId(9));
        // Begins before the window, and ends in it.
        assert!(!kept.enter(one, 9));
        // Begins in it, and ends after it.
        assert!(kept.enter(one, 12));
        assert!(!kept.enter(other, 13));
        assert!(kept.enter(one, 14));
        assert!(kept.exit(3, one, 15));
        assert!(!kept.exit(2, other, 16));
        assert!(kept.exit(1, one, 25));
        assert!(!kept.exit(0, one, 19));
        // An exit of no known call.
        assert!(kept.exit(0, one, 19));
        assert!(!kept.exit(0, one, 20));
    }

    #[test]
    fn abandoned_calls_are_reported_if_they_were_kept() {
        let mut kept = kept(1..2, ALWAYS);
        for id in [1, 0, 0, 1, 1, 0, 1] {
            kept.enter(FunctionId(id), 0);
        }
        assert_eq!(kept.leave(2), 1);
        assert_eq!(kept.leave(0), 0);
        // Three are over, and this exit ends a fourth.
        assert_eq!(kept.leave(2), 2);
        assert!(!kept.exit(2, FunctionId(0), 0));
        assert_eq!(kept.leave(99), 1);
        assert_eq!(kept.open, 0);
    }

    #[test]
    fn calls_end_as_the_filter_of_their_entry_says() {
        let mut kept = KeptCalls::new(2);
        assert!(kept.is_over());
        kept.keep(Some(Arc::new(EventFilter::new(Some(Vec::new()), ALWAYS))));
        assert!(!kept.enter(FunctionId(1), 1));
        kept.keep(None);
        assert!(!kept.is_over());
        assert!(kept.enter(FunctionId(1), 2));
        assert!(kept.exit(3, FunctionId(1), 3));
        assert!(!kept.exit(2, FunctionId(1), 4));
        assert!(kept.is_over());
        assert!(kept.exit(1, FunctionId(1), 5));
    }

    /// Whatever a program does, memory is bounded, and as many calls end as began.
    #[test]
    fn calls_beyond_what_is_remembered_are_treated_alike() {
        let mut kept = kept(1..2, ALWAYS);
        let deep = 3 * u32::try_from(MOST_RUNS).unwrap();
        let entries = (0..deep).map(|at| kept.enter(FunctionId(at % 2), at.into()));
        let entries: Vec<bool> = entries.collect();
        assert_eq!(kept.runs.len(), MOST_RUNS);
        assert_eq!(kept.open, u64::from(deep));
        for (at, entry) in (0_u64..).zip(entries).collect::<Vec<_>>().into_iter().rev() {
            assert_eq!(kept.exit(at, FunctionId(0), at), entry);
        }
        assert_eq!((kept.runs.len(), kept.open), (0, 0));
    }

    /// Functions of the property below. The site of an entry has the function's number, and the
    /// site of an exit has the number plus 100.
    const FUNCTIONS: u32 = 4;

    /// The next step of a thread: a function, and the size of its frame.
    #[derive(Debug, Clone, Copy)]
    enum Does {
        Calls(u32, u64),
        Returns,
        /// Its exit shows that the calls within it were left.
        ReturnsFrom(usize),
        /// The exit of a call that was entered before anything was seen.
        ReturnsAstray(u32),
        Loses,
    }

    fn does() -> impl Strategy<Value = Does> {
        prop_oneof![
            6 => (0..FUNCTIONS, 1_u64..9).prop_map(|(id, frame)| Does::Calls(id, frame * 16)),
            6 => Just(Does::Returns),
            2 => (0_usize..4).prop_map(Does::ReturnsFrom),
            1 => (0..FUNCTIONS).prop_map(Does::ReturnsAstray),
            1 => Just(Does::Loses),
        ]
    }

    /// The contents of the ring of a thread with these steps: one event every 10 ticks.
    fn items(does: &[Does]) -> Vec<Item> {
        const TOP: u64 = 0x7fff_0000;
        let mut open: Vec<(u32, u64)> = Vec::new();
        let mut items = Vec::new();
        for (at, does) in (1_u64..).zip(does) {
            let call = |site: u32, sp| Item::Call {
                site: site << 3 | 7,
                ticks: at * 10,
                sp,
                argument: None,
            };
            items.extend(match *does {
                Does::Calls(id, frame) => {
                    let sp = open.last().map_or(TOP, |(_, sp)| *sp) - frame;
                    open.push((id, sp));
                    Some(call(id, sp))
                }
                Does::Returns => open.pop().map(|(id, sp)| call(id + 100, sp)),
                Does::ReturnsFrom(further_in) => {
                    open.truncate(open.len().saturating_sub(further_in));
                    open.pop().map(|(id, sp)| call(id + 100, sp))
                }
                Does::ReturnsAstray(id) => {
                    let sp = open.last().map_or(TOP, |(_, sp)| *sp) - 8;
                    Some(call(id + 100, sp))
                }
                Does::Loses => Some(Item::Lost(1)),
            });
        }
        items
    }

    /// A call as a reader of blocks sees it: its function, its begin, and the end of a call with an
    /// exit. An unmatched exit begins when it ends.
    type Call = (u32, u64, Option<u64>);

    /// The calls in the blocks of these items under these filters, as a reader understands them,
    /// and the number of events that were left out.
    fn read(items: &[Item], filters: &[(usize, Option<Arc<EventFilter>>)]) -> (Vec<Call>, u64) {
        let mut sites = SiteTable::new();
        for id in 0..FUNCTIONS {
            for (site, kind) in [(id, CallKind::Enter), (id + 100, CallKind::Exit)] {
                let site = CallSite {
                    name: site << 3 | 7,
                    function: FunctionId(id),
                    kind: SiteKind::Call(kind),
                };
                assert!(sites.insert(site, Ticks(0)));
            }
        }
        let output = EventStore::new(ProcessId(0), FUNCTIONS as usize, 1 << 30);
        output.set_mode(Mode::Stream);
        let thread = output.new_thread(1, String::new());
        let mut decoder = ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::default());
        for (at, item) in items.iter().enumerate() {
            if let Some((_, keep)) = filters.iter().find(|(when, _)| *when == at) {
                decoder.filter(keep.clone());
            }
            decoder.sink(&sites, &output).take(item.clone());
            decoder.settle(&output);
        }
        decoder.end(&output);
        let (mut open, mut calls, mut unmatched_exit) =
            (Vec::<(u32, u64)>::new(), Vec::new(), false);
        for block in output.snapshot().blocks {
            for event in block.events() {
                let event = event.unwrap();
                let ticks = event.ticks.0;
                match event.body {
                    EventBody::Call {
                        function,
                        kind: CallKind::Enter,
                        ..
                    } => {
                        open.push((function.0, ticks));
                    }
                    EventBody::Call { function, .. } => {
                        let of = |(id, _): &(u32, u64)| *id == function.0;
                        let place = open.iter().rposition(of).filter(|_| !unmatched_exit);
                        unmatched_exit = false;
                        let Some(place) = place else {
                            calls.push((function.0, ticks, Some(ticks)));
                            continue;
                        };
                        let left = open.drain(place + 1..).map(|(id, from)| (id, from, None));
                        calls.extend(left);
                        let ended = open.pop().map(|(id, from)| (id, from, Some(ticks)));
                        calls.extend(ended);
                    }
                    EventBody::Unwound { calls: over } => {
                        for _ in 0..over {
                            let (id, from) = open.pop().expect("as many are open");
                            calls.push((id, from, None));
                        }
                    }
                    EventBody::UnmatchedExit => unmatched_exit = true,
                    EventBody::Lost { .. } => {
                        calls.extend(open.drain(..).map(|(id, from)| (id, from, None)));
                    }
                    body => panic!("{body:?}"),
                }
            }
        }
        calls.extend(open.into_iter().map(|(id, from)| (id, from, None)));
        calls.sort_unstable();
        (calls, output.counters().filtered)
    }

    proptest! {
        /// The kept calls are those that a reader of everything would select: the same calls, with
        /// the same durations and ends.
        #[test]
        fn kept_events_are_a_part_of_all_events(
            does in prop::collection::vec(does(), 0..80),
            chosen in prop::collection::vec(any::<bool>(), FUNCTIONS as usize),
            from in 0_u64..400,
            long in 0_u64..800,
        ) {
            let items = items(&does);
            let ids = (0..FUNCTIONS).zip(&chosen).filter(|(_, chosen)| **chosen);
            let ranges = ids.map(|(id, _)| id..id + 1).collect();
            let keep = Arc::new(EventFilter::new(Some(ranges), Ticks(from)..Ticks(from + long)));
            let (mut all, none) = read(&items, &[]);
            prop_assert_eq!(none, 0);
            let events = |calls: &[Call]| {
                let events = calls.iter().map(|(_, from, until)| match until {
                    Some(until) if until != from => 2,
                    _ => 1,
                });
                events.sum::<u64>()
            };
            let before = events(&all);
            all.retain(|(id, begin, _)| keep.keeps(FunctionId(*id), *begin));
            let (kept, filtered) = read(&items, &[(0, Some(Arc::clone(&keep)))]);
            prop_assert_eq!(&kept, &all);
            prop_assert_eq!(events(&kept) + filtered, before);
        }

        /// Filters come and go: calls are whole or missing, and nothing else changes.
        #[test]
        fn a_filter_that_comes_and_goes_leaves_whole_calls(
            does in prop::collection::vec(does(), 0..80),
            from in 0_usize..60,
            long in 1_usize..60,
        ) {
            let items = items(&does);
            let keep = Some(Arc::new(EventFilter::new(Some(Vec::new()), ALWAYS)));
            let (all, _) = read(&items, &[]);
            let ticks = |at: usize| match items.get(at) {
                Some(Item::Call { ticks, .. }) => Some(*ticks),
                _ => None,
            };
            let off = (from..from + long).filter_map(ticks).collect::<Vec<_>>();
            let (kept, _) = read(&items, &[(from, keep), (from + long, None)]);
            let expected = all.into_iter().filter(|(_, begin, _)| !off.contains(begin));
            prop_assert_eq!(kept, expected.collect::<Vec<_>>());
        }
    }
}
