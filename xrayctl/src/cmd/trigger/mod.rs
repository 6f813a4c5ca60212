//! `xrayctl trigger`: waits for a condition, then acts at once.
//!
//! The daemon waits, takes snapshots, and enables and disables functions. This process writes files
//! and runs commands, with the rights of its user.

mod action;
mod fields;
mod files;

use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal as Background};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use xray_trace::event_format::EventFormats;
use xrayd::{
    trigger_text::{FiringLimit, parse_limit},
    triggers::MOST_CONDITIONS,
    types::{Capture, Wanted},
};
use xrayd_proto::v1::trigger_condition::What;
use xrayd_proto::v1::trigger_event::Event;
use xrayd_proto::v1::{
    Selection, SnapshotWanted, TriggerCondition, TriggerDone, TriggerEvent, TriggerRequest,
    TriggerSwitch, TriggerSwitched,
};

use self::action::Action;
use self::files::Files;
use super::snapshot::{Snapshot, attached};
use crate::{
    args::Format,
    client::{Daemon, Rpc},
    condition,
    condition::Condition,
    failure,
    failure::Failure,
    output::{
        Console,
        triggered::{Fired, TriggerReport},
        units,
    },
    parse,
    process::OnlyProcess,
    selectors::NoMatch,
    signals::Signals,
    toggle,
    toggle::Switching,
    trace_file::Overwrite,
    user_events::{self, EventFormatArgs},
};

const EXAMPLES: &str = "\
Conditions (several --when: any of them fires):
  duration(SELECTOR) > TIME   a call ended that took longer; or >=
  on_cpu(SELECTOR) > TIME     a call ended whose thread had a processor for longer; or >=
  off_cpu(SELECTOR) > TIME    a call ended whose thread had no processor for longer; or >=
  call(SELECTOR)              a call begins
  rate(SELECTOR) > N/s        a process made more than N calls of these functions within a second;
                              or >=; fires again after the rate was lower
  event(custom)               the program emits a custom event; event(7), event(NAME): a typed event
                              with this number or name
  event(…).FIELD > NUMBER     the same, if the field is greater; or >=, <, <=, ==, !=; a text stands
                              in quotation marks; needs --event-format
  death                       a signal ends a process; death(SIGSEGV): this signal; death(any): the
                              process ends in any way
  demand                      never by itself

SIGUSR1 to xrayctl, or Enter on a terminal, fires any trigger.

A SELECTOR is the name of a function or a glob. The functions of the conditions are on while the
trigger is armed. To have other functions in the snapshot, switch them on before (`xrayctl enable`).
While a trigger waits for calls or events, the daemon reads all events of the process, as with
watch.

Actions are done in a fixed order: first enable and disable, permanently; then the snapshot; then
commands, which sh runs as the user of xrayctl, with XRAY_NUMBER, XRAY_WHEN, XRAY_PID, XRAY_TID,
XRAY_FUNCTION, XRAY_VALUE and XRAY_FILE in their environment.

With --limit 1, the default, OUT is a file. Otherwise it is a directory, in which the name of each
snapshot has its number and time.

Examples:
  xrayctl trigger --when 'duration(ns::handle) > 10ms' -o slow.xtrace
  xrayctl trigger --when death --all-processes --before 5s -o crash.xtrace
  xrayctl trigger --pid 1234 --when 'rate(retry*) > 100/s' --limit 3/1h --expire 8h -o storms/
  xrayctl trigger --when 'call(cache::flush)' --do 'enable cache::*' --do 'exec notify-send $XRAY_FUNCTION'
  xrayctl trigger --when 'event(order).price > 100' --event-format 'order=id:u64,price:f64' -o order.xtrace";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Wait for this condition, see below; can be given up to 8 times
    #[arg(long, value_name = "CONDITION", required = true, value_parser = condition::argument)]
    when: Vec<Condition>,
    #[command(flatten)]
    formats: EventFormatArgs,
    #[command(flatten)]
    process: OnlyProcess,
    /// If no loaded function matches a condition, wait for libraries that are loaded later
    #[arg(long)]
    pending: bool,
    /// What to do: snapshot (the default), `enable SELECTION`, `disable SELECTION` or `exec
    /// COMMAND`; can be given several times
    #[arg(long = "do", value_name = "ACTION", value_parser = action::parse)]
    actions: Vec<Action>,
    /// Write every attached process into the snapshot, up to the same moment
    #[arg(long)]
    all_processes: bool,
    /// Begin the snapshot this long before the trigger fires; without this, with the oldest event
    /// that is there. The call that fired is always whole
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    before: Option<Duration>,
    /// End the snapshot this long after the trigger fires
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse::duration)]
    after: Duration,
    /// Fire at most N times in all, or N times in any TIME, like 3/1h; N is 1 to 1000
    #[arg(long, value_name = "N[/TIME]", default_value = "1", value_parser = parse_limit)]
    limit: FiringLimit,
    /// Stop waiting after this time; without this, wait until the trigger or the processes end
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    expire: Option<Duration>,
    /// The file or directory for snapshots
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Replace OUT if it is an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: Format,
}

