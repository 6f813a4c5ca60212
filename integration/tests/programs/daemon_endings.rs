//! The end of a daemon while it traces, orderly or by a kill.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, opens_map_files, sleds_of, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{Scene, all_on, ensure_as_compiled, sleds_on};
use crate::trace::{ensure_exact, ensure_reported};

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "300"];

/// The program goes on. The next daemon takes over the memory of the killed one.
#[test]
fn a_killed_daemon_is_followed_by_another() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let mut busy = Target::spawn(Fixture::Demo, [""; 0])?;
    let pid = target.pid().to_string();
    for pid in [&pid, &busy.pid().to_string()] {
        cli.ok(["attach", pid])?;
    }
    cli.ok(["enable", "--all"])?;
    daemon.kill()?;
    // All functions are on without a drain. The programs run on.
    all_on(&target)?.context("not everything is on")?;
    busy.skip_lines();
    busy.line_with("beat ", DEADLINE)?;

    let daemon = scene.daemon()?;
    let attached = cli.json(["attach", &pid])?;
    let report = &attached["report"];
    let adopted = opens_map_files()?;
    ensure!(
        report["adopted"] == adopted && (report["stopped_ns"] == 0) == adopted,
        "{attached}"
    );
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    wait_until(DEADLINE, "all events are counted", || {
        let status = cli.json(["status"])?;
        Ok((status["processes"][0]["events"] == truth.events()).then_some(()))
    })?;
    cli.ok(["snapshot", "--pid", &pid, "-o", "f"])?;
    ensure_exact(&scene.path("f"), &truth)?;
    ensure_reported(&cli, &scene.path("f"), &truth)?;
    let detached = cli.ok(["detach", &pid])?;
    ensure!(detached.matches("  proof: ").count() == 2, "{detached}");
    ensure_as_compiled(&target)?;

    let other = busy.pid().to_string();
    cli.ok(["attach", &other])?;
    let detached = cli.ok(["detach", &other])?;
    ensure!(detached.matches("  proof: ").count() == 2, "{detached}");
    ensure_as_compiled(&busy)?;
    busy.skip_lines();
    busy.line_with("beat ", DEADLINE)?;
    drop(daemon);
    Ok(())
}

#[test]
fn a_stopped_daemon_detaches_from_everything() -> Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let scene = Scene::new()?;
        let mut daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let mut targets = [
            Target::spawn(Fixture::Counted, COUNTED)?,
            Target::spawn(Fixture::Demo, [""; 0])?,
        ];
        for target in &targets {
            cli.ok(["attach", &target.pid().to_string()])?;
        }
        cli.ok(["enable", "--all"])?;
        for target in &targets {
            ensure!(sleds_on(target)? > sleds_of(target.program())?.len() / 2);
        }
        daemon.signal(signal)?;
        let status = daemon.wait()?;
        ensure!(status.success(), "{status}: {}", daemon.log());
        ensure!(!daemon.socket().exists(), "the socket was left");
        for target in &mut targets {
            ensure_as_compiled(target)?;
            target.still_running()?;
        }
        GroundTruth::parse(&targets[0].ask("go", "result ")?)?;
    }
    Ok(())
}

/// Rings keep the newest events by themselves. The next daemon has the events from the time without
/// a daemon.
#[test]
fn a_flight_survives_its_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let mut daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--all"])?;
    daemon.signal(Signal::SIGKILL)?;
    daemon.wait()?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let attached = cli.json(["attach", &pid])?;
    let adopted = opens_map_files()?;
    ensure!(attached["report"]["adopted"] == adopted, "{attached}");
    cli.ok(["snapshot", "-o", "s.xtrace"])?;
    if adopted {
        ensure_exact(&scene.path("s.xtrace"), &truth)?;
    }
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}

/// A recording reports the end of the daemon, and keeps the received events.
#[test]
fn a_recording_survives_its_daemon() -> Result<()> {
    for (signal, code, message) in [
        (Signal::SIGKILL, 5, "the daemon went away"),
        (Signal::SIGTERM, 0, ""),
    ] {
        let scene = Scene::new()?;
        let mut daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let mut running = cli.start(["record", &pid, "-o", "f"])?;
        running.until("everything is on", || all_on(&target))?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        running.until("all events are drained", || {
            let status = cli.json(["status"])?;
            Ok((status["processes"][0]["events"] == truth.events()).then_some(()))
        })?;
        daemon.signal(signal)?;
        daemon.wait()?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(code), "{ran:?}");
        let report = cli.json(["report", "f"])?;
        if signal == Signal::SIGKILL {
            ran.failed(code, &[message])?;
            ensure!(ran.out.contains("has no end mark"), "{ran:?}");
            ensure!(report["trace"]["completeness"] == "unfinished", "{report}");
        } else {
            ensure!(ran.out.contains("another client detached"), "{ran:?}");
            ensure!(report["trace"]["completeness"] == "complete", "{report}");
            ensure_exact(&scene.path("f"), &truth)?;
            ensure_as_compiled(&target)?;
        }
    }
    Ok(())
}
