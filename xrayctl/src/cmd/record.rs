//! `xrayctl record`: attach, enable, stream into a file, disable, detach, and print a summary.
//!
//! ```text
//! open file ─► attach ─► stream ─► enable ─► (run program) ─► wait ─► detach ─► read back ─► print
//!                 │                                              │
//!                 └── from here on, a failure leads to a detach ─┘
//! ```
//!
//! A trace on standard output is not read back. Its summary goes to standard error.
//!
//! A process that was attached before stays attached. Only the functions that the recording enabled
//! are disabled again.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use xrayd::{
    process::{AttachOptions, Follow},
    target::Sleds,
    types::{Mode, Wanted},
};
use xrayd_proto::v1::{
    AttachRequest, GroupStatus, ProcessStatus, Selection, StatusRequest, ToggleReport,
};

use super::attach::{Memory, sleds};
use crate::{
    args::Format,
    attachment,
    attachment::{Undo, Undone},
    client,
    client::{Daemon, Rpc},
    failure::Failure,
    limits::Limits,
    output::{
        Console,
        recorded::{Outcome, Recorded},
        remedies::Remedies,
        streamed::Streamed,
        text::printable,
        units,
    },
    parse,
    process::{OneProcess, ProcessName, one_of},
    progress::Progress,
    recording::{Contents, Recording, Rest, StreamEnd},
    selectors,
    selectors::{NoMatch, Pending, Selectors},
    signals::Signals,
    target::{ProgramOutput, Target},
    toggle,
    toggle::Switching,
    trace_file::{OutputFile, Overwrite, Tally, Unfinished},
    trace_output::{TraceOutput, refuse_json},
    values::Values,
};

const EXAMPLES: &str = "\
Without a selector, all functions are recorded. Ctrl-C ends the recording.

With CMD, record starts a program, with its functions on before the first instruction of main. No
daemon is used for that. Processes that come from the program are recorded, too, from a few
milliseconds after their start on, and the program itself needs no sleds. With --follow none, no
other process is recorded. With --follow none or fork, the program must have sleds. If the recording
ends before the program, the program goes on.

A process that was attached before stays attached. Functions that record switches on in it are off
again afterwards.

With -o -, record writes the trace to standard output, which must not be a terminal. The summary
goes to standard error then, and so does the standard output of CMD.

Examples:
  xrayctl record 1234
  xrayctl record 1234 --glob 'ns::*' --duration 5s -o run.xtrace
  xrayctl record 1234 --follow fork --duration 5s
  xrayctl record 1234 --duration 5s -o - | xrayctl report -
  xrayctl record --all --except-regex 'get|set' -- ./server --port 80
  xrayctl record --module plugin.so -- ./host
  xrayctl record -- make test
  xrayctl record 1234 --function read_block --args 3 --retval";

/// The pause between two updates of the progress.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid", "command"]))]
#[command(
    override_usage = "xrayctl record [OPTIONS] <PROCESS>\n       xrayctl record [OPTIONS] -- <CMD>..."
)]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    /// The program to start, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    pending: Pending,
    #[command(flatten)]
    values: Values,
    /// Stop after this time, like 5s; without this, when the process ends or on Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    duration: Option<Duration>,
    /// The file to write, or - for standard output; without this, xray-COMMAND-PID.xtrace
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Also record processes that come from the process: the processes that it forks (fork), the
    /// program that it becomes (exec), everything (all), or nothing (none); the default is all for
    /// CMD, and none for PROCESS
    #[arg(long, value_name = "WHAT", value_parser = parse::follow)]
    follow: Option<Follow>,
    #[command(flatten)]
    memory: Memory,
    #[command(flatten)]
    limits: Limits,
    /// Lose no events: each time that a thread finds its ring full, it waits up to this time (10ms
    /// if none is given) until the daemon has read from the ring; at most 100ms
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse::positive_duration,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10ms",
        conflicts_with = "max_overhead"
    )]
    lossless: Option<Duration>,
    /// Do not record when threads have a processor
    #[arg(long)]
    no_sched: bool,
    /// Also record the events of these kernel tracepoints in the recorded threads, such as
    /// sched:sched_wakeup,syscalls:sys_enter_futex
    ///
    /// A thread has the events that happen while it runs, within its calls and with their fields.
    /// From a daemon that runs as root, users other than root can have the tracepoints of system
    /// calls (syscalls:NAME, raw_syscalls:NAME). At most 16 names. The option can be given several
    /// times.
    #[arg(
        long,
        value_name = "TRACEPOINT",
        value_delimiter = ',',
        conflicts_with = "no_sched"
    )]
    kernel: Vec<String>,
    /// Exit with code 6 if events were lost
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    format: Format,
}

