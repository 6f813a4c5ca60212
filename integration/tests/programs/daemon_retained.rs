//! Retained events outlive the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, Tool, wait_until, workspace_dir, xrayd};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Cli, Daemon, Scene, ensure_as_compiled, row_of, send};
use crate::trace::ensure_exact;

/// Starts a daemon that keeps its state in the scene's folder.
pub(crate) fn daemon(scene: &Scene, more: &[&str]) -> Result<Daemon> {
    let state = scene.path("state");
    let mut arguments = vec!["--state-dir", state.to_str().context("no text")?];
    arguments.extend(more);
    scene.daemon_with(&arguments)
}

/// Starts a daemon whose retained events are in files.
pub(crate) fn with_files(scene: &Scene) -> Result<Daemon> {
    daemon(scene, &["--retain-in-files"])
}

fn segments(scene: &Scene) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(scene.path("state"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("events.")) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn status_of(cli: &Cli, pid: i32) -> Result<Value> {
    let status = cli.json(["status"])?;
    Ok(row_of(&status, pid)?.context("not attached")?.clone())
}

/// Waits until the daemon has retained so many events of the process.
pub(crate) fn read(cli: &Cli, pid: i32, events: u64) -> Result<()> {
    wait_until(DEADLINE, "the daemon has read everything", || {
        let retained = status_of(cli, pid)?["retained_events"].as_u64();
        Ok((retained >= Some(events)).then_some(()))
    })
}

/// The daemon is killed when it has read everything, again and again.
#[test]
fn a_killed_daemon_leaves_its_retained_events_in_files() -> Result<()> {
    let scene = Scene::new()?;
    let first = with_files(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    read(&cli, pid, truth.events())?;
    let mut daemon = first;
    for _ in 0..3 {
        daemon.kill()?;
        ensure!(!segments(&scene)?.is_empty());
        daemon = with_files(&scene)?;
        cli.ok(["snapshot", "--force", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
        let row = status_of(&cli, pid)?;
        ensure!(row["retained_events"] == truth.events(), "{row:#}");
        ensure!(row["overwritten_events"] == 0, "{row:#}");
    }
    cli.ok(["detach", "--all"])?;
    ensure!(segments(&scene)?.is_empty(), "{:?}", segments(&scene)?);
    ensure_as_compiled(&target)
}

/// The daemon is killed again and again while it reads rings. Each event is retained already, or is
/// still in its ring, and never in both places.
#[test]
fn a_daemon_that_is_killed_while_it_reads_leaves_each_event_once() -> Result<()> {
    let scene = Scene::new()?;
    let first = with_files(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "48000"])?;
    let pid = target.pid();
    // The rings have room for all events.
    let attach = [
        "attach",
        &pid.to_string(),
        "--mode",
        "stream",
        "--ring-size",
        "16MiB",
    ];
    cli.ok(attach)?;
    cli.ok(["enable", "--all"])?;
    target.send("go")?;
    let mut daemon = first;
    let mut retained = Vec::new();
    for round in 0..20 {
        std::thread::sleep(Duration::from_millis(5 + 11 * (round % 9)));
        daemon.kill()?;
        daemon = with_files(&scene)?;
        // The answer comes once the daemon goes on with the session.
        retained.push(status_of(&cli, pid)?["retained_events"].as_u64());
    }
    let truth = GroundTruth::parse(&target.line_with("result ", DEADLINE)?)?;
    read(&cli, pid, truth.events())?;
    cli.ok(["snapshot", "--force", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
    let row = status_of(&cli, pid)?;
    ensure!(row["retained_events"] == truth.events(), "{row:#}");
    let at_work = retained
        .iter()
        .filter(|&&retained| retained > Some(0) && retained < Some(truth.events()));
    let at_work = at_work.count();
    ensure!(at_work > 3, "{at_work} kills while it read: {retained:?}");
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// The memory goes on to the program that the daemon executes.
#[test]
fn a_daemon_that_is_executed_anew_has_its_retained_events() -> Result<()> {
    let scene = Scene::new()?;
    let first = daemon(&scene, &[])?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    for times in 2..5 {
        first.signal(Signal::SIGHUP)?;
        wait_until(DEADLINE, "the daemon is executed anew", || {
            let log = first.log();
            Ok((log.matches("listening").count() == times).then_some(()))
        })?;
        cli.ok(["snapshot", "--force", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| first.log())?;
    }
    ensure!(segments(&scene)?.is_empty(), "{:?}", segments(&scene)?);
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

fn number_in(path: &Path) -> Result<i32> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.trim().parse()?)
}

/// Starts a service manager, and by it a daemon that keeps its state in the scene's folder.
/// `launcher` executes the command in its arguments.
pub(crate) fn managed_by(scene: &Scene, mut launcher: Command, more: &[&str]) -> Result<Daemon> {
    let command = &mut launcher;
    command.arg(Tool::Python3.path()?);
    command.arg(workspace_dir().join("integration/python/service_manager.py"));
    command.arg(scene.path("notify")).arg(xrayd()?);
    command.arg("--state-dir").arg(scene.path("state"));
    command.args(more);
    scene.daemon_by(launcher)
}

/// The daemon of a service manager.
pub(crate) fn managed_pid(scene: &Scene) -> Result<i32> {
    number_in(&scene.path("notify.pid"))
}

/// A service manager keeps the memory of a daemon that is killed.
#[test]
fn a_service_manager_keeps_retained_events() -> Result<()> {
    let scene = Scene::new()?;
    let manager = managed_by(&scene, Command::new("env"), &[])?;
    let cli = scene.with(&manager)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    read(&cli, pid, truth.events())?;
    for times in 2..5 {
        let daemon = managed_pid(&scene)?;
        send(daemon.unsigned_abs(), Signal::SIGKILL)?;
        wait_until(DEADLINE, "the daemon is started anew", || {
            let log = manager.log();
            Ok((log.matches("listening").count() == times).then_some(()))
        })?;
        cli.ok(["snapshot", "--force", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| manager.log())?;
    }
    ensure!(number_in(&scene.path("notify.kept"))? > 0);
    cli.ok(["detach", "--all"])?;
    wait_until(DEADLINE, "the service manager keeps nothing", || {
        Ok((number_in(&scene.path("notify.kept"))? == 0).then_some(()))
    })?;
    ensure!(segments(&scene)?.is_empty(), "{:?}", segments(&scene)?);
    manager.signal(Signal::SIGTERM)?;
    let mut manager = manager;
    ensure!(manager.wait()?.success(), "{}", manager.log());
    ensure_as_compiled(&target)
}

/// Events that were dropped for newer ones are counted by the next daemon as well.
#[test]
fn a_killed_daemon_leaves_the_number_of_overwritten_events() -> Result<()> {
    let scene = Scene::new()?;
    let options = ["--retain-in-files", "--retain", "1MiB"];
    let mut running = daemon(&scene, &options)?;
    let cli = scene.with(&running)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "30000"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let counts = || -> Result<[u64; 3]> {
        let row = status_of(&cli, pid)?;
        let number = |name| row[name].as_u64().context("no number");
        Ok([
            number("retained_events")?,
            number("overwritten_events")?,
            number("lost")?,
        ])
    };
    let all = truth.events();
    let [retained, overwritten, lost] = wait_until(DEADLINE, "everything is read", || {
        let counts = counts()?;
        Ok((counts.iter().sum::<u64>() == all).then_some(counts))
    })?;
    ensure!(overwritten > 0);
    for _ in 0..2 {
        running.kill()?;
        running = daemon(&scene, &options)?;
        let now = counts()?;
        ensure!(
            (1..=retained).contains(&now[0]) && now.iter().sum::<u64>() == all,
            "{:?} retained, overwritten and lost events; then {now:?} of {all}",
            [retained, overwritten, lost],
        );
        let size: u64 = segments(&scene)?
            .iter()
            .map(|path| Ok(path.metadata()?.len()))
            .sum::<Result<_>>()?;
        ensure!(size < 3 << 20, "{size} bytes for 1 MiB");
    }
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// Contents that another program has changed are refused, and those of another process.
#[test]
fn damaged_and_foreign_files_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let first = with_files(&scene)?;
    let cli = scene.with(&first)?;
    let mut targets = Vec::new();
    let mut all = 0;
    for _ in 0..2 {
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "8", "--calls", "400"])?;
        let process = target.pid().to_string();
        cli.ok(["attach", &process, "--mode", "stream"])?;
        cli.ok(["enable", "--pid", &process, "--all"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        all = truth.events();
        read(&cli, target.pid(), all)?;
        targets.push(target);
    }
    first.kill()?;
    let files = segments(&scene)?;
    ensure!(files.len() == 2, "{files:?}");
    let of = |pid: i32| {
        let begin = format!("events.{pid:x}-");
        let is_its = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&begin))
        };
        files.iter().find(is_its).context("no file of the process")
    };
    let [damaged, foreign] = [of(targets[0].pid())?, of(targets[1].pid())?];
    fs::copy(damaged, foreign)?;
    let mut bytes = fs::read(damaged)?;
    // Within the last block, however short it is. Without its tables the file is of no use.
    let kinds = bytes.windows(4).enumerate();
    let blocks: Vec<usize> = kinds
        .filter(|(_, kind)| kind == b"BLCK")
        .map(|(at, _)| at)
        .collect();
    ensure!(blocks.len() >= 8, "{blocks:?}");
    let last = blocks.last().context("no block")?;
    bytes[last + 12] ^= 1;
    fs::write(damaged, bytes)?;
    let second = with_files(&scene)?;
    // The first call is answered once the daemon goes on with all sessions.
    cli.ok(["status"])?;
    let log = second.log();
    ensure!(log.contains("it is of another process"), "{log}");
    let row = status_of(&cli, targets[1].pid())?;
    ensure!(row["retained_events"] == 0, "{row:#}");
    let process = targets[0].pid().to_string();
    // The other blocks of the damaged file are used.
    cli.ok(["snapshot", &process, "-o", "t.xtrace"])?;
    let report = cli.json(["report", "t.xtrace"])?;
    let events = report["trace"]["events"].as_u64().context("no number")?;
    let log = second.log();
    ensure!(
        0 < events && events < all,
        "{events} of {all}: {report:#} {log}"
    );
    cli.ok(["detach", "--all"])?;
    ensure!(segments(&scene)?.is_empty(), "{:?}", segments(&scene)?);
    targets.iter_mut().try_for_each(Target::still_running)
}
