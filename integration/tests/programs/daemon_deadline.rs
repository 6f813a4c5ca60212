//! Recording closes itself when no daemon moves its deadline. A daemon that comes opens it again.

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, Target, close_recording, has_closed, opens_map_files, pass_deadline,
    slot_owners, wait_until,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Cli, Scene, all_on, ensure_as_compiled, row_of, send};

/// Calls before recording is closed, while it is closed, and after it was opened.
const BEFORE: usize = 300;
const MEANWHILE: usize = 2000;
const AFTER: usize = 500;

/// Has a quiet thread of the program make so many calls.
fn burst(target: &mut Target, calls: usize) -> Result<()> {
    target.ask(&format!("burst {calls}"), "done").map(drop)
}

/// The recorded calls of the function that bursts call.
fn recorded(cli: &Cli, scene: &Scene) -> Result<(Value, u64)> {
    cli.ok(["snapshot", "--force", "-o", "deadline.xtrace"])?;
    let trace = scene.path("deadline.xtrace");
    let trace = trace.to_str().context("no text")?;
    let report = cli.json(["report", trace])?;
    let functions = report["table"]["rows"].as_array().context("no rows")?;
    let beat = functions.iter().find(|row| row["function"] == "beat");
    let calls = beat.and_then(|row| row["calls"].as_u64()).unwrap_or(0);
    Ok((cli.json(["info", trace])?, calls))
}

fn gaps(cli: &Cli, pid: i32) -> Result<Vec<Value>> {
    let status = cli.json(["status"])?;
    let row = row_of(&status, pid)?.context("not attached")?;
    Ok(row["gaps"].as_array().cloned().unwrap_or_default())
}

#[test]
fn recording_closes_itself_when_no_daemon_comes() -> Result<()> {
    for mode in ["stream", "flight"] {
        let scene = Scene::new()?;
        let state = scene.path("state");
        let options = ["--state-dir", state.to_str().context("no text")?];
        let first = scene.daemon_with(&options)?;
        let cli = scene.with(&first)?;
        let mut target = Target::spawn(Fixture::Quiet, ["--threads", "3"])?;
        let pid = target.pid();
        cli.ok(["attach", &pid.to_string(), "--mode", mode])?;
        cli.ok(["enable", "--all"])?;
        // What a drain has read is lost with its daemon. In flight, no drain reads.
        let flies = mode == "flight";
        if flies {
            burst(&mut target, BEFORE)?;
        }
        ensure!(!has_closed(pid)?);
        first.kill()?;
        if flies {
            pass_deadline(pid)?;
        }
        wait_until(DEADLINE, "recording is closed", || {
            Ok(has_closed(pid)?.then_some(()))
        })?;
        all_on(&target)?.context("sleds have changed")?;
        burst(&mut target, MEANWHILE)?;
        let second = scene.daemon_with(&options)?;
        cli.json(["status"])?;
        ensure!(!has_closed(pid)?, "{}", second.log());
        burst(&mut target, AFTER)?;
        let (info, calls) = recorded(&cli, &scene)?;
        let before = match flies && opens_map_files()? {
            true => BEFORE,
            false => 0,
        };
        ensure!(
            calls == (before + AFTER) as u64,
            "{mode}: {calls} calls: {info}"
        );
        let gaps = gaps(&cli, pid)?;
        ensure!(gaps.len() == 1, "{gaps:?}");
        if opens_map_files()? {
            let (from, to) = (gaps[0]["from_ns"].as_u64(), gaps[0]["to_ns"].as_u64());
            ensure!(
                from.context("no begin")? < to.context("no end")?,
                "{gaps:?}"
            );
        }
        let text = cli.ok(["info", "deadline.xtrace"])?;
        ensure!(
            text.contains("an unknown number of events was lost"),
            "{text}"
        );
        cli.ok(["detach", "--all"])?;
        ensure_as_compiled(&target)?;
        target.still_running()?;
    }
    Ok(())
}

/// The daemon stands still, as on a machine without memory, and comes back.
#[test]
fn a_daemon_that_comes_too_late_opens_recording_again() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Quiet, ["--threads", "3"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    burst(&mut target, BEFORE)?;
    send(daemon.pid(), Signal::SIGSTOP)?;
    pass_deadline(pid)?;
    // The first call of a quiet thread takes the slow path.
    wait_until(DEADLINE, "recording is closed", || {
        Ok(has_closed(pid)?.then_some(()))
    })?;
    burst(&mut target, MEANWHILE)?;
    send(daemon.pid(), Signal::SIGCONT)?;
    let open = || {
        wait_until(DEADLINE, "recording is open", || {
            Ok((!has_closed(pid)?).then_some(()))
        })
    };
    open()?;
    burst(&mut target, AFTER)?;
    let (info, calls) = recorded(&cli, &scene)?;
    ensure!(calls == (BEFORE + AFTER) as u64, "{calls} calls: {info}");
    ensure!(gaps(&cli, pid)?.len() == 1);

    // A program that writes there itself changes nothing but its own trace.
    for at in [1, u64::MAX] {
        close_recording(pid, at)?;
        open()?;
    }
    let reported = gaps(&cli, pid)?;
    ensure!(reported.len() == 3, "{reported:?}");
    let is_odd = |gap: &&Value| gap["from_ns"].as_u64() > gap["to_ns"].as_u64();
    ensure!(!reported.iter().any(|gap| is_odd(&gap)), "{reported:?}");
    burst(&mut target, AFTER)?;
    let (info, calls) = recorded(&cli, &scene)?;
    ensure!(
        calls == (BEFORE + 2 * AFTER) as u64,
        "{calls} calls: {info}"
    );
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

/// A thread that calls all the time has its own ring again, and not a second one.
#[test]
fn a_busy_thread_goes_on_in_its_ring() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Quiet, ["--threads", "3", "--busy", "yes"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "flight"])?;
    cli.ok(["enable", "--all"])?;
    let owners = || {
        let mut owners = slot_owners(pid)?;
        owners.retain(|owner| *owner != 0);
        owners.sort_unstable();
        anyhow::Ok(owners)
    };
    let all_there = || {
        wait_until(DEADLINE, "each thread has a slot", || {
            let owners = owners()?;
            Ok((owners.len() == 4).then_some(owners))
        })
    };
    let before = all_there()?;
    for _ in 0..5 {
        send(daemon.pid(), Signal::SIGSTOP)?;
        pass_deadline(pid)?;
        wait_until(DEADLINE, "recording is closed", || {
            Ok(has_closed(pid)?.then_some(()))
        })?;
        send(daemon.pid(), Signal::SIGCONT)?;
        wait_until(DEADLINE, "each thread has its slot again", || {
            Ok((!has_closed(pid)? && owners()? == before).then_some(()))
        })?;
    }
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}
