//! Programs that the tracer starts: no event of `main` is missed.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, build, wait_until};
use xray_trace::model::{CallKind, EventBody};
use xrayd::{
    Reason,
    process::{AttachOptions, LaunchOptions, Launched, Registry, Session},
    types::{Capture, Phase},
};

use crate::support::{assert_exact, everything, registry, retained, tally};

struct Started {
    launched: Launched,
    input: PipeWriter,
    output: BufReader<PipeReader>,
}

fn launch(registry: &Registry, command: Command) -> Result<Started> {
    let started = start(registry, command)?;
    started.launched.resume()?;
    Ok(started)
}

/// A program that has not run yet.
fn start(registry: &Registry, mut command: Command) -> Result<Started> {
    let (stdin, input) = std::io::pipe()?;
    let (output, stdout) = std::io::pipe()?;
    command
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout));
    let launched = registry.launch(LaunchOptions {
        command,
        attach: AttachOptions::default(),
        selection: everything(),
        capture: Capture::NONE,
    })?;
    let session = launched.session().context("no session")?;
    ensure!(session.status().events == 0, "it ran already");
    Ok(Started {
        launched,
        input,
        output: BufReader::new(output),
    })
}

// === impl Started ===

impl Started {
    fn line_with(&mut self, prefix: &str) -> Result<String> {
        loop {
            let mut line = String::new();
            ensure!(self.output.read_line(&mut line)? > 0, "no {prefix:?}");
            if line.starts_with(prefix) {
                return Ok(line.trim_end().to_owned());
            }
        }
    }

    fn session(&self) -> Result<&Session> {
        let session = self.launched.session().context("no session")?;
        Ok(session)
    }

    fn exit_code(&self) -> Result<i32> {
        let status = wait_until(DEADLINE, "the exit status", || {
            Ok(self.launched.exit_status())
        })?;
        status.code().context("killed by a signal")
    }
}

#[test]
fn a_launched_program_is_recorded_from_its_beginning() -> Result<()> {
    let mut command = Command::new(build(Fixture::Counted)?);
    command.args(["--threads", "3", "--calls", "500"]);
    let registry = registry();
    let mut started = launch(&registry, command)?;
    started.line_with("ready")?;
    writeln!(started.input, "go")?;
    let truth = GroundTruth::parse(&started.line_with("result ")?)?;
    writeln!(started.input, "quit")?;
    ensure!(started.exit_code()? == 0);
    let session = started.session()?;
    wait_until(DEADLINE, "the session noticed", || {
        Ok((session.status().phase == Phase::Exited).then_some(()))
    })?;
    assert_exact(&retained(session)?, &truth)
}

/// A static program sets up its thread-local storage by itself.
#[test]
fn a_launched_static_program_is_recorded() -> Result<()> {
    let registry = registry();
    let mut started = launch(&registry, Command::new(build(Fixture::Static)?))?;
    writeln!(started.input, "go")?;
    started.line_with("done ")?;
    drop(std::mem::replace(&mut started.input, std::io::pipe()?.1));
    ensure!(started.exit_code()? == 0);
    let counts = tally(&retained(started.session()?)?)?;
    ensure!(counts["logged"] == [16, 16, 0], "{counts:?}");
    ensure!(counts["plain"] == [1, 1, 0], "{counts:?}");
    Ok(())
}

/// The first event of a Rust program is its `main`, or an instrumented function of the standard
/// library before it.
#[test]
fn the_first_event_of_a_launched_program_is_its_main() -> Result<()> {
    let registry = registry();
    let mut started = launch(&registry, Command::new(build(Fixture::Demo)?))?;
    started.line_with("beat ")?;
    drop(std::mem::replace(&mut started.input, std::io::pipe()?.1));
    ensure!(started.exit_code()? == 0);
    let trace = retained(started.session()?)?;
    let pid = started.launched.pid().as_u32();
    let main = trace
        .threads()
        .iter()
        .find(|thread| thread.tid == pid)
        .context("no main thread")?;
    let blocks = trace.blocks_by_thread();
    let mut calls = Vec::new();
    for block in &blocks[&main.id] {
        for event in block.events() {
            if let EventBody::Call {
                function,
                kind: CallKind::Enter,
                ..
            } = event?.body
            {
                calls.push(trace.function_name(function).into_owned());
            }
        }
    }
    let at = calls
        .iter()
        .position(|name| name == "demo::main")
        .with_context(|| format!("no main among {:?}", calls.get(..10)))?;
    ensure!(at < 8, "{:?}", &calls[..at]);
    Ok(())
}

#[test]
fn the_exit_status_of_a_launched_program_is_reported() -> Result<()> {
    let registry = registry();
    let mut started = launch(&registry, Command::new(build(Fixture::NoExit)?))?;
    writeln!(started.input, "leave")?;
    ensure!(started.exit_code()? == 3);
    let counts = tally(&retained(started.session()?)?)?;
    ensure!(counts.values().eq(&[[1, 0, 0]]), "{counts:?}");
    Ok(())
}

/// The program becomes another one, which is not traced. Its exit status is reported all the same,
/// while the session still exists.
#[test]
fn the_exit_status_is_reported_of_a_program_that_became_another() -> Result<()> {
    let registry = registry();
    let mut started = launch(&registry, Command::new(build(Fixture::Forks)?))?;
    started.line_with("ready")?;
    writeln!(started.input, "exec")?;
    started.line_with("ready")?;
    wait_until(DEADLINE, "the session noticed", || {
        let phase = started.session()?.status().phase;
        Ok((phase == Phase::Exited).then_some(()))
    })?;
    ensure!(started.launched.exit_status().is_none());
    writeln!(started.input, "quit")?;
    ensure!(started.exit_code()? == 0);
    ensure!(registry.get(started.launched.pid()).is_some());
    Ok(())
}

/// A program that has not run yet is held by a thread, which bears its id and ends when it runs.
#[test]
fn the_thread_that_holds_a_program_bears_its_id() -> Result<()> {
    let registry = registry();
    let started = start(&registry, Command::new(build(Fixture::NoExit)?))?;
    let wanted = format!("attach-{}", started.launched.pid());
    let is_there = || -> Result<bool> {
        let mut tasks = procfs::process::Process::myself()?.tasks()?;
        // Threads of other tests come and go.
        Ok(tasks.any(|task| {
            task.and_then(|task| task.stat())
                .is_ok_and(|it| it.comm == wanted)
        }))
    };
    ensure!(is_there()?);
    started.launched.resume()?;
    wait_until(DEADLINE, "the thread has ended", || {
        Ok((!is_there()?).then_some(()))
    })
}

#[test]
fn a_program_that_cannot_be_launched_is_refused() -> Result<()> {
    let registry = registry();
    let refused = |command: Command| {
        let options = LaunchOptions {
            command,
            attach: AttachOptions::default(),
            selection: everything(),
            capture: Capture::NONE,
        };
        registry
            .launch(options)
            .map(drop)
            .map_err(|refusal| refusal.reason)
    };
    ensure!(refused(Command::new("/does/not/exist")) == Err(Reason::Launch));
    ensure!(refused(Command::new("/etc/passwd")) == Err(Reason::Launch));
    ensure!(refused(Command::new(build(Fixture::Plain)?)) == Err(Reason::NoSleds));
    ensure!(registry.sessions().is_empty());
    Ok(())
}
