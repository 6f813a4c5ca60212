//! `xrayctl mode`: the mode of attached processes.

use anyhow::Context as _;
use xrayd::types::Mode;
use xrayd_proto::v1::SetModeRequest;

use crate::{
    args::Format,
    client::Daemon,
    failure,
    failure::Failure,
    output::{Console, mode_set::ModeSet, refused},
    parse,
};

const EXAMPLES: &str = "\
flight: rings hold the newest events of each thread, and nobody reads them until a snapshot is taken, or the thread or the process ends. While a
recording or another live stream runs, it is as in stream.
stream: the daemon reads all events and retains the newest of them. What finds a full ring is lost, and counted.
profile: the daemon reads all events and adds them up, by thread and stack of calls; `xrayctl profile PID --kept` shows the sums. No event is kept.
count: calls are counted in the program itself, by function and thread, and nothing is recorded of them; `xrayctl count PID --kept` shows the counts.

What is retained when a flight or a profile begins goes, and so does what was added up when a profile ends.

Without --pid, every attached process is meant.

Examples:
  xrayctl mode flight
  xrayctl mode stream --pid 1234
  xrayctl mode profile --pid 1234";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// flight, stream, profile or count
    #[arg(value_parser = parse::mode)]
    mode: Mode,
    /// Only this process; without this, every attached process
    #[arg(long, value_parser = crate::parse::pid)]
    pid: Option<u32>,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut rpc = daemon.connect().await?;
    let request = SetModeRequest {
        pid: args.pid.unwrap_or(0),
        mode: wire(args.mode).into(),
    };
    let response = rpc.set_mode(request).await;
    let reports = response
        .map_err(|status| failure::from_status(&status))
        .context("cannot change the mode")?
        .into_inner()
        .reports;
    if reports.is_empty() {
        return Err(Failure::NothingMatched("no process is attached".to_owned()).into());
    }
    let set = ModeSet::new(args.mode, reports);
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

/// The mode in the gRPC contract.
pub(crate) fn wire(mode: Mode) -> xrayd_proto::v1::Mode {
    match mode {
        Mode::Flight => xrayd_proto::v1::Mode::Flight,
        Mode::Stream => xrayd_proto::v1::Mode::Stream,
        Mode::Profile => xrayd_proto::v1::Mode::Profile,
        Mode::Count => xrayd_proto::v1::Mode::Count,
    }
}