/// The state of an armed trigger.
struct Waiting<'a> {
    args: &'a Args,
    console: &'a mut Console,
    files: Option<Files>,
    /// The firing that the daemon reports now.
    firing: Option<Fired>,
    /// Reported actions of this firing that enable or disable functions.
    switches: usize,
    fired: u32,
    /// True if the command ends when this firing is written.
    is_leaving: bool,
}

/// The user's requests to fire now.
struct Demands {
    signal: Signal,
    enters: mpsc::Receiver<()>,
}

/// A snapshot, in JSON.
#[derive(Debug, Serialize)]
struct Written<'a> {
    event: &'static str,
    number: u32,
    #[serde(flatten)]
    snapshot: &'a Snapshot,
}

/// Whether more events follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    /// The trigger is over.
    Over,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let mut signals = Signals::hold()?;
    let mut demands = Demands::hold()?;
    args.check()?;
    let pid = args.process.find()?;
    let mut rpc = daemon.connect().await?;
    if pid.is_none() {
        attached(&mut rpc).await?;
    }
    let pid = pid.unwrap_or(0);
    let formats = user_events::formats_of_modules(&mut rpc, pid).await?;
    let conditions = args.conditions_on_the_wire(formats)?;
    ensure_matches(&mut rpc, &args, pid, console).await?;
    let files = args.files()?;
    let (requests, mut events) = arm(&mut rpc, args.request(pid, conditions)).await?;
    let mut waiting = Waiting {
        args: &args,
        console,
        files,
        firing: None,
        switches: 0,
        fired: 0,
        is_leaving: false,
    };
    loop {
        let event = tokio::select! {
            event = events.message() => event,
            () = signals.next() => {
                if waiting.stop_asked() {
                    return Ok(());
                }
                continue;
            }
            () = demands.next() => {
                let fire = TriggerRequest { fire: true, ..TriggerRequest::default() };
                // One waiting request is enough.
                let _ = requests.try_send(fire);
                continue;
            }
        };
        let event = event.map_err(|status| failure::from_status(&status))?;
        let Some(TriggerEvent { event: Some(event) }) = event else {
            return Err(Failure::Unreachable("the daemon went away".to_owned()).into());
        };
        if waiting.take(event, &mut signals).await? == Next::Over {
            return waiting.verdict();
        }
    }
}

// === impl Args ===

