//! `xrayctl attach`: puts trampolines and rings into a process. Enables functions if selectors are
//! given. Then the process stays attached only if they match.
//!
//! ```text
//! attach ─► match (dry run) ─► enable ─► print
//!              │                  │
//!              └──────────────────┴── a failure or a signal undoes an attach of this command
//! ```

use std::fs;

use anyhow::Context as _;
use xrayd::{
    process::{AttachOptions, Follow},
    target::Sleds,
    types::{Mode, Wanted},
};
use xrayd_proto::v1::{
    self, AttachRequest, AttachResponse, ProcessStatus, Selection, SessionState, StatusRequest,
    ToggleReport,
};

use crate::{
    args::Format,
    attachment,
    attachment::Undo,
    client::{Daemon, Rpc},
    each_process::EachProcess,
    failure,
    failure::Failure,
    limits::Limits,
    output::{
        Console,
        attached::{Attached, SeveralAttached},
        mode_set::NamedMode,
        refused,
    },
    parse,
    process::{SeveralProcesses, one_of},
    selectors,
    selectors::{NoMatch, Pending, Selectors},
    signals::Signals,
    toggle,
    toggle::Switching,
    values::Values,
};

const EXAMPLES: &str = "\
Without a selector, attach switches no function on. With selectors, it switches the functions on
that they select, as `xrayctl enable` does. If they match no function, attach detaches a process
again that it has attached itself, and exits with 3.

With --pending, attach also attaches to a process in which no loaded module has sleds, because
libraries that are loaded later may have them.

Examples:
  xrayctl attach 1234
  xrayctl attach 1234 --ring-size 4MiB --max-threads 64
  xrayctl attach 1234 --mode stream
  xrayctl attach 1234 --follow fork
  xrayctl attach 1234 --max-overhead 2%
  xrayctl attach 1234 --glob 'ns::*' --except-regex 'get|set'
  xrayctl attach server unit:redis --all";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: SeveralProcesses,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    pending: Pending,
    #[command(flatten)]
    values: Values,
    #[command(flatten)]
    memory: Memory,
    /// How events are kept: flight (rings keep the newest), stream (the daemon reads all), profile
    /// (the daemon adds up calls) or count (the program counts calls); see `xrayctl mode --help`
    #[arg(long, value_name = "MODE", default_value = "flight", value_parser = parse::mode)]
    mode: Mode,
    #[command(flatten)]
    limits: Limits,
    /// Also trace processes that come from the process: the processes that it forks (fork), the
    /// program that it becomes (exec), everything (all), or nothing (none, the default)
    #[arg(long, value_name = "WHAT", default_value = "none", hide_default_value = true, value_parser = parse::follow)]
    follow: Follow,
    #[command(flatten)]
    format: Format,
}

/// The functions to switch on.
#[derive(Debug, Clone)]
struct Enabling {
    selection: Selection,
    wanted: Wanted,
    no_match: NoMatch,
}

/// The size of a ring, in bytes.
const RING_BYTES: u64 = 1 << 20;
/// The size of a ring for a recording of one process. A busy thread fills a ring of 1 MiB in 3 ms,
/// and the daemon does not always get a processor within that time.
const RECORDING_RING_BYTES: u64 = 4 << 20;
/// The most threads that a process may have at the begin of such a recording. Their rings take 64
/// MiB at most.
const FEW_THREADS: usize = 16;

/// How much memory the target gives to tracing.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Memory {
    /// Size of each thread's ring: a power of two from 64KiB to 1GiB; without this, 1MiB (record
    /// of one process with at most 16 threads: 4MiB)
    #[arg(long, value_name = "SIZE", value_parser = parse::ring_size)]
    pub(crate) ring_size: Option<u64>,
    /// Largest number of threads that are traced at the same time, from 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_threads: u32,
}

// === impl Args ===

