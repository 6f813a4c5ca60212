//! `xrayctl status`: state and counters of the attached processes.

use anyhow::Context as _;
use xrayd_proto::v1::StatusRequest;

use crate::args::Format;
use crate::client::Daemon;
use crate::each_process::EachProcess;
use crate::failure;
use crate::output::Console;
use crate::output::status::{Detail, Statuses};
use crate::process::OnlyProcesses;

const EXAMPLES: &str = "\
Examples:
  xrayctl status
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
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let get = async |pid| {
        let response = rpc.get_status(StatusRequest { pid }).await;
        let response = response.map_err(|status| failure::from_status(&status));
        let response = response.context("cannot get the status")?;
        anyhow::Ok(response.into_inner().processes)
    };
    let processes = each.run(console, get).await?.concat();
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