impl Args {
    /// Checks the rules that clap cannot express.
    fn check(&self) -> anyhow::Result<()> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()).into());
        if self.conditions().count() > MOST_CONDITIONS {
            return usage(&format!("expected at most {MOST_CONDITIONS} conditions"));
        }
        let mut when = self.when.iter();
        if !self.formats.is_empty() && when.all(|condition| condition.comparison.is_none()) {
            return usage(
                "--event-format is for conditions on fields, like --when 'event(order).price > 100'",
            );
        }
        match (self.takes_snapshots(), &self.output) {
            (true, None) => usage("a snapshot needs --output"),
            (false, Some(_)) => usage("--output is for snapshots: give --do snapshot, too"),
            _ => Ok(()),
        }
    }

    /// The conditions that the daemon waits for.
    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.when
            .iter()
            .filter(|condition| condition.wire.is_some())
    }

    fn takes_snapshots(&self) -> bool {
        self.actions.is_empty() || self.actions.contains(&Action::Snapshot)
    }

    /// The actions that enable or disable functions, and their texts.
    fn switches(&self) -> impl Iterator<Item = (&str, TriggerSwitch)> {
        self.actions.iter().filter_map(Action::switch)
    }

    fn commands(&self) -> impl Iterator<Item = &str> {
        self.actions.iter().filter_map(Action::command)
    }

    fn files(&self) -> anyhow::Result<Option<Files>> {
        let Some(output) = &self.output else {
            return Ok(None);
        };
        if !self.limit.is_once() {
            return Files::in_directory(output).map(Some);
        }
        let overwrite = if self.force {
            Overwrite::Yes
        } else {
            Overwrite::No
        };
        Files::one(output, overwrite).map(Some)
    }

    /// What ends the trigger, in words.
    fn until(&self) -> String {
        let mut ends = Vec::new();
        if self.limit.period.is_none() {
            ends.push(match self.limit.times {
                1 => "when it has fired".to_owned(),
                many => format!("when it has fired {many} times"),
            });
        }
        if let Some(expire) = self.expire {
            let ns = u64::try_from(expire.as_nanos()).unwrap_or(u64::MAX);
            ends.push(format!("after {}", units::exact_time(ns)));
        }
        ends.push("when no process is left".to_owned());
        format!("{}, or on Ctrl-C", ends.join(", "))
    }

    /// The conditions that the daemon waits for, as it takes them.
    fn conditions_on_the_wire(
        &self,
        modules: EventFormats,
    ) -> Result<Vec<TriggerCondition>, Failure> {
        let formats = self.formats.formats(modules);
        let conditions = self.when.iter();
        let wire = conditions.map(|condition| fields::on_the_wire(condition, &formats));
        wire.filter_map(Result::transpose).collect()
    }

    fn request(&self, pid: u32, conditions: Vec<TriggerCondition>) -> TriggerRequest {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let optional = |time: Option<Duration>| time.map_or(0, ns);
        TriggerRequest {
            pid,
            conditions,
            switches: self.switches().map(|(_, switch)| switch).collect(),
            snapshot: self.takes_snapshots().then(|| SnapshotWanted {
                all_processes: self.all_processes,
                before_ns: optional(self.before),
                after_ns: ns(self.after),
            }),
            limit: self.limit.times,
            limit_period_ns: optional(self.limit.period),
            expire_ns: optional(self.expire),
            fire: false,
            of_policy: None,
        }
    }
}

// === impl Demands ===

