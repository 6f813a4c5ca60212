//! The limit of firings, the time of a trigger, and firings that are lost.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Stage, Told, calls_of, now_monotonic};
use crate::scene::{Scene, row_of, rows};
use crate::trace::read;

/// With a limit per time, the trigger can fire again later. Further matches are counted. Each
/// snapshot has a file of its own.
#[test]
fn a_limit_holds_and_what_is_beyond_is_counted() -> Result<()> {
    let mut stage = Stage::new("0")?;
    let arguments = ["--when", "call(quick)", "--after", "0s", "-o", "shots"];
    let limit = ["--limit", "3/1h", "--before", "1s"];
    let mut running = stage.trigger(&[&arguments[..], &limit].concat())?;
    stage.target.ask("quick 10", "quick")?;
    let shots = stage.path("shots");
    let files = || -> Result<Vec<_>> {
        let mut files: Vec<_> = fs::read_dir(&shots)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.sort();
        Ok(files)
    };
    running.until("three were written", || {
        Ok((files()?.len() == 3).then_some(()))
    })?;
    stage.target.ask("quick 5", "quick")?;
    kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?;
    let reported = Told::ok(running)?;
    ensure!(reported.all("fired").len() == 3, "{reported:?}");
    // The next firing or the end reports the matches beyond the limit.
    let skipped: u64 = reported
        .0
        .iter()
        .filter_map(|reported| reported["skipped"].as_u64())
        .sum();
    ensure!(skipped == 12, "{skipped} in {reported:?}");
    reported.over("ended")?;
    for (file, number) in files()?.iter().zip(1..) {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        ensure!(
            name.starts_with(&format!("{number}-20")) && name.ends_with("Z.xtrace"),
            "{name}"
        );
        ensure!(!calls_of(&read(file)?, "quick")?.is_empty());
    }
    Ok(())
}

/// After the time of its limit is over, the trigger fires again.
#[test]
fn a_limit_for_a_time_is_over_after_it() -> Result<()> {
    let mut stage = Stage::new("0")?;
    let arguments = [
        "--when",
        "call(quick)",
        "--do",
        "exec true",
        "--limit",
        "1/200ms",
    ];
    let mut running = stage.trigger(&arguments)?;
    let begun = now_monotonic()?;
    let mut calls = 0;
    running.until("its time was over a few times", || {
        stage.target.ask("quick 1", "quick")?;
        calls += 1;
        Ok((now_monotonic()? > begun + 700_000_000).then_some(()))
    })?;
    kill(Pid::from_raw(stage.target.pid()), Signal::SIGKILL)?;
    let reported = Told::ok(running)?;
    let fired = reported.all("fired");
    let times = fired
        .iter()
        .filter_map(|fired| fired["monotonic_ns"].as_u64());
    let times: Vec<u64> = times.collect();
    ensure!(
        times.len() >= 2 && calls > times.len(),
        "{calls}: {reported:?}"
    );
    for pair in times.windows(2) {
        // The time counts from the moment at which the match was noticed, which takes a moment.
        ensure!(pair[1] - pair[0] >= 150_000_000, "{times:?}");
    }
    Ok(())
}

/// A trigger whose time is up reports that, has an exit code for that, and leaves no empty file and
/// no directory.
#[test]
fn a_trigger_expires() -> Result<()> {
    let stage = Stage::new("0")?;
    for limit in ["1", "2"] {
        let arguments = ["--when", "call(slow)", "--expire", "300ms", "-o", "x"];
        let arguments = [&["trigger", "--json"], &arguments[..], &["--limit", limit]];
        let running = stage.cli.start(arguments.concat())?;
        let (code, reported) = Told::of(running)?;
        ensure!(code == Some(3), "{code:?}");
        reported.over("expired")?;
        ensure!(!stage.path("x").exists(), "with limit {limit}");
        stage.ensure_nothing_left()?;
    }
    Ok(())
}

/// All losses are counted while the rings are read. Events from before a snapshot are no losses in
/// it.
#[test]
fn lost_firings_are_counted_and_finished_firings_are_not_lost() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "30000"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--ring-size", "64KiB"])?;
    cli.ok(["enable", "--all"])?;
    let row = || -> Result<Value> {
        let status = cli.json(["status"])?;
        Ok(row_of(&status, target.pid())?.context("no row")?.clone())
    };
    let arguments = ["trigger", "--when", "duration(*) > 1h", "-o"];
    let mut running = cli.start([&arguments[..], &["x"]].concat())?;
    running.until(
        "it is armed",
        || Ok((row()?["triggers"] == 1).then_some(())),
    )?;
    target.send("go")?;
    let result = target.line_with("result ", DEADLINE)?;
    let truth = GroundTruth::parse(&result)?;
    let row = || -> Result<Value> {
        let status = cli.json(["status"])?;
        Ok(row_of(&status, target.pid())?.context("no row")?.clone())
    };
    wait_until(DEADLINE, "everything was read or is counted", || {
        let row = row()?;
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let all = number("events") + number("lost");
        ensure!(all <= truth.events(), "{row}");
        Ok((all == truth.events()).then_some(()))
    })?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    wait_until(DEADLINE, "what was read has gone", || {
        Ok((row()?["retained_events"] == 0).then_some(()))
    })?;
    // All events were dropped, and were before the snapshot's time.
    let taken = |last: &[&str], file: &str| -> Result<Value> {
        let arguments = [&["snapshot", "-o", file], last].concat();
        let taken = cli.json(arguments)?;
        Ok(rows(&taken, "files")?[0].clone())
    };
    let all = taken(&[], "all.xtrace")?;
    ensure!(
        all["overwritten"]["events"].as_u64() > Some(0) && all["lost"] == 0 && all["events"] == 0,
        "{all}"
    );
    let last = taken(&["--last", "1ms"], "last.xtrace")?;
    ensure!(last["lost"] == 0, "{last}");
    Ok(())
}
