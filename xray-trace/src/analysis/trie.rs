//! Distinct stacks of calls, as a prefix tree, with the number and the times of their calls.
//!
//! Memory grows with the number of distinct stacks, up to a limit. Calls beyond it are counted as
//! `[more stacks]` within their known part.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Filter;
use super::stack::Steps;
use super::step::{Call, Ending, Notes, Open, Siblings, Visitor};
use super::threads::by_thread;
use crate::model::{FunctionId, ThreadId, Trace};

/// The most stacks that are kept apart. There can be twice as many nodes.
const LIMIT: usize = 200_000;

/// The name of stacks beyond the limit.
const MORE: &str = "[more stacks]";

/// A stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackNode {
    /// The stack without its innermost call, as an index of [`StackTrie::nodes`]. `None` for
    /// outermost calls.
    pub parent: Option<usize>,
    /// The function or thread of the innermost call, as an index for [`StackTrie::name`].
    name: u32,
    /// The counts in the first trace, and in the second one.
    pub counts: [StackCounts; 2],
}

/// The number and the times of a stack's calls. Times are in nanoseconds. A call without an exit
/// counts up to the last moment at which it was certainly open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// The number of calls.
    pub calls: u64,
    /// The number of calls without an exit.
    pub unfinished: u64,
    /// The number of calls without callees.
    pub leaf_calls: u64,
    /// The time in calls without callees.
    pub leaf_ns: u64,
    /// The time within the calls, with their callees: the sum of the `self_ns` of this stack and of
    /// all its continuations.
    pub total_ns: u64,
    /// The time within the calls, without their callees.
    pub self_ns: u64,
}

/// One of two traces in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The only trace, or the one to compare with.
    Before,
    /// The other trace.
    After,
}

/// Whether the stacks of threads are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StackRoots {
    /// One set of stacks for all threads.
    Together,
    /// The outermost entry of each stack is its thread, named `thread_` and its kernel thread id.
    PerThread,
}

/// The distinct stacks of one trace or several, by the names of functions.
#[derive(Debug, Default)]
pub struct StackTrie {
    names: Vec<String>,
    by_name: HashMap<String, u32>,
    nodes: Vec<StackNode>,
    children: HashMap<(Option<usize>, u32), usize>,
    /// The number of calls in `[more stacks]`.
    beyond: u64,
    /// The number of calls that [`Self::add_off_cpu`] has added without a time.
    unknown_off_cpu: u64,
}

/// The stacks of some threads of one trace.
#[derive(Debug, Default)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Nodes by parent + 1 (0 for none) and key.
    children: foldhash::HashMap<(u32, Key), u32>,
    notes: Notes,
    beyond: u64,
    /// The number of calls whose time without a processor is not known.
    unknown_off_cpu: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Function(FunctionId),
    Thread(ThreadId),
    More,
}

/// A node; it fills one line of a processor's cache.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    parent: u32,
    key: Key,
    /// The nodes + 1 that came next when this node was last met: its first callee, and its caller's
    /// next callee. Programs repeat themselves, so the same node usually comes again, and no
    /// look-up is needed.
    first: u32,
    next: u32,
    counts: NodeCounts,
}

/// [`StackCounts`] without the total, which is computed at the end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeCounts {
    pub(super) calls: u64,
    pub(super) unfinished: u64,
    pub(super) leaf_calls: u64,
    pub(super) leaf_ns: u64,
    pub(super) self_ns: u64,
}

/// The path of one thread through the trie.
pub(super) struct Path<'a> {
    trie: &'a mut Trie,
    filter: &'a Filter,
    /// The node + 1 around outermost calls.
    root: u32,
    /// The node + 1 of each open call; 0 for a call that is not selected.
    open: Vec<u32>,
    /// The depth of the outermost open call of a selected function.
    inside: Option<usize>,
    /// The node + 1 of the last callee of the innermost open call; 0 before its first callee.
    called: u32,
}

/// A path whose calls take the time for which their thread had no processor.
struct OffCpuPath<'a>(Path<'a>);

// === impl StackCounts ===

impl StackCounts {
    fn add(&mut self, other: &NodeCounts, total_ns: u64) {
        let NodeCounts {
            calls,
            unfinished,
            leaf_calls,
            leaf_ns,
            self_ns,
        } = *other;
        self.calls += calls;
        self.unfinished += unfinished;
        self.leaf_calls += leaf_calls;
        self.leaf_ns = self.leaf_ns.saturating_add(leaf_ns);
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
    }
}

// === impl StackTrie ===

