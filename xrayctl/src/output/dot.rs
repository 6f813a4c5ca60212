//! Call graphs in DOT, as llvm-xray draws them, or in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use clap::ValueEnum;
use serde::Serialize;
use xray_trace::analysis::{Distribution, Graph};
use xray_trace::model::{Trace, XrayIds};

use super::gradient;
use super::numbers::{Scale, exponential};

/// The length of a name that is cut.
const NAME: usize = 40;

/// The colours of functions and edges that are in one graph only.
const ONLY_BEFORE: &str = "#FF0000";
const ONLY_AFTER: &str = "#00FF00";

/// The shape of nodes. Records have special characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Ellipse,
    Record,
}

/// What a label or a colour tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Statistic {
    /// Nothing
    #[default]
    None,
    /// Number of finished calls
    Count,
    /// The shortest call
    Min,
    /// The median call
    Med,
    /// The 90th percentile
    #[value(name = "90p")]
    P90,
    /// The 99th percentile
    #[value(name = "99p")]
    P99,
    /// The longest call
    Max,
    /// Sum of durations
    Sum,
}

/// The values that label and colour edges and vertices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) edge_label: Statistic,
    pub(crate) edge_colour: Statistic,
    pub(crate) vertex_label: Statistic,
    pub(crate) vertex_colour: Statistic,
}

/// A graph by names. Functions of the same name have different numbers.
#[derive(Debug, Serialize)]
pub(crate) struct Drawing {
    functions: Vec<Vertex>,
    edges: Vec<Edge>,
    #[serde(skip)]
    scale: Scale,
}

#[derive(Debug, Clone, Serialize)]
struct Vertex {
    id: u64,
    #[serde(skip)]
    node: String,
    function: String,
    #[serde(flatten)]
    calls: Calls,
}

#[derive(Debug, Clone, Serialize)]
struct Edge {
    /// 0 for outermost calls.
    caller_id: u64,
    #[serde(skip)]
    caller_node: String,
    /// Absent for outermost calls.
    caller: Option<String>,
    callee_id: u64,
    #[serde(skip)]
    callee_node: String,
    callee: String,
    #[serde(flatten)]
    calls: Calls,
}

/// Sums over calls. Times are in nanoseconds; absent if no call finished.
#[derive(Debug, Clone, Copy, Serialize)]
struct Calls {
    calls: u64,
    unfinished: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    median_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
}

/// The functions and edges of two graphs, by name.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    functions: Vec<Changed>,
    edges: Vec<Changed>,
}

/// A function or an edge, before and after. A side is absent if its graph lacks it.
#[derive(Debug, Serialize)]
struct Changed {
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    function: String,
    before: Option<Calls>,
    after: Option<Calls>,
}

// === impl Shape ===

impl Shape {
    /// The shape of nodes with this label beside the name.
    fn with(label: Statistic) -> Self {
        match label {
            Statistic::None => Self::Ellipse,
            _ => Self::Record,
        }
    }
}

// === impl Drawing ===

impl Drawing {
    /// The graph of a trace.
    pub(crate) fn new(graph: &Graph, trace: &Trace) -> Self {
        let ids = XrayIds::new(trace);
        let mut named = BTreeMap::<String, u32>::new();
        let mut names = BTreeMap::new();
        let mut numbered = BTreeMap::<u64, u32>::new();
        let mut nodes = BTreeMap::new();
        for id in graph
            .functions
            .iter()
            .filter_map(|row| row.subject.function())
        {
            let name = trace.function_name(id).into_owned();
            let times = named.entry(name.clone()).or_default();
            *times += 1;
            let name = if *times == 1 {
                name
            } else {
                format!("{name} ({times})")
            };
            names.insert(id, name);
            // A function has one id in all processes, but a vertex for each process.
            let number = ids.shown(id);
            let times = numbered.entry(number).or_default();
            *times += 1;
            let node = if *times == 1 {
                format!("F{number}")
            } else {
                format!("F{number}_{times}")
            };
            nodes.insert(id, node);
        }
        let node = |id| {
            let node = nodes.get(&id).cloned();
            node.unwrap_or_else(|| format!("F{}", ids.shown(id)))
        };
        let name = |id| {
            names
                .get(&id)
                .cloned()
                .unwrap_or_else(|| trace.function_name(id).into_owned())
        };
        let functions = graph.functions.iter().filter_map(|row| {
            let id = row.subject.function()?;
            Some(Vertex {
                id: ids.shown(id),
                node: node(id),
                function: name(id),
                calls: Calls::new(row.calls, row.unfinished, row.sum_ns, row.durations),
            })
        });
        let edges = graph.edges.iter().map(|edge| Edge {
            caller_id: edge.caller.map_or(0, |id| ids.shown(id)),
            caller_node: edge.caller.map_or_else(|| "F0".to_owned(), node),
            caller: edge.caller.map(name),
            callee_id: ids.shown(edge.callee),
            callee_node: node(edge.callee),
            callee: name(edge.callee),
            calls: Calls::new(edge.calls, edge.unfinished, edge.sum_ns, edge.durations),
        });
        Self {
            functions: functions.collect(),
            edges: edges.collect(),
            scale: Scale::of(trace),
        }
    }

