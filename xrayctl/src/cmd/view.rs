//! `xrayctl view`: a report in a browser, with the whole trace behind it. Needs neither a daemon
//! nor a binary.

use std::path::PathBuf;
use std::thread;

use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::input::{Logs, Selection};
use crate::log::Log;
use crate::output::Console;
use crate::page;
use crate::signals::Signals;
use crate::view::{Browser, Report, Server};

const EXAMPLES: &str = "\
view serves the page of `xrayctl report --html` until Ctrl-C. In addition, zooming into the timeline
shows every call, and a button opens the trace in the Perfetto UI.
The server listens on the loopback interface only, at an address with a random word.

Examples:
  xrayctl view run.xtrace
  xrayctl view run.xtrace --port 8080 --no-browser   for a browser at the other end of ssh -L 8080:127.0.0.1:8080";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The trace or profile; - is standard input
    file: PathBuf,
    /// The port on the loopback interface; 0 is any free port
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// Print the address, and open no browser
    #[arg(long)]
    no_browser: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    logs: Logs,
}

pub(crate) async fn run(args: Args, console: &mut Console) -> anyhow::Result<()> {
    let mut signals = Signals::hold()?;
    // A port that is in use is found before the trace is read.
    let cannot = || format!("cannot listen on port {}", args.port);
    let server = Server::bind(args.port).await.with_context(cannot)?;
    let log = args.logs.open_any(&args.file, console)?;
    let filter = args.selection.filter_of(&log)?;
    // The thread is left behind if the page is not wanted any more.
    let (sender, made) = oneshot::channel();
    let file = args.file.clone();
    thread::spawn(move || {
        let page = page::of(&log, &filter, &file);
        let trace = match log {
            Log::Trace(opened) => Some(opened.trace),
            Log::Profile(_) => None,
        };
        let _ = sender.send(Report::new(trace, page));
    });
    let report = tokio::select! {
        made = made => made.context("the report cannot be made")??,
        () = signals.next() => return Ok(()),
    };
    let url = server.url();
    console.line(&url)?;
    let opened = (!args.no_browser && Browser::is_wanted()).then(|| Browser::open(&url));
    // The file that leads to the page exists as long as the page.
    let _leading = match opened {
        Some(Err(error)) => {
            console.note(&format!("no browser was opened: xdg-open: {error}"));
            None
        }
        opened => opened,
    };
    console.note("open this address in a browser on this machine; Ctrl-C ends the server");
    tokio::select! {
        () = server.serve(report) => {}
        () = signals.next() => {}
    }
    Ok(())
}