impl StackTrie {
    /// Adds the stacks of a trace. If the filter selects functions, stacks begin with the outermost
    /// call of one of them. Returns the irregularities of the trace.
    pub fn add(
        &mut self,
        trace: &Trace,
        filter: &Filter,
        siblings: Siblings,
        roots: StackRoots,
        side: Side,
    ) -> Notes {
        let parts = by_thread(trace, filter, siblings, |trie: &mut Trie, steps| {
            trie.add(steps, filter, roots);
        });
        self.absorb_all(&parts, trace, side)
    }

    /// The same with the time for which threads had no processor in the place of all time. Calls of
    /// which it is not known count without a time.
    pub fn add_off_cpu(
        &mut self,
        trace: &Trace,
        filter: &Filter,
        siblings: Siblings,
        roots: StackRoots,
        side: Side,
    ) -> Notes {
        let parts = by_thread(trace, filter, siblings, |trie: &mut Trie, mut steps| {
            let root = trie.root(&steps, roots);
            steps.visit(&mut OffCpuPath(trie.visitor(filter, root)));
            trie.notes.add(steps.notes());
        });
        self.absorb_all(&parts, trace, side)
    }

    /// All stacks. A stack comes after the stack that it continues.
    #[must_use]
    pub fn nodes(&self) -> &[StackNode] {
        &self.nodes
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, node: &StackNode) -> &str {
        &self.names[node.name as usize]
    }

    /// The number of calls in `[more stacks]`, because there were too many distinct stacks.
    #[must_use]
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The number of calls without a time, because it is not known for how long their thread had no
    /// processor.
    #[must_use]
    pub fn unknown_off_cpu(&self) -> u64 {
        self.unknown_off_cpu
    }

    /// The names of a stack, the outermost first.
    #[must_use]
    pub fn path(&self, node: usize) -> Vec<&str> {
        let nodes = std::iter::successors(Some(node), |node| self.nodes[*node].parent);
        let mut names: Vec<_> = nodes.map(|node| self.name(&self.nodes[node])).collect();
        names.reverse();
        names
    }

    /// Adds the stacks of all threads of a trace. Returns their irregularities.
    fn absorb_all(&mut self, parts: &[Trie], trace: &Trace, side: Side) -> Notes {
        let mut notes = Notes::default();
        for part in parts {
            notes.add(part.notes);
            self.absorb(part, trace, side);
        }
        notes
    }

    pub(super) fn absorb(&mut self, trie: &Trie, trace: &Trace, side: Side) {
        self.beyond += trie.beyond;
        self.unknown_off_cpu += trie.unknown_off_cpu;
        let mut totals: Vec<u64> = trie.nodes.iter().map(|node| node.counts.self_ns).collect();
        for (index, node) in trie.nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent.checked_sub(1) {
                totals[parent as usize] = totals[parent as usize].saturating_add(totals[index]);
            }
        }
        let mut places = Vec::<usize>::with_capacity(trie.nodes.len());
        for (node, total_ns) in trie.nodes.iter().zip(totals) {
            let name = match node.key {
                Key::Function(function) => self.name_index(&trace.function_name(function)),
                Key::Thread(thread) => {
                    let tid = trace.thread(thread).map_or(thread.0, |thread| thread.tid);
                    self.name_index(&format!("thread_{tid}"))
                }
                Key::More => self.name_index(MORE),
            };
            let parent = node.parent.checked_sub(1);
            let parent = parent.map(|parent| places[parent as usize]);
            let place = self.child(parent, name);
            places.push(place);
            self.nodes[place].counts[side as usize].add(&node.counts, total_ns);
        }
    }

    fn name_index(&mut self, name: &str) -> u32 {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        // There are at most as many names as functions and threads, whose ids have 32 bits.
        let index = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), index);
        index
    }

    fn child(&mut self, parent: Option<usize>, name: u32) -> usize {
        match self.children.entry((parent, name)) {
            Entry::Occupied(there) => *there.get(),
            Entry::Vacant(place) => {
                self.nodes.push(StackNode {
                    parent,
                    name,
                    counts: Default::default(),
                });
                *place.insert(self.nodes.len() - 1)
            }
        }
    }
}

// === impl Trie ===

impl Trie {
    fn add(&mut self, mut steps: Steps<'_>, filter: &Filter, roots: StackRoots) {
        let root = self.root(&steps, roots);
        steps.visit(&mut self.visitor(filter, root));
        self.notes.add(steps.notes());
    }

    /// The node + 1 around outermost calls of a thread.
    fn root(&mut self, steps: &Steps<'_>, roots: StackRoots) -> u32 {
        match roots {
            StackRoots::Together => 0,
            StackRoots::PerThread => self.child(0, Key::Thread(steps.thread())),
        }
    }