/// The reason for the end of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The time is up, or a signal arrived.
    Asked,
    /// No more bytes arrive.
    StreamEnded,
}

/// What is known of the process before it is detached.
#[derive(Debug)]
struct Before {
    /// The state of the followed processes, if any were to be followed.
    group: Option<GroupStatus>,
    /// Size of each ring.
    ring_bytes: Option<u64>,
    /// Threads that can have a ring at the same time.
    max_threads: Option<u32>,
    /// True if all rings are taken.
    rings_taken: bool,
}

impl Args {
    fn sleds(&self) -> Sleds {
        sleds(self.selectors.no_match(self.pending))
    }

    /// The pid of the process; `None` for a program to start.
    fn pid(&self) -> anyhow::Result<Option<u32>> {
        if !self.command.is_empty() {
            return Ok(None);
        }
        if let Some(command) = self.process.name().and_then(ProcessName::as_command) {
            let shown = printable(&command);
            let quoted = shlex::try_quote(&shown).unwrap_or(Cow::Borrowed(&shown));
            let what = format!(
                "{shown} is a program, not a process; to start and record it: xrayctl record -- \
                 {quoted}"
            );
            return Err(Failure::Usage(what).into());
        }
        self.process.find().map(Some)
    }
}

// === impl Before ===

impl Before {
    /// What the daemon reports; nothing if the process is gone.
    async fn of(rpc: &mut Rpc, pid: u32) -> Self {
        let response = rpc.get_status(StatusRequest { pid }).await;
        let rows = response.map_or_else(|_| Vec::new(), |rows| rows.into_inner().processes);
        let ring_bytes = rows.iter().map(|row| row.ring_bytes).max();
        let max_threads = rows.iter().map(|row| row.max_threads).max();
        let is_full = |row: &ProcessStatus| row.max_threads > 0 && row.threads >= row.max_threads;
        Self {
            rings_taken: rows.iter().any(is_full),
            max_threads: max_threads.filter(|threads| *threads > 0),
            group: rows.into_iter().filter_map(|row| row.group).next(),
            ring_bytes: ring_bytes.filter(|bytes| *bytes > 0),
        }
    }
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let selection = args.selectors.selection_or_all()?;
    if let Some(output) = &args.output {
        refuse_json(output, args.format)?;
    }
    let pid = args.pid()?;
    let mut signals = Signals::hold()?;
    let overwrite = if args.force {
        Overwrite::Yes
    } else {
        Overwrite::No
    };
    let named = args
        .output
        .as_deref()
        .map(|path| TraceOutput::open(path, overwrite))
        .transpose()?;

    let (mut rpc, target) = match pid {
        Some(pid) => (daemon.connect_or_embed().await?, Target::Running(pid)),
        None => {
            let (rpc, registry) = client::embed().await?;
            let follow = args.follow.unwrap_or(Follow::All);
            let options = AttachOptions {
                budget: args.limits.engine(),
                ..args.memory.options(follow, args.sleds())
            };
            let capture = args.values.capture();
            let stdout = match named {
                Some(TraceOutput::Standard(_)) => ProgramOutput::StandardError,
                Some(TraceOutput::File(_)) | None => ProgramOutput::Own,
            };
            let launch = || {
                let command = (&args.command[..], stdout);
                let selection = selection.clone();
                Target::launch(&registry, command, options, selection, capture)
            };
            (rpc, tokio::task::block_in_place(launch)?)
        }
    };
    let selection = selectors::wire(selection);
    let default = || TraceOutput::open(&target.default_file(), overwrite);
    let begun = match named.map_or_else(default, Ok) {
        Ok(output) => begin(&mut rpc, &target, &args, selection, output, console).await,
        Err(error) => Err(error).inspect_err(|_| target.abandon()),
    };
    let (mut recording, undo) = begun?;

