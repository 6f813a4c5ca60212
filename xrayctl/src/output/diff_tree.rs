//! The calls of two traces as one tree, with their times before and after.
//!
//! ```text
//!     BEFORE       AFTER       CHANGE                CALLS  FUNCTION
//!   2.000 ms    3.000 ms    +1.000 ms               1 -> 1  main
//!       0 ns    1.000 ms    +1.000 ms               0 -> 9    parse
//! ```

use std::cmp::Ordering;
use std::io;

use serde::Serialize;
use xray_trace::analysis::{StackCounts, StackTrie};

use super::{Look, Tone, call_tree, text, units};

/// Characters of a line before the indentation of its name.
const FIGURES_WIDTH: usize = 10 + 2 + 10 + 2 + 11 + 2 + 19 + 2;
/// A name keeps this many characters on any terminal, with its indentation.
const NARROWEST: usize = 16;

/// The part of the tree that is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// The number of levels.
    pub(crate) levels: usize,
    /// The least time of a call, callees included, in one of the traces.
    pub(crate) min_ns: u64,
    /// The number of lines.
    pub(crate) limit: usize,
}

/// The calls of two traces as a tree, longest calls first.
#[derive(Debug, Serialize)]
pub(crate) struct DiffTree<'a> {
    lines: Vec<DiffLine<'a>>,
    /// Lines beyond the limit.
    left_out: u64,
}

#[derive(Debug, Serialize)]
struct DiffLine<'a> {
    depth: usize,
    function: &'a str,
    /// Absent if there was no such call.
    before: Option<DiffCounts>,
    after: Option<DiffCounts>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct DiffCounts {
    calls: u64,
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
}

// === impl DiffTree ===

impl<'a> DiffTree<'a> {
    pub(crate) fn new(stacks: &'a StackTrie, shown: Shown) -> Self {
        let mut children = vec![Vec::new(); stacks.nodes().len()];
        let mut next = Vec::new();
        let longest = |node: usize| {
            let [before, after] = stacks.nodes()[node].counts;
            before.total_ns.max(after.total_ns)
        };
        for (index, node) in stacks.nodes().iter().enumerate() {
            match node.parent {
                Some(parent) => children[parent].push(index),
                None => next.push((0, index)),
            }
        }
        next.sort_by_key(|(_, node)| longest(*node));
        let mut tree = Self {
            lines: Vec::new(),
            left_out: 0,
        };
        while let Some((depth, index)) = next.pop() {
            if depth >= shown.levels || longest(index) < shown.min_ns {
                continue;
            }
            let mut within = std::mem::take(&mut children[index]);
            within.sort_by_key(|node| longest(*node));
            next.extend(within.into_iter().map(|node| (depth + 1, node)));
            if tree.lines.len() >= shown.limit {
                tree.left_out += 1;
                continue;
            }
            let node = &stacks.nodes()[index];
            let [before, after] = node.counts.map(|counts| DiffCounts::new(&counts));
            tree.lines.push(DiffLine {
                depth,
                function: stacks.name(node),
                before,
                after,
            });
        }
        tree
    }

    /// Writes the tree as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let heading = format!(
            "{:>10}  {:>10}  {:>11}  {:>19}  FUNCTION",
            "BEFORE", "AFTER", "CHANGE", "CALLS"
        );
        writeln!(out, "{}", look.paint(Tone::Heading, &heading))?;
        for line in &self.lines {
            line.render(out, look)?;
        }
        if self.left_out > 0 {
            let more = units::counted(self.left_out, "more line");
            writeln!(out, "… {more}; --limit 0 shows everything")?;
        }
        Ok(())
    }
}

// === impl DiffLine ===

impl DiffLine<'_> {
    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let of = |counts: Option<DiffCounts>| {
            counts.map_or((0, 0), |counts| (counts.calls, counts.total_ns))
        };
        let ((calls_before, before), (calls_after, after)) = (of(self.before), of(self.after));
        let change = units::time(after.abs_diff(before));
        let (sign, tone) = match after.cmp(&before) {
            Ordering::Less => ("-", Tone::Good),
            Ordering::Equal => ("", Tone::Dim),
            Ordering::Greater => ("+", Tone::Bad),
        };
        let change = look.paint(tone, &format!("{:>11}", format!("{sign}{change}")));
        let calls = format!("{calls_before} -> {calls_after}");
        let name = text::printable(&look.names.show(self.function));
        let room = look.width.map_or(usize::MAX, |width| {
            width.saturating_sub(FIGURES_WIDTH).max(NARROWEST)
        });
        let indent = call_tree::indent(self.depth, room);
        let name = text::cut(&name, room - indent);
        writeln!(
            out,
            "{:>10}  {:>10}  {change}  {calls:>19}  {:indent$}{name}",
            units::time(before),
            units::time(after),
            ""
        )
    }
}

// === impl DiffCounts ===

impl DiffCounts {
    /// `None` if there was no call.
    fn new(counts: &StackCounts) -> Option<Self> {
        let StackCounts {
            calls,
            unfinished,
            leaf_calls: _,
            leaf_ns: _,
            total_ns,
            self_ns,
        } = *counts;
        (calls > 0 || total_ns > 0).then_some(Self {
            calls,
            unfinished,
            total_ns,
            self_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Names;
    use super::*;

    #[test]
    fn names_are_short_and_cut_at_the_edge_of_the_terminal() {
        let line = |depth, width, names| {
            let counts = DiffCounts {
                calls: 1,
                unfinished: 0,
                total_ns: 1_000,
                self_ns: 1_000,
            };
            let line = DiffLine {
                depth,
                function: "ns::a_function_with_a_name (.llvm.77)",
                before: Some(counts),
                after: Some(counts),
            };
            let look = Look {
                width,
                names,
                ..Look::PLAIN
            };
            let mut out = Vec::new();
            line.render(&mut out, look).unwrap();
            let out = String::from_utf8(out).unwrap();
            let name: String = out.trim_end().chars().skip(FIGURES_WIDTH).collect();
            name
        };
        let (short, full) = (Names::Short, Names::Full);
        for (depth, width, names, expected) in [
            (0, None, short, "ns::a_function_with_a_name"),
            (1, None, full, "  ns::a_function_with_a_name (.llvm.77)"),
            (0, Some(84), short, "ns::a_function_with_a_name"),
            (1, Some(84), short, "  ns::a_function_with_a_n…"),
            (0, Some(20), short, "ns::a_function_…"),
            (9, Some(20), short, "        ns::a_f…"),
        ] {
            assert_eq!(line(depth, width, names), expected);
        }
    }
}
