//! `xrayctl report`: the call tree and the table of functions of a trace. Needs neither daemon nor binary.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;
use xray_trace::analysis::{self, Filter, Order, PatternError, SortBy, Tree};
use xray_trace::model::{Ticks, Trace};

use crate::args::Format;
use crate::failure::Failure;
use crate::output::call_table::CallTable;
use crate::output::call_tree::{self, CallTree};
use crate::output::trace_summary::TraceSummary;
use crate::output::{Console, trace_summary};
use crate::parse;

const EXAMPLES: &str = "\
Without --tree or --table both are shown. Times in a function are counted whatever part of the trace is shown.

Examples:
  xrayctl report run.xtrace
  xrayctl report run.xtrace --table --sort self --limit 20
  xrayctl report run.xtrace --tree --function 'ns::parse*' --thread worker-1
  xrayctl report run.xtrace --since 1.5s --until 1.6s --limit 0";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The trace
    file: PathBuf,
    /// Show the call tree
    #[arg(long)]
    tree: bool,
    /// Show the table of functions
    #[arg(long)]
    table: bool,
    /// Only threads with this id or name, which may be a glob
    #[arg(long, value_name = "TID|NAME")]
    thread: Vec<String>,
    /// Only functions with this name, which may be a glob; in the tree, also what they call
    #[arg(long, value_name = "NAME")]
    function: Vec<String>,
    /// Only calls that begin at this time after the trace's first event, or later
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    since: Option<Duration>,
    /// Only calls that begin before this time after the trace's first event
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    until: Option<Duration>,
    /// Lines of the tree and rows of the table at most; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// What to sort the table by, greatest first
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t)]
    sort: Sort,
    /// How the threads' lines of the tree come
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    order: Lines,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// Time within, with what it called
    #[default]
    Total,
    /// Time within, without what it called
    #[value(name = "self")]
    SelfTime,
    /// Number of calls
    Calls,
    /// The shortest call
    Min,
    /// The call in the middle
    Median,
    /// The call that is longer than 99 in 100
    P99,
    /// The longest call
    Max,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Lines {
    /// All together, in order of time
    #[default]
    Time,
    /// One thread after the other
    Thread,
}

/// A trace in JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: TraceSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<CallTree<'a, Tree<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<CallTable>,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", args.file.display());
    let input = File::open(&args.file).with_context(cannot)?;
    let trace = Trace::open(input).with_context(cannot)?;
    let filter = args.filter(&trace)?;
    let limit = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    let (wants_tree, wants_table) = match (args.tree, args.table) {
        (false, false) => (true, true),
        wanted => wanted,
    };

    let mut account = analysis::account(&trace, &filter);
    account.sort(args.sort.into());
    let table = wants_table.then(|| CallTable::new(&account, &trace, limit));
    let summary = TraceSummary::new(&args.file.display().to_string(), &trace, account.notes);
    let lines = Tree::new(&trace, &filter, args.order.into());
    if args.format.json {
        let origin = trace_summary::span(&trace).map_or(0, |(first, _)| first);
        let tree = wants_tree.then(|| CallTree::new(lines, &trace, origin, limit));
        return console.json(&Report {
            trace: summary,
            tree,
            table,
        });
    }
    console.show(|out, look| {
        summary.render_head(out, look)?;
        summary.render_notes(out, look)?;
        if wants_tree {
            writeln!(out)?;
            call_tree::render(lines, &trace, limit, out, look)?;
        }
        if let Some(table) = &table {
            writeln!(out)?;
            table.render(out, look)?;
        }
        Ok(())
    })
}

// === impl Args ===

impl Args {
    fn filter(&self, trace: &Trace) -> anyhow::Result<Filter> {
        let since = self.since.map(|since| tick_at(trace, since));
        let until = self.until.map(|until| tick_at(trace, until));
        let threads = named(&self.thread, "thread", |name| {
            Filter::matching_threads(trace, name)
        })?;
        let functions = named(&self.function, "function", |name| {
            Filter::matching_functions(trace, name)
        })?;
        Ok(Filter {
            threads,
            functions,
            since,
            until,
        })
    }
}

/// The ids of everything that one of the patterns names; `None` without patterns.
fn named<T: Ord>(
    patterns: &[String],
    noun: &str,
    matching: impl Fn(&str) -> Result<BTreeSet<T>, PatternError>,
) -> anyhow::Result<Option<BTreeSet<T>>> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let matched = matching(pattern).map_err(|error| Failure::Usage(error.to_string()))?;
        if matched.is_empty() {
            let what = format!("no {noun} of the trace is called {pattern:?}");
            return Err(Failure::NothingMatched(what).into());
        }
        found.extend(matched);
    }
    Ok((!patterns.is_empty()).then_some(found))
}

/// The first tick that is so long after the first event, or later.
fn tick_at(trace: &Trace, after: Duration) -> Ticks {
    let blocks = || trace.blocks().iter();
    let first = blocks().map(|block| block.first.0).min().unwrap_or(0);
    let last = blocks().map(|block| block.last.0).max().unwrap_or(0);
    let clock = trace.clock();
    let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    let wanted = clock.monotonic_ns(Ticks(first)).saturating_add(after);
    // The clock never runs backwards, so the tick can be found by halving.
    let (mut before, mut at) = (first, last.saturating_add(1));
    while before < at {
        let middle = before + (at - before) / 2;
        if clock.monotonic_ns(Ticks(middle)) < wanted {
            before = middle + 1;
        } else {
            at = middle;
        }
    }
    Ticks(at)
}

// === impl Sort ===

impl From<Sort> for SortBy {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Total => Self::Total,
            Sort::SelfTime => Self::SelfTime,
            Sort::Calls => Self::Calls,
            Sort::Min => Self::Min,
            Sort::Median => Self::Median,
            Sort::P99 => Self::P99,
            Sort::Max => Self::Max,
        }
    }
}

// === impl Lines ===

impl From<Lines> for Order {
    fn from(lines: Lines) -> Self {
        match lines {
            Lines::Time => Self::ByTime,
            Lines::Thread => Self::ByThread,
        }
    }
}
