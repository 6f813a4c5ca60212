//! `xrayctl ps`: every process with sleds that the caller may see.

use nix::unistd::geteuid;
use xrayd_proto::v1::{ListProcessesRequest, ListProcessesResponse};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure;
use crate::output::processes::{ProcessRow, Processes};
use crate::output::{Console, Look};

const EXAMPLES: &str = "\
Examples:
  xrayctl ps
  xrayctl ps --json | jq '.processes[] | select(.state == \"ready\") | .pid'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut rpc = daemon.connect_or_embed().await?;
    let response = rpc.list_processes(ListProcessesRequest {}).await;
    let ListProcessesResponse { processes } = response
        .map_err(|status| failure::from_status(&status))?
        .into_inner();
    let listing = Processes {
        processes: processes.into_iter().map(ProcessRow::from).collect(),
    };
    if args.format.json {
        return console.json(&listing);
    }
    console.show(|out, look: Look| listing.render(out, look))?;
    if listing.processes.is_empty() && !geteuid().is_root() {
        console.note("processes of other users are not shown: only root may trace them");
    }
    Ok(())
}
