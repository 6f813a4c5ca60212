//! `xrayctl status`: state and counters of the attached processes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use xrayd::Reason;
use xrayd::rpc::reason_of;
use xrayd_proto::v1::{
    GetAccessRequest, GetAccessResponse, ListPoliciesRequest, PolicyStatus, StatusRequest,
};

use crate::args::Format;
use crate::client::Daemon;
use crate::each_process::EachProcess;
use crate::failure::{self, Failure};
use crate::output::health::Health;
use crate::output::status::{Detail, Statuses};
use crate::output::{Console, units};
use crate::process::OnlyProcesses;

/// The time between the two looks of a check.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
--check prints only problems, and exits with 7 if there are any: sessions that have failed,
threads without a ring, events that are being lost, a faulty counter of the processor, a budget
that is exceeded, and processes that should have been followed. For root and the daemon's user
also: files of policies with mistakes, and processes that policies match and cannot trace. It takes
a second.

Examples:
  xrayctl status
  xrayctl status --check
  xrayctl status --pid 1234 --modules
  xrayctl status --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OnlyProcesses,
    /// Also show the modules of each process: functions that are on, memory that patching made
    /// private to the process, and how soon functions of a library that was loaded later were on
    #[arg(long)]
    modules: bool,
    /// Print only problems, and exit with 7 if there are any
    #[arg(long, conflicts_with = "modules")]
    check: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let mut get = async |pid| {
        let response = rpc.get_status(StatusRequest { pid }).await;
        let response = response.map_err(|status| failure::from_status(&status));
        let response = response.context("cannot get the status")?;
        anyhow::Ok(response.into_inner().processes)
    };
    let processes = each.run(console, &mut get).await?.concat();
    if args.check {
        let looked = Instant::now();
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let mut again = EachProcess::find(&args.process.names(), console)?;
        let now = again.run(console, &mut get).await?.concat();
        let (policies, access) = match args.process.names().is_empty() {
            true => (policies(daemon).await?, access(daemon).await?),
            false => (Vec::new(), None),
        };
        let seconds = looked.elapsed().as_secs_f64();
        let health = Health::of(&processes, &now, &policies, access.as_ref(), seconds);
        if args.format.json {
            console.json(&health)?;
        } else {
            console.show(|out, _| health.render(out))?;
        }
        let problems = health.problems() as u64;
        if problems > 0 {
            return Err(Failure::Problems(units::counted(problems, "problem")).into());
        }
        each.finish()?;
        return Ok(again.finish()?);
    }
    let detail = if args.modules {
        Detail::Modules
    } else {
        Detail::Processes
    };
    let statuses = Statuses { processes, detail };
    if args.format.json {
        console.json(&statuses)?;
    } else {
        console.show(|out, look| statuses.render(out, look))?;
    }
    Ok(each.finish()?)
}

/// The rules of access; none if the caller may not see them.
async fn access(daemon: &Daemon) -> anyhow::Result<Option<GetAccessResponse>> {
    let mut rpc = daemon.connect().await?;
    match rpc.get_access(GetAccessRequest::default()).await {
        Ok(got) => Ok(Some(got.into_inner())),
        Err(status) if reason_of(&status) == Some(Reason::Permission) => Ok(None),
        Err(status) => Err(failure::from_status(&status)).context("cannot get the rules of access"),
    }
}

/// The policies of the daemon; none if the caller may not see them.
async fn policies(daemon: &Daemon) -> anyhow::Result<Vec<PolicyStatus>> {
    let mut rpc = daemon.connect().await?;
    match rpc.list_policies(ListPoliciesRequest::default()).await {
        Ok(listed) => Ok(listed.into_inner().policies),
        Err(status) if reason_of(&status) == Some(Reason::Permission) => Ok(Vec::new()),
        Err(status) => Err(failure::from_status(&status)).context("cannot list the policies"),
    }
}
