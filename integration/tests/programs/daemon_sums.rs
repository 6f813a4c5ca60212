//! Sums and counts of threads that have ended outlive the daemon.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, opens_map_files, wait_until};
use serde_json::Value;

use crate::cli_count::ensure_exact as ensure_exact_counts;
use crate::cli_profile::ensure_exact as ensure_exact_sums;
use crate::daemon_recovery::daemon;
use crate::scene::{Cli, Daemon, Scene, ensure_as_compiled, row_of, rows};

const MODES: [&str; 2] = ["profile", "count"];

/// The table of everything that was added up or counted since the attach.
fn kept(cli: &Cli, mode: &str, pid: &str) -> Result<Value> {
    match mode {
        "profile" => cli.json(["profile", pid, "--kept", "--top", "0"]),
        _ => cli.json(["count", pid, "--kept"]),
    }
}

/// Checks that the table has each call once. Returns the table.
fn ensure_kept(
    (cli, daemon): (&Cli, &Daemon),
    mode: &str,
    pid: &str,
    truth: &GroundTruth,
) -> Result<Value> {
    let table = kept(cli, mode, pid)?;
    let checked = match mode {
        "profile" => ensure_exact_sums(&table, truth),
        _ => ensure_exact_counts(&table, truth),
    };
    checked.with_context(|| format!("mode {mode}: {}", daemon.log()))?;
    Ok(table)
}

fn detach(cli: &Cli, target: &mut Target) -> Result<()> {
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(target)?;
    target.still_running()
}

/// Checks that two tables have the same durations. Each daemon measures the counter's rate anew, so
/// they differ by parts per thousand.
fn ensure_alike(before: &Value, after: &Value) -> Result<()> {
    let (before, after) = (rows(before, "rows")?, rows(after, "rows")?);
    ensure!(before.len() == after.len(), "{before:#?}\n{after:#?}");
    for row in before {
        let other = after.iter().find(|other| other["name"] == row["name"]);
        let other = other.with_context(|| format!("no row like {row}"))?;
        for field in ["sum_ns", "min_ns", "max_ns", "median_ns"] {
            let [Some(one), Some(two)] = [row, other].map(|row| row[field].as_u64()) else {
                continue;
            };
            let is_near = one.abs_diff(two) <= 2 + one / 50;
            ensure!(is_near, "{field}: {row}\n{other}");
        }
        ensure!(row["unfinished"] == other["unfinished"], "{row}\n{other}");
    }
    Ok(())
}

/// Waits until the rings of the threads that have ended are taken back.
fn retired(cli: &Cli, target: &Target) -> Result<()> {
    wait_until(DEADLINE, "the threads' rings are taken back", || {
        let status = cli.json(["status"])?;
        let row = row_of(&status, target.pid())?.context("not attached")?;
        Ok((row["threads"].as_u64() <= Some(1)).then_some(()))
    })
}

fn attach(cli: &Cli, mode: &str, pid: &str) -> Result<()> {
    cli.ok(["attach", pid, "--mode", mode])?;
    cli.ok(["enable", "--all"]).map(drop)
}

/// Each daemon but the first one begins when the threads are gone, and their memory in the program
/// is cleared.
#[test]
fn sums_of_ended_threads_outlive_three_daemons() -> Result<()> {
    if !opens_map_files()? {
        // Without map_files, a daemon cannot open the rings of an earlier one.
        return Ok(());
    }
    for mode in MODES {
        let scene = Scene::new()?;
        let mut running = daemon(&scene)?;
        let cli = scene.with(&running)?;
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "6", "--calls", "2000"])?;
        let pid = target.pid().to_string();
        attach(&cli, mode, &pid)?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        // Now the daemon has looked for rings.
        ensure_kept((&cli, &running), mode, &pid, &truth)?;
        retired(&cli, &target)?;
        let before = ensure_kept((&cli, &running), mode, &pid, &truth)?;
        for _ in 0..3 {
            running.kill()?;
            running = daemon(&scene)?;
            let after = ensure_kept((&cli, &running), mode, &pid, &truth)?;
            ensure_alike(&before, &after)?;
        }
        ensure!(!running.log().contains("panicked"));
        detach(&cli, &mut target)?;
    }
    Ok(())
}

/// Daemons are killed at any moment while threads work and end.
#[test]
fn no_call_goes_when_daemons_are_killed_while_threads_end() -> Result<()> {
    if !opens_map_files()? {
        // As above.
        return Ok(());
    }
    for mode in MODES {
        let scene = Scene::new()?;
        let mut running = daemon(&scene)?;
        let cli = scene.with(&running)?;
        let work = ["--threads", "4", "--calls", "1000", "--churn", "60"];
        let mut target = Target::spawn(Fixture::Counted, work)?;
        let pid = target.pid().to_string();
        attach(&cli, mode, &pid)?;
        target.send("go")?;
        for pause in [3, 40, 0, 120, 11, 230] {
            std::thread::sleep(Duration::from_millis(pause));
            running.kill()?;
            running = daemon(&scene)?;
        }
        let truth = GroundTruth::parse(&target.line_with("result ", DEADLINE)?)?;
        ensure_kept((&cli, &running), mode, &pid, &truth)?;
        running.kill()?;
        running = daemon(&scene)?;
        ensure_kept((&cli, &running), mode, &pid, &truth)?;
        detach(&cli, &mut target)?;
    }
    Ok(())
}

/// Calls are counted, and there is no room for the sums of ended threads: the address space of the
/// program is limited. The next daemon goes on with the counts of threads that it finds, and
/// reports that those of earlier threads are missing.
#[test]
fn counts_without_room_for_ended_threads_are_reported_as_missing() -> Result<()> {
    if !opens_map_files()? {
        // As above.
        return Ok(());
    }
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "300"])?;
    let pid = target.pid().to_string();
    let limit = Command::new("prlimit")
        .args(["--as=8000000000", "--pid", &pid])
        .status()?;
    ensure!(limit.success());
    cli.ok(["attach", &pid, "--mode", "count", "--ring-size", "64KiB"])?;
    cli.ok(["enable", "--all"])?;
    first.kill()?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let second = daemon(&scene)?;
    ensure_kept((&cli, &second), "count", &pid, &truth)?;
    retired(&cli, &target)?;
    ensure_kept((&cli, &second), "count", &pid, &truth)?;
    second.kill()?;
    let third = daemon(&scene)?;
    let status = cli.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("not attached")?;
    let gaps = row["gaps"].to_string();
    ensure!(
        gaps.contains("damaged_events"),
        "{status:#}\n{}",
        third.log()
    );
    detach(&cli, &mut target)
}