    let counts = recording.watch();
    let progress = Progress::spinner(console, "recording");
    let cause = wait(&mut recording, args.duration, &mut signals, &progress).await;
    let (before, released) = {
        let letting_go = async {
            let before = Before::of(&mut rpc, target.pid()).await;
            (
                before,
                attachment::release(&mut rpc, target.pid(), undo).await,
            )
        };
        let mut letting_go = std::pin::pin!(letting_go);
        loop {
            tokio::select! {
                done = &mut letting_go => break done,
                () = signals.next() => progress.note(console, "detaching is under way"),
            }
        }
    };
    let stays = undo != Undo::Detach && cause == Cause::Asked;
    // A process that could not be detached goes on sending, so there is no end to wait for.
    let leaves = stays || released.is_err();
    let finished = if leaves {
        let rest = match &released {
            Ok(_) => Rest::Ends,
            Err(_) => Rest::Unknown,
        };
        recording.leave(rest).await
    } else {
        recording.finish().await
    };
    drop(progress);
    let (output, stream_end) = finished?;
    let stored = match output {
        TraceOutput::Standard(_) => None,
        TraceOutput::File(file) => {
            let unfinished = match stream_end {
                StreamEnd::Left => Unfinished::Finish,
                StreamEnd::Finished | StreamEnd::Broken => Unfinished::Leave,
            };
            Some(read_back(file, unfinished, &mut signals, console).await?)
        }
    };
    let outcome = outcome(cause, stream_end, stays, released, console)?;
    let program = match outcome {
        Outcome::ProcessEnded => target.end().await,
        _ => None,
    };
    if let (Outcome::Stopped, Target::Launched(_)) = (outcome, &target) {
        console.note(&match target.ended() {
            None => format!("the program goes on as process {}", target.pid()),
            Some(how) => format!("the program ended ({how}); processes that it started go on"),
        });
    }
    let Before {
        group,
        ring_bytes,
        max_threads,
        rings_taken,
    } = before;
    if let (Some(wanted), Some(there)) = (args.memory.ring_size, ring_bytes)
        && wanted != there
    {
        console.note(&format!(
            "the rings have {}, and not {}: a process keeps its rings of an earlier attach, and a \
             limit on its memory makes rings smaller",
            units::bytes(there),
            units::bytes(wanted)
        ));
    }
    // The rings of a process that another client has attached stay as they are.
    let is_ours = undo == Undo::Detach;
    let counts = counts.borrow().clone();
    if let Some(without) = counts.without_runs() {
        console.note(&without);
    }
    let (unreceived, all_lost, all_events) = (counts.unreceived, counts.lost, counts.events);
    let remedies = |lost: u64, frequent| {
        (lost > 0).then(|| Remedies {
            unreceived,
            frequent,
            rings_taken,
            ring_bytes: ring_bytes.filter(|_| is_ours),
            max_threads: max_threads.filter(|_| is_ours),
            is_limited: args.limits.wire().is_some(),
            waits: args.lossless,
            running: match outcome {
                Outcome::Stopped | Outcome::StillAttached => pid,
                _ => None,
            },
        })
    };
    let (lost, is_empty) = match stored {
        Some((file, tally)) => {
            let recorded = Recorded {
                program,
                group,
                threads_without_run_times: counts.threads_without_runs,
                waited_ns: (counts.waited_ns > 0).then_some(counts.waited_ns),
                remedies: remedies(tally.lost, tally.frequent.clone()),
                ..Recorded::new(file.path(), target.pid(), outcome, &tally)
            };
            if args.format.json {
                console.json(&recorded)?;
            } else {
                console.show(|out, look| recorded.render(out, look))?;
            }
            (recorded.lost, recorded.processes == 0)
        }
        None => {
            let streamed = Streamed {
                pid: target.pid(),
                outcome,
                program,
                counts,
                remedies: remedies(all_lost, None),
                group,
            };
            for line in streamed.lines() {
                console.note(&line);
            }
            if stream_end == StreamEnd::Left {
                console.note("the trace has no end mark: not all events arrived in time");
            }
            (all_lost, all_events == 0)
        }
    };
    let untraced = target.has_no_sleds() && is_empty;
    match (outcome, lost) {
        (Outcome::DaemonGone, _) => {
            Err(Failure::Unreachable("the daemon went away".to_owned()).into())
        }
        (_, lost) if args.strict && lost > 0 => Err(Failure::Lost { events: lost }.into()),
        _ if untraced => {
            let what = "the trace is empty: the program has no sleds, and no process that came from it was traced";
            Err(Failure::NothingMatched(what.to_owned()).into())
        }
        _ => Ok(()),
    }
}

