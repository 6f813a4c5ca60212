//! A recording that is killed.

use std::fs;

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;

use super::{COUNTED, record};
use crate::scene::{Scene, all_on, ensure_as_compiled, ensure_nothing_left, rows};
use crate::trace::ensure_exact;

/// A killed recording cannot clean up, so the daemon does it. An attached process stays attached,
/// with the functions that other clients have enabled.
#[test]
fn a_killed_recording_leaves_a_process_as_it_was() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    for (more, attached) in [
        (&["--force"][..], false),
        (&["--force", "--follow", "fork"], false),
        (&["--force"], true),
    ] {
        let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
        let pid = target.pid().to_string();
        let before = ProcessState::of(target.pid())?;
        if attached {
            cli.ok(["attach", &pid])?;
            cli.ok(["enable", "--function", "work::even"])?;
        }
        let running = record(&cli, &target, more)?;
        running.signal(Signal::SIGKILL)?;
        let ran = running.wait()?;
        ensure!(ran.code.is_none(), "{ran:?}");
        wait_until(DEADLINE, "it was undone", || {
            let status = cli.json(["status"])?;
            let on: Vec<_> = rows(&status, "processes")?
                .iter()
                .map(|row| row["functions_on"].as_u64())
                .collect();
            let wanted = if attached { vec![Some(1)] } else { vec![] };
            Ok((on == wanted).then_some(()))
        })?;
        if attached {
            cli.ok(["detach", &pid])?;
        }
        ensure_as_compiled(&target)?;
        ensure_nothing_left(&before, target.pid())?;
        target.still_running()?;
    }
    Ok(())
}

/// The recorder itself is killed. The process goes on, and can be recorded again.
#[test]
fn a_killed_recorder_leaves_a_readable_file_and_a_process_that_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, COUNTED)?;
    let running = record(&cli, &target, &[])?;
    running.signal(Signal::SIGKILL)?;
    ensure!(running.wait()?.code.is_none());
    let report = cli.json(["report", "f.xtrace"])?;
    ensure!(report["trace"]["completeness"] != "complete", "{report}");
    // All functions are still on. A file with content shows that the recording has begun.
    let second = scene.path("second.xtrace");
    let mut running = cli.start(["record", &target.pid().to_string(), "-o", "second.xtrace"])?;
    running.until("the recording has begun", || {
        let begun = fs::metadata(&second).is_ok_and(|file| file.len() > 0);
        Ok(if begun { all_on(&target)? } else { None })
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_exact(&second, &truth)?;
    ensure_as_compiled(&target)
}