    /// A visitor that adds the stacks of a thread. `root` is the node + 1 around outermost calls.
    pub(super) fn visitor<'a>(&'a mut self, filter: &'a Filter, root: u32) -> Path<'a> {
        Path {
            trie: self,
            filter,
            root,
            open: Vec::new(),
            inside: None,
            called: 0,
        }
    }

    /// The node of this function within `parent`. The node that came last time, after `sibling` if
    /// there is one, is tried first.
    #[inline(always)]
    fn called(&mut self, parent: u32, sibling: u32, function: FunctionId) -> u32 {
        let key = Key::Function(function);
        let before = if sibling == 0 { parent } else { sibling };
        let expected = self.node(before).map_or(0, |before| match sibling {
            0 => before.first,
            _ => before.next,
        });
        if let Some(node) = self.node(expected)
            && node.key == key
            && node.parent == parent
        {
            return expected;
        }
        let child = self.child(parent, key);
        if let Some(before) = before.checked_sub(1) {
            let before = &mut self.nodes[before as usize];
            match sibling {
                0 => before.first = child,
                _ => before.next = child,
            }
        }
        child
    }

    /// The node with this index + 1.
    #[inline(always)]
    fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node.checked_sub(1)? as usize)
    }

    /// The node of this key within `parent`. Both are a node + 1; `parent` can be 0.
    #[inline(never)]
    pub(super) fn child(&mut self, parent: u32, key: Key) -> u32 {
        let in_more = parent
            .checked_sub(1)
            .is_some_and(|parent| self.nodes[parent as usize].key == Key::More);
        if in_more {
            return parent;
        }
        if let Some(child) = self.children.get(&(parent, key)) {
            return *child;
        }
        if self.nodes.len() >= LIMIT && key != Key::More {
            return self.child(parent, Key::More);
        }
        self.nodes.push(Node {
            parent,
            key,
            first: 0,
            next: 0,
            counts: NodeCounts::default(),
        });
        let child = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.children.insert((parent, key), child);
        child
    }

    /// Adds to the counts of the node with this index + 1.
    #[inline(always)]
    pub(super) fn count(&mut self, node: u32, counts: &NodeCounts) {
        let node = node
            .checked_sub(1)
            .map(|node| &mut self.nodes[node as usize]);
        if let Some(node) = node {
            self.beyond += if node.key == Key::More {
                counts.calls
            } else {
                0
            };
            node.counts.add(counts);
        }
    }
}

// === impl NodeCounts ===

impl NodeCounts {
    #[inline(always)]
    fn add(&mut self, other: &Self) {
        let Self {
            calls,
            unfinished,
            leaf_calls,
            leaf_ns,
            self_ns,
        } = *other;
        self.calls += calls;
        self.unfinished += unfinished;
        self.leaf_calls += leaf_calls;
        self.leaf_ns = self.leaf_ns.saturating_add(leaf_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
    }
}

// === impl Path ===

impl Visitor for Path<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        let sibling = std::mem::take(&mut self.called);
        if self.inside.is_none() && self.filter.wants_function(open.function) {
            self.inside = Some(open.depth);
        }
        let node = match self.inside {
            None => 0,
            Some(outermost) => {
                let caller = if open.depth == outermost {
                    self.root
                } else {
                    self.open.last().copied().unwrap_or(self.root)
                };
                self.trie.called(caller, sibling, open.function)
            }
        };
        self.open.push(node);
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        let called_nothing = self.called == 0;
        let node = self.open.pop();
        self.called = node.unwrap_or(0);
        if self.inside == Some(call.open.depth) {
            self.inside = None;
        }
        let Some(node) = node.filter(|_| self.filter.wants_time(call.open.start)) else {
            return;
        };
        let counts = NodeCounts {
            calls: 1,
            unfinished: u64::from(call.how == Ending::Closed),
            leaf_calls: u64::from(called_nothing),
            leaf_ns: if called_nothing {
                call.duration_ns()
            } else {
                0
            },
            self_ns: call.self_ns,
        };
        self.trie.count(node, &counts);
    }
}

// === impl OffCpuPath ===

impl Visitor for OffCpuPath<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        self.0.enter(open);
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        self.0.trie.unknown_off_cpu += u64::from(call.off_cpu.is_none());
        let off = call.off_cpu.unwrap_or_default();
        self.0.leave(&Call {
            end_ns: call.open.start_ns.saturating_add(off.total_ns),
            self_ns: off.self_ns,
            ..*call
        });
    }
}