/// Starts all parts, in an order in which no event is missed. If it fails, the process is as it
/// was.
async fn begin(
    rpc: &mut Rpc,
    target: &Target,
    args: &Args,
    selection: Selection,
    output: TraceOutput,
    console: &Console,
) -> anyhow::Result<(Recording, Undo)> {
    let pid = target.pid();
    let undo = match target {
        Target::Running(_) => {
            let follow = args.follow.unwrap_or(Follow::None);
            let request = AttachRequest {
                budget: args.limits.wire(),
                ..args.memory.for_recording(pid, follow).request(
                    pid,
                    follow,
                    args.sleds(),
                    Mode::Stream,
                )
            };
            attachment::attach(rpc, request, console).await?
        }
        // The engine attached when it started the program.
        Target::Launched(_) => Undo::Detach,
    };
    match stream(rpc, target, args, (selection, undo), output, console).await {
        Ok(recording) => Ok((recording, undo)),
        Err(error) => {
            // The program ends before it is detached, so that it does not run unrecorded for even a
            // moment.
            target.abandon();
            // The first error is the one to return.
            attachment::note_failure(attachment::release(rpc, pid, undo).await, console);
            Err(error)
        }
    }
}

/// Begins to stream, then enables functions, or lets the program run, so that no event is missed.
async fn stream(
    rpc: &mut Rpc,
    target: &Target,
    args: &Args,
    (selection, undo): (Selection, Undo),
    output: TraceOutput,
    console: &Console,
) -> anyhow::Result<Recording> {
    let pid = target.pid();
    let switching = Switching {
        pid,
        selection,
        wanted: Wanted::On(args.values.capture()),
        lease: undo.lease(),
    };
    // A selection that matches nothing is found before the file is changed. In a started program,
    // all functions that match are on already.
    let planned = toggle::dry_run(rpc, &switching).await?;
    // A started program without sleds is not checked: the processes that come from it may have the
    // functions.
    if !target.has_no_sleds() && planned.iter().all(|report| report.matched == 0) {
        if args.selectors.no_match(args.pending) == NoMatch::Fails {
            return Err(toggle::nothing_matched_of(rpc, &switching).await);
        }
        console.note(toggle::MATCHES_LATER);
    }
    let wanted = switching.selection.clone();
    let contents = Contents {
        selection: wanted,
        duration: args.duration,
        run_times: !args.no_sched,
        kernel_tracepoints: args.kernel.clone(),
        wait: args.lossless,
    };
    let recording = Recording::begin(rpc, pid, undo, contents, output).await?;
    let foreign: u64 = match target {
        Target::Running(_) => {
            let reports = toggle::toggle(rpc, switching, console).await?;
            reports.iter().map(|report| report.foreign).sum()
        }
        Target::Launched(launched) => launched.toggled.foreign,
    };
    if foreign > 0 {
        let sleds = units::counted(foreign, "sled");
        console.note(&format!(
            "{sleds} left unchanged: another tool has patched them"
        ));
    }
    target.resume()?;
    Ok(recording)
}

