//! The call tree, line by line.

use super::Filter;
use super::ordered_lines::OrderedLines;
use super::step::NoVisitor;
use super::tree_line::{Order, Shown, TreeLine};
use crate::model::Trace;

/// The lines of the tree.
#[derive(Debug)]
pub struct Tree<'a>(OrderedLines<'a, NoVisitor>);

// === impl Tree ===

impl<'a> Tree<'a> {
    /// The tree of the calls that `filter` selects, and of their callees.
    #[must_use]
    pub fn new(trace: &'a Trace, filter: &'a Filter, shown: Shown, order: Order) -> Self {
        Self(OrderedLines::new(trace, filter, (shown, order), ()))
    }

    /// The number of threads that may have lines.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.threads()
    }

    /// The number of selected calls so far that have no line: [`Shown`] leaves them out.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        self.0.hidden()
    }
}

impl Iterator for Tree<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        self.0.next()
    }
}
