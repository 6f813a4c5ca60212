//! `xrayctl count`.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, ProcessState, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Running, Scene, ensure_as_compiled, ensure_nothing_left, rows, sleds_on};

const COUNTED: [&str; 4] = ["--threads", "3", "--calls", "300"];

/// Waits until functions are on.
fn counting(running: &mut Running, target: &Target) -> Result<()> {
    running.until("functions are on", || {
        Ok((sleds_on(target)? > 0).then_some(()))
    })
}

pub(crate) fn ensure_exact(table: &Value, truth: &GroundTruth) -> Result<()> {
    let mut calls = vec![0; truth.functions.len()];
    for row in rows(table, "rows")? {
        let name = row["name"].as_str().context("no name")?;
        let index = truth.function(name).with_context(|| name.to_owned())?;
        calls[index] += row["calls"].as_u64().context("no calls")?;
    }
    ensure!(calls == truth.calls(), "{calls:?} of {:?}", truth.calls());
    ensure!(table["unnamed"] == 0, "{table}");
    Ok(())
}

/// With and without a daemon, until Ctrl-C: all calls are counted, and the process is as it was.
#[test]
fn calls_are_counted_until_somebody_stops_it() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.with(&daemon)?, scene.alone()?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        let mut running = cli.start(["count", &pid, "--json", "--by-thread"])?;
        counting(&mut running, &target)?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        running.signal(Signal::SIGINT)?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        let table: Value = serde_json::from_str(&ran.out)?;
        ensure_exact(&table, &truth)?;
        let threads = rows(&table, "rows")?.iter().map(|row| row["tid"].as_u64());
        let threads: std::collections::BTreeSet<_> = threads.collect();
        ensure!(threads.len() >= 3, "{table}");
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    Ok(())
}

/// The count ends with the process and has all of its calls.
#[test]
fn a_count_ends_with_its_process() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.with(&daemon)?, scene.alone()?] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let mut running = cli.start(["count", &pid, "--json"])?;
        counting(&mut running, &target)?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        target.kill()?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        ensure_exact(&serde_json::from_str(&ran.out)?, &truth)?;
    }
    Ok(())
}

/// `count` refuses an attached process in another mode. In mode `count` its calls are counted, and
/// the mode can be changed back.
#[test]
fn the_mode_changes_while_the_process_runs() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    let refused = cli.run(["count", &pid, "--duration", "1s"])?;
    ensure!(refused.code == Some(4), "{refused:?}");
    ensure!(refused.err.contains("xrayctl mode count"), "{refused:?}");
    cli.ok(["mode", "count", "--pid", &pid])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    ensure_exact(&cli.json(["count", &pid, "--kept"])?, &truth)?;
    // Counted calls were not recorded.
    cli.ok(["mode", "stream", "--pid", &pid])?;
    cli.ok(["snapshot", "--pid", &pid, "-o", "s.xtrace"])?;
    let info = cli.json(["info", "s.xtrace"])?;
    ensure!(info["events"]["entries"] == 0, "{info}");
    let refused = cli.run(["count", &pid, "--kept"])?;
    ensure!(refused.code == Some(4), "{refused:?}");
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)?;
    target.still_running()?;
    Ok(())
}
