//! Arguments and results of a live process for a user: requested, listed, recorded, shown, and in
//! the formats that hold them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::scene::{Cli, Scene, ensure_as_compiled, rows, sleds_on};

/// The result of calls of the program `values` with the first argument 0.
const RESULT: u64 = 0x8000_0000_dead_beef;
/// Calls of `two` in a round: by `main`, and by the functions that use it for their sums.
const TWOS: usize = 7;

/// Records two rounds of `two` and `tail` into `v.xtrace`.
fn record(cli: &Cli, values: &[&str]) -> Result<()> {
    let mut target = Target::spawn(Fixture::Values, [""; 0])?;
    let pid = target.pid().to_string();
    let selectors = ["--function", "two", "--function", "tail"];
    let output = ["-o", "v.xtrace", "--force"];
    let command = [&["record", &pid], &selectors[..], values, &output].concat();
    let mut running = cli.start(command)?;
    running.until("an entry and an exit of each are on", || {
        Ok((sleds_on(&target)? == 4).then_some(()))
    })?;
    ensure!(target.ask("go 2", "done ")? == "done 2");
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_as_compiled(&target)
}

#[test]
fn requested_values_are_recorded_and_shown_with_and_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        record(&cli, &["--args", "2", "--retval"])?;
        let info = cli.json(["info", "v.xtrace"])?;
        let twos = 2 * TWOS;
        ensure!(
            info["events"]["entries_with_arguments"] == twos + 2
                && info["events"]["exits_with_result"] == twos,
            "{info}"
        );
        let tree = cli.json(["tree", "v.xtrace"])?;
        let lines = rows(&tree["tree"], "lines")?;
        let named = |name: &str| -> Vec<&Value> {
            let named = lines.iter().filter(|line| line["function"] == name);
            named.collect()
        };
        ensure!(named("two").len() == twos && named("tail").len() == 2);
        for line in named("two") {
            let arguments = rows(line, "arguments")?;
            let expected = arguments[0].as_u64().map(|first| first ^ RESULT);
            ensure!(arguments.len() == 2 && line["result"].as_u64() == expected);
        }
        for line in named("tail") {
            ensure!(line["result"].is_null(), "{line}");
        }
        let text = cli.ok(["tree", "v.xtrace"])?;
        let call = "two(0x0, 0x14057b7ef767814f) = 0x80000000deadbeef;";
        ensure!(text.contains(call), "{text}");

        // Without a request, no value is recorded.
        record(&cli, &[])?;
        let info = cli.json(["info", "v.xtrace"])?;
        ensure!(
            info["events"]["entries_with_arguments"] == 0
                && info["events"]["exits_with_result"] == 0
                && info["events"]["entries"] == twos + 2,
            "{info}"
        );
    }
    Ok(())
}

