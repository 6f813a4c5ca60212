//! `xrayctl profile`: time by stack.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Cli, Running, Scene, ensure_as_compiled, ensure_nothing_left, rows, sleds_on};

const COUNTED: [&str; 4] = ["--threads", "2", "--calls", "300"];

/// Waits until functions are on.
fn profiling(running: &mut Running, target: &Target) -> Result<()> {
    running.until("functions are on", || {
        Ok((sleds_on(target)? > 0).then_some(()))
    })
}

/// Checks that the table has the calls of each function of the program.
pub(crate) fn ensure_exact(table: &Value, truth: &GroundTruth) -> Result<()> {
    let mut calls = vec![0; truth.functions.len()];
    for row in rows(table, "rows")? {
        let name = row["name"].as_str().context("no name")?;
        let index = truth.function(name).with_context(|| name.to_owned())?;
        calls[index] = row["calls"].as_u64().context("no calls")?;
        ensure!(row["p99_ns"].as_u64() <= row["max_ns"].as_u64(), "{row}");
    }
    ensure!(calls == truth.calls(), "{calls:?} of {:?}", truth.calls());
    Ok(())
}

/// With and without a daemon, until Ctrl-C: all calls are added up, and the process is as it was.
#[test]
fn calls_are_added_up_until_somebody_stops_it() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.with(&daemon)?, scene.alone()?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        let arguments = ["profile", &pid, "--json", "--top", "0"];
        let more = ["-o", "p.xtrace", "--force"];
        let mut running = cli.start([&arguments[..], &more].concat())?;
        profiling(&mut running, &target)?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        running.signal(Signal::SIGINT)?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        ensure_exact(&serde_json::from_str(&ran.out)?, &truth)?;
        let table = cli.ok(["account", "p.xtrace", "--format", "json"])?;
        ensure_exact(&serde_json::from_str(&table)?, &truth)?;
        let info = cli.json(["info", "p.xtrace"])?;
        ensure!(info["calls"] == truth.calls().iter().sum::<u64>(), "{info}");
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    Ok(())
}

/// The profile ends with the process and has all of its calls.
#[test]
fn a_profile_ends_with_its_process() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let mut running = cli.start(["profile", &pid, "--json", "--top", "0"])?;
    profiling(&mut running, &target)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    target.kill()?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_exact(&serde_json::from_str(&ran.out)?, &truth)
}

/// An attached process stays attached, in its mode. An interrupted or killed profile leaves nothing
/// on.
#[test]
fn a_profile_leaves_an_attached_process_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut running = cli.start(["profile", &pid])?;
        profiling(&mut running, &target)?;
        running.signal(signal)?;
        let ran = running.wait()?;
        ensure!(
            (ran.code == Some(0)) == (signal == Signal::SIGINT),
            "{ran:?}"
        );
        wait_until(DEADLINE, "it was undone", || {
            let status = cli.json(["status"])?;
            let row = &rows(&status, "processes")?[0];
            ensure!(row["mode"] == "flight", "{row}");
            Ok((row["functions_on"] == 0).then_some(()))
        })?;
    }
    cli.run(["profile", &pid, "--function", "no such one"])?
        .failed(3, &["nothing matched"])?;
    cli.ok(["detach", &pid])?;
    let mut running = cli.start(["profile", &pid])?;
    profiling(&mut running, &target)?;
    running.signal(Signal::SIGKILL)?;
    running.wait()?;
    wait_until(DEADLINE, "the process was let go", || {
        let status = cli.json(["status"])?;
        Ok(rows(&status, "processes")?.is_empty().then_some(()))
    })?;
    ensure_as_compiled(&target)
}

/// The sums that the mode keeps are shown, to any client, and two of them are compared.
#[test]
fn stored_profiles_are_shown_and_compared() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli: Cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.run(["profile", &pid, "--kept"])?
        .failed(4, &["[mode]", "xrayctl mode profile"])?;
    cli.ok(["mode", "profile", "--pid", &pid])?;
    cli.ok(["profile", &pid, "--kept", "-o", "before.xtrace"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let kept = ["profile", &pid, "--kept", "-o", "after.xtrace"];
    let table = cli.json([&kept[..], &["--top", "0"]].concat())?;
    ensure_exact(&table, &truth)?;
    cli.run(kept)?.failed(1, &["already exists; --force"])?;
    let diff = cli.json(["diff", "before.xtrace", "after.xtrace", "--top", "0"])?;
    ensure!(rows(&diff, "rows")?.is_empty(), "{diff}");
    let mut calls = 0;
    for row in rows(&diff, "not_compared")? {
        ensure!(row["reason"] == "only-after", "{row}");
        ensure!(row["calls"][0] == 0 && row["self_ns"][0] == 0, "{row}");
        calls += row["calls"][1].as_u64().context("no calls")?;
    }
    ensure!(calls == truth.calls().iter().sum::<u64>(), "{diff}");
    cli.run(["report", "after.xtrace"])?
        .failed(1, &["has sums of calls but no events"])?;
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}
