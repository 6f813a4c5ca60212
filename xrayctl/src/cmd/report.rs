//! `xrayctl report`: the table of functions, the slowest calls and the call tree of a trace, or the
//! whole trace as a page for a browser. Needs neither a daemon nor a binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::vec;

use clap::ValueEnum;
use serde::Serialize;
use xray_trace::analysis::{
    self, Direction, Filter, OnePass, OnePassOptions, OnePassResult, Order, Shown, SortBy,
    TableOption, Tree, TreeLine,
};
use xray_trace::event_format::EventOptions;
use xray_trace::sink::Standing;

use crate::args::{Format, TimesOfCalls, TreeLayout};
use crate::input::{self, Logs, Selection};
use crate::inputs::Inputs;
use crate::output::call_table::CallTable;
use crate::output::call_tree::{self, CallTree, FirstLines, Layout, ShownTrace};
use crate::output::open_calls::OpenCalls;
use crate::output::slowest_calls::SlowestCalls;
use crate::output::trace_summary::TraceSummary;
use crate::output::{Console, slowest_calls, trace_summary, units};
use crate::page;
use crate::run_times::{no_run_times, note_on_unknown};
use crate::user_events::UserEventArgs;

/// The number of slow calls in a whole report.
const SLOWEST: usize = 10;
/// The most lines of the tree that are held in memory.
const MOST_HELD: usize = 10_000;

const EXAMPLES: &str = "\
Without --tree or --table, report prints the table, the slowest calls and the tree. Each slow call
has its thread, the time of its begin after the begin of the trace, its duration, and the first 20
lines of its tree. These lines leave out calls shorter than 1 % of the slow call, and calls more
than 8 levels deep. A call that takes more than half of the time of its caller is shown in the lines
of its caller only. Calls without an exit are not among the slowest; --open shows the open ones.

--min-duration, --min-on-cpu and --min-off-cpu select the slow calls and the lines of the tree. The
table counts all calls. Times of calls are complete, even if only a part of the trace is shown.
--html writes a page in one file: flame graph, timeline, table of functions. It also reads
profiles.

Examples:
  xrayctl report run.xtrace
  xrayctl report run.xtrace --slowest 3 --min-duration 1ms --function ns::handle
  xrayctl report run.xtrace --slowest 3 --min-off-cpu 1ms
  xrayctl report run.xtrace --table --sort self --limit 20
  xrayctl report run.xtrace --tree --function 'ns::parse*' --thread worker-1
  xrayctl report run.xtrace --open
  xrayctl report run.xtrace --since 1.5s --until 1.6s --limit 0
  xrayctl report run.xtrace --html -o report.html";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// Write a page for a browser
    #[arg(long, requires = "output", conflicts_with_all = [
        "tree", "table", "slowest", "min_duration", "min_on_cpu", "min_off_cpu", "limit", "sort",
        "interleave", "unfold", "event_format", "where", "json",
    ])]
    html: bool,
    /// The page to write; - is standard output
    #[arg(short, long, value_name = "OUT", requires = "html")]
    output: Option<PathBuf>,
    /// Show the call tree
    #[arg(long)]
    tree: bool,
    /// Show the table of functions
    #[arg(long)]
    table: bool,
    /// Show the N slowest calls, each with the calls in it; 0 shows none. Without --tree and
    /// --table the default is 10
    #[arg(long, value_name = "N")]
    slowest: Option<usize>,
    #[command(flatten)]
    times: TimesOfCalls,
    /// Show the calls that are open at the end (or at --until) in each thread, like a debugger's
    /// stacks of all threads; with --function, of threads in such a function
    #[arg(long, conflicts_with_all = [
        "html", "tree", "table", "slowest", "min_duration", "min_on_cpu", "min_off_cpu", "since",
        "limit", "sort", "interleave", "unfold", "event_format", "where",
    ])]
    open: bool,
    #[command(flatten)]
    selection: Selection,
    /// Print at most N lines of the tree and N rows of the table; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// The column to sort the table by, greatest first
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t)]
    sort: Sort,
    #[command(flatten)]
    user_events: UserEventArgs,
    #[command(flatten)]
    layout: TreeLayout,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    logs: Logs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// Time in the function, callees included
    #[default]
    Total,
    /// Time in the function, without callees
    #[value(name = "self")]
    SelfTime,
    /// Time in the function for which the thread had a processor
    OnCpu,
    /// Time in the function for which the thread had no processor
    OffCpu,
    /// Number of calls
    Calls,
    /// The shortest call
    Min,
    /// The median call
    Median,
    /// The 99th percentile
    P99,
    /// The longest call
    Max,
}

/// A trace in JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: TraceSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<CallTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slowest: Option<SlowestCalls<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<CallTree<'a, TreeLines<'a>>>,
}

