//! When functions were switched, to decide which open calls are still known.
//!
//! A call that is open while its function is off returns unseen. Another call of the same function
//! may stand in its place when the function is on again. So an entry from before a switch does not
//! belong to an exit from after it.
//!
//! ```text
//!  recorded     entry │           off            │ exit
//!  real calls     ▐ first call ▌ ▐ second ▌ ▐ third ▌
//! ```
//!
//! The controller marks functions once they are off. It marks them once more before they are
//! switched on, for threads that were in a trampoline at the first mark. A decoder looks for marks
//! before each event that is later than its last look. Marks that matter for an event are older
//! than the event.
//!
//! Marks are only recorded here. `shadow_stack` drops the calls.

use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use xray_trace::model::{FunctionId, Ticks};

use super::shadow_stack::ShadowStack;
use crate::{lock::lock, sys::ticks_now};

/// The most marks that are kept, and the most ranges of functions in all of them together. In mode
/// `flight`, rings hold events that are older than many marks.
const MOST_MARKS: usize = 16 << 10;
const MOST_RANGES: usize = 256 << 10;

/// The marks of one target.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    marks: Mutex<Marks>,
    /// The number of marks that were ever made.
    count: AtomicU64,
}

#[derive(Debug, Default, Clone)]
struct Marks {
    kept: VecDeque<Mark>,
    /// The number of marks that are not kept any more, and the time of the last of them.
    forgotten: u64,
    forgotten_until: u64,
    /// The number of ranges in `kept`.
    ranges: usize,
}

#[derive(Debug, Clone)]
struct Mark {
    at: u64,
    functions: Functions,
}

/// A set of functions, shared since snapshots copy marks.
#[derive(Debug, Clone)]
struct Functions(Arc<[RangeInclusive<u32>]>);

/// The progress of one thread's events along the marks.
#[derive(Debug)]
pub(super) struct Along {
    /// The number of marks that were met.
    met: u64,
    /// An event at this time or later has to look for marks.
    pub(super) look_at: u64,
}

/// The functions that were switched in a time.
#[derive(Debug)]
pub(super) struct Switched {
    /// True if any function may have been.
    any: bool,
    functions: Vec<Functions>,
}

// === impl Switched ===

impl Switched {
    pub(super) fn contains(&self, function: FunctionId) -> bool {
        self.any || self.functions.iter().any(|all| all.contains(function))
    }
}

// === impl Switches ===

impl Switches {
    /// Marks these functions, which are off now.
    pub(crate) fn mark(&self, functions: &[FunctionId]) {
        if functions.is_empty() {
            return;
        }
        let functions = Functions::new(functions);
        let mut marks = lock(&self.marks);
        marks.push(Mark {
            at: ticks_now().0,
            functions,
        });
        self.count.store(marks.count(), Ordering::Release);
    }

    /// Marks all functions, which were off until `at`. There is no later mark.
    pub(crate) fn mark_all(&self, at: Ticks) {
        let mut marks = lock(&self.marks);
        marks.push(Mark {
            at: at.0,
            functions: Functions(Arc::new([0..=u32::MAX])),
        });
        self.count.store(marks.count(), Ordering::Release);
    }

    /// A copy of the present marks, for events that are decoded later.
    pub(super) fn freeze(&self) -> Self {
        let marks = lock(&self.marks).clone();
        Self {
            count: AtomicU64::new(marks.count()),
            marks: Mutex::new(marks),
        }
    }
}

// === impl Marks ===

impl Marks {
    fn count(&self) -> u64 {
        self.forgotten + self.kept.len() as u64
    }

    fn push(&mut self, mark: Mark) {
        self.ranges += mark.functions.0.len();
        self.kept.push_back(mark);
        while self.kept.len() > MOST_MARKS || self.ranges > MOST_RANGES && self.kept.len() > 1 {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.ranges -= oldest.functions.0.len();
            self.forgotten += 1;
            self.forgotten_until = oldest.at;
        }
    }
}

// === impl Along ===

impl Along {
    pub(super) fn new() -> Self {
        Self { met: 0, look_at: 0 }
    }

    /// The functions that were switched after the marks that were met, up to `until`.
    pub(super) fn switched(&self, until: Ticks, switches: &Switches) -> Switched {
        let marks = lock(&switches.marks);
        let at = usize::try_from(self.met.saturating_sub(marks.forgotten));
        let later = marks.kept.iter().skip(at.unwrap_or(usize::MAX));
        let later = later.take_while(|mark| mark.at <= until.0);
        Switched {
            any: self.met < marks.forgotten,
            functions: later.map(|mark| mark.functions.clone()).collect(),
        }
    }

