//! `xrayctl detach`: detaches processes, and shows the proof that they are as they were.

use anyhow::Context as _;
use xrayd_proto::v1::DetachRequest;

use crate::args::Format;
use crate::client::Daemon;
use crate::each_process::{EVERY_ATTACHED, EachProcess};
use crate::failure;
use crate::output::detached::Detached;
use crate::output::{Console, refused};
use crate::process::{SeveralProcesses, one_of};

const EXAMPLES: &str = "\
detach switches all functions off, reads every sled back, and compares the text outside the sleds
with the file. It prints the result, and exits with 1 if a sled is still on or the text differs.
Processes that were forked from it, and that are not followed, have the same functions on. It does
the same to these.

Examples:
  xrayctl detach 1234
  xrayctl detach server unit:redis
  xrayctl detach --all";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid", "all"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: SeveralProcesses,
    /// Every attached process that you own; every attached process for root
    #[arg(long)]
    all: bool,
    /// Leave forked processes alone that are not followed
    #[arg(long)]
    leave_children: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    // Without a name, this is every attached process. clap has made sure that --all is given then.
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let detach = async |pid| {
        let request = DetachRequest {
            pid,
            leave_children: args.leave_children,
        };
        let response = rpc.detach(request).await;
        let response = response.map_err(|status| failure::from_status(&status));
        let response = response.with_context(|| match pid {
            EVERY_ATTACHED => "cannot detach".to_owned(),
            pid => format!("cannot detach from {pid}"),
        })?;
        anyhow::Ok(response.into_inner().reports)
    };
    let reports = each.run(console, detach).await?.concat();
    let detached = Detached::from(reports);
    if args.format.json {
        console.json(&detached)?;
    } else {
        console.show(|out, look| detached.render(out, look))?;
    }
    if let Some((pid, refusal)) = detached.refusal() {
        return Err(refused::failure(refusal)).with_context(|| format!("cannot detach from {pid}"));
    }
    match detached.unproven() {
        None => Ok(each.finish()?),
        Some(pid) => anyhow::bail!(
            "process {pid} may not be as it was: a sled is still on, or its text differs from the file"
        ),
    }
}
