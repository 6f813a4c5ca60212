//! `llvm-xray graph-diff`: the difference between the graphs of two logs. Functions are the same if
//! they have the same name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::graph::{FIELDS, Graph, GraphOptions, shortened};
use super::log::{Log, Order};
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
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
            value: ValueKind::Flag,
            about: "Deduce sibling calls when unrolling function call stacks",
        },
        Opt {
            name: "deduce-sibling-calls-1",
            alias: "d1",
            value: ValueKind::Flag,
            about: "The same, for trace 1",
        },
        Opt {
            name: "deduce-sibling-calls-2",
            alias: "d2",
            value: ValueKind::Flag,
            about: "The same, for trace 2",
        },
        Opt {
            name: "edge-color",
            alias: "c",
            value: FIELDS,
            about: "Colour the edges by this field",
        },
        Opt {
            name: "edge-label",
            alias: "e",
            value: FIELDS,
            about: "Label the edges with this field",
        },
        Opt {
            name: "instr-map",
            alias: "m",
            value: ValueKind::Text("binary with xray_instr_map or yaml"),
            about: "The binary with the instrumentation map, or a separate map",
        },
        Opt {
            name: "instr-map-1",
            alias: "m1",
            value: ValueKind::Text("binary with xray_instr_map or yaml"),
            about: "The same, for trace 1",
        },
        Opt {
            name: "instr-map-2",
            alias: "m2",
            value: ValueKind::Text("binary with xray_instr_map or yaml"),
            about: "The same, for trace 2",
        },
        Opt {
            name: "keep-going",
            alias: "k",
            value: ValueKind::Flag,
            about: "Keep going on errors encountered",
        },
        Opt {
            name: "keep-going-1",
            alias: "k1",
            value: ValueKind::Flag,
            about: "The same, for trace 1",
        },
        Opt {
            name: "keep-going-2",
            alias: "k2",
            value: ValueKind::Flag,
            about: "The same, for trace 2",
        },
        Opt {
            name: "output",
            alias: "o",
            value: ValueKind::Text("Output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "vertex-color",
            alias: "b",
            value: FIELDS,
            about: "Colour the vertices by this field",
        },
        Opt {
            name: "vertex-label",
            alias: "v",
            value: FIELDS,
            about: "Label the vertices with this field",
        },
        Opt {
            name: "vertex-label-trun",
            alias: "t",
            value: ValueKind::Number("int"),
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

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let mut difference = Difference::default();
    for (place, input) in args.inputs().iter().enumerate() {
        let option = |name: &str| {
            let own = format!("{name}-{}", place + 1);
            if args.has(&own) { own } else { name.to_owned() }
        };
        let log = Log::load(input, Order::Time).map_err(|_| {
            let input = input.to_string_lossy();
            Failure::new(format!("Failed Loading Input File '{input}'"))
        })?;
        // LLVM looks at the options of its command graph here, so that neither a map nor going on
        // has an effect.
        let options = GraphOptions {
            keeps_going: false,
            deduces: args.flag(&option("deduce-sibling-calls")),
            map: OsStr::new(""),
        };
        difference.add(place, &Graph::new(&log, &options)?);
    }
    let output = Output::open(args.text("output", "-"))?;
    output.write(|out| difference.write(args, out))
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

    fn write(&self, args: &Arguments, out: &mut dyn Write) -> io::Result<()> {
        let field = |option| args.word(option, "none");
        let (edge_label, edge_colour) = (field("edge-label"), field("edge-color"));
        let (vertex_label, vertex_colour) = (field("vertex-label"), field("vertex-color"));
        // A negative length is a very great one.
        let len = usize::try_from(args.number("vertex-label-trun", 40)).unwrap_or(usize::MAX);
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
