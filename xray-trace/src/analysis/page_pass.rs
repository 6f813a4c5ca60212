//! The analyses of the HTML page in one pass: the table of functions with the spreads of their
//! durations, the stacks, and the timeline. Every event is unpacked once.

use super::Filter;
use super::account_table::{Account, GroupBy};
use super::counted_calls::{Counted, CountedCalls};
use super::part::Part;
use super::spread::Spread;
use super::step::{Both, Call, Siblings};
use super::threads::by_thread;
use super::timeline::{Drawings, Timeline, TimelineLimits, TimelinePart};
use super::trie::{Side, StackTrie, Trie};
use crate::model::Trace;

/// The results of the analyses.
#[derive(Debug)]
pub struct PagePass {
    /// The table of functions, see [`account`](super::account()).
    pub account: Account,
    /// The spread of the durations of each row of the table.
    pub spreads: Vec<Spread>,
    /// The stacks of all threads together.
    pub stacks: StackTrie,
    /// The timeline.
    pub timeline: Timeline,
}

/// The results for some threads.
#[derive(Debug, Default)]
struct Found {
    part: Part,
    trie: Trie,
    timeline: TimelinePart,
}

// === impl PagePass ===

impl PagePass {
    /// Analyses the calls that `filter` selects. `origin_ns` and `room` are for
    /// [`Timeline::new`].
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter, origin_ns: u64, room: TimelineLimits) -> Self {
        let calls = CountedCalls::new(filter, Counted::All);
        let drawings = Drawings::new(trace, filter, origin_ns, room);
        let parts = by_thread(
            trace,
            filter,
            Siblings::Closed,
            |found: &mut Found, mut steps| {
                let Found {
                    part,
                    trie,
                    timeline,
                } = found;
                let of_function = |call: &Call| (call.open.function.0, call.open.nesting as usize);
                let mut table = part.visitor(calls, of_function);
                let mut stacks = trie.visitor(filter, 0);
                timeline.draw(&drawings, &mut steps, |steps, drawing| {
                    steps.visit(&mut Both(&mut Both(&mut table, &mut stacks), drawing));
                });
                part.note(steps.notes());
            },
        );
        let mut all = Part::default();
        let mut stacks = StackTrie::default();
        let mut timelines = Vec::new();
        for found in parts {
            all.merge(found.part);
            stacks.absorb(&found.trie, trace, Side::Before);
            timelines.push(found.timeline);
        }
        let (account, spreads) = all.into_account_with(GroupBy::Function, |histograms, slot| {
            Spread::of(histograms.durations(slot))
        });
        Self {
            account,
            spreads,
            stacks,
            timeline: drawings.timeline(timelines),
        }
    }
}
