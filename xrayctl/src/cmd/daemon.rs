//! `xrayctl daemon`: commands for the daemon itself.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tonic::Status;
use xrayd_proto::v1::{GetInfoRequest, GetInfoResponse, RestartRequest, StatusRequest};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::failure;
use crate::output::Console;
use crate::output::restarted::Restarted;

/// Longest wait for the new daemon. The old one waits for attaches under way, and the new one for
/// processes whose files do not answer.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time between two looks for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
restart has the daemon execute its program anew, in the same process, as after an upgrade of its
package. All functions that are on stay on, and no event is lost that the rings have room for. Live
streams and recordings end. The daemon must have a folder for its state (xrayd --state-dir). Only
root and the daemon's user may restart it. restart exits with 1 if the new daemon does not go on with
some process.

Examples:
  xrayctl daemon restart";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Execute the daemon's program anew, and go on with all processes
    #[command(after_help = EXAMPLES)]
    Restart(RestartArgs),
}

#[derive(Debug, clap::Args)]
struct RestartArgs {
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    match args.command {
        Command::Restart(args) => restart(&args, daemon, console).await,
    }
}

async fn restart(args: &RestartArgs, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut rpc = daemon.connect().await?;
    let before = info(&mut rpc).await.map_err(refused)?;
    let traced = traced(&mut rpc).await.map_err(refused)?;
    let begun = Instant::now();
    let restarting = rpc.restart(RestartRequest {}).await;
    restarting
        .map_err(refused)
        .context("cannot restart the daemon")?;
    // The old daemon closes its listener and ends its connections first.
    drop(rpc);
    let (now, still_traced) = loop {
        if let Ok(found) = look(daemon, &before).await {
            break found;
        }
        if begun.elapsed() > PATIENCE {
            anyhow::bail!(
                "no new daemon answers {} s after the restart: see the daemon's log",
                PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let restarted = Restarted::new(&now, begun.elapsed(), traced, still_traced);
    if args.format.json {
        console.json(&restarted)?;
    } else {
        console.show(|out, look| restarted.render(out, look))?;
    }
    match restarted.first_left() {
        None => Ok(()),
        Some(pid) => anyhow::bail!(
            "the new daemon does not trace process {pid}: it has ended, or the daemon's log has the \
             reason"
        ),
    }
}

/// Asks the new daemon, if it answers already.
async fn look(
    daemon: &Daemon,
    before: &GetInfoResponse,
) -> anyhow::Result<(GetInfoResponse, Vec<u32>)> {
    let mut rpc = daemon.connect().await?;
    let now = info(&mut rpc).await.map_err(refused)?;
    anyhow::ensure!(
        (now.daemon_pid, now.started_ns) != (before.daemon_pid, before.started_ns),
        "this is the old daemon"
    );
    let traced = traced(&mut rpc).await.map_err(refused)?;
    Ok((now, traced))
}

async fn info(rpc: &mut Rpc) -> Result<GetInfoResponse, Status> {
    Ok(rpc.get_info(GetInfoRequest {}).await?.into_inner())
}

/// The processes that the daemon traces.
async fn traced(rpc: &mut Rpc) -> Result<Vec<u32>, Status> {
    let status = rpc.get_status(StatusRequest { pid: 0 }).await?.into_inner();
    Ok(status.processes.iter().map(|process| process.pid).collect())
}

fn refused(status: Status) -> anyhow::Error {
    failure::from_status(&status)
}
