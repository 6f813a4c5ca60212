//! `xrayctl detach`: detaches processes, and shows the proof that they are as they were.

use anyhow::Context as _;
use xrayd_proto::v1::{DetachRequest, DetachResponse};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure;
use crate::output::detached::Detached;
use crate::output::{Console, refused};
use crate::process::{OneProcess, one_of};

const EXAMPLES: &str = "\
detach switches all functions off, reads every sled back, and compares the text outside the sleds
with the file. It prints the result, and exits with 1 if a sled is still on or the text differs.

Examples:
  xrayctl detach 1234
  xrayctl detach --all";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid", "all"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    /// Every attached process that you own; every attached process for root
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = match args.all {
        true => None,
        false => Some(args.process.find()?),
    };
    let mut rpc = daemon.connect().await?;
    let response = rpc
        .detach(DetachRequest {
            pid: pid.unwrap_or(0),
        })
        .await;
    let DetachResponse { reports } = response
        .map_err(|status| failure::from_status(&status))
        .with_context(|| match pid {
            Some(pid) => format!("cannot detach from {pid}"),
            None => "cannot detach".to_owned(),
        })?
        .into_inner();
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
        None => Ok(()),
        Some(pid) => anyhow::bail!(
            "process {pid} may not be as it was: a sled is still on, or its text differs from the file"
        ),
    }
}
