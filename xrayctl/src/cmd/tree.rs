//! `xrayctl tree`: the call tree of a trace, thread by thread, or the difference of two.

use std::path::PathBuf;

use serde::Serialize;
use xray_trace::analysis::{
    Filter, Order, Shown, Siblings, Side, StackRoots, StackTrie, Steps, Tree,
};
use xray_trace::event_format::EventOptions;

use crate::args::{Format, TimesOfCalls, TreeLayout};
use crate::input::{Logs, Selection};
use crate::inputs::Inputs;
use crate::output::call_tree::{self, CallTree, Layout, ShownTrace};
use crate::output::diff_tree::{self, DiffTree};
use crate::output::trace_summary::TraceSummary;
use crate::output::{Console, stacks, trace_summary};
use crate::run_times::{no_run_times, note_on_unknown};
use crate::user_events::UserEventArgs;

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl tree run.xtrace --function 'ns::parse*' --min-duration 1us --thread server
    DURATION      TID  FUNCTION
    6.702 µs     4711    ns::parse(0xbeef);  × 3, max 2.234 µs";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// Compare with this trace: the calls of both as one tree, by the names of functions, with
    /// their times before and after
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "interleave", "unfold", "event_format", "where", "min_on_cpu", "min_off_cpu",
    ])]
    diff: Option<PathBuf>,
    #[command(flatten)]
    times: TimesOfCalls,
    /// Print only the outermost N levels
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Print at most N lines; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: usize,
    #[command(flatten)]
    user_events: UserEventArgs,
    #[command(flatten)]
    layout: TreeLayout,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    logs: Logs,
}

/// A tree in JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: TraceSummary,
    tree: CallTree<'a, Tree<'a>>,
}

/// The difference of two trees, in JSON.
#[derive(Debug, Serialize)]
struct DiffReport<'a> {
    before: TraceSummary,
    after: TraceSummary,
    tree: DiffTree<'a>,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let trace = args.inputs.open(&args.logs, console)?;
    if args.times.need_runs() && !trace.has_runs() {
        return Err(no_run_times(&args.inputs.name()));
    }
    let EventOptions {
        formats,
        filter: user_events,
    } = args.user_events.options_for(&trace)?;
    let filter = Filter {
        user_events,
        ..args.selection.filter(&trace)?
    };
    let least = args.times.least();
    if args.times.need_runs()
        && let Some(note) = note_on_unknown(&trace, &filter, least)
    {
        console.note(&note);
    }
    let limit = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    if let Some(other) = &args.diff {
        let after = args.logs.open(other, console)?;
        let after_filter = args.selection.filter(&after)?;
        let mut stacks = StackTrie::default();
        let [before, after] = [
            (&args.inputs.name(), &trace, &filter, Side::Before),
            (other, &after, &after_filter, Side::After),
        ]
        .map(|(file, trace, filter, side)| {
            let notes = stacks.add(trace, filter, Siblings::Closed, StackRoots::Together, side);
            TraceSummary::new(&file.display().to_string(), trace, notes)
        });
        if let Some(note) = stacks::note(&stacks) {
            console.note(&note);
        }
        let shown = diff_tree::Shown {
            levels: args.depth.unwrap_or(usize::MAX),
            min_ns: least.duration_ns,
            limit,
        };
        let tree = DiffTree::new(&stacks, shown);
        if args.format.json {
            return console.json(&DiffReport {
                before,
                after,
                tree,
            });
        }
        return console.show(|out, look| tree.render(out, look));
    }
    let shown_trace = ShownTrace {
        trace: &trace,
        formats: &formats,
    };
    let shown = Shown {
        least,
        levels: args.depth,
    };
    let tree = |order| Tree::new(&trace, &filter, shown, order);
    if args.format.json {
        let origin = trace_summary::span(&trace).map_or(0, |(first, _)| first);
        let notes = notes(&trace, &filter);
        return console.json(&Report {
            trace: TraceSummary::new(&args.inputs.name().display().to_string(), &trace, notes),
            tree: CallTree::new(tree(Order::ByTime), shown_trace, origin, limit),
        });
    }
    let layout = Layout {
        order: args.layout.order(),
        folding: args.layout.folding(),
        limit,
    };
    let tree = tree(layout.order);
    console.show(|out, look| call_tree::render(tree, shown_trace, layout, out, look))
}

/// The notes on the wanted threads.
fn notes(trace: &xray_trace::model::Trace, filter: &Filter) -> xray_trace::analysis::Notes {
    let mut notes = xray_trace::analysis::Notes::default();
    for mut steps in Steps::of_wanted(trace, filter) {
        steps.by_ref().for_each(drop);
        notes.add(steps.notes());
    }
    notes
}
