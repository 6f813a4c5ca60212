//! `xrayctl budget`: the limit on what tracing costs in attached processes, and its effect.

use anyhow::Context as _;
use xrayd_proto::v1::{ProcessStatus, StatusRequest};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::each_process::EachProcess;
use crate::failure;
use crate::limits::Limits;
use crate::output::{Console, budget_set};
use crate::process::OnlyProcesses;
use crate::setting::{show_setting, update_setting};

const EXAMPLES: &str = "\
With --max-overhead, xrayd suppresses functions that are called often and take little time, until
the cost of tracing is within the budget, in each thread and in all threads together. A suppressed
function stays on, but its sleds are off. xrayd adapts to a new load within about a second. At most
once a second, it resumes suppressed functions for 1 to 50 ms, to measure what they cost and how
often they are called. status and every trace show which functions were suppressed, when, and about
how many calls were not recorded.

With --keep, xrayd never suppresses these functions. Their cost counts, so xrayd suppresses others
for them. If they cost more than the budget by themselves, the cost of tracing exceeds the budget.

With --duty, xrayd records all functions and threads for TIME in each CYCLE, and nothing in the rest
of it. Each recorded call then stands for several calls; the trace says for how many.

--max-overhead does not work with a filter that leaves out calls in the program, because the cost of
such calls is not known.

Without options, budget shows the budget in force and the suppressed functions. Without --pid, it
applies to every attached process.

Examples:
  xrayctl budget --pid 1234 --max-overhead 2%
  xrayctl budget --max-overhead 2% --keep 'svc::handle'
  xrayctl budget --duty 5ms/1s
  xrayctl budget
  xrayctl budget --clear";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OnlyProcesses,
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
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let set = async |pid| {
        let reports = update_setting(&mut rpc, pid, wanted.clone()).await?;
        let statuses = match wanted {
            Some(_) => Vec::new(),
            None => statuses(&mut rpc, pid).await?,
        };
        anyhow::Ok((reports, statuses))
    };
    let (reports, statuses): (Vec<_>, Vec<_>) = each.run(console, set).await?.into_iter().unzip();
    show_setting(
        &budget_set::set(wanted, reports.concat(), statuses.concat()),
        args.format,
        each,
        console,
    )
}

/// The states of processes, with the effect of the budget.
async fn statuses(rpc: &mut Rpc, pid: u32) -> anyhow::Result<Vec<ProcessStatus>> {
    let response = rpc.get_status(StatusRequest { pid }).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let response = response.context("cannot list the suppressed functions")?;
    Ok(response.into_inner().processes)
}
