//! `xrayctl budget`: the limit on what tracing costs in attached processes, and its effect.

use anyhow::Context as _;
use xrayd_proto::v1::{SetBudgetRequest, StatusRequest};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::limits::Limits;
use crate::output::budget_set::BudgetSet;
use crate::output::{Console, refused};
use crate::process::OnlyProcess;

const EXAMPLES: &str = "\
With --max-overhead, xrayd suppresses functions that are called often and take little time, until
the cost of tracing is within the budget, in each thread and in all threads together. A suppressed
function stays on, but its sleds are off. xrayd adapts to a new load within about a second. At most
once a second, it resumes suppressed functions for 1 to 50 ms, to measure what they cost and how
often they are called. status and every trace show which functions were suppressed, when, and about
how many calls were not recorded.

With --duty, xrayd records all functions and threads for TIME in each CYCLE, and nothing in the rest
of it. Each recorded call then stands for several calls; the trace says for how many.

--max-overhead does not work with a filter that leaves out calls in the program, because the cost of
such calls is not known.

Without options, budget shows the budget in force and the suppressed functions. Without --pid, it
applies to every attached process.

Examples:
  xrayctl budget --pid 1234 --max-overhead 2%
  xrayctl budget --duty 5ms/1s
  xrayctl budget
  xrayctl budget --clear";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OnlyProcess,
    #[command(flatten)]
    limits: Limits,
    /// Remove the limit
    #[arg(long, conflicts_with_all = ["max_overhead", "duty"])]
    clear: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let wanted = match args.clear {
        true => Some(Default::default()),
        false => args.limits.wire(),
    };
    let pid = args.process.find()?.unwrap_or(0);
    let mut rpc = daemon.connect().await?;
    let request = SetBudgetRequest {
        pid,
        budget: wanted,
    };
    let response = rpc.set_budget(request).await;
    let reports = response
        .map_err(|status| failure::from_status(&status))
        .context("cannot set or show the budget")?
        .into_inner()
        .reports;
    if reports.is_empty() {
        return Err(Failure::NothingMatched("no process is attached".to_owned()).into());
    }
    let statuses = match wanted {
        Some(_) => Vec::new(),
        None => {
            rpc.get_status(StatusRequest { pid })
                .await
                .map_err(|status| failure::from_status(&status))
                .context("cannot list the suppressed functions")?
                .into_inner()
                .processes
        }
    };
    let set = BudgetSet::new(wanted, reports, statuses);
    if args.format.json {
        console.json(&set)?;
    } else {
        console.show(|out, look| set.render(out, look))?;
    }
    match set.refusal() {
        None => Ok(()),
        Some((pid, refusal)) => {
            Err(refused::failure(refusal)).with_context(|| format!("process {pid} is unchanged"))
        }
    }
}
