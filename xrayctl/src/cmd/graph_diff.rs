//! `xrayctl graph-diff`: the difference of the call graphs of two traces, by the names of
//! functions.

use std::path::PathBuf;

use xray_trace::analysis::Graph;

use super::graph::{self, GraphFormat};
use crate::input::{Destination, Logs, Selection, Unpaired};
use crate::output::Console;
use crate::output::dot::{Difference, Drawing, Statistic, Style};

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl graph-diff run.xtrace run.xtrace --edge-label=count --function 'ns::*'
  digraph xrayDiff {
  F1 -> F3 [tooltip=\"main -> ns::parse(char const*)\" label=\"0.00%\" color=\"black\" labelfontcolor=\"black\" penwidth=1.00]
  F3 -> F2 [tooltip=\"ns::parse(char const*) -> ns::next()\" label=\"0.00%\" color=\"black\" labelfontcolor=\"black\" penwidth=1.00]
  F2 [label=\"ns::next()\" color=\"black\"]
  F3 [label=\"ns::parse(char const*)\" color=\"black\"]
  }

Red: only in the first graph. Green: only in the second graph.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The first trace
    before: PathBuf,
    /// The second trace
    after: PathBuf,
    #[command(flatten)]
    unpaired: UnpairedEach,
    /// Label edges with the change of this statistic
    #[arg(short, long, value_name = "FIELD", value_enum, default_value_t)]
    edge_label: Statistic,
    /// Colour edges by the change of this statistic
    #[arg(short = 'c', long, value_name = "FIELD", value_enum, default_value_t)]
    edge_color: Statistic,
    /// Label vertices with the change of this statistic
    #[arg(short, long, value_name = "FIELD", value_enum, default_value_t)]
    vertex_label: Statistic,
    /// Colour vertices by the change of this statistic
    #[arg(short = 'b', long, value_name = "FIELD", value_enum, default_value_t)]
    vertex_color: Statistic,
    /// Cut names of functions to N characters
    #[arg(short = 't', long, value_name = "N", default_value_t = 40)]
    vertex_label_trun: usize,
    /// The output format
    #[arg(long, value_enum, default_value_t)]
    format: GraphFormat,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    destination: Destination,
    #[command(flatten)]
    logs: Logs,
}

/// What llvm-xray can be told for both logs, or for one.
#[derive(Debug, clap::Args)]
struct UnpairedEach {
    /// List exits without an entry one by one, up to 20 of a trace; without this, they are counted.
    /// They are no error
    #[arg(short, long)]
    keep_going: bool,
    /// --keep-going for the first trace only
    #[arg(long = "keep-going-1", visible_alias = "k1")]
    keep_going_before: bool,
    /// --keep-going for the second trace only
    #[arg(long = "keep-going-2", visible_alias = "k2")]
    keep_going_after: bool,
    /// End calls without an exit when their caller exits, as if they had ended in a sibling call,
    /// except calls that the trace says were left
    #[arg(short, long)]
    deduce_sibling_calls: bool,
    /// --deduce-sibling-calls for the first trace only
    #[arg(long = "deduce-sibling-calls-1", visible_alias = "d1")]
    deduce_before: bool,
    /// --deduce-sibling-calls for the second trace only
    #[arg(long = "deduce-sibling-calls-2", visible_alias = "d2")]
    deduce_after: bool,
    /// --instr-map for the first trace only
    #[arg(long = "instr-map-1", visible_alias = "m1", value_name = "FILE")]
    instr_map_before: Option<PathBuf>,
    /// --instr-map for the second trace only
    #[arg(long = "instr-map-2", visible_alias = "m2", value_name = "FILE")]
    instr_map_after: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let output = args.destination.open(&[&args.before, &args.after])?;
    let draw = |file: &PathBuf, unpaired: Unpaired, instr_map: Option<&PathBuf>| {
        let trace = args.logs.of_program(instr_map).open(file, console)?;
        let filter = args.selection.filter(&trace)?;
        let graph = Graph::new(&trace, &filter, unpaired.siblings());
        unpaired.tell(file, &trace, &filter, graph.notes, console);
        graph::note(&graph, console);
        Ok::<_, anyhow::Error>(Drawing::new(&graph, &trace))
    };
    let UnpairedEach {
        keep_going,
        keep_going_before,
        keep_going_after,
        deduce_sibling_calls,
        deduce_before,
        deduce_after,
        instr_map_before,
        instr_map_after,
    } = &args.unpaired;
    let unpaired = |keeps: &bool, deduces: &bool| Unpaired {
        keep_going: *keep_going || *keeps,
        deduce_sibling_calls: *deduce_sibling_calls || *deduces,
    };
    let of_before = unpaired(keep_going_before, deduce_before);
    let before = draw(&args.before, of_before, instr_map_before.as_ref())?;
    let of_after = unpaired(keep_going_after, deduce_after);
    let after = draw(&args.after, of_after, instr_map_after.as_ref())?;
    let difference = Difference::new(&before, &after);
    let style = Style {
        edge_label: args.edge_label,
        edge_colour: args.edge_color,
        vertex_label: args.vertex_label,
        vertex_colour: args.vertex_color,
    };
    output.write(console, |out, _| match args.format {
        GraphFormat::Dot => difference.write(style, args.vertex_label_trun, out),
        GraphFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &difference)?;
            writeln!(out)
        }
    })
}
