//! `xrayctl attach`: its output, and its leftovers after Ctrl-C.

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{Cli, Daemon, Running, Scene, ensure_as_compiled, row_of, rows};

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
fn what_was_attached_before_is_reported_and_stays_so_after_ctrl_c() -> Result<()> {
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
