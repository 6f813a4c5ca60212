//! `llvm-xray graph-diff`: the difference between the graphs of two logs. Functions are the same if
//! they have the same name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::graph::{FIELDS, Graph, Making, shortened};
use super::log::{Log, Order};
use super::options::{Command, Given, Inputs, Opt, Takes};
use super::output::Output;
use super::statistics::{Statistics, fixed, per_cent};
use crate::output::gradient;

/// The colours of what only one graph has: the first one, the second one.
const ONLY_FIRST: &str = "#FF0000";
const ONLY_SECOND: &str = "#00FF00";

pub(super) const COMMAND: Command = Command {
    name: "graph-diff",
    about: "Generate diff of function-call graphs",
    inputs: Inputs::Each(&["<xray log file 1>", "<xray log file 2>"]),
    options: &[
        Opt {
            name: "deduce-sibling-calls",
            alias: "d",
            takes: Takes::Flag,
            about: "Deduce sibling calls when unrolling function call stacks",
        },
        Opt {
            name: "deduce-sibling-calls-1",
            alias: "d1",
            takes: Takes::Flag,
            about: "The same, for trace 1",
        },
        Opt {
            name: "deduce-sibling-calls-2",
            alias: "d2",
            takes: Takes::Flag,
            about: "The same, for trace 2",
        },
        Opt {
            name: "edge-color",
            alias: "c",
            takes: FIELDS,
            about: "Colour the edges by this field",
        },
        Opt {
            name: "edge-label",
            alias: "e",
            takes: FIELDS,
            about: "Label the edges with this field",
        },
        Opt {
            name: "instr-map",
            alias: "m",
            takes: Takes::Text("binary with xray_instr_map or yaml"),
            about: "The binary with the instrumentation map, or a separate map",
        },
        Opt {
            name: "instr-map-1",
            alias: "m1",
            takes: Takes::Text("binary with xray_instr_map or yaml"),
            about: "The same, for trace 1",
        },
        Opt {
            name: "instr-map-2",
            alias: "m2",
            takes: Takes::Text("binary with xray_instr_map or yaml"),
            about: "The same, for trace 2",
        },
        Opt {
            name: "keep-going",
            alias: "k",
            takes: Takes::Flag,
            about: "Keep going on errors encountered",
        },
        Opt {
            name: "keep-going-1",
            alias: "k1",
            takes: Takes::Flag,
            about: "The same, for trace 1",
        },
        Opt {
            name: "keep-going-2",
            alias: "k2",
            takes: Takes::Flag,
            about: "The same, for trace 2",
        },
        Opt {
            name: "output",
            alias: "o",
            takes: Takes::Text("Output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "vertex-color",
            alias: "b",
            takes: FIELDS,
            about: "Colour the vertices by this field",
        },
        Opt {
            name: "vertex-label",
            alias: "v",
            takes: FIELDS,
            about: "Label the vertices with this field",
        },
        Opt {
            name: "vertex-label-trun",
            alias: "t",
            takes: Takes::Number("int"),
            about: "The longest name in a label",
        },
    ],
};

/// What both graphs have in one place.
type Both = [Option<Statistics>; 2];

/// The difference.
#[derive(Debug, Default)]
struct Difference {
    edges: DenseMap<(String, String), Both>,
    vertices: DenseMap<String, Both>,
}

pub(super) fn run(given: &Given) -> Result<(), Failure> {
    let mut difference = Difference::default();
    for (place, input) in given.inputs().iter().enumerate() {
        let option = |name: &str| {
            let own = format!("{name}-{}", place + 1);
            if given.has(&own) {
                own
            } else {
                name.to_owned()
            }
        };
        let log = Log::load(input, Order::Time).map_err(|_| {
            let input = input.to_string_lossy();
            Failure::new(format!("Failed Loading Input File '{input}'"))
        })?;
        // LLVM looks at the options of its command graph here, so that neither a map nor going on
        // has an effect.
        let making = Making {
            keeps_going: false,
            deduces: given.flag(&option("deduce-sibling-calls")),
            map: OsStr::new(""),
        };
        difference.add(place, &Graph::new(&log, &making)?);
    }
    let output = Output::open(given.text("output", "-"))?;
    output.write(|out| difference.write(given, out))
}

/// The change from the first to the second graph, 1 if it is twice as much.
fn change(first: &Statistics, second: &Statistics, field: &str) -> f64 {
    second.number(field) / first.number(field) - 1.0
}

fn colour(both: &Both, field: &str) -> String {
    match both {
        [None, _] => ONLY_SECOND.to_owned(),
        [_, None] => ONLY_FIRST.to_owned(),
        _ if field == "none" => "black".to_owned(),
        [Some(first), Some(second)] => gradient::diverging(change(first, second, field)),
    }
}

/// The change, where there is one to show.
fn shown(both: &Both, field: &str) -> Option<f64> {
    match both {
        [Some(first), Some(second)] if field != "none" => Some(change(first, second, field)),
        _ => None,
    }
}

// === impl Difference ===

impl Difference {
    /// Adds the first or the second graph.
    fn add(&mut self, place: usize, graph: &Graph) {
        for (_, vertex) in graph.vertices.iter() {
            let both = self.vertices.entry(vertex.name.clone());
            both[place] = Some(vertex.statistics);
        }
        let name = |id| {
            let vertex = graph.vertices.get(id);
            vertex.map_or_else(String::new, |vertex| vertex.name.clone())
        };
        for ((from, to), edge) in graph.edges.iter() {
            let both = self.edges.entry((name(from), name(to)));
            both[place] = Some(edge.statistics);
            self.vertices.entry(name(from));
            self.vertices.entry(name(to));
        }
    }

    fn write(&self, given: &Given, out: &mut dyn Write) -> io::Result<()> {
        let field = |option| given.word(option, "none");
        let (edge_label, edge_colour) = (field("edge-label"), field("edge-color"));
        let (vertex_label, vertex_colour) = (field("vertex-label"), field("vertex-color"));
        // A negative length is a very great one.
        let len = usize::try_from(given.number("vertex-label-trun", 40)).unwrap_or(usize::MAX);
        let vertices = self.vertices.iter().enumerate();
        let numbers = vertices.map(|(number, (name, _))| (name, number));
        let numbers = numbers.collect::<HashMap<_, _>>();
        let number = |name: &String| numbers.get(name).copied().unwrap_or_default();
        writeln!(out, "digraph xrayDiff {{")?;
        if vertex_label != "none" {
            writeln!(out, "node [shape=record]")?;
        }
        for ((from, to), both) in self.edges.iter() {
            let label = shown(both, edge_label).map_or_else(String::new, per_cent);
            let colour = colour(both, edge_colour);
            let width = shown(both, edge_colour).filter(|change| *change > 1.0);
            let caller = if from.is_empty() { "F0" } else { from };
            writeln!(
                out,
                "F{} -> F{} [tooltip=\"{caller} -> {to}\" label=\"{label}\" color=\"{colour}\" \
                 labelfontcolor=\"{colour}\" penwidth={}]",
                number(from),
                number(to),
                fixed(width.unwrap_or(1.0), 2)
            )?;
        }
        for (name, both) in self.vertices.iter() {
            let number = number(name);
            if name.is_empty() {
                writeln!(out, "F{number} [label=\"F0\"]")?;
                continue;
            }
            let short = shortened(name, len);
            let label = match shown(both, vertex_label) {
                Some(change) => format!("{{{short}|{}}}", per_cent(change)),
                None => short,
            };
            let colour = colour(both, vertex_colour);
            writeln!(out, "F{number} [label=\"{label}\" color=\"{colour}\"]")?;
        }
        writeln!(out, "}}")
    }
}
