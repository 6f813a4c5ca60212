//! `llvm-xray stack`: the call stacks with the most calls and the longest times.

use std::collections::HashMap;
use std::io::{self, Write};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::log::{Log, Order};
use super::names::Names;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;
use super::record::{Record, Step};
use super::trie::{NodeId, Trie};

pub(super) const COMMAND: Command = Command {
    name: "stack",
    about: "Call stack accounting",
    inputs: Inputs::Many("<xray trace>"),
    options: &[
        Opt {
            name: "aggregate-threads",
            alias: "",
            value: ValueKind::Flag,
            about: "Aggregate stack times across threads",
        },
        Opt {
            name: "aggregation-type",
            alias: "",
            value: ValueKind::OneOf(&["time", "count"]),
            about: "The number behind each stack",
        },
        Opt {
            name: "all-stacks",
            alias: "all",
            value: ValueKind::Flag,
            about: "Dump the sums of all stacks, by default of each thread",
        },
        Opt {
            name: "instr_map",
            alias: "m",
            value: ValueKind::Text("binary with xray_instr_map"),
            about: "The binary with the instrumentation map, or a separate map",
        },
        Opt {
            name: "keep-going",
            alias: "k",
            value: ValueKind::Flag,
            about: "Keep going on errors encountered",
        },
        Opt {
            name: "per-thread-stacks",
            alias: "",
            value: ValueKind::Flag,
            about: "Report the top stacks of each thread",
        },
        Opt {
            name: "stack-format",
            alias: "",
            value: ValueKind::OneOf(&["human", "flame"]),
            about: "The output format: human without --all-stacks, flame with it",
        },
    ],
};

/// The longest name in a table, and what is left of a longer one.
const NAME_LEN: usize = 60;
const CUT_NAME_LEN: usize = 57;
/// The number of stacks in each table.
const TOP: usize = 10;

/// The stacks of all threads.
#[derive(Debug, Default)]
struct Stacks {
    trie: Trie<Times>,
    roots: DenseMap<u32, Vec<NodeId>>,
    /// The root with each function of a thread.
    root_of: HashMap<(u32, i32), NodeId>,
    /// The open calls of each thread, with the counter at their entries.
    open: DenseMap<u32, Vec<(NodeId, u64)>>,
}

/// The times of a stack's calls.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// Of calls that called nothing.
    leaf: Sum,
    /// Of calls that called others.
    inner: Sum,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: u64,
    ticks: u64,
}

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let path = args.text("instr_map", "");
    let names = Names::open(path).map_err(|failure| {
        let path = path.to_string_lossy();
        failure.in_context(format!("Cannot open instrumentation map: {path}"))
    })?;
    let refuse = |what: &str| Err(Failure::new(what));
    let by_thread = args.flag("per-thread-stacks");
    let aggregated = args.flag("aggregate-threads");
    let all = args.flag("all-stacks");
    let is_human = args.word("stack-format", "human") == "human";
    if by_thread && aggregated {
        return refuse(
            "Can't specify options for per thread reporting and reporting that aggregates threads.",
        );
    }
    if !all && !is_human {
        return refuse("Can't specify a non-human format without -all-stacks.");
    }
    if all && is_human {
        return refuse("You must specify a non-human format when reporting with -all-stacks.");
    }
    let mut stacks = Stacks::default();
    for input in args.inputs() {
        let log = match Log::load(input, Order::File) {
            Ok(log) => log,
            Err(failure) if args.flag("keep-going") => {
                let _ = writeln!(io::stderr(), "{failure}");
                continue;
            }
            Err(failure) => {
                let input = input.to_string_lossy();
                return Err(failure.in_context(format!("Failed loading input file '{input}'")));
            }
        };
        let mut after_exit = false;
        for record in &log.records {
            if stacks.take(record, &mut after_exit) {
                continue;
            }
            let message = unmatched(record, &names);
            if !args.flag("keep-going") {
                return Err(Failure::new(message));
            }
            let _ = io::stderr().write_all(message.as_bytes());
        }
    }
    if stacks.roots.is_empty() {
        return refuse("No instrumented calls were accounted in the input file.");
    }
    let output = Output::standard();
    let counts = args.word("aggregation-type", "time") == "count";
    let merged = if aggregated {
        stacks.merge()
    } else {
        Vec::new()
    };
    output.write(|out| match (all, aggregated) {
        (true, true) => stacks.write_all(&merged, None, counts, &names, out),
        (true, false) => {
            let mut threads = stacks.roots.iter();
            threads.try_for_each(|(tid, roots)| {
                stacks.write_all(roots, Some(*tid), counts, &names, out)
            })
        }
        (false, true) => stacks.write_top(&merged, &names, out),
        (false, false) if by_thread => {
            let mut threads = stacks.roots.iter();
            threads.try_for_each(|(tid, roots)| {
                writeln!(out, "Thread {tid}:")?;
                stacks.write_top(roots, &names, out)?;
                writeln!(out)
            })
        }
        (false, false) => {
            let roots = stacks.roots.iter().flat_map(|(_, roots)| roots);
            let roots = roots.copied().collect::<Vec<_>>();
            stacks.write_top(&roots, &names, out)
        }
    })
}