impl Demands {
    fn hold() -> anyhow::Result<Self> {
        let (sender, enters) = mpsc::channel(1);
        if std::io::stdin().is_terminal() {
            // The thread ends with the process, because nothing else ends a read from a terminal.
            std::thread::spawn(move || {
                // A read would stop the process while it is in the background. With the signal
                // blocked the read fails, and there is no Enter.
                if SigSet::from_iter([Background::SIGTTIN])
                    .thread_block()
                    .is_err()
                {
                    return;
                }
                for line in std::io::stdin().lock().lines() {
                    if line.is_err() || sender.blocking_send(()).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            signal: signal(SignalKind::user_defined1())?,
            enters,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.signal.recv() => {}
            Some(()) = self.enters.recv() => {}
        }
    }
}

// === impl Waiting ===

impl Waiting<'_> {
    /// Handles a request to end. Returns false while a snapshot is on its way: the command ends
    /// after it.
    fn stop_asked(&mut self) -> bool {
        if self.firing.is_none() || !self.args.takes_snapshots() || self.is_leaving {
            return true;
        }
        self.is_leaving = true;
        let what = "waiting for the snapshot; another Ctrl-C exits without it";
        self.console.note(what);
        false
    }

    async fn take(&mut self, event: Event, signals: &mut Signals) -> anyhow::Result<Next> {
        match event {
            Event::Armed(armed) => {
                let when = self.args.when.iter();
                let awaited: Vec<_> = when.map(|condition| condition.awaited.clone()).collect();
                self.tell(&TriggerReport::armed(armed, &awaited, &self.args.until()))?;
                if self.console.shows_progress() {
                    self.console.note(&format!(
                        "Ctrl-C ends the trigger; Enter or `kill -USR1 {}` fires it",
                        std::process::id()
                    ));
                }
            }
            Event::Fired(fired) => {
                let conditions: Vec<String> = self
                    .args
                    .conditions()
                    .map(|condition| condition.text.clone())
                    .collect();
                let fired = Fired::new(fired, &conditions);
                self.fired = fired.number;
                self.switches = 0;
                self.firing = Some(fired.clone());
                self.tell(&TriggerReport::Fired(fired))?;
            }
            Event::Switched(TriggerSwitched { number, reports }) => {
                let action = self.args.switches().nth(self.switches);
                let action = action.map_or("", |(action, _)| action);
                self.switches += 1;
                for report in reports {
                    self.tell(&TriggerReport::switched(number, action, report))?;
                }
            }
            Event::Snapshot(chunk) => {
                if let (Some(files), Some(fired)) = (&mut self.files, &self.firing) {
                    tokio::task::block_in_place(|| files.take(fired, &chunk))?;
                }
            }
            Event::Done(done) => {
                self.finish(done, signals).await?;
                if self.is_leaving {
                    return Ok(Next::Over);
                }
            }
            Event::Ended(ended) => self.tell(&TriggerReport::ended(ended))?,
            Event::Missed(missed) => self.tell(&TriggerReport::unjudged(missed))?,
            Event::Over(over) => {
                self.tell(&TriggerReport::over(&over))?;
                return Ok(Next::Over);
            }
        }
        Ok(Next::More)
    }

    /// Finishes the snapshot, if there is one, and then runs the commands, which may use it.
    async fn finish(&mut self, done: TriggerDone, signals: &mut Signals) -> anyhow::Result<()> {
        let TriggerDone { number, refusal } = done;
        let mut written = None;
        if let Some(files) = &mut self.files {
            written = tokio::task::block_in_place(|| files.finish())?;
        }
        if let Some((snapshot, _)) = &written {
            self.show(number, snapshot)?;
        }
        if let Some(refusal) = refusal {
            let why = refusal.message;
            self.tell(&TriggerReport::NoSnapshot { number, why })?;
        }
        let Some(fired) = self.firing.take() else {
            return Ok(());
        };
        let file = written.map(|(_, path)| path);
        let commands: Vec<&str> = self.args.commands().collect();
        for command in commands {
            let ended = action::run(command, &fired, file.as_deref(), signals).await;
            self.tell(&TriggerReport::Command {
                number,
                command,
                ended,
            })?;
        }
        Ok(())
    }

    fn show(&mut self, number: u32, snapshot: &Snapshot) -> anyhow::Result<()> {
        match self.args.format.json {
            true => self.json(&Written {
                event: "snapshot",
                number,
                snapshot,
            }),
            false => self.console.line(&format!("   {}", snapshot.line())),
        }
    }

    fn tell(&mut self, reported: &TriggerReport<'_>) -> anyhow::Result<()> {
        match self.args.format.json {
            true => self.json(reported),
            false => self.console.show(|out, look| reported.render(out, look)),
        }
    }

    /// Writes a value as a line of JSON.
    fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.console.show(|out, _| {
            serde_json::to_writer(&mut *out, value)?;
            writeln!(out)
        })
    }

    /// The exit code shows scripts whether the trigger has fired.
    fn verdict(&self) -> anyhow::Result<()> {
        match self.fired {
            0 => {
                let what = "the trigger has not fired";
                Err(Failure::NothingMatched(what.to_owned()).into())
            }
            _ => Ok(()),
        }
    }
}

/// Fails if no function matches a condition, unless it may be loaded later.
async fn ensure_matches(
    rpc: &mut Rpc,
    args: &Args,
    pid: u32,
    console: &Console,
) -> anyhow::Result<()> {
    let no_match = if args.pending {
        NoMatch::Waits
    } else {
        NoMatch::Fails
    };
    for condition in args.conditions() {
        let Some(selection) = selection_of(condition) else {
            continue;
        };
        let switching = Switching {
            pid,
            selection,
            wanted: Wanted::On(Capture::NONE),
            lease: 0,
        };
        toggle::ensure_matches(rpc, &switching, no_match, console)
            .await
            .with_context(|| condition.text.clone())?;
    }
    Ok(())
}

fn selection_of(condition: &Condition) -> Option<Selection> {
    match condition.wire.clone()?.what? {
        What::Duration(of) => of.selection,
        What::Rate(of) => of.selection,
        What::Call(of) => Some(of),
        What::Event(_) | What::Death(_) => None,
    }
}

/// Arms a trigger. It stays armed as long as both results exist.
async fn arm(
    rpc: &mut Rpc,
    request: TriggerRequest,
) -> anyhow::Result<(mpsc::Sender<TriggerRequest>, Streaming<TriggerEvent>)> {
    let (requests, sent) = mpsc::channel(1);
    // The channel has room for one request.
    requests.try_send(request).context("no request was sent")?;
    let response = rpc.trigger(ReceiverStream::new(sent)).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let events = response.context("cannot arm the trigger")?;
    Ok((requests, events.into_inner()))
}
