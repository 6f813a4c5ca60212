//! `xrayctl mode`: the mode of attached processes.

use xrayd::types::Mode;

use crate::{
    args::Format,
    client::Daemon,
    each_process::EachProcess,
    output::{Console, mode_set::NamedMode, per_process::PerProcess},
    parse,
    process::OnlyProcesses,
    setting::{show_setting, update_setting},
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
  xrayctl mode profile 1234 server";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The mode: flight, stream, profile or count
    #[arg(value_parser = parse::mode)]
    mode: Mode,
    #[command(flatten)]
    process: OnlyProcesses,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let mode = NamedMode(args.mode);
    let set = async |pid| update_setting(&mut rpc, pid, Some(mode)).await;
    let reports = each.run(console, set).await?.concat();
    let set = PerProcess::new(Some(mode), reports);
    show_setting(&set, args.format, each, console)
}
