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
    process::OnlyProcess,
};

const EXAMPLES: &str = "\
flight: the ring of each thread keeps its newest events. The daemon reads them when a snapshot is
  taken, or when the thread or the process ends. While a client reads a live stream, such as a
  recording, flight works like stream.
stream: the daemon reads all events and retains the newest. Events that find a full ring are lost,
  and counted.
profile: the daemon reads all events and adds them up, by thread and stack of calls. It keeps no
  event. `xrayctl profile PID --kept` shows the sums.
count: the program counts its calls, by function and thread, and records no event.
  `xrayctl count PID --kept` shows the counts.

Switching to flight or profile discards retained events. Changing the mode discards the sums of
profile.

Without --pid, mode changes every attached process.

Examples:
  xrayctl mode flight
  xrayctl mode stream --pid 1234
  xrayctl mode profile --pid 1234";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The mode: flight, stream, profile or count
    #[arg(value_parser = parse::mode)]
    mode: Mode,
    #[command(flatten)]
    process: OnlyProcess,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = args.process.find()?.unwrap_or(0);
    let mut rpc = daemon.connect().await?;
    let request = SetModeRequest {
        pid,
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
            Err(refused::failure(refusal)).with_context(|| format!("process {pid} is unchanged"))
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
