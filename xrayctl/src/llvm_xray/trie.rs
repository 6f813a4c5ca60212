//! The call stacks of a log as a tree. A node is a function, called by the function of its parent.

use std::collections::HashMap;

/// The number of a node.
pub(super) type NodeId = usize;

/// A tree of calls.
#[derive(Debug)]
pub(super) struct Trie<T> {
    nodes: Vec<Node<T>>,
    /// The callee with each function of a node.
    callees: HashMap<(NodeId, i32), NodeId>,
}

/// A function, and how it was called.
#[derive(Debug)]
pub(super) struct Node<T> {
    pub(super) function: i32,
    pub(super) parent: Option<NodeId>,
    /// In the order in which they were first called.
    pub(super) callees: Vec<NodeId>,
    pub(super) data: T,
}

// === impl Trie ===

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            callees: HashMap::new(),
        }
    }
}

impl<T> Trie<T> {
    /// A node.
    ///
    /// # Panics
    ///
    /// For a number that is not of this tree.
    pub(super) fn node(&self, id: NodeId) -> &Node<T> {
        &self.nodes[id]
    }

    /// A node to change; as [`Trie::node`].
    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node<T> {
        &mut self.nodes[id]
    }

    /// Adds a node. Its caller is not changed.
    pub(super) fn add(&mut self, function: i32, parent: Option<NodeId>, data: T) -> NodeId {
        self.nodes.push(Node {
            function,
            parent,
            callees: Vec::new(),
            data,
        });
        self.nodes.len() - 1
    }

    /// Adds a node to the callees of another one.
    pub(super) fn add_callee(&mut self, caller: NodeId, callee: NodeId) {
        self.callees
            .insert((caller, self.node(callee).function), callee);
        self.node_mut(caller).callees.push(callee);
    }

    /// The callee with this function.
    pub(super) fn callee(&self, caller: NodeId, function: i32) -> Option<NodeId> {
        self.callees.get(&(caller, function)).copied()
    }

    /// The nodes from this one up to its outermost caller.
    pub(super) fn callers(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |id| self.node(*id).parent)
    }

    /// The nodes below and with this one: before its callees, and the last callee first.
    pub(super) fn walk(&self, top: NodeId) -> impl Iterator<Item = NodeId> {
        let mut waiting = vec![top];
        std::iter::from_fn(move || {
            let id = waiting.pop()?;
            waiting.extend(&self.node(id).callees);
            Some(id)
        })
    }
}
