//! The end of a recording by request, by its time, or with its process.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, ProcessState, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{COUNTED, record};
use crate::scene::{Cli, Scene, ensure_as_compiled, ensure_nothing_left, rows};
use crate::trace::{ensure_exact, ensure_reported, read, seen};

/// Ctrl-C in the middle: the file is complete, the summary agrees with it, and the process is as it
/// was.
fn interrupted(scene: &Scene, cli: &Cli) -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let before = ProcessState::of(target.pid())?;
    let running = record(cli, &target, &[])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    let summary = ran.out.lines().next().context("no summary")?;
    for part in [" events, ", " calls, 3 threads in ", ", 0 lost, "] {
        ensure!(summary.contains(part), "no {part:?}: {summary}");
    }
    ensure!(
        ran.out.contains("open it: xrayctl view f.xtrace")
            && ran.out.contains("     or: xrayctl report f.xtrace\n"),
        "{ran:?}"
    );
    let file = scene.path("f.xtrace");
    ensure_exact(&file, &truth)?;
    ensure_reported(cli, &file, &truth)?;
    ensure_as_compiled(&target)?;
    ensure_nothing_left(&before, target.pid())?;
    target.still_running()
}

#[test]
fn ctrl_c_ends_a_recording_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    interrupted(&scene, &scene.alone()?)
}

#[test]
fn ctrl_c_ends_a_recording_with_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    interrupted(&scene, &cli)?;
    ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
    Ok(())
}

#[test]
fn a_recording_ends_when_its_time_is_up() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Demo, [""; 0])?;
        let pid = target.pid().to_string();
        let recorded = cli.json(["record", &pid, "--duration", "300ms", "-o", "d", "--force"])?;
        ensure!(
            recorded["outcome"] == "stopped" && recorded["lost"] == 0,
            "{recorded}"
        );
        ensure!(recorded["events"].as_u64() > Some(0), "{recorded}");
        let report = cli.json(["report", "d"])?;
        ensure!(report["trace"]["completeness"] == "complete", "{report}");
        ensure!(report["trace"]["events"] == recorded["events"], "{report}");
        ensure_as_compiled(&target)?;
        target.skip_lines();
        target.line_with("beat ", integration::DEADLINE)?;
    }
    Ok(())
}

/// A thread may lose its processor in a trampoline while a recording ends. The recording waits for
/// the thread's event: the events of all files, and those that the files exclude, are together all
/// that the daemon counted.
#[test]
fn recordings_on_a_busy_machine_have_their_last_events() -> Result<()> {
    const RECORDINGS: usize = 20;
    const BUSY: usize = 8;

    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Leaf, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream", "--ring-size", "64KiB"])?;
    target.send("loop")?;
    let is_over = AtomicBool::new(false);
    let recorded = thread::scope(|scope| {
        for _ in 0..BUSY {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let record = || {
            let file = ["record", &pid, "--all", "--force", "-o", "f.xtrace"];
            let recorded = cli.json([&file[..], &["--duration", "50ms"]].concat())?;
            let excluded = &recorded["excluded"];
            let fields = [
                &recorded["events"],
                &recorded["lost"],
                &excluded["earlier_exits"],
                &excluded["later_events"],
                &excluded["later_lost"],
            ];
            let numbers = fields.map(Value::as_u64).into_iter().sum::<Option<u64>>();
            numbers.with_context(|| format!("no numbers in {recorded}"))
        };
        let recorded: Result<Vec<u64>> = (0..RECORDINGS).map(|_| record()).collect();
        is_over.store(true, Ordering::Relaxed);
        recorded
    })?;
    target.ask("stop", "stopped")?;
    let detached = cli.json(["detach", &pid])?;
    let row = &rows(&detached, "processes")?[0];
    let counted = row["events"].as_u64().zip(row["lost"].as_u64());
    let counted = counted.map(|(events, lost)| events + lost);
    ensure!(
        counted == Some(recorded.iter().sum()),
        "{recorded:?} in the files of {row}"
    );
    Ok(())
}

/// The file has all events that were in the rings when the process was killed.
#[test]
fn a_killed_process_leaves_all_that_it_did() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid();
        let running = record(&cli, &target, &["--force"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        target.kill()?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        let end = format!(
            "process {pid} ended while it was recorded; the file holds all events up to its end"
        );
        ensure!(ran.out.contains(&end), "{ran:?}");
        let file = scene.path("f.xtrace");
        ensure_exact(&file, &truth)?;
        ensure_reported(&cli, &file, &truth)?;
    }
    Ok(())
}

/// Killed at work: the file has the begin of the events of the same program without a kill.
#[test]
fn a_process_killed_at_work_leaves_a_true_beginning() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut whole = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            "3000",
            "--seed",
            "7",
            "--first",
            "60000",
        ],
    )?;
    let truth = GroundTruth::parse(&whole.ask("go", "result ")?)?;
    let mut target = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "2",
            "--calls",
            "0",
            "--seed",
            "7",
            "--first",
            "0",
        ],
    )?;
    let mut running = record(&cli, &target, &["--ring-size", "4MiB"])?;
    let file = scene.path("f.xtrace");
    target.send("go")?;
    running.until("events of both threads are in the file", || {
        let long = fs::metadata(&file)?.len() > 100_000;
        Ok((long && read(&file)?.blocks_by_thread().len() == 2).then_some(()))
    })?;
    target.kill()?;
    let ran = running.wait()?;
    ensure!(
        ran.code == Some(0) && ran.out.contains("ended while it was recorded"),
        "{ran:?}"
    );
    let report = cli.json(["report", "f.xtrace", "--table"])?;
    ensure!(report["trace"]["completeness"] == "complete", "{report}");
    let seen = seen(&file, &truth)?;
    ensure!(seen.threads.len() == 2, "{} threads", seen.threads.len());
    for (tid, events) in &seen.threads {
        // Up to the end of the shorter list.
        let same = truth.threads.iter().any(|thread| {
            let common = thread.first.len().min(events.len());
            common > 1000 && thread.first[..common] == events[..common]
        });
        ensure!(
            same,
            "thread {tid}: {} events, of which some are false",
            events.len()
        );
    }
    Ok(())
}
