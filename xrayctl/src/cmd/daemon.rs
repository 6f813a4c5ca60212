//! `xrayctl daemon`: commands for the daemon itself.

use std::path::Path;
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
/// Longest wait for processes with which the new daemon goes on later.
const RECOVERY: Duration = Duration::from_secs(30);
/// Time between two looks for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

const EXAMPLES: &str = "\
restart has the daemon execute its program anew, in the same process, as after an upgrade of its
package. All functions that are on stay on, and no event is lost that the rings have room for. Live
streams and recordings end. The daemon must have a folder for its state (xrayd --state-dir). Only
root and the daemon's user may restart it. restart exits with 1 if the new daemon does not go on
with some process.

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
    let end = (begun + PATIENCE).into();
    let waiting = tokio::time::timeout_at(end, new_daemon(daemon, &before));
    let Ok((mut rpc, now)) = waiting.await else {
        anyhow::bail!(
            "no new daemon answers {} s after the restart: see the daemon's log",
            PATIENCE.as_secs()
        );
    };
    let within = begun.elapsed();
    let going_on = going_on(&mut rpc, &traced);
    let Ok(going_on) = tokio::time::timeout_at(end, going_on).await else {
        anyhow::bail!("the new daemon does not report its processes: see its log");
    };
    let restarted = Restarted::new(&now, within, traced, going_on.map_err(refused)?);
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

/// Waits for the first answer of the new daemon.
async fn new_daemon(daemon: &Daemon, before: &GetInfoResponse) -> (Rpc, GetInfoResponse) {
    loop {
        if let Ok(mut rpc) = daemon.connect().await
            && let Ok(now) = info(&mut rpc).await
            && (now.daemon_pid, now.started_ns) != (before.daemon_pid, before.started_ns)
        {
            return (rpc, now);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The processes that the new daemon traces. Waits for those that were traced before and have not
/// ended: the daemon goes on with some later if their files do not answer.
async fn going_on(rpc: &mut Rpc, before: &[u32]) -> Result<Vec<u32>, Status> {
    let begun = Instant::now();
    loop {
        let now = traced(rpc).await?;
        let lives = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        let is_missing = |pid: &&u32| !now.contains(pid) && lives(pid);
        if !before.iter().any(|pid| is_missing(&pid)) || begun.elapsed() > RECOVERY {
            return Ok(now);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
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
