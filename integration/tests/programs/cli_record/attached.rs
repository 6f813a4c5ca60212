//! Recordings of a process that is attached already.

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{COUNTED, record};
use crate::scene::Scene;
use crate::trace::{ensure_counted, ensure_exact};

/// An attached process stays attached, and functions that other clients have enabled stay on.
#[test]
fn a_process_that_was_attached_stays_so() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--function", "work::even"])?;
    let running = record(&cli, &target, &["--json"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let recorded: Value = serde_json::from_str(&ran.out)?;
    ensure!(recorded["outcome"] == "still-attached", "{recorded}");
    ensure_counted(&recorded, &truth)?;
    ensure_exact(&scene.path("f.xtrace"), &truth)?;
    let status = cli.json(["status"])?;
    ensure!(status["processes"][0]["functions_on"] == 1, "{status}");
    Ok(())
}

/// In flight mode, a recording has the events while it runs, and none from before.
#[test]
fn a_recording_of_a_flight_is_a_stream() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let attached = cli.json(["attach", &pid])?;
    ensure!(attached["status"]["mode"] == "flight", "{attached}");
    ensure!(cli.ok(["mode", "stream"])? == format!("{pid}: stream; before: flight\n"));
    ensure!(
        cli.ok(["mode", "flight", "--pid", &pid])? == format!("{pid}: flight; before: stream\n")
    );
    let running = record(&cli, &target, &["--json"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let recorded: Value = serde_json::from_str(&ran.out)?;
    ensure!(recorded["outcome"] == "still-attached", "{recorded}");
    ensure_counted(&recorded, &truth)?;
    ensure_exact(&scene.path("f.xtrace"), &truth)?;
    wait_until(DEADLINE, "it flies again", || {
        let status = cli.json(["status"])?;
        let row = &status["processes"][0];
        ensure!(row["mode"] == "flight", "{row}");
        Ok((row["retained_events"] == 0).then_some(()))
    })?;
    // The rings have received no event since.
    let taken = cli.json(["snapshot", "--last", "10ms", "-o", "s.xtrace"])?;
    ensure!(taken["files"][0]["events"] == 0, "{taken}");
    cli.run(["mode", "flight", "--pid", "1"])?
        .failed(4, &["not attached"])?;
    Ok(())
}

/// A process keeps its rings of an earlier attach. A user who asks for others is told the size.
#[test]
fn the_size_of_rings_that_stay_is_reported() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--ring-size", "64KiB"])?;
    cli.ok(["detach", &pid])?;
    let record = [
        "record",
        &pid,
        "--duration",
        "100ms",
        "--force",
        "-o",
        "f.xtrace",
    ];
    let ran = cli.run([&record[..], &["--ring-size", "1MiB"]].concat())?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure!(
        ran.err
            .contains("the rings have 64.00 KiB, and not 1.00 MiB"),
        "{ran:?}"
    );
    for size in [&["--ring-size", "64KiB"][..], &[]] {
        let ran = cli.run([&record[..], size].concat())?;
        ensure!(
            ran.code == Some(0) && !ran.err.contains("the rings have"),
            "{ran:?}"
        );
    }
    Ok(())
}
