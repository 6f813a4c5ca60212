//! `xrayctl graph`: the call graph of a trace, or of several.

use clap::ValueEnum;
use xray_trace::analysis::Graph;

use crate::input::{Destination, Logs, Selection, Unpaired};
use crate::inputs::Inputs;
use crate::output::dot::{Drawing, Statistic, Style};
use crate::output::{Console, units};

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl graph run.xtrace --edge-label=count --function 'ns::*'
  digraph xray {
  F1 -> F16777218 [label=\"3\"];
  F16777218 -> F16777219 [label=\"3\"];
  F16777218 [label=\"ns::parse(char const*)\"];
  F16777219 [label=\"ns::next()\"];
  }

F0 is the unknown caller of the outermost functions. A dashed edge has no finished call.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    unpaired: Unpaired,
    /// Label edges with this statistic
    #[arg(short, long, value_name = "FIELD", value_enum, default_value_t)]
    edge_label: Statistic,
    /// Label vertices with this statistic
    #[arg(short, long, value_name = "FIELD", value_enum, default_value_t)]
    vertex_label: Statistic,
    /// Colour edges by this statistic
    #[arg(short, long, value_name = "FIELD", value_enum, default_value_t)]
    color_edges: Statistic,
    /// Colour vertices by this statistic
    #[arg(short = 'b', long, value_name = "FIELD", value_enum, default_value_t)]
    color_vertices: Statistic,
    /// The output format
    #[arg(long, value_enum, default_value_t)]
    format: GraphFormat,
    #[command(flatten)]
    logs: Logs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    destination: Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum GraphFormat {
    /// For Graphviz
    #[default]
    Dot,
    /// docs/xrayctl.md describes it
    Json,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let output = args.destination.open(&args.inputs.paths())?;
    let trace = args.inputs.open(&args.logs, console)?;
    let filter = args.selection.filter(&trace)?;
    let graph = Graph::new(&trace, &filter, args.unpaired.siblings());
    args.unpaired
        .tell(&args.inputs.name(), &trace, &filter, graph.notes, console);
    note(&graph, console);
    let drawing = Drawing::new(&graph, &trace);
    let style = Style {
        edge_label: args.edge_label,
        edge_colour: args.color_edges,
        vertex_label: args.vertex_label,
        vertex_colour: args.color_vertices,
    };
    output.write(console, |out, _| match args.format {
        GraphFormat::Dot => drawing.write(style, out),
        GraphFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &drawing)?;
            writeln!(out)
        }
    })
}

/// Notes calls whose edge is missing.
pub(crate) fn note(graph: &Graph, console: &Console) {
    if graph.beyond > 0 {
        let calls = units::counted(graph.beyond, "call");
        console.note(&format!(
            "{calls} left out: the graph has too many distinct edges"
        ));
    }
}
