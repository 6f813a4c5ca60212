//! Each documented exit code, produced by its cause.

use anyhow::{Result, ensure};
use integration::{Fixture, GroundTruth, ProcessState, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Daemon, Scene, all_on, ensure_as_compiled, rows};

#[test]
fn usage_nothing_matched_refused_and_unreachable() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Arg1, [""; 0])?;
    let pid = target.pid().to_string();

    for usage in [
        &["enable", "--pid", &pid][..],
        &["enable", "--regex", "("],
        &["functions", "--pid", "0"],
        &["frobnicate"],
    ] {
        ensure!(cli.run(usage)?.code == Some(2), "{usage:?}");
    }
    cli.run(["enable", "--all"])?
        .failed(3, &["nothing matched"])?;
    cli.run(["snapshot", "-o", "f"])?
        .failed(3, &["nothing matched"])?;
    ensure!(!scene.path("f").exists());
    for command in [
        &["enable", "--pid", &pid, "--all"][..],
        &["disable", "--pid", &pid, "--all"],
        &["status", "--pid", &pid],
        &["snapshot", "--pid", &pid, "-o", "f"],
        &["detach", &pid],
    ] {
        cli.run(command)?.refused("not-attached")?;
    }
    ensure!(!scene.path("f").exists());
    cli.run(["explain", "not-attached"])?;

    drop(daemon);
    for command in [
        &["ps"][..],
        &["doctor", &pid],
        &["attach", &pid],
        &["functions"],
        &["enable", "--all"],
        &["status"],
        &["record", &pid, "-o", "f"],
        &["snapshot", "-o", "f"],
        &["detach", "--all"],
    ] {
        cli.run(command)?
            .failed(5, &["no daemon answers at", "no process listens"])?;
    }
    ensure!(!scene.path("f").exists());
    Ok(())
}

/// Functions can be listed before anything is attached.
#[test]
fn functions_of_a_process_are_listed_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let target = Target::spawn(Fixture::Counted, [""; 0])?;
    let before = ProcessState::of(target.pid())?;
    let pid = target.pid().to_string();
    let listed = scene
        .alone()?
        .json(["functions", "--pid", &pid, "work::"])?;
    let functions = rows(&listed, "functions")?;
    ensure!(!functions.is_empty(), "{listed}");
    ensure!(
        functions.iter().all(|row| row["enabled"] == false),
        "{listed}"
    );
    ensure!(ProcessState::of(target.pid())? == before);
    ensure_as_compiled(&target)
}

/// The engine stands still while the program fills its rings. Events without room are counted
/// exactly.
#[test]
fn losses_are_an_error_under_strict_only() -> Result<()> {
    let scene = Scene::new()?;
    losses(&scene, None)?;
    let daemon = scene.daemon()?;
    losses(&scene, Some(&daemon))
}

fn losses(scene: &Scene, daemon: Option<&Daemon>) -> Result<()> {
    let cli = daemon.map_or_else(|| scene.alone(), |daemon| scene.with(daemon))?;
    for (strict, code) in [(&["--strict"][..], 6), (&[], 0)] {
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "20000"])?;
        let pid = target.pid().to_string();
        let record = [
            "record",
            &pid,
            "--json",
            "--force",
            "-o",
            "f",
            "--ring-size",
            "64KiB",
        ];
        let mut running = cli.start([&record[..], strict].concat())?;
        running.until("everything is on", || all_on(&target))?;
        match daemon {
            None => running.stand_still()?,
            Some(daemon) => daemon.stand_still()?,
        }
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        match daemon {
            None => running.signal(Signal::SIGCONT)?,
            Some(daemon) => daemon.signal(Signal::SIGCONT)?,
        }
        running.signal(Signal::SIGINT)?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(code), "{ran:?}");
        let recorded: Value = serde_json::from_str(&ran.out)?;
        let count = |key: &str| recorded[key].as_u64().unwrap_or_default();
        ensure!(count("lost") > 0 && count("events") > 0, "{recorded}");
        ensure!(
            count("lost") + count("events") == truth.events(),
            "{recorded}, but {} in the program",
            truth.events()
        );
        if code == 6 {
            ran.failed(6, &["events were lost, and --strict was given"])?;
        }
    }
    Ok(())
}