async fn wait(
    recording: &mut Recording,
    duration: Option<Duration>,
    signals: &mut Signals,
    progress: &Progress,
) -> Cause {
    let mut tick = tokio::time::interval(TICK);
    let up = async {
        match duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let mut up = std::pin::pin!(up);
    loop {
        let counts = recording.counts();
        tokio::select! {
            () = recording.ended() => return Cause::StreamEnded,
            () = signals.next() => return Cause::Asked,
            () = &mut up => return Cause::Asked,
            _ = tick.tick() => progress.recorded(counts.events, counts.lost, counts.bytes),
        }
    }
}

/// Reads the trace back. A long trace takes some time, so the progress is shown, and a signal gets
/// a note.
async fn read_back(
    mut file: OutputFile,
    unfinished: Unfinished,
    signals: &mut Signals,
    console: &Console,
) -> anyhow::Result<(OutputFile, Tally)> {
    let progress = Progress::spinner(console, "reading the trace back");
    let mut reading = tokio::task::spawn_blocking(move || {
        let tally = file.finish_trace(unfinished)?;
        anyhow::Ok((file, tally))
    });
    loop {
        tokio::select! {
            done = &mut reading => return done.context("reading the trace back failed")?,
            () = signals.next() => progress.note(console, "the trace is being read back"),
        }
    }
}

/// The reason for the end of the recording. An error of the detach counts only if the process was
/// still there.
fn outcome(
    cause: Cause,
    stream_end: StreamEnd,
    stays: bool,
    released: anyhow::Result<Undone>,
    console: &Console,
) -> anyhow::Result<Outcome> {
    let reason = |error: &anyhow::Error| match error.downcast_ref() {
        Some(Failure::Refused { reason, .. }) => Some(reason.clone()),
        _ => None,
    };
    if let Ok(Undone::TakenBack(reports)) = &released {
        for report in reports {
            if let Some(refusal) = &report.refusal {
                let ToggleReport { pid, .. } = report;
                console.note(&format!(
                    "functions of process {pid} stay on: {}",
                    refusal.message
                ));
            }
        }
    }
    match (cause, stream_end, released) {
        (_, StreamEnd::Broken, _) => Ok(Outcome::DaemonGone),
        (_, _, Ok(Undone::Detached(reports))) => {
            for report in &reports {
                let pid = report.pid;
                if report.text_bytes_different > 0 || report.sleds_on > 0 {
                    console.note(&format!(
                        "process {pid} may not be as it was: its code differs from the file, or sleds are still on"
                    ));
                }
                if let Some(refusal) = &report.refusal {
                    console.note(&format!(
                        "process {pid} was not detached: {}",
                        refusal.message
                    ));
                }
            }
            // Without a traced process in the group, the end of the stream shows the end of the
            // processes.
            // Forked processes were no part of the recording.
            let mut recorded = reports.iter().filter(|report| !report.inherited).peekable();
            let are_any = recorded.peek().is_some();
            let ended = recorded.all(|report| report.exited);
            Ok(if ended && (cause == Cause::StreamEnded || are_any) {
                Outcome::ProcessEnded
            } else {
                Outcome::Stopped
            })
        }
        (Cause::Asked, _, Ok(Undone::TakenBack(_))) if stays => Ok(Outcome::StillAttached),
        (_, _, Ok(Undone::TakenBack(_))) => Ok(Outcome::ProcessEnded),
        // The trace has its end mark: the daemon detached the process before it ended.
        (Cause::StreamEnded, StreamEnd::Finished, Err(error))
            if matches!(error.downcast_ref(), Some(Failure::Unreachable(_))) =>
        {
            Ok(Outcome::DetachedElsewhere)
        }
        (Cause::StreamEnded, _, Err(error)) => match reason(&error).as_deref() {
            Some("not-attached") => Ok(Outcome::DetachedElsewhere),
            Some("target-exited" | "no-such-process") => Ok(Outcome::ProcessEnded),
            _ => Err(error),
        },
        (Cause::Asked, _, Err(error)) => match reason(&error).as_deref() {
            Some("target-exited" | "no-such-process") => Ok(Outcome::ProcessEnded),
            _ => Err(error),
        },
    }
}
