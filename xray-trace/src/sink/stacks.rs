//! The different stacks of a trace, with calls and self time of each. The stacks do not interpret
//! events; the caller passes begins and ends of calls.

use std::collections::HashMap;

use super::Report;
use crate::analysis::{Call, Open};
use crate::model::{FunctionId, Profile, ThreadId};

/// The greatest depth of a stack. A deeper call is counted with the call at this depth: every stack
/// is written as a whole, and infinite recursion would make the file grow with the square of the
/// depth.
const MAX_DEPTH: usize = 1000;

/// A tree of calls. All calls with the same stack are one node.
#[derive(Debug, Default)]
pub(super) struct StackTrie {
    nodes: Vec<Node>,
    /// Nodes by caller and function. Outermost calls have the number of a root as their caller.
    children: HashMap<(Parent, FunctionId), usize>,
    /// The node of each open call.
    open: Vec<usize>,
    too_deep: u64,
}

/// The caller of a node: another node, or the root that was passed to [`StackTrie::enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Parent {
    Root(u32),
    Node(usize),
}

/// All calls with the same stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) parent: Parent,
    pub(super) function: FunctionId,
    pub(super) calls: u64,
    pub(super) self_ns: u64,
}

// === impl StackTrie ===

impl StackTrie {
    /// Adds the begin of a call. An outermost call has the caller `root`. Returns the node.
    pub(super) fn enter(&mut self, root: u32, open: &Open) -> usize {
        let node = if self.open.len() >= MAX_DEPTH {
            self.too_deep += 1;
            self.open.last().copied().unwrap_or_default()
        } else {
            let parent = self
                .open
                .last()
                .map_or(Parent::Root(root), |at| Parent::Node(*at));
            self.child(parent, open.function)
        };
        self.open.push(node);
        node
    }

    /// The stacks of a profile. `root` returns the root of a thread's stacks.
    pub(super) fn of_profile(profile: &Profile, root: impl Fn(ThreadId) -> u32) -> Self {
        let mut stacks = Self::default();
        // The node of each stack, and its depth.
        let mut places = Vec::<(usize, usize)>::with_capacity(profile.stacks().len());
        for stack in profile.stacks() {
            let caller = stack.caller.and_then(|caller| places.get(caller).copied());
            let (node, depth, deep) = match caller {
                Some((node, MAX_DEPTH)) => (node, MAX_DEPTH, true),
                Some((node, depth)) => {
                    let child = stacks.child(Parent::Node(node), stack.function);
                    (child, depth + 1, false)
                }
                None => {
                    let root = Parent::Root(root(stack.thread));
                    (stacks.child(root, stack.function), 1, false)
                }
            };
            places.push((node, depth));
            if deep {
                stacks.too_deep = stacks.too_deep.saturating_add(stack.calls);
            }
            if let Some(node) = stacks.nodes.get_mut(node) {
                let calls = if deep { 0 } else { stack.calls };
                node.calls = node.calls.saturating_add(calls);
                node.self_ns = node.self_ns.saturating_add(stack.self_ns);
            }
        }
        stacks
    }

    /// The node of a call of `function` from `parent`.
    fn child(&mut self, parent: Parent, function: FunctionId) -> usize {
        let nodes = &mut self.nodes;
        let child = self.children.entry((parent, function));
        *child.or_insert_with(|| {
            nodes.push(Node {
                parent,
                function,
                calls: 0,
                self_ns: 0,
            });
            nodes.len() - 1
        })
    }

    /// Adds the end of the innermost call.
    pub(super) fn leave(&mut self, call: &Call) {
        let deep = self.open.len() > MAX_DEPTH;
        let Some(at) = self.open.pop() else { return };
        if let Some(node) = self.nodes.get_mut(at) {
            node.calls += u64::from(!deep);
            node.self_ns = node.self_ns.saturating_add(call.self_ns);
        }
    }

    /// The node of the innermost open call.
    pub(super) fn innermost(&self) -> Option<usize> {
        self.open.last().copied()
    }

    /// All nodes. A caller comes before its callees.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The functions of a stack, innermost first, and the root of the stack.
    pub(super) fn stack(&self, node: &Node) -> (Vec<FunctionId>, u32) {
        let mut stack = vec![node.function];
        let mut parent = node.parent;
        loop {
            match parent {
                Parent::Root(root) => return (stack, root),
                Parent::Node(at) => {
                    let Some(node) = self.nodes.get(at) else {
                        return (stack, 0);
                    };
                    stack.push(node.function);
                    parent = node.parent;
                }
            }
        }
    }

    #[cfg(feature = "export")]
    /// Removes all stacks, but keeps the counts for the report.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.children.clear();
        self.open.clear();
    }

    pub(super) fn tell(&self, report: &mut Report) {
        report.leave_out(
            "calls more than 1000 deep, whose time is added to the call at that depth",
            self.too_deep,
        );
    }
}
