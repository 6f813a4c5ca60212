//! Calls that `perf` has recorded.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, Tool, build, is_root_for, not_run};
use serde_json::Value;

use crate::scene::{Scene, rows};

/// The group of the events, which are there for all programs of the machine.
const GROUP: &str = "probe_xrayd_test";

/// Events of `perf probe`, which end with this.
struct Probes;

impl Probes {
    fn of(program: &str) -> Result<Self> {
        let probes = Self;
        // perf adds `__return` to the name of an event of a return.
        for event in [
            "outer=outer",
            "outer=outer%return",
            "inner=inner",
            "inner=inner%return",
        ] {
            let event = format!("{GROUP}:{event}");
            Tool::Perf.run(["probe", "-q", "-x", program, &event])?;
        }
        Ok(probes)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        // They may have been left by an earlier test.
        let _ = Tool::Perf.run(["probe", "-q", "-d", &format!("{GROUP}:*")]);
    }
}

#[test]
fn calls_between_probes_are_read() -> Result<()> {
    let test = "calls_between_probes_are_read";
    if !is_root_for(test)? {
        return Ok(());
    }
    if !std::path::Path::new("/sys/kernel/tracing/uprobe_events").exists() {
        return not_run(
            test,
            "the kernel has no uprobe events at /sys/kernel/tracing",
        );
    }
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let program = build(Fixture::Instrumented)?;
    let probes = Probes::of(&program.display().to_string())?;
    let data = scene.path("perf.data");
    let mut command = Tool::Perf.command()?;
    let events = format!("{GROUP}:*");
    command.args(["record", "-q", "-e", &events, "-o"]);
    command.arg(&data).arg("--").arg(&program);
    let mut target = Target::spawn_command(command)?;
    target.ask("go", "done")?;
    // The program ends, and so does perf, which then finishes its file.
    target.close_stdin();
    target.wait(DEADLINE)?;
    drop(probes);
    let account: Value = serde_json::from_str(&cli.ok(["account", "perf.data", "-f", "json"])?)?;
    let mut calls = Vec::new();
    for row in rows(&account, "rows")? {
        let name = row["name"].as_str().context("no name")?;
        calls.push((name, row["calls"].as_u64(), row["unfinished"].as_u64()));
    }
    calls.sort_unstable();
    let expected = [("inner", Some(60), Some(0)), ("outer", Some(20), Some(0))];
    ensure!(calls == expected, "{account}");
    let info = cli.json(["info", "perf.data"])?;
    ensure!(info["format"] == "perf", "{info}");
    let threads = rows(&info, "threads")?;
    ensure!(
        threads.len() == 2
            && threads
                .iter()
                .all(|thread| thread["name"] == "instrumented"),
        "{info}"
    );
    // Any other recording of perf has no calls.
    let mut other = Tool::Perf.command()?;
    other.args(["record", "-q", "-e", "cpu-clock", "-o"]);
    other.arg(scene.path("other.data")).args(["--", "true"]);
    run(other)?;
    cli.run(["account", "other.data"])?
        .failed(1, &["`perf probe -x PROGRAM FUNCTION%return`"])
}

fn run(mut command: Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
