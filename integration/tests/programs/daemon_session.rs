//! One process through its whole life with the daemon, as in the manual.

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, ProcessState, Target, Tool, opens_map_files, sleds_of,
    wait_until,
};
use serde_json::Value;

use crate::scene::{
    Scene, all_on, ensure_as_compiled, ensure_nothing_left, row_of, rows, sleds_on,
};
use crate::trace::{ensure_counted, ensure_exact, ensure_reported};

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "number" => value.is_u64(),
        "text" => value.is_string(),
        "bool" => value.is_boolean(),
        other => unreachable!("{other}"),
    }
}

/// Each field of a function in docs/xrayctl.md.
const FUNCTION_FIELDS: &[(&str, &str)] = &[
    ("pid", "number"),
    ("id", "number"),
    ("module", "text"),
    ("name", "text"),
    ("symbol", "text"),
    ("source", "text"),
    ("sleds", "number"),
    ("enabled", "bool"),
    ("calls", "number"),
    ("xray_id", "number"),
    ("address", "number"),
];

#[test]
fn from_ps_to_detach() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid().to_string();
    let before = ProcessState::of(target.pid())?;
    let sleds = sleds_of(target.program())?.len();

    let listing = cli.json(["ps"])?;
    let row = row_of(&listing, target.pid())?.context("not listed")?;
    ensure!(
        row["state"] == "ready" && row["functions"] == 20 && row["modules"] == 1,
        "{row}"
    );
    ensure!(
        cli.ok(["ps"])?
            .lines()
            .any(|line| line.contains(&pid) && line.contains("ready"))
    );
    let checks = cli.json(["doctor", &pid])?;
    ensure!(checks["ready"] == true, "{checks}");

    let attached = cli.json(["attach", &pid, "--mode", "stream"])?;
    ensure!(attached["status"]["functions"] == 20, "{attached}");
    ensure!(attached["status"]["functions_on"] == 0, "{attached}");
    ensure!(attached["report"]["adopted"] == false, "{attached}");
    let listing = cli.json(["ps"])?;
    let row = row_of(&listing, target.pid())?.context("not listed any more")?;
    ensure!(row["state"] == "traced", "{row}");

    let listed = cli.json(["functions", "--pid", &pid])?;
    let functions = rows(&listed, "functions")?;
    ensure!(functions.len() == 20);
    for (field, kind) in FUNCTION_FIELDS {
        for function in functions {
            ensure!(has_type(&function[field], kind), "{field} of {function}");
        }
    }
    let counted: u64 = functions
        .iter()
        .filter_map(|row| row["sleds"].as_u64())
        .sum();
    ensure!(
        counted == sleds as u64,
        "{counted} sleds instead of {sleds}"
    );
    ensure!(
        functions
            .iter()
            .all(|row| row["enabled"] == false && row["calls"] == 0)
    );
    ensure!(functions.iter().all(|row| {
        row["source"]
            .as_str()
            .is_some_and(|s| s.contains("counted.cpp:"))
    }));

    let dry = cli.json(["enable", "--all", "--dry-run"])?;
    let row = row_of(&dry, target.pid())?.context("no row")?;
    ensure!(
        dry["dry_run"] == true && row["matched"] == 20 && row["changed"] == 20,
        "{dry}"
    );
    ensure!(sleds_on(&target)? == 0);
    ensure!(cli.json(["status"])?["processes"][0]["functions_on"] == 0);

    let on = cli.json(["enable", "--all"])?;
    ensure!(
        on["switch"] == "on" && row_of(&on, target.pid())?.is_some_and(|row| row["sleds"] == sleds),
        "{on}"
    );
    all_on(&target)?.context("not everything is on")?;
    ensure!(cli.json(["enable", "--all"])?["processes"][0]["changed"] == 0);

    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    wait_until(DEADLINE, "all events are counted", || {
        let status = cli.json(["status", "--pid", &pid])?;
        let row = &status["processes"][0];
        // A counted event may not be retained yet.
        let done = [&row["events"], &row["retained_events"]].map(|count| *count == truth.events());
        Ok((done == [true; 2]).then_some(()))
    })?;
    let status = cli.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("no row")?;
    ensure!(
        row["functions_on"] == 20 && row["mode"] == "stream" && row["state"] == "tracing",
        "{row}"
    );
    ensure!(row["overwritten_events"] == 0, "{row}");
    ensure_counted(row, &truth)?;
    let listed = cli.json(["functions", "--pid", &pid])?;
    for function in rows(&listed, "functions")? {
        let index = truth
            .function(function["name"].as_str().context("no name")?)
            .context("not counted")?;
        ensure!(
            function["enabled"] == true && function["calls"] == truth.calls()[index],
            "{function}"
        );
    }

    let fetched = cli.json(["snapshot", "--pid", &pid, "-o", "now.xtrace"])?;
    ensure_counted(&fetched["files"][0], &truth)?;
    let now = scene.path("now.xtrace");
    ensure_exact(&now, &truth)?;
    ensure_reported(&cli, &now, &truth)?;
    // An existing file stays as it is.
    let bytes = std::fs::read(&now)?;
    cli.run(["snapshot", "-o", "now.xtrace"])?
        .failed(1, &["now.xtrace already exists"])?;
    ensure!(std::fs::read(&now)? == bytes);

    let off = cli.json(["disable", "--all"])?;
    ensure!(
        off["switch"] == "off" && off["processes"][0]["changed"] == 20,
        "{off}"
    );
    ensure!(sleds_on(&target)? == 0);

    let detached = cli.ok(["detach", &pid])?;
    ensure!(
        detached.contains(&format!("proof: {sleds} sleds read back, all off")),
        "{detached}"
    );
    ensure!(
        detached.contains("proof: text outside the sleds identical to the file"),
        "{detached}"
    );
    ensure_as_compiled(&target)?;
    ensure_nothing_left(&before, target.pid())?;

    let again = cli.json(["attach", &pid])?;
    ensure!(again["report"]["adopted"] == opens_map_files()?, "{again}");
    cli.ok(["enable", "--all"])?;
    all_on(&target)?.context("not everything is on again")?;
    let detached = cli.json(["detach", "--all"])?;
    let row = &detached["processes"][0];
    ensure!(
        row["sleds_off"] == sleds && row["sleds_on"] == 0 && row["text_bytes_different"] == 0,
        "{row}"
    );
    ensure_as_compiled(&target)?;
    ensure!(cli.json(["status"])?["processes"] == Value::Array(Vec::new()));
    ensure!(
        cli.ok(["detach", "--all"])?
            .contains("no process is attached")
    );
    target.still_running()
}

