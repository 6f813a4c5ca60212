//! A tracer in a process of its own, so that it can be killed, stopped, or be another user. It is a
//! second copy of this test program, and takes commands as lines on standard input.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufWriter, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use integration::{DEADLINE, Target};
use tracing::field::Field;
use tracing::{Event, Metadata, Subscriber, span};
use xray_trace::model::Trace;
use xrayd::{
    process::{AttachOptions, Registry, RegistryConfig, Session},
    types::{Run, Switch},
};

use crate::support::{everything, pid, registry, write_snapshot};

/// Set for the copy that is the tracer.
const ROLE: &str = "XRAYD_ENGINE_TEST_ROLE";
/// A message of the library's log. The thread that logs it panics, like a bug of the library.
const PANIC_AT: &str = "XRAYD_ENGINE_TEST_PANIC_AT";

/// The other process.
#[derive(Debug)]
pub(crate) struct Tracer(Target);

// === impl Tracer ===

impl Tracer {
    pub(crate) fn spawn() -> Result<Tracer> {
        Tracer::start(Command::new(std::env::current_exe()?))
    }

    /// Starts a tracer with a bug: it panics when this message is logged.
    pub(crate) fn spawn_panicking_at(message: &str) -> Result<Tracer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(PANIC_AT, message);
        Tracer::start(command)
    }

    /// Starts a tracer as another user, who must be able to read `dir`.
    pub(crate) fn spawn_as(uid: u32, dir: &Path) -> Result<Tracer> {
        let program = dir.join("tracer");
        if !program.exists() {
            std::fs::copy(std::env::current_exe()?, &program)?;
        }
        let mut command = Command::new(program);
        command.uid(uid).gid(uid).current_dir("/");
        Tracer::start(command)
    }

    /// Starts a tracer under a program that executes the rest of its command line.
    pub(crate) fn spawn_under(mut command: Command) -> Result<Tracer> {
        command.arg(std::env::current_exe()?);
        Tracer::start(command)
    }

    fn start(mut command: Command) -> Result<Tracer> {
        command
            .args(["--exact", "tracer::serves_when_asked", "--nocapture"])
            .env(ROLE, "tracer");
        let mut target = Target::spawn_unready(command)?;
        target.line_with("tracing", DEADLINE)?;
        Ok(Tracer(target))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Sends a command, and waits for "ok …". Returns the rest of the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        match self.0.ask(command, "answer ")?.as_str() {
            answer if answer.starts_with("answer ok") => {
                Ok(answer.trim_start_matches("answer ok").trim().to_owned())
            }
            answer => bail!("{command}: {answer}"),
        }
    }

    /// Attaches and ends, or dies on the way. Returns true if it died.
    pub(crate) fn attach_or_die(mut self, pid: i32) -> Result<bool> {
        self.0.send(&format!("attach {pid}"))?;
        match self.0.line_with("answer ", DEADLINE) {
            Ok(answer) if answer.starts_with("answer ok") => {
                self.0.close_stdin();
                self.0.wait(DEADLINE)?;
                Ok(false)
            }
            Ok(answer) => bail!("not attached: {answer}"),
            Err(_) => {
                self.0.wait(DEADLINE)?;
                Ok(true)
            }
        }
    }

    /// Sends a command that must be refused. Returns the id of the reason.
    pub(crate) fn refused(&mut self, command: &str) -> Result<String> {
        let answer = self.0.ask(command, "answer ")?;
        let reason = answer
            .strip_prefix("answer refused ")
            .with_context(|| format!("{command} was not refused: {answer}"))?;
        Ok(reason.split(' ').next().unwrap_or_default().to_owned())
    }

    /// The number of recorded events.
    pub(crate) fn events(&mut self) -> Result<u64> {
        let answer = self.ask("events")?;
        Ok(answer.split(' ').next().unwrap_or_default().parse()?)
    }

    /// The events that the tracer retains.
    pub(crate) fn trace(&mut self) -> Result<Trace> {
        let dir = std::env::temp_dir().join(format!("xrayd-engine-{}", self.pid()));
        let path = format!("{}.xtrace", dir.display());
        self.ask(&format!("write {path}"))?;
        let trace = Trace::read(File::open(&path)?);
        std::fs::remove_file(&path)?;
        trace.context("cannot read the trace")
    }

    /// Kills the tracer, as `kill -9` does.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.0.kill()
    }
}

