//! The call graph: callers and callees, with the number and the times of their calls. It does not
//! keep paths longer than one edge; `trie` does.

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

/// The most edges in a graph.
const LIMIT: usize = 100_000;

/// The call graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The edges in order of ids. Edges without a caller come first.
    pub edges: Vec<GraphEdge>,
    /// The row of each function, in order of id.
    pub functions: Vec<AccountRow>,
    /// The irregularities of the trace.
    pub notes: Notes,
    /// Calls whose edge is missing, because there were too many distinct edges.
    pub beyond: u64,
}

/// The calls of one function by another. Times are in nanoseconds, and only of calls with an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphEdge {
    /// The caller; `None` for outermost calls.
    pub caller: Option<FunctionId>,
    /// The callee.
    pub callee: FunctionId,
    /// The number of calls.
    pub calls: u64,
    /// The number of these calls without an exit.
    pub unfinished: u64,
    /// The sum of their durations.
    pub sum_ns: u64,
    /// The durations. `None` if no call finished.
    pub durations: Option<Distribution>,
}

/// The size of the cache of recently found edges.
const RECENT: usize = 4096;

#[derive(Debug, Default)]
struct Edges {
    slots: HashMap<(Option<FunctionId>, FunctionId), Slot>,
    /// Recently found edges, by some bits of caller and callee.
    recent: Vec<Option<Slot>>,
    /// The edges, with the number of calls of each that have no duration. Their durations have the
    /// same index.
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
    /// The graph of the calls that `filter` selects. Their callers are included, selected or not.
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
            // The distribution of a function is merged from the distributions of its edges.
            self.histograms.add(edge, call.duration_ns());
        }
    }

    /// The slot of an edge; `None` if there is no room for it. The cache of recent edges is
    /// searched first.
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
