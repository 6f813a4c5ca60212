//! True reports: calls that hang are in every snapshot, recordings have exactly the requested
//! events, and counts are of events.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use xray_trace::model::{EventBody, RecordingWindow, Ticks, Trace};

use crate::scene::{Cli, Scene, rows};
use crate::trace;

/// The window of the snapshots, and the least time for which the call is open when they are taken.
const WINDOW: &str = "50ms";
const OPEN_NS: u64 = 300_000_000;

/// Takes snapshots of the last moments until the call of `slow` has been open for `OPEN_NS`.
/// Returns the file, and the thread's stack in it.
fn hung(scene: &Scene, cli: &Cli, target: &Target) -> Result<(String, Value)> {
    let path = scene.path("hang.xtrace").display().to_string();
    let pid = target.pid().to_string();
    wait_until(DEADLINE, "slow has been open for long", || {
        cli.ok([
            "snapshot", "--pid", &pid, "--last", WINDOW, "-o", &path, "--force",
        ])?;
        let open = cli.json(["report", &path, "--open"])?;
        let stacks = rows(&open, "threads")?;
        let its = stacks.iter().find(|stack| stack["tid"] == target.pid());
        let Some(stack) = its else { return Ok(None) };
        let long = stack["calls"][0]["open_ns"].as_u64() >= Some(OPEN_NS);
        Ok(long.then(|| (path.clone(), stack.clone())))
    })
}

/// In flight mode, and in stream mode after the oldest events were overwritten, with the entry of
/// the call among them.
#[test]
fn a_call_that_hangs_is_in_every_snapshot() -> Result<()> {
    for mode in ["flight", "stream"] {
        let scene = Scene::new()?;
        let daemon = scene.daemon_with(&["--retain", "1MiB"])?;
        let cli = scene.with(&daemon)?;
        let mut target = Target::spawn(Fixture::Triggers, ["--threads", "16"])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid, "--mode", mode])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        target.send("slow 600000")?;
        if mode == "stream" {
            wait_until(DEADLINE, "what began before is overwritten", || {
                let status = cli.json(["status"])?;
                let row = rows(&status, "processes")?.first().cloned();
                let overwritten = row.context("a process")?["overwritten_events"].as_u64();
                Ok((overwritten > Some(5_000)).then_some(()))
            })?;
        }
        let (path, stack) = hung(&scene, &cli, &target)?;
        ensure!(
            stack["calls"].as_array().map(Vec::len) == Some(1)
                && stack["calls"][0]["function"] == "slow"
                && stack["unseen_ns"] == 0,
            "{mode}: {stack}"
        );
        let answer = cli.ok(["report", &path, "--open"])?;
        ensure!(
            answer.contains(": in slow for ") && answer.contains("  #0 "),
            "{answer}"
        );
        let tree = cli.ok(["tree", &path, "--min-duration", "300ms"])?;
        ensure!(
            tree.contains("slow(); // no exit seen, open for ") && !tree.contains("tick"),
            "{mode}: {tree}"
        );
        // Other threads have only the events of the window, and the duration is that of the window.
        let info = cli.json(["info", &path])?;
        ensure!(
            info["trace"]["duration_ns"].as_u64() < Some(OPEN_NS),
            "{info}"
        );
        ensure!(info["trace"]["lost"] == 0, "{info}");
        cli.ok(["detach", &pid])?;
    }
    Ok(())
}

/// Another client has all functions on. A recording has only its own functions, from its begin to
/// its end, and does not wait for events of the others.
#[test]
fn a_recording_of_what_others_have_on_has_its_selection_alone() -> Result<()> {
    for mode in ["flight", "stream"] {
        let scene = Scene::new()?;
        let daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let mut target = Target::spawn(Fixture::Triggers, ["--threads", "2"])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid, "--mode", mode])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        // A call every 10 ms, for longer than the recording takes.
        target.send("rate 6000 60000")?;
        let path = scene.path("quick.xtrace").display().to_string();
        cli.ok([
            "record",
            &pid,
            "--function",
            "quick",
            "--duration",
            "500ms",
            "-o",
            &path,
        ])?;
        let report = cli.json(["report", &path, "--table"])?;
        ensure!(report["trace"]["completeness"] == "complete", "{report}");
        let table = rows(&report["table"], "rows")?;
        let names: Vec<&Value> = table.iter().map(|row| &row["function"]).collect();
        ensure!(names == ["quick"], "{mode}: {names:?}");
        // The functions of other clients stay on.
        let status = cli.json(["status"])?;
        let on = rows(&status, "processes")?
            .first()
            .map(|row| &row["functions_on"]);
        ensure!(on.and_then(Value::as_u64) >= Some(3), "{mode}: {status}");
        cli.ok(["detach", &pid])?;
    }
    Ok(())
}

