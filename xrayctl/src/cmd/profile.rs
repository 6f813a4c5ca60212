//! `xrayctl profile`: the time of functions by stack, without keeping events.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use xray_trace::analysis::{self, Direction, GroupBy, SortBy};
use xray_trace::model::Profile;
use xray_trace::source::{self, Options};
use xrayd::{
    process::Follow,
    types::Capture,
    types::{Mode, Wanted},
};
use xrayd_proto::v1::{FetchProfileRequest, TraceChunk};

use super::attach::{Memory, sleds};
use crate::{
    args::Format,
    attachment,
    attachment::{Ended, Undo},
    client::{Daemon, Rpc},
    failure,
    output::{
        Console, account,
        account::{Columns, Table},
    },
    parse,
    process::{OneProcess, one_of},
    selectors,
    selectors::{Pending, Selectors},
    signals::Signals,
    toggle,
    toggle::Switching,
    trace_file::{OutputFile, Overwrite},
};

const EXAMPLES: &str = "\
Without a selector, all functions are profiled. The daemon adds up calls by thread and stack, with a
distribution of their durations. It keeps no event, so a profile can run for days.

profile attaches to a process that is not attached, and detaches at the end. An attached process
keeps its mode; functions that profile switches on in it are off again afterwards.

With --follow, processes that come from the process are in the profile, too. A process that is
attached already keeps its --follow setting, and the processes that are followed from it are in the
profile.

With --kept, profile shows the sums since the mode became profile (`xrayctl mode profile`), and
switches no function.

With --output, profile also writes a file, which account, diff, stack, flame, info, convert, view
and report --html read.

Examples:
  xrayctl profile 1234 --duration 30s
  xrayctl profile 1234 --glob 'ns::*' --duration 30s -o before.xtrace
  xrayctl profile 1234 --follow fork --duration 30s
  xrayctl profile 1234 --kept -o now.xtrace
  xrayctl diff before.xtrace now.xtrace";

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
    /// Also profile processes that come from the process: the processes that it forks (fork), the
    /// program that it becomes (exec), everything (all), or nothing (none, the default)
    #[arg(long, value_name = "WHAT", value_parser = parse::follow)]
    follow: Option<Follow>,
    /// Show the sums since the mode became profile
    #[arg(long, conflicts_with_all = [
        "duration", "follow", "pending", "function", "glob", "regex", "module", "source", "id", "all", "except_function",
        "except_glob", "except_regex", "except_module", "except_source", "except_id",
    ])]
    kept: bool,
    /// Show at most N functions; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 25)]
    top: usize,
    /// Also write the profile into this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = args.process.find()?;
    let mut signals = Signals::hold()?;
    let overwrite = if args.force {
        Overwrite::Yes
    } else {
        Overwrite::No
    };
    let output = args.output.as_deref();
    let output = output
        .map(|path| OutputFile::open(path, overwrite))
        .transpose()?;
    let Fetched { bytes, refusal } = match args.kept {
        true => kept(&mut daemon.connect().await?, pid).await?,
        false => made(&args, pid, daemon, &mut signals, console).await?,
    };
    // The sums of the other processes are there, if it came behind them.
    if let Some(refusal) = refusal {
        if parse_profile(&bytes).is_err() {
            return Err(refusal);
        }
        store_and_show(&args, output, &bytes, console)?;
        return Err(refusal.context("the profile lacks the calls of a process"));
    }
    store_and_show(&args, output, &bytes, console)
}

fn store_and_show(
    args: &Args,
    output: Option<OutputFile>,
    bytes: &[u8],
    console: &mut Console,
) -> anyhow::Result<()> {
    if let Some(mut output) = output {
        output.begin()?;
        output.write(bytes)?;
    }
    show(args, bytes, console)
}

/// The bytes of a profile, and the refusal that came behind them.
#[derive(Debug)]
struct Fetched {
    bytes: Vec<u8>,
    refusal: Option<anyhow::Error>,
}

/// The sums so far.
async fn kept(rpc: &mut Rpc, pid: u32) -> anyhow::Result<Fetched> {
    let request = FetchProfileRequest {
        pid,
        from_now: false,
        undo: None,
    };
    let (requests, chunks) = fetch(rpc, request).await?;
    drop(requests);
    Ok(Fetched::read(chunks, Vec::new()).await)
}

