//! `xrayctl diff`: two traces or profiles, compared function by function.

use std::path::PathBuf;

use xray_trace::analysis::{self, AccountOptions, GroupBy};
use xray_trace::model::Calibration;

use crate::args::Format;
use crate::input::{Logs, Selection, Unpaired};
use crate::log::Log;
use crate::output::Console;
use crate::output::function_diff::{FunctionDiff, Functions, Shown, Sort};

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl diff run.xtrace run.xtrace --min-calls 3 --function 'ns::*'
  RATIO  PER CALL     AFTER  CALLS  AFTER  CHANGE  FUNCTION
   1.00    250 ns    250 ns      4      4    0 ns  ns::next()
   1.00  2.234 µs  2.234 µs      4      4    0 ns  ns::parse(char const*)

RATIO is the time per call in the second file divided by the time in the first: 3.70 is 3.7 times
slower, and 0.250 is 4 times faster. The time of a call includes its callees. CHANGE is the change
of the time of all calls. A second table lists the functions that are not compared: they are in one
file only, or have too few calls.

Functions are compared by name, without LLVM's suffixes, such as '(.llvm.77)'. Calls without an exit
have no time.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The first trace or profile; - is standard input
    before: PathBuf,
    /// The second trace or profile
    after: PathBuf,
    /// The order of the functions
    #[arg(short, long, value_name = "COLUMN", value_enum, default_value_t)]
    sort: Sort,
    /// Print at most N functions of each table; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 25)]
    top: usize,
    /// Compare only functions with at least N ended calls in each file
    #[arg(long, value_name = "N", default_value_t = 10)]
    min_calls: u64,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    logs: Logs,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let mut functions = Functions::default();
    let files = [&args.before, &args.after];
    let mut calibrations = Vec::new();
    for (side, file) in files.into_iter().enumerate() {
        let log = args.logs.open_any(file, console)?;
        let filter = args.selection.filter_of(&log)?;
        let account = match &log {
            Log::Trace(opened) => {
                let trace = &opened.trace;
                let account = analysis::account(trace, &filter, AccountOptions::default());
                Unpaired::default().tell(file, trace, &filter, account.notes, console);
                account
            }
            Log::Profile(opened) => {
                analysis::account_profile(&opened.profile, &filter, GroupBy::Function)
            }
        };
        let tables = log.tables();
        functions.add(&account, tables, side);
        if !account.rows.is_empty() {
            calibrations.push(tables.clock().calibration() == Calibration::Measured);
        }
    }
    if calibrations.contains(&true) && calibrations.contains(&false) {
        anyhow::bail!("one file has times in nanoseconds and the other in ticks");
    }
    let shown = Shown {
        sort: args.sort,
        top: if args.top == 0 { usize::MAX } else { args.top },
        min_calls: args.min_calls,
    };
    let names = files.map(|file| file.display().to_string());
    let diff = FunctionDiff::new(names, functions, shown);
    if args.format.json {
        return console.json(&diff);
    }
    console.show(|out, look| diff.render(out, look))
}
