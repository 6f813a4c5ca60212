//! `xrayctl watch`: calls, and custom and typed events, as they happen.
//!
//! A process that is not attached is attached for this. In a process that is, the functions are on
//! a lease, as for a recording.

use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::Context as _;
use tonic::Streaming;
use xray_trace::event_format::EventFormats;
use xrayd::{
    process::Follow,
    types::{Mode, Wanted},
};
use xrayd_proto::v1::{EventBatch, StreamEventsRequest};

use super::attach::{Memory, sleds};
use crate::{
    args::Format,
    attachment,
    attachment::{Ended, Undo},
    client::{Daemon, Rpc},
    failure,
    failure::Failure,
    output::{
        Console,
        watched::{Callers, Shown, Watched},
    },
    parse,
    process::{OneProcess, one_of},
    selectors,
    selectors::{Pending, Selectors},
    signals::Signals,
    toggle,
    toggle::Switching,
    user_events::{self, UserEventArgs},
    values::Values,
};

const EXAMPLES: &str = "\
Without a selector, all functions are shown. watch prints a call when it has ended, with its
duration. It does not print calls that are left without an exit, for example by an exception. If the
program makes more calls than the terminal can show, watch leaves calls out, and a line shows how
many.

watch also prints the custom and typed events of these functions, with their data and the names of
their types.

With --min-duration, watch prints calls alone. The callers of a call stand before it, the outermost
first. These are the open calls of the same thread that watch has seen begin: calls of functions
that it watches.

watch attaches to a process that is not attached, and detaches at the end. In an attached process,
functions that watch switches on are off again afterwards.

Examples:
  xrayctl watch 1234 --function ns::handle
  xrayctl watch 1234 --glob 'ns::*' --min-duration 1ms
  xrayctl watch 1234 --function read_block --args 3 --retval --limit 20
  xrayctl watch 1234 --all --json | jq .duration_ns";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    pending: Pending,
    #[command(flatten)]
    values: Values,
    /// Print only calls that took at least this time, like 1ms, each with its callers, and no
    /// custom and typed events
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse::duration,
        conflicts_with_all = ["event_format", "where"]
    )]
    min_duration: Option<Duration>,
    /// Stop after N calls and events
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU64>,
    /// Stop after this time, like 5s; without this, when the process ends or on Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    user_events: UserEventArgs,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    args.user_events.check()?;
    let mut watched = None;
    let pid = args.process.find()?;
    let mut signals = Signals::hold()?;
    let mut rpc = daemon.connect_or_embed().await?;
    let sleds = sleds(args.selectors.no_match(args.pending));
    let request = args.memory.request(pid, Follow::None, sleds, Mode::Stream);
    // Dropped last. Otherwise the daemon would undo the changes at the same time as this command.
    let mut stream = None;
    let during = attachment::during(&mut rpc, request, console, async |rpc, undo, console| {
        let of = (&args, pid, undo);
        let ended = watch(rpc, of, &mut watched, &mut stream, &mut signals, console).await?;
        Ok((ended, ()))
    });
    during.await.map(drop)?;
    if let Some(note) = watched.and_then(|watched| watched.note()) {
        console.note(&note);
    }
    Ok(())
}

async fn watch(
    rpc: &mut Rpc,
    (args, pid, undo): (&Args, u32, Undo),
    watched: &mut Option<Watched>,
    stream: &mut Option<Streaming<EventBatch>>,
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<Ended> {
    let formats = user_events::formats_of_modules(rpc, pid).await?;
    let watched = watched.insert(Watched::new(args.shown(formats)?));
    let selection = selectors::wire(args.selectors.selection_or_all()?);
    let switching = Switching {
        pid,
        selection: selection.clone(),
        wanted: Wanted::On(args.values.capture()),
        lease: undo.lease(),
    };
    let no_match = args.selectors.no_match(args.pending);
    toggle::ensure_matches(rpc, &switching, no_match, console).await?;
    let request = StreamEventsRequest {
        pid,
        selection: Some(selection),
        undo: Some(undo.into()),
    };
    let response = rpc.stream_events(request).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let response = response.context("cannot stream events")?;
    let batches = stream.insert(response.into_inner());
    toggle::toggle(rpc, switching, console).await?;

    let up = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let mut up = std::pin::pin!(up);
    loop {
        let batch = tokio::select! {
            batch = batches.message() => batch,
            () = signals.next() => return Ok(Ended::Asked),
            () = &mut up => return Ok(Ended::Asked),
        };
        let Some(batch) = batch.map_err(|status| failure::from_status(&status))? else {
            return Ok(Ended::Process);
        };
        console.show(|out, look| watched.take(batch, out, look))?;
        if watched.is_over() {
            return Ok(Ended::Asked);
        }
    }
}

// === impl Args ===

impl Args {
    /// The calls and events that are shown.
    fn shown(&self, formats: EventFormats) -> Result<Shown, Failure> {
        Ok(Shown {
            least: self.min_duration.unwrap_or_default(),
            most: self.limit.map_or(u64::MAX, NonZeroU64::get),
            json: self.format.json,
            callers: match self.min_duration {
                Some(_) => Callers::Shown,
                None => Callers::None,
            },
            user_events: self.user_events.options(formats)?,
        })
    }
}
