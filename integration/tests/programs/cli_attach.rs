//! `xrayctl attach`: its output, and its leftovers after Ctrl-C.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{
    Cli, Daemon, Running, Scene, all_on, ensure_as_compiled, row_of, rows, sleds_on,
};

const INTERRUPT: u64 = 1 << (Signal::SIGINT as u64 - 1);

/// One signal ends an `attach` to a daemon that does not answer.
fn ended_by(signal: Signal, daemon: &Daemon, cli: &Cli, pid: &str) -> Result<()> {
    daemon.stand_still()?;
    let mut running = Running::start(cli.command(["attach", pid]))?;
    let own = running.pid();
    running.until("signals are held", || {
        let state = ProcessState::of(own)?;
        let main = state.threads.get(&own).context("no main thread")?;
        Ok((main.caught & INTERRUPT != 0).then_some(()))
    })?;
    running.signal(signal)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
    ensure!(ran.err.contains("interrupted: "), "{ran:?}");
    daemon.signal(Signal::SIGCONT)
}

#[test]
fn an_attach_ends_at_the_first_signal_and_is_undone_by_the_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, [] as [&str; 0])?;
    let pid = target.pid().to_string();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        ended_by(signal, &daemon, &cli, &pid)?;
        wait_until(DEADLINE, "the process is not attached", || {
            let status = cli.json(["status"])?;
            Ok(rows(&status, "processes")?.is_empty().then_some(()))
        })?;
    }
    ensure_as_compiled(&target)?;
    target.still_running()
}

#[test]
fn an_attached_process_is_reported_and_stays_attached_after_ctrl_c() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, [] as [&str; 0])?;
    let pid = target.pid().to_string();
    let first = cli.ok(["attach", &pid])?;
    ensure!(!first.contains("already"), "{first}");
    let again = cli.ok(["attach", &pid])?;
    ensure!(
        again.contains(": was attached already, ") && again.lines().count() == 1,
        "{again}"
    );
    let other = cli.ok(["attach", &pid, "--ring-size", "64KiB"])?;
    ensure!(
        other.contains(
            "the process keeps its rings of 1024 KiB for 1024 threads from an earlier attach"
        ),
        "{other}"
    );
    ended_by(Signal::SIGINT, &daemon, &cli, &pid)?;
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_some(), "{status}");
    Ok(())
}

/// A selection that matches nothing leaves the process as it was: unattached, or attached.
#[test]
fn an_attach_with_selectors_also_switches_on_and_without_a_match_does_neither() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, [] as [&str; 0])?;
    let pid = target.pid().to_string();
    let parts = ["nothing matched", "did you mean work::intake"];
    let misspelt = ["attach", &pid, "--function", "work::intaek"];
    cli.run(misspelt)?.failed(3, &parts)?;
    let status = cli.json(["status"])?;
    ensure!(rows(&status, "processes")?.is_empty(), "{status}");
    ensure_as_compiled(&target)?;
    cli.run(["attach", &pid, "--except-id", "1"])?
        .failed(2, &["no functions are selected"])?;

    let attached = cli.ok(["attach", &pid, "--function", "work::intake"])?;
    ensure!(
        attached.starts_with(&format!(
            "{pid}: attached, 1 function switched on of 1 matched ("
        )) && attached.lines().count() == 1,
        "{attached}"
    );
    ensure!(sleds_on(&target)? >= 2);
    let again = cli.json(["attach", &pid, "--glob", "work::*"])?;
    ensure!(again["report"]["already"] == true, "{again}");
    let enabled = &rows(&again, "enabled")?[0];
    ensure!(
        enabled["matched"].as_u64() > Some(1)
            && again["status"]["functions_on"] == enabled["matched"],
        "{again}"
    );
    let before = sleds_on(&target)?;
    cli.run(misspelt)?.failed(3, &parts)?;
    ensure!(sleds_on(&target)? == before);
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_some(), "{status}");
    cli.ok(["detach", &pid])?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

#[test]
fn a_command_with_several_processes_does_each_and_reports_the_one_that_fails() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let targets = [
        Target::spawn(Fixture::Counted, [] as [&str; 0])?,
        Target::spawn(Fixture::Counted, [] as [&str; 0])?,
    ];
    let [first, second] = [&targets[0], &targets[1]].map(|target| target.pid().to_string());
    let nobody = u32::MAX.to_string();
    let attach = ["attach", &first, &nobody, &second, "--all", "--json"];
    let ran = cli.run(attach)?;
    ensure!(ran.code == Some(4), "{ran:?}");
    ensure!(
        ran.err.contains(&format!("xrayctl: {nobody}: ")) && ran.err.contains("1 of 3 processes"),
        "{ran:?}"
    );
    let attached: Value = serde_json::from_str(&ran.out)?;
    ensure!(rows(&attached, "processes")?.len() == 2, "{attached}");
    for target in &targets {
        ensure!(all_on(target)?.is_some());
    }
    let status = cli.json(["status", "-p", &second, "--pid", &first])?;
    let rows = rows(&status, "processes")?;
    ensure!(rows.len() == 2 && rows[0]["pid"] == targets[1].pid());
    let modes = cli.ok(["mode", "stream", &first, &second])?;
    ensure!(modes.matches(": stream; before: flight\n").count() == 2);
    let ran = cli.run(["detach", &nobody, &first, &second])?;
    ensure!(ran.code == Some(4), "{ran:?}");
    ensure!(ran.out.matches(": detached; ").count() == 2, "{ran:?}");
    for target in &targets {
        ensure_as_compiled(target)?;
    }
    Ok(())
}