impl Args {
    /// The functions to switch on; `None` without selectors.
    fn enabling(&self) -> Result<Option<Enabling>, Failure> {
        let capture = self.values.capture();
        let selection = self.selectors.selection()?;
        match selection.map(selectors::wire) {
            Some(selection) => Ok(Some(Enabling {
                selection,
                wanted: Wanted::On(capture),
                no_match: self.selectors.no_match(self.pending),
            })),
            None if self.selectors == Selectors::default() && capture.is_none() => Ok(None),
            None => Err(toggle::nothing_selected()),
        }
    }
}

// === impl Memory ===

impl Memory {
    /// These options, with larger rings for a recording of a process with few threads. The memory
    /// of processes that are followed cannot be foreseen.
    pub(crate) fn for_recording(self, pid: u32, follow: Follow) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        let threads = threads.map_or(0, |threads| threads.take(FEW_THREADS + 1).count());
        let default = match (threads, follow) {
            (0..=FEW_THREADS, Follow::None) => RECORDING_RING_BYTES,
            _ => RING_BYTES,
        };
        Self {
            ring_size: self.ring_size.or(Some(default)),
            ..self
        }
    }

    /// The request to attach to a process.
    pub(crate) fn request(
        self,
        pid: u32,
        follow: Follow,
        sleds: Sleds,
        mode: Mode,
    ) -> AttachRequest {
        let Self {
            ring_size,
            max_threads,
        } = self;
        AttachRequest {
            pid,
            ring_bytes: ring_size.unwrap_or(RING_BYTES),
            max_threads,
            start_time: 0,
            follow: match follow {
                Follow::None => v1::Follow::Unspecified,
                Follow::Fork => v1::Follow::Fork,
                Follow::Exec => v1::Follow::Exec,
                Follow::All => v1::Follow::All,
            }
            .into(),
            await_sleds: sleds == Sleds::Awaited,
            mode: NamedMode(mode).wire().into(),
            budget: None,
        }
    }

    /// The same options for the engine in this process.
    pub(crate) fn options(self, follow: Follow, sleds: Sleds) -> AttachOptions {
        let Self {
            ring_size,
            max_threads,
        } = self;
        AttachOptions {
            ring_bytes: ring_size.unwrap_or(RING_BYTES),
            max_threads,
            follow,
            sleds,
            ..AttachOptions::default()
        }
    }
}

/// The requirement for sleds. Libraries may bring them later if the selectors wait for these.
pub(crate) fn sleds(no_match: NoMatch) -> Sleds {
    match no_match {
        NoMatch::Fails => Sleds::Needed,
        NoMatch::Waits => Sleds::Awaited,
    }
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let enabling = args.enabling()?;
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let mut signals = Signals::hold()?;
    let sleds = sleds(args.selectors.no_match(args.pending));
    let shown: &Console = console;
    let work = async |pid| {
        let request = AttachRequest {
            budget: args.limits.wire(),
            ..args.memory.request(pid, args.follow, sleds, args.mode)
        };
        let response = attach(&mut rpc, request, &mut signals).await?;
        match &enabling {
            None => Ok(Attached::from(response)),
            Some(enabling) => enable(&mut rpc, pid, response, enabling, &mut signals, shown).await,
        }
    };
    let processes = each.run(shown, work).await?;
    if !args.format.json {
        console.show(|out, look| {
            processes
                .iter()
                .try_for_each(|attached| attached.render(out, look))
        })?;
    } else if each.are_several() {
        console.json(&SeveralAttached { processes })?;
    } else {
        processes
            .iter()
            .try_for_each(|attached| console.json(attached))?;
    }
    Ok(each.finish()?)
}

/// Attaches, or ends at the first signal. The daemon undoes an attach whose client is gone.
async fn attach(
    rpc: &mut Rpc,
    request: AttachRequest,
    signals: &mut Signals,
) -> anyhow::Result<AttachResponse> {
    let pid = request.pid;
    tokio::select! {
        response = rpc.attach(request) => Ok(response
            .map_err(|status| failure::from_status(&status))
            .with_context(|| format!("cannot attach to {pid}"))?
            .into_inner()),
        () = signals.next() => Err(Failure::Interrupted(format!(
            ": the daemon undoes this attach, unless process {pid} was attached before"
        ))
        .into()),
    }
}

