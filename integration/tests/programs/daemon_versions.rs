//! Two versions of the daemon, whose memory in a target is laid out differently, take turns.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, shifted_xrayd, xrayd};
use nix::sys::signal::Signal;

use crate::scene::{Daemon, Scene, all_on, ensure_as_compiled, row_of};

/// Turns of the two versions.
const TURNS: usize = 6;
/// Calls of a quiet thread in each turn, beside the thread that calls all the time.
const CALLS: usize = 1000;

/// xrayd's mappings in the process.
fn mappings(pid: i32) -> Result<usize> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().filter(|line| line.contains("xrayd-")).count())
}

/// The number of calls that the program has counted itself.
fn counted(target: &mut Target) -> Result<u64> {
    let line = target.ask("calls", "calls ")?;
    let number = line.rsplit(' ').next().context("no number")?;
    Ok(number.parse()?)
}

#[test]
fn two_versions_take_turns_under_load() -> Result<()> {
    let scene = Scene::new()?;
    let programs = [xrayd()?, shifted_xrayd()?];
    let state = scene.path("state");
    let start = |turn: usize| -> Result<Daemon> {
        let mut command = Command::new(&programs[turn % 2]);
        command.arg("--state-dir").arg(&state);
        scene.daemon_by(command)
    };
    let mut daemon = start(0)?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Quiet, ["--threads", "3", "--busy", "yes"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "flight"])?;
    cli.ok(["enable", "--all"])?;
    let mut sizes = Vec::new();
    for turn in 1..=TURNS {
        // Each other time as at an upgrade, where the daemon leaves its processes.
        match turn % 4 < 2 {
            true => daemon.kill()?,
            false => {
                daemon.signal(Signal::SIGUSR1)?;
                daemon.signal(Signal::SIGTERM)?;
                ensure!(daemon.wait()?.success());
            }
        }
        let before = counted(&mut target)?;
        daemon = start(turn)?;
        let status = cli.json(["status"])?;
        let row = row_of(&status, pid)?;
        let row = row.with_context(|| format!("{turn}: not attached\n{}", daemon.log()))?;
        ensure!(row["state"] == "tracing", "{turn}: {row}\n{}", daemon.log());
        let causes: Vec<_> = row["gaps"].as_array().into_iter().flatten().collect();
        let is_unread = causes.iter().any(|gap| gap["cause"] == "unread_rings");
        ensure!(
            is_unread,
            "{turn}: what the other version recorded is no gap: {row}"
        );
        all_on(&target)?.with_context(|| format!("{turn}: not everything is on"))?;
        target.ask(&format!("burst {CALLS}"), "done")?;
        ensure!(
            counted(&mut target)? > before,
            "{turn}: the program stands still"
        );
        cli.ok(["snapshot", "--force", "-o", "turn.xtrace"])?;
        let trace = scene.path("turn.xtrace");
        let info = cli.ok(["info", trace.to_str().context("no text")?])?;
        ensure!(
            info.contains("an unknown number of events was lost"),
            "{turn}: {info}"
        );
        let report = cli.json(["report", trace.to_str().context("no text")?])?;
        let rows = report["table"]["rows"].as_array().context("no rows")?;
        let beat = rows.iter().find(|row| row["function"] == "beat");
        let calls = beat.and_then(|row| row["calls"].as_u64()).unwrap_or(0);
        ensure!(calls >= CALLS as u64, "{turn}: {calls} calls: {report}");
        sizes.push(mappings(pid)?);
    }
    // Each version takes its own memory again.
    ensure!(sizes[2..].iter().all(|size| *size == sizes[1]), "{sizes:?}");
    let detached = cli.json(["detach", "--all"])?;
    let row = row_of(&detached, pid)?.context("not detached")?;
    ensure!(
        row["sleds_on"] == 0 && row["text_bytes_different"] == 0,
        "{row}"
    );
    ensure_as_compiled(&target)?;
    target.still_running()
}