#[test]
fn recorded_values_of_a_function_are_shown_and_can_be_changed() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Values, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    let enable = |values: &[&str]| {
        let command = ["enable", "--pid", &pid, "--function", "two"];
        cli.json([&command[..], values].concat())
    };
    let recorded = || -> Result<Value> {
        let listed = cli.json(["functions", "--pid", &pid])?;
        let mut functions = rows(&listed, "functions")?.iter();
        let two = functions.find(|row| row["name"] == "two");
        Ok(two.context("it is listed")?["capture"].clone())
    };
    let done = enable(&["--args", "6", "--retval"])?;
    let row = &done["processes"][0];
    ensure!(
        row["changed"] == 1 && row["restaged"] == 0 && row["stopped_ns"] == 0,
        "{done}"
    );
    ensure!(recorded()? == json!({"arguments": 6, "result": true}));
    let text = cli.ok(["functions", "--pid", &pid])?;
    ensure!(text.contains("on, 6 args, retval"), "{text}");
    let status = cli.json(["status"])?;
    ensure!(
        status["processes"][0]["functions_with_values"] == 1,
        "{status}"
    );
    let text = cli.ok(["status"])?;
    ensure!(text.contains("values of 1 function recorded"), "{text}");

    // The functions call other trampolines then. The process stands still for the change.
    let planned = enable(&["--args", "1", "--retval", "--dry-run"])?;
    let row = &planned["processes"][0];
    ensure!(row["changed"] == 1 && row["restaged"] == 1, "{planned}");
    let done = enable(&["--args", "1", "--retval"])?;
    let row = &done["processes"][0];
    ensure!(
        row["restaged"] == 1 && row["stopped_ns"].as_u64() > Some(0),
        "{done}"
    );
    ensure!(recorded()? == json!({"arguments": 1, "result": true}));

    // A recording without a request for values changes nothing. Enabling the function anew does.
    let mut running = cli.start(["record", &pid, "--function", "two", "-o", "r.xtrace"])?;
    running.until("the file is there", || {
        Ok(scene.path("r.xtrace").exists().then_some(()))
    })?;
    running.signal(Signal::SIGINT)?;
    running.wait()?;
    ensure!(recorded()? == json!({"arguments": 1, "result": true}));
    ensure!(enable(&[])?["processes"][0]["restaged"] == 2);
    ensure!(recorded()?.is_null());

    for wrong in ["7", "-1", "some"] {
        let args = format!("--args={wrong}");
        let ran = cli.run(["enable", "--pid", &pid, "--all", &args])?;
        ensure!(
            ran.code == Some(2) && ran.err.contains("expected a number from 0 to 6"),
            "{ran:?}"
        );
    }
    Ok(())
}

#[test]
fn every_format_that_has_room_has_the_values_of_a_live_process() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    record(&cli, &["--args", "2", "--retval"])?;
    let convert =
        |file: &str| -> Result<Value> { cli.json(["convert", "v.xtrace", "-o", file, "--force"]) };

    convert("v.jsonl")?;
    let (mut entries, mut exits) = (0, 0);
    for line in fs::read_to_string(scene.path("v.jsonl"))?.lines() {
        let event: Value = serde_json::from_str(line)?;
        entries += usize::from(
            event["arguments"]
                .as_array()
                .is_some_and(|it| it.len() == 2),
        );
        exits += usize::from(event["result"].is_u64());
    }
    ensure!((entries, exits) == (2 * TWOS + 2, 2 * TWOS));

    convert("v.csv")?;
    let table = fs::read_to_string(scene.path("v.csv"))?;
    ensure!(table.contains(",0 1442695040888963407,"), "{table}");
    ensure!(table.contains(&format!(",{RESULT},")), "{table}");

    convert("v.json")?;
    let chrome: Value = serde_json::from_slice(&fs::read(scene.path("v.json"))?)?;
    let events = rows(&chrome, "traceEvents")?;
    let with = |name: &str| {
        let with = events
            .iter()
            .filter(|event| event["args"][name].is_string());
        with.count()
    };
    ensure!(with("arg2") == entries && with("arg3") == 0);
    ensure!(with("result") == exits);

    for file in ["v.pftrace", "v.ctf", "v.parquet"] {
        let done = convert(file)?;
        ensure!(!done.to_string().contains("arguments"), "{done}");
    }
    // LLVM's formats hold the first argument. Sums hold none.
    let left = entries + exits;
    for (file, what, count) in [
        (
            "v.fdr",
            "arguments of calls after the first, and results",
            left,
        ),
        (
            "v.yaml",
            "arguments of calls after the first, and results",
            left,
        ),
        ("v.folded", "arguments of calls", entries),
        ("v.folded", "results of calls", exits),
    ] {
        let done = convert(file)?;
        let mut left_out = rows(&done, "left_out")?.iter();
        let row = left_out.find(|row| row["what"] == what);
        ensure!(
            row.is_some_and(|row| row["count"] == count),
            "{file}: {done}"
        );
    }
    Ok(())
}
