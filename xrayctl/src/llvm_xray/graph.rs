//! `llvm-xray graph`: the calls between functions, for Graphviz.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::log::{Log, Order};
use super::names::Names;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;
use super::record::{Record, Step};
use super::statistics::Statistics;
use crate::output::{dot, gradient};

/// The statistics that a label or a colour can show.
pub(super) const FIELDS: ValueKind =
    ValueKind::OneOf(&["none", "count", "min", "med", "90p", "99p", "max", "sum"]);

/// The longest name in a label.
const NAME_LEN: usize = 40;

pub(super) const COMMAND: Command = Command {
    name: "graph",
    about: "Generate function-call graph",
    inputs: Inputs::Each(&["<xray log file>"]),
    options: &[
        Opt {
            name: "color-edges",
            alias: "c",
            value: FIELDS,
            about: "Colour the edges by this field",
        },
        Opt {
            name: "color-vertices",
            alias: "b",
            value: FIELDS,
            about: "Colour the vertices by this field",
        },
        Opt {
            name: "deduce-sibling-calls",
            alias: "d",
            value: ValueKind::Flag,
            about: "Deduce sibling calls when unrolling function call stacks",
        },
        Opt {
            name: "edge-label",
            alias: "e",
            value: FIELDS,
            about: "Label the edges with this field",
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
            name: "output",
            alias: "o",
            value: ValueKind::Text("Output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "vertex-label",
            alias: "v",
            value: FIELDS,
            about: "Label the vertices with this field",
        },
    ],
};

/// The options by which a graph is made.
pub(super) struct GraphOptions<'a> {
    pub(super) keeps_going: bool,
    pub(super) deduces: bool,
    pub(super) map: &'a OsStr,
}

/// The functions of a log, and the calls between them. Function 0 calls the outermost ones.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) edges: DenseMap<(i32, i32), Edge>,
    pub(super) vertices: DenseMap<i32, Vertex>,
    callers: HashMap<i32, BTreeSet<i32>>,
    stacks: DenseMap<u32, Vec<(i32, u64)>>,
    first: u64,
    greatest_edge: Statistics,
    greatest_vertex: Statistics,
}

#[derive(Debug, Default)]
pub(super) struct Edge {
    pub(super) statistics: Statistics,
    times: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Vertex {
    /// Empty for function 0, and for functions without an entry.
    pub(super) name: String,
    pub(super) statistics: Statistics,
}

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let input = args.input();
    let log = Log::load(input, Order::Time).map_err(|_| {
        let input = input.to_string_lossy();
        Failure::new(format!("Failed loading input file '{input}'"))
    })?;
    let options = GraphOptions {
        keeps_going: args.flag("keep-going"),
        deduces: args.flag("deduce-sibling-calls"),
        map: args.text("instr_map", ""),
    };
    let graph = Graph::new(&log, &options)?;
    let output = Output::open(args.text("output", "-"))?;
    output.write(|out| graph.write(args, out))
}

// === impl Graph ===

impl Graph {
    /// The graph of a log.
    pub(super) fn new(log: &Log, options: &GraphOptions<'_>) -> Result<Self, Failure> {
        let names = Names::of_option(options.map)?;
        let mut graph = Self::default();
        graph.vertices.entry(0);
        for record in &log.records {
            let Err(failure) = graph.take(record, options.deduces, &names) else {
                continue;
            };
            let _ = io::stderr().write_all(graph.describe(&names).as_bytes());
            if !options.keeps_going {
                let what = "Error encountered generating the call graph.";
                return Err(failure.in_context(what));
            }
            let _ = write!(io::stderr(), "{failure}");
        }
        graph.finish(log.header.cycle_frequency);
        Ok(graph)
    }

    fn take(&mut self, record: &Record, deduces: bool, names: &Names) -> Result<(), Failure> {
        if self.first == 0 {
            self.first = record.tsc;
        }
        if record.tsc < self.first {
            return Err(Failure::new("Records not in order"));
        }
        let function = record.function;
        let mut stack = std::mem::take(self.stacks.entry(record.tid));
        let taken = match record.step() {
            Step::None => Ok(()),
            Step::Enter => {
                if function != 0 && self.vertices.get(&function).is_none() {
                    self.vertices.entry(function).name = names.name(function);
                }
                stack.push((function, record.tsc));
                Ok(())
            }
            Step::Exit => self.close(&mut stack, record, deduces),
        };
        *self.stacks.entry(record.tid) = stack;
        taken
    }

