//! The end of a trigger: it leaves nothing behind, and a client that stands still blocks
//! nothing.

use anyhow::{Result, ensure};
use integration::{DEADLINE, ProcessState, wait_until};
use nix::sys::signal::Signal;

use super::{Stage, Told};
use crate::scene::{ensure_as_compiled, sleds_on};

/// For a request to end and for a kill.
#[test]
fn nothing_is_left_of_a_trigger_that_ends() -> Result<()> {
    let stage = Stage::new("1")?;
    let before = ProcessState::of(stage.target.pid())?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let running =
            stage.trigger(&["--when", "duration(*) > 10s", "-o", "x.xtrace", "--force"])?;
        ensure!(sleds_on(&stage.target)? > 0);
        running.signal(signal)?;
        let ran = running.wait()?;
        ensure!(
            (ran.code == Some(0)) == (signal != Signal::SIGKILL),
            "{ran:?}"
        );
        stage.ensure_nothing_left()?;
        if signal != Signal::SIGKILL {
            ensure!(!stage.path("x.xtrace").exists());
        }
    }
    ensure!(ProcessState::of(stage.target.pid())?.descriptors == before.descriptors);
    stage.cli.ok(["detach", &stage.pid])?;
    ensure_as_compiled(&stage.target)
}

/// A process that is detached while a trigger is armed in it is as compiled, and the trigger ends.
#[test]
fn a_detach_ends_it() -> Result<()> {
    let stage = Stage::new("1")?;
    let running = stage.trigger(&["--when", "duration(*) > 10s", "-o", "x"])?;
    stage.cli.ok(["detach", &stage.pid])?;
    let (code, reported) = Told::of(running)?;
    ensure!(code == Some(3), "{reported:?}");
    reported.over("ended")?;
    ensure!(
        reported.all("ended").is_empty(),
        "nobody has died: {reported:?}"
    );
    ensure_as_compiled(&stage.target)
}

/// The daemon does not wait for a client that stands still. The process goes on, and its calls are
/// counted.
#[test]
fn a_client_that_does_not_read_holds_nothing_up() -> Result<()> {
    let mut stage = Stage::new("1")?;
    stage.cli.ok(["enable", "--function", "tick"])?;
    let arguments = [
        "--when",
        "call(quick)",
        "--limit",
        "1000",
        "--after",
        "0s",
        "-o",
        "many",
    ];
    let running = stage.trigger(&arguments)?;
    running.stand_still()?;
    stage.target.ask("quick 3000", "quick")?;
    stage.target.ask("quick 3000", "quick")?;
    ensure!(stage.armed()? == 1);
    running.signal(Signal::SIGKILL)?;
    wait_until(DEADLINE, "the trigger has let go", || {
        Ok((stage.armed()? == 0).then_some(()))
    })?;
    stage.target.still_running()
}
