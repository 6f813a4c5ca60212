//! Clients in another language, which know the daemon only by gRPC reflection.

use std::ffi::OsStr;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, Tool, wait_until, workspace_dir};
use serde_json::Value;

use crate::scene::{Running, Scene, all_on, ensure_as_compiled, rows};
use crate::trace::ensure_counted;

#[test]
fn a_python_client_attaches_enables_and_fetches() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Demo, [""; 0])?;
    let mut command = Tool::Python3.command()?;
    command
        .arg(workspace_dir().join("integration/python/client.py"))
        .arg("--socket")
        .arg(daemon.socket())
        .args([
            "--pid",
            &target.pid().to_string(),
            "--all",
            "--seconds",
            "0.5",
            "--out",
        ])
        .arg(scene.path("f"))
        // Nothing is written beside the sources.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let ran = Running::start(command)?.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let reported: Value = serde_json::from_str(&ran.out)?;
    ensure!(
        reported["detached"] == true && reported["text_bytes_different"] == 0,
        "{reported}"
    );
    ensure!(reported["events_seen"].as_u64() > Some(0), "{reported}");
    ensure!(
        rows(&reported, "services")?.contains(&Value::from("xrayd.v1.Xrayd")),
        "{reported}"
    );
    ensure!(
        reported["trace_bytes"] == std::fs::metadata(scene.path("f"))?.len(),
        "{reported}"
    );
    let report = cli.json(["report", "f"])?;
    ensure!(report["trace"]["completeness"] == "complete", "{report}");
    // When the live reader ends, the session is in mode `flight` again, and drops the blocks that
    // it retained. It counts their events as overwritten.
    let count = |key: &str| report["trace"].pointer(key).and_then(Value::as_u64);
    let known =
        count("/events").context("no events")? + count("/overwritten/events").unwrap_or_default();
    ensure!(
        Some(known) >= reported["events_seen"].as_u64(),
        "{reported} {report}"
    );
    ensure_as_compiled(&target)?;

    // A refusal has its reason.
    let plain = Target::spawn(Fixture::Plain, [""; 0])?;
    let mut command = Tool::Python3.command()?;
    command
        .arg(workspace_dir().join("integration/python/client.py"))
        .arg("--socket")
        .arg(daemon.socket())
        .args([
            "--pid",
            &plain.pid().to_string(),
            "--function",
            "main",
            "--out",
            "/dev/null",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let ran = Running::start(command)?.wait()?;
    ensure!(
        ran.code == Some(4) && ran.err.contains("(reason: no-sleds)"),
        "{ran:?}"
    );
    Ok(())
}

/// The daemon does not wait for a client that does not read. The client gets the exact number of
/// events that it lost.
#[test]
fn a_slow_reader_learns_its_losses() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    // Many threads with a little work each: every thread makes a block of its own, and a client's
    // queue is limited in blocks.
    let mut target = Target::spawn(
        Fixture::Counted,
        [
            "--threads",
            "16",
            "--churn",
            "150",
            "--calls",
            "20",
            "--first",
            "0",
        ],
    )?;
    let pid = target.pid().to_string();
    cli.ok([
        "attach",
        &pid,
        "--ring-size",
        "64KiB",
        "--max-threads",
        "8192",
    ])?;
    let mut command = Tool::Python3.command()?;
    command
        .arg(workspace_dir().join("integration/python/slow_reader.py"))
        .arg("--socket")
        .arg(daemon.socket())
        .args(["--pid", &pid].map(OsStr::new))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let mut reader = Target::spawn_unready(command)?;
    reader.line_with("subscribed", DEADLINE)?;
    cli.ok(["enable", "--all"])?;
    all_on(&target)?.context("not everything is on")?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    wait_until(DEADLINE, "all events are drained", || {
        let status = cli.json(["status"])?;
        Ok((status["processes"][0]["events"] == truth.events()).then_some(()))
    })?;
    ensure_counted(&cli.json(["status"])?["processes"][0], &truth)?;
    let reported = reader.ask(&format!("read {}", truth.events()), "{")?;
    let reported: Value = serde_json::from_str(&reported)?;
    let count = |key: &str| reported[key].as_u64().unwrap_or_default();
    ensure!(
        count("events") > 0 && count("reader_lost") > 0,
        "{reported}"
    );
    ensure!(count("target_lost") == 0, "{reported}");
    ensure!(
        count("events") + count("reader_lost") == truth.events(),
        "{reported}, but {} in the program",
        truth.events()
    );
    ensure!(reader.wait(DEADLINE)?.success());
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)
}