    /// Closes the innermost calls, down to the call that this exit ends.
    fn close(
        &mut self,
        stack: &mut Vec<(i32, u64)>,
        record: &Record,
        deduces: bool,
    ) -> Result<(), Failure> {
        let mut calls = stack.iter();
        let entry = calls.rposition(|(function, _)| *function == record.function);
        if entry.is_none_or(|entry| entry + 1 < stack.len()) && !deduces {
            return Err(Failure::new("No matching ENTRY record"));
        }
        let Some(entry) = entry else {
            return Err(Failure::new("No matching Entry record in stack"));
        };
        while stack.len() > entry
            && let Some((function, since)) = stack.pop()
        {
            let ticks = since.abs_diff(record.tsc);
            let caller = stack.last().map_or(0, |(caller, _)| *caller);
            let edge = self.edges.entry((caller, function));
            edge.times.push(ticks);
            edge.statistics.add(ticks);
            self.vertices.entry(caller);
            self.vertices.entry(function).statistics.add(ticks);
            self.callers.entry(function).or_default().insert(caller);
        }
        Ok(())
    }

    /// The open calls of all threads.
    fn describe(&self, names: &Names) -> String {
        let mut text = String::new();
        for (tid, stack) in self.stacks.iter() {
            let _ = writeln!(text, "Thread ID: {tid}");
            for (level, (function, _)) in stack.iter().enumerate().rev() {
                let _ = writeln!(text, "#{}\t{}", level + 1, names.name(*function));
            }
        }
        text
    }

    /// Computes the percentiles, the greatest values, and the times in seconds.
    fn finish(&mut self, frequency: u64) {
        let edges = self.edges.iter().map(|(edge, _)| *edge).collect::<Vec<_>>();
        for id in edges {
            let edge = self.edges.entry(id);
            let mut times = edge.times.clone();
            edge.statistics.set_percentiles(&mut times);
            let statistics = edge.statistics;
            self.greatest_edge.raise(&statistics);
        }
        let vertices = self.vertices.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        for id in vertices.into_iter().filter(|id| *id != 0) {
            let callers = self.callers.get(&id).into_iter().flatten();
            let edges = callers.filter_map(|caller| self.edges.get(&(*caller, id)));
            let times = edges.flat_map(|edge| edge.times.iter().copied());
            let mut times = times.collect::<Vec<_>>();
            let statistics = &mut self.vertices.entry(id).statistics;
            statistics.set_percentiles(&mut times);
            let statistics = *statistics;
            self.greatest_vertex.raise(&statistics);
        }
        if frequency == 0 {
            return;
        }
        let frequency = frequency as f64;
        self.edges
            .values_mut()
            .for_each(|edge| edge.statistics.divide(frequency));
        let vertices = self.vertices.values_mut();
        vertices.for_each(|vertex| vertex.statistics.divide(frequency));
        self.greatest_edge.divide(frequency);
        self.greatest_vertex.divide(frequency);
    }

    fn write(&self, args: &Arguments, out: &mut dyn Write) -> io::Result<()> {
        let field = |option| args.word(option, "none");
        let (edge_label, edge_colour) = (field("edge-label"), field("color-edges"));
        let (vertex_label, vertex_colour) = (field("vertex-label"), field("color-vertices"));
        let colour = |statistics: &Statistics, greatest: &Statistics, field: &str| {
            let share = statistics.number(field) / greatest.number(field);
            format!(" color=\"{}\"", gradient::rising(share.sqrt()))
        };
        writeln!(out, "digraph xray {{")?;
        if vertex_label != "none" {
            writeln!(out, "node [shape=record];")?;
        }
        for ((from, to), Edge { statistics, .. }) in self.edges.iter() {
            let label = statistics.text(edge_label);
            write!(out, "F{from} -> F{to} [label=\"{label}\"")?;
            if edge_colour != "none" {
                let colour = colour(statistics, &self.greatest_edge, edge_colour);
                out.write_all(colour.as_bytes())?;
            }
            writeln!(out, "];")?;
        }
        for (id, Vertex { name, statistics }) in self.vertices.iter() {
            if *id == 0 {
                continue;
            }
            let name = dot::xml(&shortened(name, NAME_LEN));
            if vertex_label == "none" {
                write!(out, "F{id} [label=\"{name}\"")?;
            } else {
                let label = statistics.text(vertex_label);
                write!(out, "F{id} [label=\"{{{name}|{label}}}\"")?;
            }
            if vertex_colour != "none" {
                let colour = colour(statistics, &self.greatest_vertex, vertex_colour);
                out.write_all(colour.as_bytes())?;
            }
            writeln!(out, "];")?;
        }
        writeln!(out, "}}")
    }
}

/// At most this many bytes of a name, and three dots for the rest.
pub(super) fn shortened(name: &str, len: usize) -> String {
    if name.len() <= len {
        return name.to_owned();
    }
    let end = (0..=len).rev().find(|end| name.is_char_boundary(*end));
    format!("{}...", &name[..end.unwrap_or_default()])
}