/// A snapshot can be shown, and converted for other tools.
#[test]
fn a_fetched_trace_is_shown_and_converted() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "60"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    // When all functions are off, the retained events are complete.
    cli.ok(["disable", "--all"])?;
    wait_until(DEADLINE, "all events are counted", || {
        let status = cli.json(["status"])?;
        Ok((status["processes"][0]["events"] == truth.events()).then_some(()))
    })?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    cli.ok(["detach", "--all"])?;

    let shown = cli.ok(["report", "t.xtrace", "--limit", "0"])?;
    ensure!(shown.starts_with("counted ("), "{shown}");
    ensure!(
        shown.contains("DURATION") && shown.contains("MEDIAN"),
        "{shown}"
    );
    let tree = cli.ok(["report", "t.xtrace", "--tree", "--limit", "0"])?;
    ensure!(!tree.contains("MEDIAN"));
    let tid = truth.threads[0].tid.to_string();
    let one = cli.ok([
        "report", "t.xtrace", "--tree", "--unfold", "--limit", "0", "--thread", &tid,
    ])?;
    let begins = one
        .lines()
        .filter(|line| line.ends_with('{') || line.ends_with(';'))
        .count();
    let entered: u64 = truth.threads[0].calls.iter().sum();
    ensure!(
        begins as u64 == entered,
        "{begins} calls instead of {entered}"
    );
    // The tree begins with the program's own first call, and nests.
    let lines: Vec<_> = one.lines().filter(|line| line.contains("work::")).collect();
    ensure!(lines[0].contains("  work::intake("), "{}", lines[0]);
    ensure!(lines[1].contains("    work::parse("), "{}", lines[1]);
    let table = cli.ok(["report", "t.xtrace", "--table", "--limit", "0"])?;
    ensure!(!table.contains("DURATION"));
    let intake = truth.function("work::intake").context("no intake")?;
    let row = table
        .lines()
        .find(|line| line.contains("work::intake("))
        .context("no row")?;
    ensure!(
        row.trim_start()
            .starts_with(&truth.calls()[intake].to_string()),
        "{row}"
    );
    let none = cli.run(["report", "t.xtrace", "--function", "nonesuch"])?;
    none.failed(3, &["nothing matched"])?;

    for (out, format) in [
        ("t.json", "chrome"),
        ("t.fdr", "fdr"),
        ("again.xtrace", "xtrace"),
    ] {
        let converted = cli.json(["convert", "t.xtrace", "-o", out])?;
        ensure!(converted["format"] == format, "{converted}");
        ensure!(
            converted["bytes"] == std::fs::metadata(scene.path(out))?.len(),
            "{converted}"
        );
    }
    ensure_exact(&scene.path("again.xtrace"), &truth)?;
    let chrome: Value = serde_json::from_slice(&std::fs::read(scene.path("t.json"))?)?;
    ensure!(!rows(&chrome, "traceEvents")?.is_empty());
    let yaml = Tool::LlvmXray19.run([
        "convert".as_ref(),
        "-f".as_ref(),
        "yaml".as_ref(),
        scene.path("t.fdr").as_os_str(),
    ])?;
    let calls: u64 = truth.calls().iter().sum();
    let entries = yaml.matches("kind: function-enter").count();
    ensure!(
        entries as u64 == calls,
        "llvm-xray sees {entries} calls of {calls}"
    );
    Ok(())
}
