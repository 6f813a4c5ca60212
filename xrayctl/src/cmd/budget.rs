//! `xrayctl budget`: the limit on what tracing costs in attached processes, and its effect.

use anyhow::Context as _;
use xrayd_proto::v1::{SetEconomyRequest, StatusRequest};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::limits::Limits;
use crate::output::economy_set::EconomySet;
use crate::output::{Console, refused};

const EXAMPLES: &str = "\
With --max-overhead, functions that cost more than they show rest: those that are called often and take no time. They stay switched on and are off, so that the others keep to
the budget, in each thread and in all; a second after the load has changed they do again. Now and then, what rests is on for milliseconds, to see what it costs by now and how
often it is called. What rested, when, and about how many calls of it nobody saw is in status and in every trace.

With --duty, everything is recorded for a while, for all functions and threads at once, and nothing in between; each call then stands for as many as the trace says.

Without options, what is in force is shown, and what rests. What a filter leaves out in the program cannot be weighed: such filters do not go with a budget. Without --pid, every
attached process is meant.

Examples:
  xrayctl budget --pid 1234 --max-overhead 2%
  xrayctl budget --duty 5ms/1s
  xrayctl budget
  xrayctl budget --clear";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only this process; without this, every attached process
    #[arg(long, value_parser = crate::parse::pid)]
    pid: Option<u32>,
    #[command(flatten)]
    limits: Limits,
    /// Let tracing cost whatever it does
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
    let mut rpc = daemon.connect().await?;
    let pid = args.pid.unwrap_or(0);
    let request = SetEconomyRequest {
        pid,
        economy: wanted,
    };
    let response = rpc.set_economy(request).await;
    let reports = response
        .map_err(|status| failure::from_status(&status))
        .context("cannot set what tracing may cost")?
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
                .context("cannot ask what rests")?
                .into_inner()
                .processes
        }
    };
    let set = EconomySet::new(wanted, reports, statuses);
    if args.format.json {
        console.json(&set)?;
    } else {
        console.show(|out, look| set.render(out, look))?;
    }
    match set.refusal() {
        None => Ok(()),
        Some((pid, refusal)) => {
            Err(refused::failure(refusal)).with_context(|| format!("nothing was done to {pid}"))
        }
    }
}
