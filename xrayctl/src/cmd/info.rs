//! `xrayctl info`: the contents of a trace, or of several.

use xray_trace::source::Opened;

use crate::args::Format;
use crate::input::Logs;
use crate::inputs::{Inputs, Shown};
use crate::log::Log;
use crate::output::Console;
use crate::output::profile_info::ProfileInfo;
use crate::output::trace_info::TraceInfo;

pub(crate) const EXAMPLE: &str = "\
Example:
  $ xrayctl info run.xtrace
  server (4711): 19 events of 2 threads in 45.00 ms
  17 events lost: calls around the losses are not complete
  xtrace version 1, 574 B, 2 blocks of events
  clock: 2,000,000,000 Hz, 2 anchors
               11 entries
                3 entries with arguments
                5 exits
                3 tail exits
                1 losses
   PID   TID  EVENTS  LOST  THREAD
  4711  4711      16     0  server
  4711  4712       4    17  worker
   PID  FUNCTIONS  BUILD ID  MODULE
  4711          2  -         /usr/bin/server
  4711          2  -         /usr/lib/libfoo.so";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    logs: Logs,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let Shown { name, log, bytes } = args.inputs.open_sized(&args.logs, console)?;
    let file = name.display().to_string();
    match log {
        Log::Trace(Opened { trace, format, .. }) => {
            let info = TraceInfo::new(&file, bytes, &trace, format);
            if args.format.json {
                return console.json(&info);
            }
            console.show(|out, look| info.render(out, look))
        }
        Log::Profile(opened) => {
            let info = ProfileInfo::new(&file, bytes, &opened);
            if args.format.json {
                return console.json(&info);
            }
            console.show(|out, look| info.render(out, look))
        }
    }
}