/// The lines of a tree in JSON.
#[derive(Debug)]
enum TreeLines<'a> {
    Held(vec::IntoIter<TreeLine>),
    /// Read in a second pass.
    Read(Tree<'a>),
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    if let Some(output) = &args.output {
        return args.write_page(output, console);
    }
    let trace = args.inputs.open(&args.logs, console)?;
    let needs_runs = args.times.need_runs() || matches!(args.sort, Sort::OnCpu | Sort::OffCpu);
    if needs_runs && !trace.has_runs() {
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
    if args.open {
        let open = analysis::open_calls(&trace, &filter);
        let open = OpenCalls::new(&open, &trace, &filter);
        if args.format.json {
            return console.json(&open);
        }
        return console.show(|out, look| open.render(out, look));
    }
    let limit = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    let (wants_tree, wants_table, slowest) = match (args.tree, args.table) {
        (false, false) => (true, true, args.slowest.unwrap_or(SLOWEST)),
        (tree, table) => (tree, table, args.slowest.unwrap_or(0)),
    };
    let least = args.times.least();
    if args.times.need_runs()
        && let Some(note) = note_on_unknown(&trace, &filter, least)
    {
        console.note(&note);
    }
    let origin = trace_summary::span(&trace).map_or(0, |(first, _)| first);

    let layout = Layout {
        order: if args.format.json {
            Order::ByTime
        } else {
            args.layout.order()
        },
        folding: args.layout.folding(),
        limit,
    };
    let shown = Shown {
        least,
        levels: None,
    };
    let mut pass = OnePass::new(
        &trace,
        &filter,
        OnePassOptions {
            table: if wants_table {
                TableOption::Rows
            } else {
                TableOption::NotesOnly
            },
            slowest: (slowest > 0).then(|| slowest_calls::options(slowest, least)),
            shown,
            order: layout.order,
        },
    );
    // The summary, the table and the slowest calls are known at the end of the pass, and come
    // before the tree. So its lines are held until then. More lines than fit are read in a second
    // pass, as they are written.
    let holds_tree = wants_tree && limit <= MOST_HELD;
    let json_tree =
        (holds_tree && args.format.json).then(|| pass.lines().take(limit + 1).collect::<Vec<_>>());
    let first_lines = (holds_tree && !args.format.json).then(|| {
        let threads = pass.threads();
        FirstLines::read(pass.lines(), threads, layout)
    });
    let OnePassResult {
        mut account,
        slowest: slow_calls,
    } = pass.finish();
    account.sort(&trace, args.sort.into(), Direction::Descending);
    let table = wants_table.then(|| CallTable::new(&account, &trace, &filter, limit));
    let summary = TraceSummary::new(
        &args.inputs.name().display().to_string(),
        &trace,
        account.notes,
    );
    let shown_trace = ShownTrace {
        trace: &trace,
        formats: &formats,
    };
    let slowest = (slowest > 0).then(|| SlowestCalls::new(slow_calls, shown_trace, origin));
    let tree = || Tree::new(&trace, &filter, shown, layout.order);
    if args.format.json {
        let lines = wants_tree.then(|| match json_tree {
            Some(lines) => TreeLines::Held(lines.into_iter()),
            None => TreeLines::Read(tree()),
        });
        return console.json(&Report {
            trace: summary,
            table,
            slowest,
            tree: lines.map(|lines| CallTree::new(lines, shown_trace, origin, limit)),
        });
    }
    console.show(|out, look| {
        summary.render_head(out, look)?;
        summary.render_notes(out, look)?;
        if let Some(table) = &table {
            writeln!(out)?;
            table.render(out, look)?;
        }
        if let Some(slowest) = slowest.filter(|slowest| !slowest.is_empty()) {
            writeln!(out)?;
            slowest.render(out, look)?;
        }
        if !wants_tree {
            return Ok(());
        }
        writeln!(out)?;
        match first_lines {
            Some(lines) => lines.render(shown_trace, out, look),
            None => call_tree::render(tree(), shown_trace, layout, out, look),
        }
    })
}

// === impl TreeLines ===

impl Iterator for TreeLines<'_> {
    type Item = TreeLine;

    fn next(&mut self) -> Option<TreeLine> {
        match self {
            Self::Held(lines) => lines.next(),
            Self::Read(tree) => tree.next(),
        }
    }
}

// === impl Args ===

impl Args {
    fn write_page(&self, path: &Path, console: &mut Console) -> anyhow::Result<()> {
        let output = input::destined(path, &self.inputs.paths())?;
        let log = self.inputs.open_any(&self.logs, console)?;
        let filter = self.selection.filter_of(&log)?;
        let page = page::of(&log, &filter, &self.inputs.name());
        let printed = output.is_standard_output();
        output.write(console, |out, _| page.write(Standing::Alone, out))?;
        if printed {
            return Ok(());
        }
        let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
        let (path, bytes) = (path.display(), units::bytes(bytes));
        console.line(&format!("{path}: a report for a browser, {bytes}"))
    }
}

// === impl Sort ===

impl From<Sort> for SortBy {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Total => Self::Total,
            Sort::SelfTime => Self::SelfTime,
            Sort::OnCpu => Self::OnCpu,
            Sort::OffCpu => Self::OffCpu,
            Sort::Calls => Self::Calls,
            Sort::Min => Self::Min,
            Sort::Median => Self::Median,
            Sort::P99 => Self::P99,
            Sort::Max => Self::Max,
        }
    }
}
