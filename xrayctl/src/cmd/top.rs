//! `xrayctl top`: the activity of a process, live.
//!
//! ```text
//!  begin ─► wait ─► begin the next profile ─► end this one ─► draw ─┐
//!            ▲                                                      │
//!            └──────────────────────────────────────────────────────┘
//! ```
//!
//! Profiles overlap for a moment, so that a call which lasts longer than an interval is one call,
//! in the interval in which it ends.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use tokio::sync::mpsc;
use tonic::Streaming;
use xray_trace::instr_map::{Rule, Selection};
use xrayd::{
    process::Follow,
    types::{Capture, Mode, Switch, Wanted},
};
use xrayd_proto::v1::{
    FetchProfileRequest, ProcessStatus, StatusRequest, ToggleRequest, TraceChunk,
};

use super::{
    attach::{Memory, sleds},
    profile::{fetch, parse_profile, read},
};
use crate::{
    args::Format,
    attachment,
    attachment::{Ended, Undo},
    client::{Daemon, Rpc},
    failure,
    failure::Failure,
    output::Console,
    parse,
    process::{OneProcess, one_of},
    selectors,
    selectors::{Pending, Selectors},
    signals::Signals,
    toggle,
    toggle::Switching,
    top::{ARRIVAL, Action, Header, Interval, LiveTimes, State, ThreadTimes, draw, monotonic_now},
};

const EXAMPLES: &str = "\
Without a selector, all functions are shown. The time in a function is the time of its calls that
have ended in the interval. Its self time also has the time of calls that go on. Threads also have
the time for which they had a processor, whether they were in shown functions or not.

With --on-cpu, functions have the part of their self time for which they had a processor. For that,
the process records events as it does for record, and top shows an interval about half a second
after its end.

top attaches to a process that is not attached, and detaches at the end. In an attached process,
functions that top switches on are off again afterwards.

Keys:
  q, Ctrl-C    quit
  up, down     select a function
  enter        show callers and callees of the function; esc goes back
  space        switch the function off or on
  s            change the column to sort by
  /            filter by name
  t            show threads
  p            pause

Examples:
  xrayctl top 1234
  xrayctl top 1234 --glob 'ns::*' --interval 5s
  xrayctl top 1234 --on-cpu
  xrayctl top 1234 --once --json | jq '.rows[0]'";

/// The longest wait for the report that a process has ended.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often top looks whether the times with a processor of an interval have arrived, and for how
/// long it waits for them.
const READY_EVERY: Duration = Duration::from_millis(50);
const MOST_DELAY: Duration = Duration::from_millis(1500);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    pending: Pending,
    /// Time between two updates of the screen
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration, default_value = "1s")]
    interval: Duration,
    /// Print one interval, and exit
    #[arg(long)]
    once: bool,
    /// Show for how long functions themselves had a processor; the process records events then
    #[arg(long)]
    on_cpu: bool,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    if !args.once && args.format.json {
        let what = "--json works only with --once";
        return Err(Failure::Usage(what.to_owned()).into());
    }
    if !args.once && !console.is_terminal() {
        let what = "standard output is not a terminal; --once prints one interval";
        return Err(Failure::Usage(what.to_owned()).into());
    }
    let pid = args.process.find()?;
    let mut signals = Signals::hold()?;
    let mut rpc = daemon.connect_or_embed().await?;
    let sleds = sleds(args.selectors.no_match(args.pending));
    let request = args.memory.request(pid, Follow::None, sleds, Mode::Profile);
    // Dropped last. Otherwise the daemon would undo the changes at the same time as this command.
    let mut streams = Streams::default();
    let watched = attachment::during(&mut rpc, request, console, async |rpc, undo, console| {
        let ended = watch(rpc, &args, (pid, undo), &mut streams, &mut signals, console).await?;
        Ok((ended, ()))
    });
    if let (Ended::Process, ()) = watched.await? {
        console.note(&format!("process {} has ended", pid));
    }
    Ok(())
}

/// Everything that the daemon ends as if this command had left, when it is dropped.
#[derive(Default)]
struct Streams {
    under_way: Option<UnderWay>,
    /// With `--on-cpu`.
    live: Option<LiveTimes>,
}

/// An interval in progress. Dropping `_requests` ends its profile.
struct UnderWay {
    _requests: mpsc::Sender<FetchProfileRequest>,
    chunks: Streaming<TraceChunk>,
    since: Instant,
    /// The processor time of the threads at its begin.
    times: ThreadTimes,
}

/// An event that the screen waits for.
enum Happened {
    /// The interval is over.
    Time,
    Key(KeyEvent),
    /// The size of the terminal has changed.
    Resized,
    /// A signal asks for the end.
    Signal,
    /// The profile has ended by itself.
    Over(Result<(), tonic::Status>),
    /// The times with a processor may have arrived.
    MayBeReady,
}

