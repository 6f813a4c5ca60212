//! `xrayctl account`: number and duration of calls, by function, thread, process or module.

use clap::ValueEnum;
use xray_trace::analysis::{self, AccountOptions, Counted, Direction, GroupBy, SortBy};

use crate::failure::Failure;
use crate::input::{Destination, Logs, Selection, Unpaired};
use crate::inputs::Inputs;
use crate::log::Log;
use crate::output::Console;
use crate::output::account::{Columns, Format, Table};
use crate::run_times::no_run_times;

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl account run.xtrace --sort=count --sortorder=dsc --top=2
  CALLS  UNFINISHED     TOTAL      SELF       MIN      MEAN    MEDIAN       P90       P99     P99.9       MAX  NAME
      4           1  6.702 µs  5.952 µs  2.234 µs  2.234 µs  2.234 µs  2.234 µs  2.234 µs  2.234 µs  2.234 µs  ns::parse(char const*)
      4           1    750 ns    750 ns    250 ns    250 ns    250 ns    250 ns    250 ns    250 ns    250 ns  ns::next()

The order of the rows is that of llvm-xray. --columns llvm prints its columns, in seconds. It leaves
out calls without an exit; a second table shows them. csv has these columns by default. Percentiles
are exact up to 256 calls of a function. Beyond that they are off by less than 1 %.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    unpaired: Unpaired,
    /// Count only calls that are part of a recursion
    #[arg(long)]
    recursive_calls_only: bool,
    /// Print a row for each function, thread, process or module
    #[arg(long, value_name = "SUBJECT", value_enum, default_value_t)]
    by: By,
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    format: Format,
    /// The columns of text and csv; without this, all, except that csv has those of llvm-xray for a
    /// trace with --by function
    #[arg(long, value_enum)]
    columns: Option<Columns>,
    /// The column to sort by
    #[arg(short, long, value_name = "COLUMN", value_enum, default_value_t)]
    sort: Sort,
    /// The order of rows
    #[arg(short = 'r', long, value_name = "ORDER", value_enum, default_value_t)]
    sortorder: SortOrder,
    /// Print at most N rows; 0 or less prints all
    #[arg(short = 'p', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    top: i64,
    #[command(flatten)]
    logs: Logs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    destination: Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum By {
    #[default]
    Function,
    Thread,
    Process,
    Module,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// The id of the function, thread, process or module
    #[default]
    Funcid,
    /// Number of calls with an exit
    Count,
    /// Number of all calls
    Calls,
    /// Number of calls without an exit
    Unfinished,
    /// The shortest call
    Min,
    /// The mean call
    Mean,
    /// The median call
    Med,
    /// The 90th percentile
    #[value(name = "90p")]
    P90,
    /// The 99th percentile
    #[value(name = "99p")]
    P99,
    /// The 99.9th percentile
    #[value(name = "99.9p")]
    P999,
    /// The longest call
    Max,
    /// Sum of durations; the time of a recursive call counts several times
    Sum,
    /// Time in the function, callees included; recursive calls count once
    Total,
    /// Time in the function, without callees
    #[value(name = "self")]
    SelfTime,
    /// Time in the function for which the thread had a processor
    OnCpu,
    /// Time in the function for which the thread had no processor
    OffCpu,
    /// The name
    Func,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum SortOrder {
    /// Least first
    #[default]
    Asc,
    /// Greatest first
    Dsc,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    if args.recursive_calls_only && args.by != By::Function {
        let what = "--recursive-calls-only works only with --by function".to_owned();
        return Err(Failure::Usage(what).into());
    }
    let output = args.destination.open(&args.inputs.paths())?;
    let log = args.inputs.open_any(&args.logs, console)?;
    if matches!(args.sort, Sort::OnCpu | Sort::OffCpu) && !log.tables().has_runs() {
        return Err(no_run_times(&args.inputs.name()));
    }
    let filter = args.selection.filter_of(&log)?;
    let mut account = match &log {
        Log::Trace(opened) => {
            let options = AccountOptions {
                by: args.by.into(),
                counted: if args.recursive_calls_only {
                    Counted::Recursive
                } else {
                    Counted::All
                },
                siblings: args.unpaired.siblings(),
            };
            analysis::account(&opened.trace, &filter, options)
        }
        Log::Profile(opened) => {
            let llvm = args.columns == Some(Columns::Llvm);
            if args.recursive_calls_only || llvm {
                let option = if llvm {
                    "--columns llvm"
                } else {
                    "--recursive-calls-only"
                };
                let what =
                    format!("{option} does not work with a profile, which has no single calls");
                return Err(Failure::Usage(what).into());
            }
            analysis::account_profile(&opened.profile, &filter, args.by.into())
        }
    };
    let trace = log.tables();
    account.sort(trace, args.sort.into(), args.sortorder.into());
    let columns = args.columns.unwrap_or(match (args.format, &log, args.by) {
        // Scripts read it in the place of llvm-xray's.
        (Format::Csv, Log::Trace(_), By::Function) => Columns::Llvm,
        _ => Columns::All,
    });
    let file = args.inputs.name().display().to_string();
    let top = usize::try_from(args.top).ok().filter(|top| *top > 0);
    let top = top.unwrap_or(usize::MAX);
    let table = Table::new(&file, &account, trace, &filter, columns, top);
    if args.format != Format::Json || args.unpaired.keep_going {
        args.unpaired
            .tell(&args.inputs.name(), trace, &filter, account.notes, console);
    }
    output.write(console, |out, look| table.write(args.format, out, look))
}

// === impl By ===

impl From<By> for GroupBy {
    fn from(by: By) -> Self {
        match by {
            By::Function => Self::Function,
            By::Thread => Self::Thread,
            By::Process => Self::Process,
            By::Module => Self::Module,
        }
    }
}

// === impl Sort ===

impl From<Sort> for SortBy {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Funcid => Self::Id,
            Sort::Count => Self::Finished,
            Sort::Calls => Self::Calls,
            Sort::Unfinished => Self::Unfinished,
            Sort::Min => Self::Min,
            Sort::Mean => Self::Mean,
            Sort::Med => Self::Median,
            Sort::P90 => Self::P90,
            Sort::P99 => Self::P99,
            Sort::P999 => Self::P999,
            Sort::Max => Self::Max,
            Sort::Sum => Self::Sum,
            Sort::Total => Self::Total,
            Sort::SelfTime => Self::SelfTime,
            Sort::OnCpu => Self::OnCpu,
            Sort::OffCpu => Self::OffCpu,
            Sort::Func => Self::Name,
        }
    }
}

// === impl SortOrder ===

impl From<SortOrder> for Direction {
    fn from(order: SortOrder) -> Self {
        match order {
            SortOrder::Asc => Self::Ascending,
            SortOrder::Dsc => Self::Descending,
        }
    }
}
