//! The call graph: who calls whom, how often, how long.

use foldhash::HashMap;

use super::account::{Account, AccountOptions, AccountRow, Distribution};
use super::gathered::Durations;
use super::histogram::{Histograms, Slot};
use super::part::Part;
use super::stack::Steps;
use super::step::{Call, Ending, Notes, Open, Siblings, Visitor};
use super::threads::by_thread;
use super::{Counted, Filter};
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
    indexes: HashMap<(Option<FunctionId>, FunctionId), usize>,
    /// Where edges were found lately, by a few bits of caller and callee.
    recent: Vec<u32>,
    edges: Vec<((Option<FunctionId>, FunctionId), Gathered, Slot)>,
    histograms: Histograms,
    functions: Part,
    beyond: u64,
}

/// Follows the calls of one thread.
struct Walk<'a> {
    edges: &'a mut Edges,
    filter: &'a Filter,
    open: Vec<FunctionId>,
}

/// What is gathered about one edge.
#[derive(Debug, Clone, Copy, Default)]
struct Gathered {
    unfinished: u64,
    durations: Durations,
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
            indexes: _,
            recent: _,
        } = all;
        histograms.count();
        for ((_, callee), _, slot) in &edges {
            functions.add_durations(callee.0, &histograms, *slot);
        }
        let Account { rows, notes } = functions.into_account(AccountOptions::default().by);
        let edges = edges
            .into_iter()
            .map(|((caller, callee), edge, slot)| GraphEdge {
                caller,
                callee,
                calls: edge.calls(),
                unfinished: edge.unfinished,
                sum_ns: edge.durations.sum_ns(),
                durations: edge.durations.distribution(slot, &mut histograms),
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
            .leave(self.open.last().copied(), call, self.filter);
    }
}

// === impl Edges ===

impl Edges {
    fn add_thread(&mut self, mut steps: Steps<'_>, filter: &Filter) {
        steps.visit(&mut Walk {
            edges: self,
            filter,
            open: Vec::new(),
        });
        self.functions.note(steps.notes());
    }

    #[inline(always)]
    fn leave(&mut self, caller: Option<FunctionId>, call: &Call, filter: &Filter) {
        let (function, level) = (call.open.function, call.open.nesting as usize);
        let functions = &mut self.functions;
        let slot = functions.leave(call, function.0, level, filter, Counted::All);
        if !filter.wants_call(&call.open) {
            return;
        }
        let Some(index) = self.index((caller, function)) else {
            self.beyond += 1;
            if let Some(slot) = slot {
                self.functions.add_duration(slot, call.duration_ns());
            }
            return;
        };
        let (_, edge, slot) = &mut self.edges[index];
        if call.how == Ending::Closed {
            edge.unfinished += 1;
        } else {
            // The function's distribution is made of those of its edges.
            edge.durations.add(call.duration_ns());
            self.histograms.add(*slot, call.duration_ns());
        }
    }

    /// Where an edge is; `None` if there is no room for it. It is at first looked for where edges like it were found the last time.
    #[inline(always)]
    fn index(&mut self, edge: (Option<FunctionId>, FunctionId)) -> Option<usize> {
        let (caller, callee) = edge;
        let caller = caller.map_or(u32::MAX, |caller| caller.0);
        let place = caller.wrapping_mul(31).wrapping_add(callee.0) as usize % RECENT;
        if let Some(index) = self.recent.get(place).copied()
            && let Some((found, ..)) = self.edges.get(index as usize)
            && *found == edge
        {
            return Some(index as usize);
        }
        let index = self.find(edge)?;
        self.recent.resize(RECENT, 0);
        self.recent[place] = u32::try_from(index).unwrap_or(0);
        Some(index)
    }

    #[inline(never)]
    fn find(&mut self, edge: (Option<FunctionId>, FunctionId)) -> Option<usize> {
        if let Some(index) = self.indexes.get(&edge) {
            return Some(*index);
        }
        let index = self.edges.len();
        if index >= LIMIT {
            return None;
        }
        let slot = self.histograms.create()?;
        self.edges.push((edge, Gathered::default(), slot));
        self.indexes.insert(edge, index);
        Some(index)
    }

    fn merge(&mut self, mut other: Self) {
        self.functions.merge(other.functions);
        self.beyond += other.beyond;
        other.histograms.count();
        for (edge, gathered, slot) in other.edges {
            match self.index(edge) {
                None => {
                    self.beyond += gathered.calls();
                    let (_, callee) = edge;
                    self.functions
                        .add_durations(callee.0, &other.histograms, slot);
                }
                Some(index) => {
                    let (_, own, own_slot) = &mut self.edges[index];
                    own.unfinished += gathered.unfinished;
                    own.durations.merge(gathered.durations);
                    self.histograms.merge(*own_slot, &other.histograms, slot);
                }
            }
        }
    }
}

// === impl Gathered ===

impl Gathered {
    fn calls(&self) -> u64 {
        self.durations.finished() + self.unfinished
    }
}