/// Keeps all processors busy until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn begin() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..8 {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The times of a trace's entries and exits.
fn moments(trace: &Trace) -> Result<Vec<Ticks>> {
    let mut moments = Vec::new();
    for block in trace.blocks() {
        for event in block.events() {
            let event = event?;
            if matches!(event.body, EventBody::Call { .. }) {
                moments.push(event.ticks);
            }
        }
    }
    Ok(moments)
}

/// The time of a recording of one process. Checks that every event of the recording is in it.
fn window(path: &Path) -> Result<(Trace, RecordingWindow, (Ticks, Ticks))> {
    let trace = trace::read(path)?;
    let &[window] = trace.coverage().recordings.as_slice() else {
        anyhow::bail!("it says nothing of its time")
    };
    let time = (
        window.since.context("no begin")?,
        window.until.context("no end")?,
    );
    let moments = moments(&trace)?;
    ensure!(moments.len() > 100, "{moments:?}");
    for at in moments {
        ensure!(at >= time.0 && at <= time.1, "{at:?} in {window:?}");
    }
    Ok((trace, window, time))
}

/// Another client has the same functions on, and the processors are busy, so that the end of a
/// recording is handled late. By the timestamps of its events, the recording has exactly the
/// requested time, or the time until Ctrl-C.
#[test]
fn a_recording_has_exactly_its_time_whatever_the_machine_does() -> Result<()> {
    const ASKED_NS: u64 = 500_000_000;
    for mode in ["flight", "stream"] {
        let scene = Scene::new()?;
        let daemon = scene.daemon()?;
        let cli = scene.with(&daemon)?;
        let target = Target::spawn(Fixture::Triggers, ["--threads", "4"])?;
        let pid = target.pid().to_string();
        cli.ok(["attach", &pid, "--mode", mode])?;
        cli.ok(["enable", "--pid", &pid, "--all"])?;
        let _load = Load::begin();

        let path = scene.path("timed.xtrace");
        let file = path.display().to_string();
        cli.ok(["record", &pid, "--all", "-o", &file, "--duration", "500ms"])?;
        let (timed, excluded, time) = window(&path)?;
        let ns = |ticks| timed.clock().monotonic_ns(ticks);
        let lasted = ns(time.1) - ns(time.0);
        ensure!(
            lasted.abs_diff(ASKED_NS) < ASKED_NS / 1000,
            "{mode}: {lasted} ns"
        );
        if mode == "stream" {
            // The daemon has retained the events of that time, and those before and after it.
            let all = scene.path("all.xtrace");
            cli.ok(["snapshot", "--pid", &pid, "-o", &all.display().to_string()])?;
            let all = moments(&trace::read(&all)?)?;
            let within = all.iter().filter(|at| **at >= time.0 && **at <= time.1);
            let recorded = moments(&timed)?.len() as u64 + excluded.earlier_exits;
            ensure!(
                within.count() as u64 == recorded && recorded < all.len() as u64,
                "{recorded} events of {}, {excluded:?}",
                all.len()
            );
        }

        let path = scene.path("stopped.xtrace");
        let file = path.display().to_string();
        let mut recording = cli.start(["record", &pid, "--all", "-o", &file])?;
        recording.until("events come", || {
            let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            Ok((bytes > 4096).then_some(()))
        })?;
        recording.signal(Signal::SIGINT)?;
        let ran = recording.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        let (_, _, later) = window(&path)?;
        ensure!(later.0 > time.1, "{later:?} after {time:?}");
        cli.ok(["detach", &pid])?;
    }
    Ok(())
}

/// In flight mode, the drain does not read the rings. Values of registers in them are no
/// events.
#[test]
fn values_do_not_count_as_events_in_flight() -> Result<()> {
    const CALLS: u64 = 20_000;
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Triggers, [""; 0])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "flight"])?;
    cli.ok(["enable", "--pid", &pid, "--all", "--args", "2"])?;
    target.ask(&format!("quick {CALLS}"), "quick")?;
    let mut before = 0;
    let events = wait_until(DEADLINE, "all of them are told", || {
        let status = cli.json(["status"])?;
        let row = rows(&status, "processes")?.first().cloned();
        let events = row.context("a process")?["events"].as_u64().unwrap_or(0);
        let still = events > CALLS && events == std::mem::replace(&mut before, events);
        Ok(still.then_some(events))
    })?;
    // An entry and an exit each.
    ensure!(
        events.abs_diff(2 * CALLS) < CALLS / 2,
        "{events} events of {CALLS} calls"
    );
    cli.ok(["detach", &pid])?;
    Ok(())
}