/// The text for an exit without an entry.
fn unmatched(record: &Record, names: &Names) -> String {
    let (name, tid) = (names.name(record.function), record.tid);
    let kind = match record.record_type {
        0 => "Fn Entry",
        1 => "Fn Exit",
        _ => "Unknown",
    };
    format!(
        "Found record {{FuncId: \"{name}\", ThreadId: \"{tid}\", RecordType: \"{kind}\"}} \
         with no matching function entry\n"
    )
}

// === impl Stacks ===

impl Stacks {
    /// Takes a record; false for an exit without an entry.
    fn take(&mut self, record: &Record, after_exit: &mut bool) -> bool {
        let (function, tsc) = (record.function, record.tsc);
        let open = self.open.entry(record.tid);
        match record.step() {
            Step::None => true,
            Step::Enter => {
                *after_exit = false;
                let caller = open.last().map(|(node, _)| *node);
                let known = match caller {
                    Some(caller) => self.trie.callee(caller, function),
                    None => self.root_of.get(&(record.tid, function)).copied(),
                };
                let node = known.unwrap_or_else(|| {
                    let node = self.trie.add(function, caller, Times::default());
                    match caller {
                        Some(caller) => self.trie.add_callee(caller, node),
                        None => {
                            self.root_of.insert((record.tid, function), node);
                            self.roots.entry(record.tid).push(node);
                        }
                    }
                    node
                });
                open.push((node, tsc));
                true
            }
            Step::Exit => {
                let was_exit = std::mem::replace(after_exit, true);
                let Some(deepest) = open.len().checked_sub(1) else {
                    return false;
                };
                let mut calls = open.iter();
                let entry = calls.rposition(|(node, _)| self.trie.node(*node).function == function);
                // Without an entry, LLVM closes all calls.
                for (at, (node, since)) in open.iter().enumerate().skip(entry.unwrap_or(0)) {
                    let times = &mut self.trie.node_mut(*node).data;
                    let is_leaf = at == deepest && !was_exit;
                    let sum = if is_leaf {
                        &mut times.leaf
                    } else {
                        &mut times.inner
                    };
                    sum.add(since.abs_diff(tsc));
                }
                open.truncate(entry.unwrap_or(0));
                entry.is_some()
            }
        }
    }

    /// The stacks of all threads as one tree. Nodes that only one thread has stay as they are.
    fn merge(&mut self) -> Vec<NodeId> {
        let roots = self.roots.iter().flat_map(|(_, roots)| roots);
        let roots = roots.copied().collect::<Vec<_>>();
        // LLVM moves a merged root to the end.
        let mut merged = HashMap::<i32, (usize, NodeId)>::new();
        for (place, root) in roots.into_iter().enumerate() {
            let function = self.trie.node(root).function;
            let node = match merged.get(&function) {
                None => root,
                Some((_, other)) => self.merge_nodes(*other, root),
            };
            merged.insert(function, (place, node));
        }
        let mut merged = merged.into_values().collect::<Vec<_>>();
        merged.sort_unstable();
        merged.into_iter().map(|(_, node)| node).collect()
    }

