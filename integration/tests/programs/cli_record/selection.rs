//! The recorded functions, and the rules for libraries that are loaded later.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::COUNTED;
use crate::scene::{Cli, Scene, ensure_as_compiled, rows, sleds_on};
use crate::trace::read;

/// Only the selection is recorded, into the default file if no file is given.
#[test]
fn a_selection_is_recorded_into_the_default_file() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    let mut running = cli.start(["record", &pid, "--function", "work::intake", "--json"])?;
    running.until("intake is on", || {
        Ok((sleds_on(&target)? >= 2).then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGTERM)?;
    let ran = running.wait()?;
    let recorded: Value = serde_json::from_str(&ran.out)?;
    let calls = truth.calls()[truth.function("work::intake").context("no intake")?];
    ensure!(
        recorded["calls"] == calls && recorded["events"] == 2 * calls,
        "{recorded}"
    );
    ensure!(
        recorded["file"] == format!("xray-counted-{pid}.xtrace"),
        "{recorded}"
    );
    cli.ok(["report", &format!("xray-counted-{pid}.xtrace")])?;
    // Again: an existing file stays.
    let name = scene.path(&format!("xray-counted-{pid}.xtrace"));
    let bytes = fs::read(&name)?;
    let ran = cli.run(["record", &pid, "--duration", "10ms"])?;
    ran.failed(1, &["already exists"])?;
    ensure!(fs::read(&name)? == bytes);
    ensure_as_compiled(&target)
}

#[test]
fn a_selection_without_a_match_leaves_no_file() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let target = Target::spawn(Fixture::Counted, COUNTED)?;
    let pid = target.pid().to_string();
    fs::write(scene.path("old"), "old")?;
    for file in ["new", "old"] {
        let ran = cli.run([
            "record",
            &pid,
            "--function",
            "nonesuch",
            "--force",
            "-o",
            file,
        ])?;
        ran.failed(3, &["nothing matched"])?;
    }
    ensure!(!scene.path("new").exists());
    ensure!(fs::read(scene.path("old"))? == b"old");
    ensure_as_compiled(&target)
}

/// The number of functions that are on in a library that a process has loaded by now. `None` until
/// it is armed: `functions_on` alone also counts functions that are still being switched on.
fn on_in(cli: &Cli, file: &str) -> Result<Option<u64>> {
    let status = cli.json(["status"])?;
    let modules = status["processes"].as_array().into_iter().flatten();
    let mut modules = modules.flat_map(|process| rows(process, "modules").into_iter().flatten());
    let module = modules.find(|module| {
        module["path"]
            .as_str()
            .is_some_and(|path| path.ends_with(file))
    });
    let armed = module.filter(|module| module["armed_within_ns"].as_u64() > Some(0));
    Ok(armed.and_then(|module| module["functions_on"].as_u64()))
}

/// A library that is loaded later is recorded. A selector that could be a typing error needs
/// `--pending` for that.
#[test]
fn a_selection_without_a_match_waits_for_libraries() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let pid = target.pid().to_string();
    let record = [
        "record",
        &pid,
        "--glob",
        "plugin_a*",
        "--pending",
        "-o",
        "f",
    ];
    let mut running = cli.start(record)?;
    running.until("the rule is in force", || {
        let status = cli.json(["status"])?;
        let detection = &status["processes"][0]["detection"];
        Ok((detection == "perf" || detection == "polling").then_some(()))
    })?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    running.until("it is on", || {
        Ok((on_in(&cli, "plugin_a.so")? == Some(3)).then_some(()))
    })?;
    target.ask("call 0 5", "done")?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure!(ran.err.contains("waiting for libraries"), "{ran:?}");
    let trace = read(&scene.path("f"))?;
    let totals = trace.totals();
    ensure!(totals.calls == 2 * 15, "{totals:?}");

    cli.ok(["attach", &pid])?;
    cli.run(["enable", "--glob", "plugin_b*"])?
        .failed(3, &["nothing matched"])?;
    cli.ok(["disable", "--all"])?;
    let enabled = cli.run(["enable", "--module", "plugin_b.so", "--json"])?;
    ensure!(enabled.code == Some(0), "{enabled:?}");
    ensure!(enabled.err.contains("waiting for libraries"), "{enabled:?}");
    target.ask("load 1 plugin_b.so", "loaded")?;
    wait_until(DEADLINE, "it is on", || {
        Ok((on_in(&cli, "plugin_b.so")? == Some(3)).then_some(()))
    })?;
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}

/// After a recording, the rules of other clients still hold for libraries.
#[test]
fn a_recording_leaves_the_rules_of_others() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for selector in [["--glob", "plugin_*"], ["--module", "plugin_?.so"]] {
        let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid])?;
        let rule = ["enable", "--glob", "plugin_*", "--pending"];
        cli.ok(rule)?;
        let record = ["record", &pid, "--json", "--duration", "300ms"];
        let some = ["--pending", "-o", "some", "--force"];
        cli.ok([&record[..], &selector, &some].concat())?;
        cli.ok([&record[..], &["-o", "all", "--force"]].concat())?;
        let status = cli.json(["status"])?;
        ensure!(status["processes"][0]["functions_on"] == 0, "{status}");
        target.ask("load 0 plugin_a.so", "loaded")?;
        wait_until(DEADLINE, "it is on", || {
            Ok((on_in(&cli, "plugin_a.so")? == Some(3)).then_some(()))
        })?;
        cli.ok(["detach", &pid])?;
    }
    Ok(())
}