/// An interval whose times with a processor arrive later.
#[derive(Debug)]
struct Delayed {
    interval: Interval,
    /// Its end, in nanoseconds of `CLOCK_MONOTONIC`.
    over: u64,
    since: Instant,
}

// === impl Delayed ===

impl Delayed {
    fn new(live: &LiveTimes, interval: Interval, over: u64) -> Self {
        live.plan_end(over);
        Self {
            interval,
            over,
            since: Instant::now(),
        }
    }

    /// True once the times are there, or after a while.
    fn is_ready(&self, live: &LiveTimes) -> bool {
        let waited = self.since.elapsed();
        waited >= MOST_DELAY || waited >= ARRIVAL && live.is_known(self.over)
    }

    fn finish(self, live: &LiveTimes) -> Interval {
        let mut interval = self.interval;
        interval.add_on_cpu(&live.end_interval(self.over), live.notes());
        interval
    }
}

async fn watch(
    rpc: &mut Rpc,
    args: &Args,
    (pid, undo): (u32, Undo),
    Streams { under_way, live }: &mut Streams,
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<Ended> {
    let switching = Switching {
        pid,
        selection: selectors::wire(args.selectors.selection_or_all()?),
        wanted: Wanted::On(Capture::NONE),
        lease: undo.lease(),
    };
    let no_match = args.selectors.no_match(args.pending);
    toggle::ensure_matches(rpc, &switching, no_match, console).await?;
    if args.on_cpu {
        *live = Some(LiveTimes::begin(rpc, pid, undo).await?);
    }
    let live = live.as_ref();
    let first = begin(rpc, pid, undo).await?;
    if let Some(live) = live {
        // What was recorded before belongs to no interval.
        live.end_interval(monotonic_now()?);
    }
    toggle::toggle(rpc, switching, console).await?;
    if args.once {
        return once(rpc, args, (pid, first, live), signals, console).await;
    }
    let mut screen = ratatui::try_init().context("cannot draw on this terminal")?;
    let under_way = under_way.insert(first);
    let mut state = State::new(console.names());
    let shown = show(
        rpc,
        args,
        (pid, undo, under_way, live),
        signals,
        &mut screen,
        &mut state,
    )
    .await;
    ratatui::restore();
    shown
}

async fn begin(rpc: &mut Rpc, pid: u32, undo: Undo) -> anyhow::Result<UnderWay> {
    let request = FetchProfileRequest {
        pid,
        from_now: true,
        undo: Some(undo.into()),
    };
    let (requests, chunks) = fetch(rpc, request).await?;
    Ok(UnderWay {
        _requests: requests,
        chunks,
        since: Instant::now(),
        times: tokio::task::block_in_place(|| ThreadTimes::of(pid)),
    })
}

/// Ends an interval.
async fn end(rpc: &mut Rpc, pid: u32, under_way: UnderWay) -> anyhow::Result<Interval> {
    let UnderWay {
        _requests: requests,
        chunks,
        since,
        times,
    } = under_way;
    drop(requests);
    let length = since.elapsed();
    let now = tokio::task::block_in_place(|| ThreadTimes::of(pid));
    let profile = parse_profile(&read(chunks, Vec::new()).await?)?;
    let header = header(rpc, pid).await;
    let on_cpu = |tid| now.since(&times, tid);
    Ok(Interval::new(header, &profile, length, on_cpu))
}

/// The state of the process; empty for a process that is gone.
async fn header(rpc: &mut Rpc, pid: u32) -> Header {
    let status = rpc.get_status(StatusRequest { pid }).await;
    let processes = status.map(|status| status.into_inner().processes);
    let processes = processes.unwrap_or_default();
    let sum = |of: fn(&ProcessStatus) -> u32| processes.iter().map(of).sum();
    Header {
        pid,
        command: processes
            .iter()
            .find(|process| process.pid == pid)
            .map(|process| process.command.clone())
            .unwrap_or_default(),
        functions_on: sum(|process| process.functions_on),
        functions: sum(|process| process.functions),
        lost: processes.iter().map(|process| process.lost).sum(),
    }
}

async fn once(
    rpc: &mut Rpc,
    args: &Args,
    (pid, mut first, live): (u32, UnderWay, Option<&LiveTimes>),
    signals: &mut Signals,
    console: &mut Console,
) -> anyhow::Result<Ended> {
    let early = tokio::select! {
        () = tokio::time::sleep(args.interval) => None,
        () = signals.next() => None,
        early = first.chunks.message() => Some(early),
    };
    let over = monotonic_now()?;
    let mut interval = match early {
        None => end(rpc, pid, first).await?,
        Some(chunk) => {
            let chunk = chunk.map_err(|status| failure::from_status(&status))?;
            let bytes = chunk.map(|chunk| chunk.data).unwrap_or_default();
            let length = first.since.elapsed();
            let profile = parse_profile(&read(first.chunks, bytes).await?)?;
            // The process has ended.
            Interval::new(header(rpc, pid).await, &profile, length, |_| None)
        }
    };
    if let Some(live) = live {
        let delayed = Delayed::new(live, interval, over);
        while !delayed.is_ready(live) {
            tokio::time::sleep(READY_EVERY).await;
        }
        interval = delayed.finish(live);
        for note in &interval.notes {
            console.note(note);
        }
    }
    if args.format.json {
        console.json(&interval)?;
    } else {
        console.show(|out, look| interval.render(out, look))?;
    }
    Ok(Ended::Asked)
}

async fn show(
    rpc: &mut Rpc,
    args: &Args,
    (pid, undo, under_way, live): (u32, Undo, &mut UnderWay, Option<&LiveTimes>),
    signals: &mut Signals,
    screen: &mut DefaultTerminal,
    state: &mut State,
) -> anyhow::Result<Ended> {
    let mut events = events();
    // Shown until the first interval is over.
    state.take(Interval::of(header(rpc, pid).await));
    let mut ticks =
        tokio::time::interval_at(tokio::time::Instant::now() + args.interval, args.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Intervals whose times with a processor have not arrived.
    let mut delayed: VecDeque<Delayed> = VecDeque::new();
    let mut ready = tokio::time::interval(READY_EVERY);
    ready.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        screen.draw(|frame| draw(frame, state))?;
        let happened = tokio::select! {
            _ = ticks.tick() => Happened::Time,
            event = events.recv() => match event {
                Some(Event::Key(key)) => Happened::Key(key),
                Some(_) => Happened::Resized,
                // The terminal is gone.
                None => Happened::Signal,
            },
            () = signals.next() => Happened::Signal,
            over = under_way.chunks.message() => Happened::Over(over.map(drop)),
            _ = ready.tick(), if !delayed.is_empty() => Happened::MayBeReady,
        };
        match happened {
            Happened::Signal => return Ok(Ended::Asked),
            Happened::Over(over) => {
                over.map_err(|status| failure::from_status(&status))?;
                return Ok(Ended::Process);
            }
            Happened::Resized => {}
            Happened::MayBeReady => {
                while let Some(live) = live
                    && delayed.front().is_some_and(|next| next.is_ready(live))
                    && let Some(ready) = delayed.pop_front()
                {
                    state.take(ready.finish(live));
                    // Each interval is seen, even if the next one is ready as well.
                    screen.draw(|frame| draw(frame, state))?;
                }
            }
            Happened::Time => {
                let next = match begin(rpc, pid, undo).await {
                    Ok(next) => next,
                    Err(error) => return over(under_way, error).await,
                };
                let ended = std::mem::replace(under_way, next);
                let over = monotonic_now()?;
                let interval = end(rpc, pid, ended).await?;
                match live {
                    None => state.take(interval),
                    Some(live) => delayed.push_back(Delayed::new(live, interval, over)),
                }
            }
            Happened::Key(key) => match state.key(key) {
                None | Some(Action::Draw) => {}
                Some(Action::Quit) => return Ok(Ended::Asked),
                Some(Action::Switch { function, to }) => {
                    let result = switch(rpc, pid, &function, to, undo).await;
                    let result = result.map_err(|error| format!("{error:#}"));
                    state.switched(function, to, result);
                }
            },
        }
    }
}

/// Handles a profile that cannot begin. If the process has ended, the profile in progress ends as
/// well.
async fn over(under_way: &mut UnderWay, error: anyhow::Error) -> anyhow::Result<Ended> {
    match tokio::time::timeout(PATIENCE, under_way.chunks.message()).await {
        Ok(Ok(_)) => Ok(Ended::Process),
        Ok(Err(_)) | Err(_) => Err(error),
    }
}

/// Input of the terminal. The thread that reads it ends with this program.
fn events() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    events
}

async fn switch(
    rpc: &mut Rpc,
    pid: u32,
    function: &str,
    to: Switch,
    undo: Undo,
) -> anyhow::Result<()> {
    let selection = selectors::wire(Selection {
        include: vec![Rule::Function(function.to_owned())],
        exclude: Vec::new(),
    });
    let request = ToggleRequest {
        pid,
        selection: Some(selection),
        dry_run: false,
        capture: None,
        lease: match to {
            Switch::On => undo.lease(),
            Switch::Off => 0,
        },
    };
    let response = match to {
        Switch::On => rpc.enable(request).await,
        Switch::Off => rpc.disable(request).await,
    };
    let response = response.map_err(|status| failure::from_status(&status));
    let reports = response
        .context("cannot switch the function")?
        .into_inner()
        .reports;
    if reports.iter().all(|report| report.matched == 0) {
        return Err(toggle::nothing_matched(""));
    }
    Ok(())
}