    /// Meets the marks before an event at `ticks`, which is not older than `look_at`. Suspects the
    /// open calls in `stacks` that may have ended unseen.
    #[cold]
    pub(super) fn meet(&mut self, ticks: u64, switches: &Switches, stacks: &mut ShadowStack) {
        // Read before the look: a mark that is made meanwhile is later.
        let now = ticks_now().0;
        if self.met >= switches.count.load(Ordering::Acquire) {
            self.look_at = now;
            return;
        }
        let marks = lock(&switches.marks);
        if self.met < marks.forgotten {
            // The functions of the forgotten marks are not known.
            stacks.suspect(|_| true);
            if ticks <= marks.forgotten_until {
                self.look_at = 0;
                return;
            }
            self.met = marks.forgotten;
        }
        loop {
            let at = usize::try_from(self.met - marks.forgotten);
            let next = at.ok().and_then(|at| marks.kept.get(at));
            match next {
                Some(mark) if mark.at <= ticks => {
                    stacks.suspect(|function| mark.functions.contains(function));
                    self.met += 1;
                }
                Some(mark) => {
                    self.look_at = mark.at;
                    return;
                }
                None => {
                    self.look_at = now;
                    return;
                }
            }
        }
    }
}

// === impl Functions ===

impl Functions {
    fn new(functions: &[FunctionId]) -> Self {
        let mut ids: Vec<u32> = functions.iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let runs = ids.chunk_by(|one, next| one.checked_add(1) == Some(*next));
        let ranges = runs.filter_map(|run| Some(*run.first()?..=*run.last()?));
        Self(ranges.collect())
    }

    fn contains(&self, function: FunctionId) -> bool {
        let at = self.0.partition_point(|range| *range.end() < function.0);
        self.0
            .get(at)
            .is_some_and(|range| range.contains(&function.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::frame_budget::FrameBudget;

    const SP: u64 = 0x7000;

    fn contained(functions: &[u32], ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let ids_of = |ids: &[u32]| ids.iter().copied().map(FunctionId).collect::<Vec<_>>();
        let set = Functions::new(&ids_of(functions));
        let contained = |id: &u32| set.contains(FunctionId(*id));
        ids.into_iter().filter(contained).collect()
    }

    #[test]
    fn a_set_contains_what_it_was_made_of() {
        assert_eq!(contained(&[5, 3, 4, 9, 3, 1], 0..12), [1, 3, 4, 5, 9]);
        assert_eq!(
            contained(&[u32::MAX, 0], [0, 1, u32::MAX - 1, u32::MAX]),
            [0, u32::MAX]
        );
    }

    #[test]
    fn a_mark_of_all_functions_is_met_at_its_time() {
        let switches = Switches::default();
        switches.mark_all(Ticks(100));
        for (at, over) in [(99, 0), (100, 1), (101, 1)] {
            let mut along = Along::new();
            let mut stacks = ShadowStack::new(&FrameBudget::new());
            stacks.enter(FunctionId(7), SP, 0);
            if at >= along.look_at {
                along.meet(at, &switches, &mut stacks);
            }
            assert_eq!(stacks.drop_suspects(), over, "at {at}");
        }
    }

    /// An event that is older than the kept marks matches no entry before it. Events after the
    /// marks are matched as always.
    #[test]
    fn marks_take_bounded_memory_and_what_is_forgotten_is_suspected() {
        let switches = Switches::default();
        let long_ago = ticks_now().0;
        for _ in 0..MOST_MARKS + 10 {
            switches.mark(&[FunctionId(1)]);
        }
        let many: Vec<FunctionId> = (0..100).map(|id| FunctionId(id * 2)).collect();
        let kept = |switches: &Switches| lock(&switches.marks).kept.len();
        assert_eq!(kept(&switches), MOST_MARKS);
        let switches = switches.freeze();
        for (at, function, over) in [(long_ago, 2, 1), (ticks_now().0, 2, 0)] {
            let mut along = Along::new();
            let mut stacks = ShadowStack::new(&FrameBudget::new());
            along.meet(at, &switches, &mut stacks);
            stacks.enter(FunctionId(function), SP, 0);
            if at >= along.look_at {
                along.meet(at, &switches, &mut stacks);
            }
            assert_eq!(stacks.drop_suspects(), over, "at {at}");
        }
        for _ in 0..MOST_RANGES / many.len() + 10 {
            switches.mark(&many);
        }
        assert!(lock(&switches.marks).ranges <= MOST_RANGES);
        assert!(kept(&switches) >= MOST_RANGES / many.len());
    }
}