/// Switches functions of an attached process on. If that fails, detaches a process that was not
/// attached before.
async fn enable(
    rpc: &mut Rpc,
    pid: u32,
    response: AttachResponse,
    enabling: &Enabling,
    signals: &mut Signals,
    console: &Console,
) -> anyhow::Result<Attached> {
    let already = response
        .report
        .as_ref()
        .is_some_and(|report| report.already);
    let enabled = tokio::select! {
        enabled = switch_on(rpc, pid, enabling, console) => enabled,
        () = signals.next() => Err(Failure::Interrupted(String::new()).into()),
    };
    match enabled {
        Ok(enabled) => {
            let status = status(rpc, pid).await;
            Ok(Attached::from(response).with_enabled(enabled, status))
        }
        Err(error) if already => Err(error),
        Err(error) => match attachment::release(rpc, pid, Undo::Detach).await {
            Ok(_) => Err(error.context(format!("process {pid} is not attached"))),
            Err(second) => {
                // The first error is the one to return.
                console.note(&format!("{second:#}"));
                Err(error)
            }
        },
    }
}

/// Switches functions on. Changes nothing if the selection matches none and may not wait for one.
async fn switch_on(
    rpc: &mut Rpc,
    pid: u32,
    enabling: &Enabling,
    console: &Console,
) -> anyhow::Result<Vec<ToggleReport>> {
    let Enabling {
        selection,
        wanted,
        no_match,
    } = enabling.clone();
    let switching = Switching {
        pid,
        selection,
        wanted,
        lease: 0,
    };
    ensure_done(pid, &toggle::dry_run(rpc, &switching).await?)?;
    toggle::ensure_matches(rpc, &switching, no_match, console).await?;
    let enabled = toggle::toggle(rpc, switching, console).await?;
    ensure_done(pid, &enabled)?;
    Ok(enabled)
}

/// Fails if the process itself refused.
fn ensure_done(pid: u32, reports: &[ToggleReport]) -> Result<(), Failure> {
    let own = reports.iter().find(|report| report.pid == pid);
    let refusal = own.and_then(|report| report.refusal.as_ref());
    refusal.map_or(Ok(()), |refusal| Err(refused::failure(refusal)))
}

/// The status of an attached process. `None` if it cannot be read: only the output needs it.
async fn status(rpc: &mut Rpc, pid: u32) -> Option<ProcessStatus> {
    let response = rpc.get_status(StatusRequest { pid }).await.ok()?;
    let mut processes = response.into_inner().processes.into_iter();
    processes.find(|process| process.pid == pid && process.state() == SessionState::Tracing)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn enabling(line: &str) -> Result<Option<Enabling>, Failure> {
        let words = ["attach", "7"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().args.enabling()
    }

    #[test]
    fn functions_are_switched_on_only_with_selectors() {
        assert!(enabling("").unwrap().is_none());
        assert!(enabling("--pending").unwrap().is_none());
        for (line, rules, no_match) in [
            ("--function f", 1, NoMatch::Fails),
            ("--glob a* --glob b* --pending", 2, NoMatch::Waits),
            ("--module libfoo.so", 1, NoMatch::Waits),
            ("--all --args 2 --except-id 7", 1, NoMatch::Fails),
        ] {
            let enabling = enabling(line).unwrap().unwrap();
            assert_eq!(enabling.selection.include.len(), rules, "{line}");
            assert_eq!(enabling.no_match, no_match, "{line}");
        }
        for line in ["--except-id 7", "--args 2", "--retval", "--regex ("] {
            assert!(matches!(enabling(line), Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn a_refusal_of_the_process_itself_is_a_failure() {
        let report = |pid, refused: bool| ToggleReport {
            pid,
            refusal: refused.then(v1::Refusal::default),
            ..ToggleReport::default()
        };
        assert!(ensure_done(7, &[report(7, false), report(8, true)]).is_ok());
        assert!(ensure_done(7, &[report(7, true)]).is_err());
        assert!(ensure_done(7, &[]).is_ok());
    }
}