    /// Writes the graph in DOT.
    pub(crate) fn write(&self, style: Style, out: &mut dyn io::Write) -> io::Result<()> {
        let Style {
            edge_label,
            edge_colour,
            vertex_label,
            vertex_colour,
        } = style;
        writeln!(out, "digraph xray {{")?;
        let shape = Shape::with(vertex_label);
        if shape == Shape::Record {
            writeln!(out, "node [shape=record];")?;
        }
        let most = |calls: &mut dyn Iterator<Item = &Calls>, by| {
            calls.map(|calls| self.value(calls, by)).fold(0.0, f64::max)
        };
        let most_edge = most(&mut self.edges.iter().map(|edge| &edge.calls), edge_colour);
        let most_vertex = most(
            &mut self.functions.iter().map(|vertex| &vertex.calls),
            vertex_colour,
        );
        let colour = |calls: &Calls, by, most: f64| match by {
            Statistic::None => String::new(),
            by => {
                let share = (self.value(calls, by) / most).sqrt();
                format!(" color=\"{}\"", gradient::rising(share))
            }
        };
        for edge in &self.edges {
            // No call of the edge finished, so it has no times.
            let open = if edge.calls.min_ns.is_none() {
                " style=dashed"
            } else {
                ""
            };
            writeln!(
                out,
                "{} -> {} [label=\"{}\"{}{open}];",
                edge.caller_node,
                edge.callee_node,
                self.label(&edge.calls, edge_label),
                colour(&edge.calls, edge_colour, most_edge),
            )?;
        }
        for vertex in &self.functions {
            let name = xml(&cut(&vertex.function, NAME));
            let name = escaped(&name, shape);
            let label = match shape {
                Shape::Record => format!("{{{name}|{}}}", self.label(&vertex.calls, vertex_label)),
                Shape::Ellipse => name,
            };
            let colour = colour(&vertex.calls, vertex_colour, most_vertex);
            writeln!(out, "{} [label=\"{label}\"{colour}];", vertex.node)?;
        }
        writeln!(out, "}}")
    }

    fn value(&self, calls: &Calls, by: Statistic) -> f64 {
        calls.get(by).map_or(0.0, |value| match by {
            Statistic::Count => value as f64,
            _ => self.scale.seconds(value),
        })
    }

    fn label(&self, calls: &Calls, by: Statistic) -> String {
        match by {
            Statistic::None => String::new(),
            Statistic::Count => calls.get(by).unwrap_or(0).to_string(),
            by => exponential(self.value(calls, by)),
        }
    }
}

// === impl Calls ===

impl Calls {
    fn new(calls: u64, unfinished: u64, sum_ns: u64, durations: Option<Distribution>) -> Self {
        let of = |which: fn(&Distribution) -> u64| durations.as_ref().map(which);
        Self {
            calls,
            unfinished,
            sum_ns,
            min_ns: of(|durations| durations.min_ns),
            median_ns: of(|durations| durations.median_ns),
            p90_ns: of(|durations| durations.p90_ns),
            p99_ns: of(|durations| durations.p99_ns),
            max_ns: of(|durations| durations.max_ns),
        }
    }

    /// `None` if no call finished.
    fn get(&self, by: Statistic) -> Option<u64> {
        match by {
            Statistic::None => None,
            Statistic::Count => Some(self.calls - self.unfinished),
            Statistic::Min => self.min_ns,
            Statistic::Med => self.median_ns,
            Statistic::P90 => self.p90_ns,
            Statistic::P99 => self.p99_ns,
            Statistic::Max => self.max_ns,
            Statistic::Sum => self.min_ns.map(|_| self.sum_ns),
        }
    }
}

// === impl Difference ===

