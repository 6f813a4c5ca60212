//! Stacks of calls: the top stacks call by call, or all stacks folded.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

use xray_trace::analysis::{StackCounts, StackTrie};

use super::{Names, text, units};

/// The measure of folded stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folded {
    SelfTime,
    Calls,
}

/// The stacks that [`human`] shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Top {
    pub(crate) limit: usize,
    /// True if the outermost element of each stack is its thread.
    pub(crate) per_thread: bool,
    /// True if there is a trace before and one after.
    pub(crate) diff: bool,
    /// True if times are nanoseconds, not ticks.
    pub(crate) calibrated: bool,
    /// The form of the names of functions.
    pub(crate) names: Names,
}

/// The note that the stacks were too many to keep all apart.
pub(crate) fn note(stacks: &StackTrie) -> Option<String> {
    let beyond = stacks.beyond();
    let what = "too many distinct stacks; these are shown as [more stacks]";
    (beyond > 0).then(|| format!("{}: {what}", units::counted(beyond, "call")))
}

/// A line per stack, `main;f 7`; with `diff`, `main;f 7 8`. In order of names.
pub(crate) fn folded(stacks: &StackTrie, by: Folded, diff: bool) -> Vec<String> {
    let value = |counts: &StackCounts| match by {
        Folded::SelfTime => counts.self_ns,
        Folded::Calls => counts.calls,
    };
    let mut lines = Vec::new();
    for (index, node) in stacks.nodes().iter().enumerate() {
        let [before, after] = [value(&node.counts[0]), value(&node.counts[1])];
        if before == 0 && after == 0 {
            continue;
        }
        let path = stacks.path(index).into_iter();
        let path: Vec<_> = path
            .map(|name| text::printable(name).replace(';', ":"))
            .collect();
        let path = path.join(";");
        lines.push(if diff {
            format!("{path} {before} {after}")
        } else {
            format!("{path} {before}")
        });
    }
    lines.sort();
    lines
}

/// Writes the top stacks by the time and by the number of their leaf calls; with `diff`, the stacks
/// whose self time changed most.
pub(crate) fn human(stacks: &StackTrie, top: Top, out: &mut dyn io::Write) -> io::Result<()> {
    let counts = |node: usize| stacks.nodes()[node].counts;
    let mut groups = BTreeMap::<usize, Vec<usize>>::new();
    let mut roots = Vec::<usize>::new();
    for (index, node) in stacks.nodes().iter().enumerate() {
        let root = match node.parent {
            Some(parent) => roots[parent],
            None if top.per_thread => index,
            None => 0,
        };
        roots.push(root);
        let group = groups.entry(root).or_default();
        if node.parent.is_some() || !top.per_thread {
            group.push(index);
        }
    }
    for (root, nodes) in groups {
        if top.per_thread {
            let name = stacks
                .name(&stacks.nodes()[root])
                .replace("thread_", "Thread ");
            writeln!(out, "{name}:")?;
        }
        if top.diff {
            let change = |node: &usize| {
                let [before, after] = counts(*node);
                after.self_ns.abs_diff(before.self_ns)
            };
            let changed = ranked(&nodes, top.limit, change);
            writeln!(
                out,
                "\nTop {} Stacks by change of self time:\n",
                changed.len()
            )?;
            for node in changed {
                print(stacks, top, node, out)?;
            }
            continue;
        }
        let unique = nodes.iter().filter(|node| counts(**node)[0].leaf_calls > 0);
        writeln!(out, "\nUnique Stacks: {}", unique.count())?;
        let sums = ranked(&nodes, top.limit, |node| counts(*node)[0].leaf_ns);
        writeln!(out, "Top {} Stacks by leaf sum:\n", shown(top, &sums))?;
        for node in sums {
            writeln!(out, "Sum: {}", top.time(counts(node)[0].leaf_ns))?;
            print(stacks, top, node, out)?;
        }
        let most = ranked(&nodes, top.limit, |node| counts(*node)[0].leaf_calls);
        writeln!(out, "\nTop {} Stacks by leaf count:\n", shown(top, &most))?;
        for node in most {
            writeln!(out, "Count: {}", counts(node)[0].leaf_calls)?;
            print(stacks, top, node, out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

// === impl Top ===

impl Top {
    /// The time in seconds, or in ticks.
    fn time(self, ns: u64) -> String {
        if self.calibrated {
            format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
        } else {
            ns.to_string()
        }
    }
}

/// The number in the heading: the limit, or the number of all stacks.
fn shown(top: Top, found: &[usize]) -> usize {
    if top.limit == usize::MAX {
        found.len()
    } else {
        top.limit
    }
}

fn ranked(nodes: &[usize], limit: usize, by: impl Fn(&usize) -> u64) -> Vec<usize> {
    let mut found: Vec<_> = nodes.iter().copied().filter(|node| by(node) > 0).collect();
    found.sort_by_key(|node| (Reverse(by(node)), *node));
    found.truncate(limit);
    found
}

/// Writes a stack call by call, the outermost first.
fn print(stacks: &StackTrie, top: Top, node: usize, out: &mut dyn io::Write) -> io::Result<()> {
    let indexes = std::iter::successors(Some(node), |node| stacks.nodes()[*node].parent);
    let mut indexes: Vec<_> = indexes.collect();
    indexes.reverse();
    if top.diff {
        writeln!(
            out,
            "{:<5} {:<60} {:>12} {:>16} {:>16} {:>16} {:>16}",
            "lvl", "function", "count", "sum before", "after", "self before", "after"
        )?;
    } else {
        writeln!(
            out,
            "{:<5} {:<60} {:>12} {:>16} {:>16}",
            "lvl", "function", "count", "sum", "self"
        )?;
    }
    for (level, index) in indexes
        .into_iter()
        .skip(usize::from(top.per_thread))
        .enumerate()
    {
        let node = &stacks.nodes()[index];
        let name = text::printable(&top.names.show(stacks.name(node)));
        let name = if name.chars().count() > 60 {
            format!("{}...", name.chars().take(57).collect::<String>())
        } else {
            name
        };
        let [before, after] = node.counts;
        write!(out, "#{level:<4} {name:<60}")?;
        if top.diff {
            let calls = format!("{} -> {}", before.calls, after.calls);
            write!(out, " {calls:>12}")?;
            for ns in [
                before.total_ns,
                after.total_ns,
                before.self_ns,
                after.self_ns,
            ] {
                write!(out, " {:>16}", top.time(ns))?;
            }
            writeln!(out)?;
        } else {
            let (sum, own) = (top.time(before.total_ns), top.time(before.self_ns));
            writeln!(out, " {:>12} {sum:>16} {own:>16}", before.calls)?;
        }
    }
    writeln!(out)
}