    /// Adds a node with the sums of two nodes, and below it nodes for the callees of both.
    fn merge_nodes(&mut self, left: NodeId, right: NodeId) -> NodeId {
        let top = self.add_sum_of(left, right, None);
        let mut waiting = vec![(left, right, top)];
        while let Some((left, right, node)) = waiting.pop() {
            let mut of_left = DenseMap::<i32, NodeId>::default();
            for callee in &self.trie.node(left).callees {
                *of_left.entry(self.trie.node(*callee).function) = *callee;
            }
            for callee in self.trie.node(right).callees.clone() {
                let added = match of_left.remove(&self.trie.node(callee).function) {
                    Some(other) => {
                        let both = self.add_sum_of(other, callee, Some(node));
                        waiting.push((other, callee, both));
                        both
                    }
                    None => callee,
                };
                self.trie.add_callee(node, added);
            }
            let rest = of_left.iter().map(|(_, callee)| *callee);
            self.trie.node_mut(node).callees.extend(rest);
        }
        top
    }

    fn add_sum_of(&mut self, left: NodeId, right: NodeId, parent: Option<NodeId>) -> NodeId {
        let [a, b] = [left, right].map(|node| self.trie.node(node).data);
        let both = Times {
            leaf: a.leaf.with(b.leaf),
            inner: a.inner.with(b.inner),
        };
        self.trie.add(self.trie.node(left).function, parent, both)
    }

    /// Writes all stacks for flame graphs.
    fn write_all(
        &self,
        roots: &[NodeId],
        tid: Option<u32>,
        counts: bool,
        names: &Names,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for node in roots.iter().flat_map(|root| self.trie.walk(*root)) {
            if let Some(tid) = tid {
                write!(out, "thread_{tid};")?;
            }
            let callers = self.trie.callers(node).collect::<Vec<_>>();
            for caller in callers.into_iter().rev() {
                write!(out, "{};", names.name(self.trie.node(caller).function))?;
            }
            let Times { leaf, inner } = self.trie.node(node).data;
            let both = leaf.with(inner);
            writeln!(out, " {}", if counts { both.count } else { both.ticks })?;
        }
        Ok(())
    }

    /// Writes the stacks that end in a leaf with the longest times, and with the most calls.
    fn write_top(&self, roots: &[NodeId], names: &Names, out: &mut dyn Write) -> io::Result<()> {
        let mut unique = 0;
        let (mut by_sum, mut by_count) = (Vec::new(), Vec::new());
        for node in roots.iter().flat_map(|root| self.trie.walk(*root)) {
            let leaf = self.trie.node(node).data.leaf;
            if leaf.count == 0 {
                continue;
            }
            unique += 1;
            for (top, value) in [(&mut by_sum, leaf.ticks), (&mut by_count, leaf.count)] {
                let at = top.partition_point(|(_, other)| *other > value);
                top.insert(at, (node, value));
                top.truncate(TOP);
            }
        }
        writeln!(out, "\nUnique Stacks: {unique}")?;
        writeln!(out, "Top 10 Stacks by leaf sum:\n")?;
        for (node, sum) in by_sum {
            writeln!(out, "Sum: {sum}")?;
            self.write_stack(node, names, out)?;
        }
        writeln!(out, "\nTop 10 Stacks by leaf count:\n")?;
        for (node, count) in by_count {
            writeln!(out, "Count: {count}")?;
            self.write_stack(node, names, out)?;
        }
        writeln!(out)
    }

    fn write_stack(&self, leaf: NodeId, names: &Names, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{:<5} {:<60} {:>12} {:>16}",
            "lvl", "function", "count", "sum"
        )?;
        let callers = self.trie.callers(leaf).collect::<Vec<_>>();
        for (level, node) in callers.into_iter().rev().enumerate() {
            let Times { leaf: own, inner } = self.trie.node(node).data;
            let Sum { count, ticks } = if node == leaf { own } else { inner };
            let name = cut(names.name(self.trie.node(node).function));
            writeln!(
                out,
                "#{level:<4} {name} {count:>12} {:>16}",
                ticks.cast_signed()
            )?;
        }
        writeln!(out)
    }
}

/// The name in its column. Columns count bytes.
fn cut(mut name: String) -> String {
    if name.len() > NAME_LEN {
        let end = (0..=CUT_NAME_LEN)
            .rev()
            .find(|end| name.is_char_boundary(*end));
        name.truncate(end.unwrap_or_default());
        name.push_str("...");
    }
    let missing = NAME_LEN.saturating_sub(name.len());
    name.extend(std::iter::repeat_n(' ', missing));
    name
}

// === impl Sum ===

impl Sum {
    fn add(&mut self, ticks: u64) {
        *self = self.with(Self { count: 1, ticks });
    }

    fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            ticks: self.ticks.wrapping_add(other.ticks),
        }
    }
}