impl Difference {
    /// Compares the graphs of two traces.
    pub(crate) fn new(before: &Drawing, after: &Drawing) -> Self {
        let mut functions = BTreeMap::<&str, [Option<Calls>; 2]>::new();
        let mut edges = BTreeMap::<(Option<&str>, &str), [Option<Calls>; 2]>::new();
        for (side, drawing) in [before, after].into_iter().enumerate() {
            for vertex in &drawing.functions {
                functions.entry(&vertex.function).or_default()[side] = Some(vertex.calls);
            }
            for edge in &drawing.edges {
                let key = (edge.caller.as_deref(), edge.callee.as_str());
                edges.entry(key).or_default()[side] = Some(edge.calls);
            }
        }
        let changed =
            |caller: Option<&str>, function: &str, [before, after]: [Option<Calls>; 2]| Changed {
                caller: caller.map(str::to_owned),
                function: function.to_owned(),
                before,
                after,
            };
        let functions = functions
            .into_iter()
            .map(|(function, calls)| changed(None, function, calls));
        let edges = edges
            .into_iter()
            .map(|((caller, callee), calls)| changed(caller, callee, calls));
        Self {
            functions: functions.collect(),
            edges: edges.collect(),
        }
    }

    /// Writes the difference in DOT. Names of vertices are cut to `name` characters.
    pub(crate) fn write(
        &self,
        style: Style,
        name: usize,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        // The first vertex is the caller of outermost calls.
        let names: BTreeSet<_> = self
            .edges
            .iter()
            .filter_map(|edge| edge.caller.as_deref())
            .collect();
        let names = names
            .into_iter()
            .chain(self.functions.iter().map(|vertex| vertex.function.as_str()));
        let names: BTreeSet<_> = names.collect();
        let numbers: BTreeMap<_, _> = names.into_iter().zip(1..).collect();
        let number = |name: Option<&str>| {
            name.and_then(|name| numbers.get(name))
                .copied()
                .unwrap_or(0)
        };
        writeln!(out, "digraph xrayDiff {{")?;
        let shape = Shape::with(style.vertex_label);
        if shape == Shape::Record {
            writeln!(out, "node [shape=record]")?;
        }
        for edge in &self.edges {
            let (from, to) = (number(edge.caller.as_deref()), number(Some(&edge.function)));
            let caller = edge.caller.as_deref().unwrap_or("F0");
            let caller = escaped(caller, Shape::Ellipse);
            let callee = escaped(&edge.function, Shape::Ellipse);
            let label = edge.label(style.edge_label);
            let colour = edge.colour(style.edge_colour);
            let width = edge
                .change(style.edge_colour)
                .map_or(1.0, |change| change.max(1.0));
            writeln!(
                out,
                "F{from} -> F{to} [tooltip=\"{caller} -> {callee}\" label=\"{label}\" color=\"{colour}\" labelfontcolor=\"{colour}\" penwidth={width:.2}]"
            )?;
        }
        if self.edges.iter().any(|edge| edge.caller.is_none()) {
            writeln!(out, "F0 [label=\"F0\"]")?;
        }
        for vertex in &self.functions {
            let function = escaped(&cut(&vertex.function, name), shape);
            let label = match vertex.label(style.vertex_label) {
                label if label.is_empty() => function,
                label => format!("{{{function}|{label}}}"),
            };
            let colour = vertex.colour(style.vertex_colour);
            let number = number(Some(&vertex.function));
            writeln!(out, "F{number} [label=\"{label}\" color=\"{colour}\"]")?;
        }
        writeln!(out, "}}")
    }
}

// === impl Changed ===

impl Changed {
    /// The growth as a share of the value before. `None` if a side is absent, or if the value
    /// before is 0 and the value after is not.
    fn change(&self, by: Statistic) -> Option<f64> {
        let (before, after) = (self.before?.get(by)?, self.after?.get(by)?);
        match (before, after) {
            (0, 0) => Some(0.0),
            (0, _) => None,
            (before, after) => Some(after as f64 / before as f64 - 1.0),
        }
    }

    fn label(&self, by: Statistic) -> String {
        self.change(by)
            .map_or_else(String::new, |change| format!("{:.2}%", change * 100.0))
    }

    fn colour(&self, by: Statistic) -> String {
        match (&self.before, &self.after) {
            (None, _) => ONLY_AFTER.to_owned(),
            (_, None) => ONLY_BEFORE.to_owned(),
            _ if by == Statistic::None => "black".to_owned(),
            _ => gradient::diverging(self.change(by).unwrap_or(1.0)),
        }
    }
}

/// The name, cut to `len` characters.
fn cut(name: &str, len: usize) -> String {
    if name.chars().count() > len {
        format!("{}...", name.chars().take(len).collect::<String>())
    } else {
        name.to_owned()
    }
}

/// The name as XML, which DOT accepts.
pub(crate) fn xml(name: &str) -> String {
    name.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The name within quotes. In a record, braces and bars are escaped, too.
fn escaped(name: &str, shape: Shape) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '"' | '\\' => out.push('\\'),
            '{' | '}' | '|' if shape == Shape::Record => out.push('\\'),
            _ => {}
        }
        out.push(if character.is_control() {
            ' '
        } else {
            character
        });
    }
    out
}