/// No test of its own: the body of the other process.
#[test]
fn serves_when_asked() -> Result<()> {
    if std::env::var_os(ROLE) != Some(OsString::from("tracer")) {
        return Ok(());
    }
    if let Ok(message) = std::env::var(PANIC_AT) {
        tracing::subscriber::set_global_default(PanicAt(message))?;
    }
    say("tracing")?;
    let mut server = Server {
        registry: registry(),
        session: None,
    };
    for line in io::stdin().lock().lines() {
        match server.serve(&line?) {
            Ok(answer) => say(&format!("answer ok {answer}"))?,
            Err(error) => match error.downcast_ref::<xrayd::Refusal>() {
                Some(refusal) => say(&format!("answer refused {} {refusal}", refusal.reason))?,
                None => say(&format!("answer failed {error:#}"))?,
            },
        }
    }
    Ok(())
}

/// Prints a line. The test runner has written half a line already.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "\n{line}\n")?;
    out.flush()
}

struct Server {
    registry: Registry,
    session: Option<Arc<Session>>,
}

// === impl Server ===

impl Server {
    fn serve(&mut self, line: &str) -> Result<String> {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "attach" => {
                let mut words = argument.split(' ');
                let target = pid(words.next().unwrap_or_default().parse()?)?;
                let mut options = AttachOptions::default();
                if let Some(bytes) = words.next() {
                    options.ring_bytes = bytes.parse()?;
                }
                if let Some(threads) = words.next() {
                    options.max_threads = threads.parse()?;
                }
                let attached = self.registry.attach(target, options)?;
                self.session = Some(attached.session);
                Ok(format!("adopted={}", attached.report.adopted))
            }
            // The first command, because it releases all attached processes.
            "retain" => {
                self.registry = Registry::new(RegistryConfig {
                    retain_bytes: argument.parse()?,
                    ..RegistryConfig::default()
                });
                Ok(String::new())
            }
            "use" => {
                let session = self.registry.get(pid(argument.parse()?)?);
                self.session = Some(session.context("not attached")?);
                Ok(String::new())
            }
            "state" => {
                let status = self.session()?.status();
                Ok(format!("{:?} {:?}", status.phase, status.failure))
            }
            "listed" => {
                let pid = self.session()?.pid();
                let listed = self.registry.list()?.into_iter().find(|row| row.pid == pid);
                Ok(format!("{:?}", listed.context("not listed")?.state))
            }
            "on" => self.switch(Switch::On),
            "off" => self.switch(Switch::Off),
            "detection" => Ok(format!("{:?}", self.session()?.status().detection)),
            // The delay and its origin for the module at the end of this path; empty if the module
            // is not armed yet.
            "armed" => {
                let modules = self.session()?.status().modules;
                let module = modules
                    .iter()
                    .find(|module| module.path.ends_with(argument));
                let armed = module.and_then(|module| module.armed);
                Ok(armed.map_or_else(String::new, |armed| {
                    format!("{:?} {:?}", armed.since, armed.within)
                }))
            }
            "alive" => Ok(String::new()),
            "events" => {
                let status = self.session()?.status();
                Ok(format!("{} {}", status.events, status.lost))
            }
            "write" => {
                let mut out = BufWriter::new(File::create(argument)?);
                write_snapshot(self.session()?, &mut out)?;
                Ok(String::new())
            }
            "detach" => {
                let report = self.registry.detach(self.session()?.pid())?;
                Ok(format!("{report:?}"))
            }
            other => bail!("no command {other:?}"),
        }
    }

    fn switch(&self, to: Switch) -> Result<String> {
        let report = self.session()?.toggle(&everything(), to, Run::Real)?;
        Ok(format!("{} {}", report.sleds, report.foreign))
    }

    fn session(&self) -> Result<&Session> {
        self.session.as_deref().context("not attached")
    }
}

/// A log that makes a thread panic when it logs a certain message.
struct PanicAt(String);

impl Subscriber for PanicAt {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn fmt::Debug| {
            assert!(format!("{value:?}") != self.0, "provoked by a test");
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
