//! `xrayctl count`: the number of calls by function or by thread, and nothing else.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tonic::Streaming;
use xrayd::{
    process::Follow,
    types::Capture,
    types::{Mode, Wanted},
};
use xrayd_proto::v1::{EventBatch, FetchCountsRequest, StreamEventsRequest};

use super::attach::{Memory, sleds};
use crate::{
    args::Format,
    attachment,
    attachment::{Ended, Undo},
    client::{Daemon, Rpc},
    failure,
    output::{
        Console,
        counted::{CountBy, Counted, Counts},
    },
    parse,
    process::{OneProcess, one_of},
    selectors,
    selectors::{Pending, Selectors},
    signals::Signals,
    toggle,
    toggle::Switching,
};

const EXAMPLES: &str = "\
Without a selector, all functions are counted. Each thread of the program counts its calls in its
own memory, and does not read the clock. That costs about a tenth of recording a call. No event is
recorded, so there are no times and no losses.

count attaches to a process that is not attached, and detaches at the end. An attached process must
be in mode count (`xrayctl mode count`). count does not change the mode itself, because other users
of the process would miss events. Functions that count switches on are off again afterwards.

With --kept, count shows the counts since the mode became count, and switches no function.

Examples:
  xrayctl count 1234 --duration 10s
  xrayctl count 1234 --glob 'ns::*' --duration 10s --by-thread
  xrayctl count 1234 --kept --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    pending: Pending,
    /// Stop after this time, like 5s; without this, when the process ends or on Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    duration: Option<Duration>,
    /// Show the counts since the mode became count
    #[arg(long, conflicts_with = "duration")]
    kept: bool,
    /// Show a row for each function of each thread
    #[arg(long)]
    by_thread: bool,
    /// Show at most N rows; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 25)]
    top: usize,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = args.process.find()?;
    let counted = match args.kept {
        true => Counted::new(fetch(&mut daemon.connect().await?, pid).await?, None),
        false => made(&args, pid, daemon, console).await?,
    };
    let by = if args.by_thread {
        CountBy::FunctionAndThread
    } else {
        CountBy::Function
    };
    if args.format.json {
        return console.json(&counted.rows(by, usize::MAX));
    }
    let top = if args.top == 0 { usize::MAX } else { args.top };
    let rows = counted.rows(by, top);
    console.show(|out, look| rows.render(out, look))?;
    for line in rows.notes() {
        console.note(&line);
    }
    Ok(())
}

/// Counts from now on.
async fn made(
    args: &Args,
    pid: u32,
    daemon: &Daemon,
    console: &mut Console,
) -> anyhow::Result<Counted> {
    let mut signals = Signals::hold()?;
    let mut rpc = daemon.connect_or_embed().await?;
    let sleds = sleds(args.selectors.no_match(args.pending));
    let request = args.memory.request(pid, Follow::None, sleds, Mode::Count);
    // Dropped last. Otherwise the daemon would undo the changes at the same time as this command.
    let mut stream = None;
    let counted = attachment::during(&mut rpc, request, console, async |rpc, undo, console| {
        count(rpc, args, (pid, undo), &mut stream, &mut signals, console).await
    });
    counted.await.map(|(_, counted)| counted)
}

async fn count(
    rpc: &mut Rpc,
    args: &Args,
    (pid, undo): (u32, Undo),
    stream: &mut Option<Streaming<EventBatch>>,
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<(Ended, Counted)> {
    // This fails for a process in another mode, before any function is enabled.
    let before = fetch(rpc, pid).await?;
    let switching = Switching {
        pid,
        selection: selectors::wire(args.selectors.selection_or_all()?),
        wanted: Wanted::On(Capture::NONE),
        lease: undo.lease(),
    };
    let no_match = args.selectors.no_match(args.pending);
    toggle::ensure_matches(rpc, &switching, no_match, console).await?;
    // The stream brings no events. It makes the daemon undo the changes if this process is killed,
    // and it ends with the traced process.
    let request = StreamEventsRequest {
        pid,
        selection: None,
        undo: Some(undo.into()),
    };
    let response = rpc.stream_events(request).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let response = response.context("cannot wait for the end of the process")?;
    let batches = stream.insert(response.into_inner());
    let begun = Instant::now();
    toggle::toggle(rpc, switching, console).await?;
    let up = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let over = async { while let Ok(Some(_)) = batches.message().await {} };
    let ended = tokio::select! {
        () = up => Ended::Asked,
        () = signals.next() => Ended::Asked,
        () = over => Ended::Process,
    };
    let counted = Counted::new(fetch(rpc, pid).await?, Some(begun.elapsed()));
    Ok((ended, counted.since(&before)))
}

async fn fetch(rpc: &mut Rpc, pid: u32) -> anyhow::Result<Counts> {
    let failed = |status: tonic::Status| failure::from_status(&status);
    let response = rpc.fetch_counts(FetchCountsRequest { pid }).await;
    let response = response.map_err(failed).context("cannot read the counts")?;
    let mut messages = response.into_inner();
    let mut counts = Counts::default();
    while let Some(message) = messages.message().await.map_err(failed)? {
        counts.add(message);
    }
    Ok(counts)
}
