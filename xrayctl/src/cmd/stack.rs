//! `xrayctl stack`: the stacks with the longest or the most calls, of one trace or several, or the
//! difference of two.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use xray_trace::analysis::{Side, StackRoots, StackTrie};
use xray_trace::source::CommonUnit;

use crate::failure::Failure;
use crate::gathering::{Gathering, Time};
use crate::input::{Destination, Logs, Selection, Unpaired};
use crate::inputs::{Inputs, Shown, Unreadable, add_unit};
use crate::log::Log;
use crate::output::Console;
use crate::output::stacks::{self, Folded, Top};

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl stack run.xtrace --all-stacks --aggregate-threads --stack-format=flame
  main 44992298
  main;ns::parse(char const*) 6452
  main;ns::parse(char const*);ns::next() 750
  work 50

Folded stacks have self times in nanoseconds, so that a flame graph adds up. With --diff, they have
the times of both traces.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    unpaired: Unpaired,
    /// Compare with this trace, by the names of functions
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Keep the stacks of threads apart
    #[arg(long, conflicts_with = "aggregate_threads")]
    per_thread_stacks: bool,
    /// Add up the stacks of all threads, which is the default without --all-stacks
    #[arg(long)]
    aggregate_threads: bool,
    /// Print all stacks, not only the top ones; by thread, unless --aggregate-threads is given
    #[arg(long, visible_alias = "all")]
    all_stacks: bool,
    /// Number of top stacks
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// The output format
    #[arg(long, value_enum, default_value_t)]
    stack_format: StackFormat,
    /// The measure of folded stacks
    #[arg(long, value_enum, default_value_t)]
    aggregation_type: Aggregation,
    #[command(flatten)]
    logs: Logs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    destination: Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum StackFormat {
    /// The top stacks, call by call
    #[default]
    Human,
    /// Folded: all stacks, a line each, as flamegraph.pl and inferno read them
    Flame,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Aggregation {
    /// Self time, in nanoseconds
    #[default]
    Time,
    /// Number of calls
    Count,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let mut files = args.inputs.paths();
    files.extend(args.diff.as_deref());
    let output = args.destination.open(&files)?;
    let per_thread = args.per_thread_stacks || args.all_stacks && !args.aggregate_threads;
    let roots = if per_thread {
        StackRoots::PerThread
    } else {
        StackRoots::Together
    };
    let gathering = Gathering {
        selection: &args.selection,
        unpaired: args.unpaired,
        roots,
        time: Time::All,
    };
    let diff = args.diff.clone().map(Inputs::of);
    let mut stacks = StackTrie::default();
    let mut unit = CommonUnit::default();
    let mut calibrated = true;
    let unreadable = match args.unpaired.keep_going {
        true => Unreadable::IsNoted,
        false => Unreadable::Fails,
    };
    let sides = [
        (Some(&args.inputs), Side::Before),
        (diff.as_ref(), Side::After),
    ];
    for (inputs, side) in sides {
        let shown = inputs.map(|inputs| inputs.open_kinds(&args.logs, unreadable, console));
        for Shown { name, log, .. } in shown.transpose()?.unwrap_or_default() {
            if args.shows_times() {
                add_times(&name, &log, &mut unit)?;
            }
            calibrated &= gathering.add(&name, &log, side, &mut stacks, console)?;
        }
    }
    let mut counts = stacks.nodes().iter().flat_map(|node| node.counts);
    if counts.all(|counts| counts.calls == 0) {
        let what = "no instrumented calls were accounted in the input file";
        return Err(Failure::NothingMatched(what.to_owned()).into());
    }
    if let Some(note) = stacks::note(&stacks) {
        console.note(&note);
    }
    let folded = match args.aggregation_type {
        Aggregation::Time => Folded::SelfTime,
        Aggregation::Count => Folded::Calls,
    };
    let top = Top {
        limit: if args.all_stacks {
            usize::MAX
        } else {
            args.top
        },
        per_thread,
        diff: args.diff.is_some(),
        calibrated,
        names: console.names(),
    };
    output.write(console, |out, _| match args.stack_format {
        StackFormat::Human => stacks::human(&stacks, top, out),
        StackFormat::Flame => {
            let lines = stacks::folded(&stacks, folded, args.diff.is_some());
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))
        }
    })
}

/// Fails for a file whose times are in another unit than the times of the files before it.
fn add_times(name: &Path, log: &Log, unit: &mut CommonUnit) -> Result<(), Failure> {
    add_unit(log, unit).map_err(|error| {
        Failure::Usage(format!(
            "cannot add {} to the others: {error}; give files of one unit, or show the numbers of \
             calls alone with --stack-format=flame --aggregation-type=count",
            name.display()
        ))
    })
}

// === impl Args ===

impl Args {
    /// False if only numbers of calls are shown.
    fn shows_times(&self) -> bool {
        match self.stack_format {
            StackFormat::Human => true,
            StackFormat::Flame => self.aggregation_type == Aggregation::Time,
        }
    }
}