/// The sums from now on.
async fn made(
    args: &Args,
    pid: u32,
    daemon: &Daemon,
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<Fetched> {
    let mut rpc = daemon.connect_or_embed().await?;
    let sleds = sleds(args.selectors.no_match(args.pending));
    let follow = args.follow.unwrap_or(Follow::None);
    let request = args.memory.request(pid, follow, sleds, Mode::Profile);
    let made = attachment::during(&mut rpc, request, console, async |rpc, undo, console| {
        make(rpc, args, (pid, undo), signals, console).await
    });
    made.await.map(|(_, bytes)| bytes)
}

async fn make(
    rpc: &mut Rpc,
    args: &Args,
    (pid, undo): (u32, Undo),
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<(Ended, Fetched)> {
    let switching = Switching {
        pid,
        selection: selectors::wire(args.selectors.selection_or_all()?),
        wanted: Wanted::On(Capture::NONE),
        lease: undo.lease(),
    };
    let no_match = args.selectors.no_match(args.pending);
    toggle::ensure_matches(rpc, &switching, no_match, console).await?;
    let request = FetchProfileRequest {
        pid,
        from_now: true,
        undo: Some(undo.into()),
    };
    let (requests, mut chunks) = fetch(rpc, request).await?;
    toggle::toggle(rpc, switching, console).await?;
    let up = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let first = tokio::select! {
        first = chunks.message() => Some(first.map_err(|status| failure::from_status(&status))?),
        () = signals.next() => None,
        () = up => None,
    };
    drop(requests);
    match first {
        Some(first) => {
            let first = first.unwrap_or_default();
            let ended = match first.ended_early {
                true => Ended::Asked,
                false => Ended::Process,
            };
            if first.ended_early {
                console.note(
                    "the profile ended early: the sums of the processes that have ended take more \
                     than 16 MiB; profile fewer functions, or for a shorter time",
                );
            }
            Ok((ended, Fetched::read(chunks, first.data).await))
        }
        None => Ok((Ended::Asked, Fetched::read(chunks, Vec::new()).await)),
    }
}

/// The answer comes when the sender is dropped, or when the process has ended.
pub(crate) async fn fetch(
    rpc: &mut Rpc,
    request: FetchProfileRequest,
) -> anyhow::Result<(mpsc::Sender<FetchProfileRequest>, Streaming<TraceChunk>)> {
    let (requests, sent) = mpsc::channel(1);
    // The channel has room for one request.
    requests.try_send(request).context("no request was sent")?;
    let response = rpc.fetch_profile(ReceiverStream::new(sent)).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let chunks = response.context("cannot profile the process")?;
    Ok((requests, chunks.into_inner()))
}

/// Adds all further chunks to `bytes`.
pub(crate) async fn read(chunks: Streaming<TraceChunk>, bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let Fetched { bytes, refusal } = Fetched::read(chunks, bytes).await;
    refusal.map_or(Ok(bytes), Err)
}

// === impl Fetched ===

impl Fetched {
    /// Adds all further chunks to `bytes`.
    async fn read(mut chunks: Streaming<TraceChunk>, mut bytes: Vec<u8>) -> Self {
        loop {
            let refusal = match chunks.message().await {
                Ok(Some(chunk)) => {
                    bytes.extend_from_slice(&chunk.data);
                    continue;
                }
                Ok(None) => None,
                Err(status) => Some(failure::from_status(&status)),
            };
            return Self { bytes, refusal };
        }
    }
}

fn show(args: &Args, bytes: &[u8], console: &mut Console) -> anyhow::Result<()> {
    let profile = parse_profile(bytes)?;
    let filter = analysis::Filter::default();
    let mut account = analysis::account_profile(&profile, &filter, GroupBy::Function);
    let tables = profile.tables();
    account.sort(tables, SortBy::SelfTime, Direction::Descending);
    let name = args.output.as_deref();
    let name = name.map_or_else(|| "profile".to_owned(), |path| path.display().to_string());
    let top = if args.top == 0 { usize::MAX } else { args.top };
    let table = Table::new(&name, &account, tables, &filter, Columns::All, top);
    let format = match args.format.json {
        true => account::Format::Json,
        false => account::Format::Text,
    };
    console.show(|out, look| table.write(format, out, look))?;
    for line in table.notes() {
        console.note(&line);
    }
    let too_deep = profile.missing().too_deep;
    if too_deep > 0 {
        console.note(&format!(
            "{too_deep} calls were not counted: they were nested in more than 65,536 others"
        ));
    }
    Ok(())
}

/// Parses the bytes that the engine has sent.
pub(crate) fn parse_profile(bytes: &[u8]) -> anyhow::Result<Profile> {
    let opened = in_file(bytes)
        .map_err(Into::into)
        .and_then(|file| source::open_profile(file, &Options::default()));
    Ok(opened.context("cannot read the profile back")?.profile)
}

fn in_file(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
