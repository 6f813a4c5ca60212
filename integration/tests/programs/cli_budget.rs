//! Limits on what tracing costs, on the command line: budgets and duty cycles, their status and
//! their traces.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use serde_json::Value;

use crate::scene::{Cli, Scene, ensure_as_compiled, rows};

/// The status of the only process in `xrayctl budget`.
fn shown(cli: &Cli) -> Result<Value> {
    let shown = cli.json(["budget"])?;
    let [row] = &rows(&shown, "processes")?[..] else {
        anyhow::bail!("not one process: {shown}");
    };
    Ok(row["status"].clone())
}

fn is_tiny_suppressed(status: &Value) -> Result<bool> {
    let mut top = rows(status, "top")?.iter();
    Ok(top.any(|row| {
        row["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("tiny"))
            && row["suppressed"] == true
    }))
}

/// The output of `info` for a short profile.
fn measured(scene: &Scene, cli: &Cli, pid: &str) -> Result<String> {
    let file = scene.path("sums.xtrace");
    let path = file.to_str().context("a path")?;
    cli.ok(["profile", pid, "--duration", "200ms", "-o", path, "--force"])?;
    cli.ok(["info", path])
}

/// A budget is set, kept, shown, noted in a snapshot and its reports, and removed.
#[test]
fn suppressed_functions_are_shown_and_are_in_traces() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Budget, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "stream", "--max-overhead", "2%"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    target.ask("go", "go")?;
    wait_until(DEADLINE, "tiny is suppressed", || {
        Ok(is_tiny_suppressed(&shown(&cli)?)?.then_some(()))
    })?;
    wait_until(DEADLINE, "it is known what that hides", || {
        Ok((shown(&cli)?["unrecorded_estimate"] != 0).then_some(()))
    })?;
    let answer = cli.ok(["budget", "--pid", &pid])?;
    for part in [
        "at most 2 %",
        "cost: about",
        "1 function suppressed",
        "NOT RECORDED",
        "suppressed  tiny",
    ] {
        ensure!(answer.contains(part), "no {part:?}: {answer}");
    }
    let answer = cli.ok(["status"])?;
    ensure!(answer.contains("1 function suppressed"), "{answer}");
    let file = scene.path("rested.xtrace");
    let path = file.to_str().context("a path")?;
    cli.ok(["snapshot", "--pid", &pid, "-o", path])?;
    let info = cli.json(["info", path])?;
    let suppressed = &info["trace"]["unrecorded"]["suppressed"];
    ensure!(suppressed["functions"] == 1, "{info}");
    ensure!(suppressed["unrecorded_calls_estimate"] != 0, "{info}");
    let answer = cli.ok(["report", path])?;
    ensure!(
        answer.contains("1 function suppressed to keep a budget") && answer.contains("tiny"),
        "{answer}"
    );
    let page = scene.path("rested.html");
    cli.ok([
        "report",
        path,
        "--html",
        "-o",
        page.to_str().context("a path")?,
    ])?;
    ensure!(measured(&scene, &cli, &pid)?.contains("1 function suppressed"));
    let answer = cli.ok(["budget", "--pid", &pid, "--clear"])?;
    ensure!(answer.contains("no limit; before: at most 2 %"), "{answer}");
    ensure!(!is_tiny_suppressed(&shown(&cli)?)?);
    ensure!(!measured(&scene, &cli, &pid)?.contains("suppressed"));
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

/// A recording without a daemon and one through a daemon, both with an end before the process ends.
#[test]
fn a_recording_says_for_how_long_it_has_looked() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let mut target = Target::spawn(Fixture::Budget, [""; 0])?;
    let pid = target.pid().to_string();
    target.ask("go", "go")?;
    for (at, cli) in [scene.alone()?, scene.with(&daemon)?].iter().enumerate() {
        let file = scene.path(&format!("duty-{at}.xtrace"));
        let path = file.to_str().context("a path")?;
        cli.ok([
            "record",
            &pid,
            "--duty",
            "5ms/50ms",
            "--duration",
            "2s",
            "-o",
            path,
        ])?;
        let info = cli.json(["info", path])?;
        let duty = &info["trace"]["unrecorded"]["duty"];
        let weight = duty["weight"].as_f64().context("no weight")?;
        ensure!(weight > 1.0 && weight < 100.0, "{info}");
        ensure!(
            duty["windows"].as_u64().is_some_and(|windows| windows > 5),
            "{info}"
        );
        let answer = cli.ok(["report", path])?;
        ensure!(
            answer.contains("recorded for") && answer.contains("counts stand for about"),
            "{answer}"
        );
        ensure_as_compiled(&target)?;
    }
    // If the process stays attached, the reader leaves the stream. The file has the report that
    // comes about once a second.
    let cli = scene.with(&daemon)?;
    cli.ok(["attach", &pid, "--max-overhead", "2%"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    wait_until(DEADLINE, "tiny is suppressed", || {
        Ok(is_tiny_suppressed(&shown(&cli)?)?.then_some(()))
    })?;
    let file = scene.path("left.xtrace");
    let path = file.to_str().context("a path")?;
    cli.ok(["record", &pid, "--duration", "3s", "-o", path])?;
    let info = cli.json(["info", path])?;
    ensure!(
        info["trace"]["unrecorded"]["suppressed"]["functions"] == 1,
        "{info}"
    );
    cli.ok(["detach", &pid])?;
    target.still_running()
}

#[test]
fn contradictory_arguments_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Budget, [""; 0])?;
    let pid = target.pid().to_string();
    let empty = cli.run(["budget"])?;
    empty.failed(3, &["no process is attached"])?;
    for arguments in [
        &["--max-overhead", "0%"][..],
        &["--max-overhead", "200%"],
        &["--max-overhead", "some"],
        &["--duty", "5ms"],
        &["--duty", "1s/5ms"],
        &["--duty", "10us/1s"],
        &["--duty", "5ms/1s", "--max-overhead", "2%"],
        &["--clear", "--max-overhead", "2%"],
    ] {
        let ran = cli.run(["budget"].iter().chain(arguments))?;
        ensure!(
            ran.code == Some(2) && !ran.err.is_empty(),
            "{arguments:?}: {ran:?}"
        );
    }
    cli.ok(["attach", &pid])?;
    cli.ok(["filter", "--pid", &pid, "--min-duration", "10us"])?;
    cli.run(["budget", "--pid", &pid, "--max-overhead", "2%"])?
        .refused("mode")?;
    cli.ok(["filter", "--pid", &pid, "--clear"])?;
    cli.ok(["budget", "--pid", &pid, "--duty", "5ms/1s"])?;
    cli.run(["mode", "count", "--pid", &pid])?.refused("mode")?;
    let answer = cli.ok(["budget"])?;
    ensure!(
        answer.contains("everything for 5.000 ms in each 1.000 s"),
        "{answer}"
    );
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}
