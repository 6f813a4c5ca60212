//! The call graph: who calls whom, how often, how long.

use foldhash::HashMap;

use super::Filter;
use super::account::AccountOptions;
use super::account_table::{Account, AccountRow};
use super::counted_calls::{Counted, CountedCalls};
use super::distribution::Distribution;
use super::histogram::{Histograms, Slot};
use super::part::Part;
use super::stack::Steps;
use super::step::{Call, Ending, Notes, Open, Siblings, Visitor};
use super::threads::by_thread;
use crate::model::{FunctionId, Trace};

/// Edges that are kept at most.
const LIMIT: usize = 100_000;

/// The call graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// Who calls whom, in order of ids, those that nobody calls first.
    pub edges: Vec<GraphEdge>,
    /// What is known of each function, in order of id.
    pub functions: Vec<AccountRow>,
    /// What was met that is not an ordinary call.
    pub notes: Notes,
    /// Calls whose edge is missing, because there were too many distinct ones.
    pub beyond: u64,
}

/// The calls of one function by another. Times are in nanoseconds and of calls whose exit was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphEdge {
    /// Who calls; `None` for calls that stand within no other.
    pub caller: Option<FunctionId>,
    /// Who is called.
    pub callee: FunctionId,
    /// How often.
    pub calls: u64,
    /// How many of these calls saw no exit.
    pub unfinished: u64,
    /// The sum of their durations.
    pub sum_ns: u64,
    /// The durations. `None` if no call finished.
    pub durations: Option<Distribution>,
}

/// Edges that are found without looking far.
const RECENT: usize = 4096;

#[derive(Debug, Default)]
struct Edges {
    slots: HashMap<(Option<FunctionId>, FunctionId), Slot>,
    /// Edges that were found lately, by a few bits of caller and callee.
    recent: Vec<Option<Slot>>,
    /// The edges, and how many calls of each have no duration. Their durations have the same index.
    edges: Vec<((Option<FunctionId>, FunctionId), u64)>,
    histograms: Histograms,
    functions: Part,
    beyond: u64,
}

/// Follows the calls of one thread.
struct Walk<'a> {
    edges: &'a mut Edges,
    calls: CountedCalls<'a>,
    open: Vec<FunctionId>,
}

impl Graph {
    /// The graph of the calls that `filter` wants; their callers are named whether they are wanted or not.
    #[must_use]
    pub fn new(trace: &Trace, filter: &Filter, siblings: Siblings) -> Self {
        let parts = by_thread(trace, filter, siblings, |edges: &mut Edges, steps| {
            edges.add_thread(steps, filter);
        });
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        parts.for_each(|part| all.merge(part));
        let Edges {
            edges,
            mut histograms,
            mut functions,
            beyond,
            slots: _,
            recent: _,
        } = all;
        for (slot, ((_, callee), _)) in (0..).filter_map(Slot::new).zip(&edges) {
            functions.add_durations(callee.0, &histograms, slot);
        }
        let Account { rows, notes } = functions.into_account(AccountOptions::default().by);
        let edges = (0..).filter_map(Slot::new).zip(edges);
        let edges = edges.map(|(slot, ((caller, callee), unfinished))| GraphEdge {
            caller,
            callee,
            calls: histograms.finished(slot) + unfinished,
            unfinished,
            sum_ns: histograms.sum_ns(slot),
            durations: histograms.distribution(slot),
        });
        let mut edges: Vec<_> = edges.collect();
        edges.sort_by_key(|edge| (edge.caller, edge.callee));
        Self {
            edges,
            functions: rows,
            notes,
            beyond,
        }
    }
}

// === impl Walk ===

impl Visitor for Walk<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        self.open.push(open.function);
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        self.open.pop();
        self.edges
            .leave(self.open.last().copied(), call, self.calls);
    }
}

// === impl Edges ===

impl Edges {
    fn add_thread(&mut self, mut steps: Steps<'_>, filter: &Filter) {
        steps.visit(&mut Walk {
            edges: self,
            calls: CountedCalls::new(filter, Counted::All),
            open: Vec::new(),
        });
        self.functions.note(steps.notes());
    }

    #[inline(always)]
    fn leave(&mut self, caller: Option<FunctionId>, call: &Call, calls: CountedCalls<'_>) {
        let (function, level) = (call.open.function, call.open.nesting as usize);
        let functions = &mut self.functions;
        let slot = functions.leave(call, function.0, level, calls);
        if !calls.wants(&call.open) {
            return;
        }
        let Some(edge) = self.slot((caller, function)) else {
            self.beyond += 1;
            if let Some(slot) = slot {
                self.functions.add_duration(slot, call.duration_ns());
            }
            return;
        };
        if call.how == Ending::Closed {
            let (_, unfinished) = &mut self.edges[edge.index()];
            *unfinished += 1;
        } else {
            // The function's distribution is made of those of its edges.
            self.histograms.add(edge, call.duration_ns());
        }
    }

    /// Where an edge is; `None` if there is no room for it. It is at first looked for where edges like it were found the last time.
    #[inline(always)]
    fn slot(&mut self, edge: (Option<FunctionId>, FunctionId)) -> Option<Slot> {
        let (caller, callee) = edge;
        let caller = caller.map_or(u32::MAX, |caller| caller.0);
        let place = caller.wrapping_mul(31).wrapping_add(callee.0) as usize % RECENT;
        if let Some(slot) = self.recent.get(place).copied().flatten()
            && let Some((found, _)) = self.edges.get(slot.index())
            && *found == edge
        {
            return Some(slot);
        }
        let slot = self.find(edge)?;
        self.recent.resize(RECENT, None);
        self.recent[place] = Some(slot);
        Some(slot)
    }

    #[inline(never)]
    fn find(&mut self, edge: (Option<FunctionId>, FunctionId)) -> Option<Slot> {
        if let Some(slot) = self.slots.get(&edge) {
            return Some(*slot);
        }
        if self.edges.len() >= LIMIT {
            return None;
        }
        let slot = self.histograms.create()?;
        self.edges.push((edge, 0));
        self.slots.insert(edge, slot);
        Some(slot)
    }

    fn merge(&mut self, other: Self) {
        self.functions.merge(other.functions);
        self.beyond += other.beyond;
        let others = (0..).filter_map(Slot::new).zip(other.edges);
        for (slot, (edge, unfinished)) in others {
            match self.slot(edge) {
                None => {
                    self.beyond += other.histograms.finished(slot) + unfinished;
                    let (_, callee) = edge;
                    self.functions
                        .add_durations(callee.0, &other.histograms, slot);
                }
                Some(own) => {
                    self.edges[own.index()].1 += unfinished;
                    self.histograms.merge(own, &other.histograms, slot);
                }
            }
        }
    }
}
