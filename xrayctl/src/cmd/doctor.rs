//! `xrayctl doctor`: checks whether a process can be traced, and shows the remedy if not. Changes
//! nothing.

use anyhow::Context as _;
use xrayd_proto::v1::PreflightRequest;

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::output::Console;
use crate::output::checks::Checks;
use crate::output::text::printable;
use crate::process::{OneProcess, one_of};

const EXAMPLES: &str = "\
Exits with 4 if the process cannot be traced.

Examples:
  xrayctl doctor 1234";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = args.process.find()?;
    let mut rpc = daemon.connect_or_embed().await?;
    let response = rpc.preflight(PreflightRequest { pid }).await;
    let response = response
        .map_err(|status| failure::from_status(&status))
        .with_context(|| format!("cannot check process {pid}"))?;
    let checks = Checks::from(response.into_inner());
    if args.format.json {
        console.json(&checks)?;
    } else {
        console.show(|out, look| checks.render(out, look))?;
    }
    if checks.is_ready() {
        return Ok(());
    }
    let (reason, message) = checks
        .failure()
        .unwrap_or(("io", "no check gives a reason"));
    let refusal = Failure::Refused {
        reason: printable(reason),
        message: printable(message),
    };
    Err(refusal).with_context(|| format!("process {pid} cannot be traced"))
}
