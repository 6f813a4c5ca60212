//! `xrayctl attach`: what it says, and what is left of it after Ctrl-C.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{Cli, Daemon, Running, Scene, ensure_as_compiled, row_of, rows};

const SAID: &str = "xrayctl: attaching is under way";
const INTERRUPT: u64 = 1 << (Signal::SIGINT as u64 - 1);

/// An `attach` that the daemon does not answer, interrupted once.
fn interrupted(daemon: &Daemon, cli: &Cli, pid: &str) -> Result<Running> {
    daemon.stand_still()?;
    let mut running = Running::start(cli.command(["attach", pid]))?;
    let own = running.pid();
    running.until("signals are held", || {
        let state = ProcessState::of(own)?;
        let main = state.threads.get(&own).context("no main thread")?;
        Ok((main.caught & INTERRUPT != 0).then_some(()))
    })?;
    running.signal(Signal::SIGINT)?;
    wait_until(DEADLINE, "the first Ctrl-C is answered", || {
        Ok(running.said()?.contains(SAID).then_some(()))
    })?;
    Ok(running)
}

#[test]
fn ctrl_c_undoes_an_attach_that_is_under_way() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, [] as [&str; 0])?;
    let pid = target.pid().to_string();

    let running = interrupted(&daemon, &cli, &pid)?;
    daemon.signal(Signal::SIGCONT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
    ensure!(ran.err.contains("was let go of again\n"), "{ran:?}");
    let status = cli.json(["status"])?;
    ensure!(rows(&status, "processes")?.is_empty(), "{status}");

    // Who does not want to wait for the daemon is told what to do.
    let running = interrupted(&daemon, &cli, &pid)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
    let remedy = format!("`xrayctl detach {pid}` undoes it\n");
    ensure!(ran.err.ends_with(&remedy), "{ran:?}");
    daemon.signal(Signal::SIGCONT)?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

#[test]
fn what_was_attached_before_is_told_and_stays_so_after_ctrl_c() -> Result<()> {
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
            "the process has rings of 1024 KiB for 1024 threads from an earlier attach; they stay"
        ),
        "{other}"
    );
    let running = interrupted(&daemon, &cli, &pid)?;
    daemon.signal(Signal::SIGCONT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(1), "{ran:?}");
    ensure!(
        ran.err.contains("was attached before, and stays so"),
        "{ran:?}"
    );
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_some(), "{status}");
    Ok(())
}
