//! `xrayctl daemon restart`: the daemon executes its program anew, and goes on with all processes.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, Target};

use crate::scene::{NOBODY, Scene, all_on, ensure_as_compiled, row_of};
use crate::trace::ensure_exact;

#[test]
fn a_restarted_daemon_goes_on_with_its_processes() -> Result<()> {
    let scene = Scene::new()?;
    let state = scene.path("state");
    let daemon = scene.daemon_with(&["--state-dir", state.to_str().context("no text")?])?;
    let cli = scene.with(&daemon)?;
    // Without processes.
    let out = cli.ok(["daemon", "restart"])?;
    ensure!(out.contains("no process was traced"), "{out}");
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let mut daemons = Vec::new();
    for _ in 0..3 {
        let restarted = cli.json(["daemon", "restart"])?;
        ensure!(
            restarted["processes"] == serde_json::json!([pid]),
            "{restarted}"
        );
        ensure!(restarted["left"] == serde_json::json!([]), "{restarted}");
        daemons.push(restarted["daemon_pid"].clone());
        ensure!(all_on(&target)?.is_some(), "{}", daemon.log());
    }
    // It is the same process.
    daemons.dedup();
    ensure!(daemons.len() == 1, "{daemons:?}");
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let out = cli.ok(["daemon", "restart"])?;
    ensure!(out.contains("1 process is traced as before"), "{out}");
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
    let row = row_of(&cli.json(["status"])?, pid)?
        .context("not attached")?
        .clone();
    ensure!(row["mode"] == "stream", "{row:#}");
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

#[test]
fn a_daemon_without_state_does_not_restart() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let target = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    cli.ok(["attach", &target.pid().to_string()])?;
    cli.run(["daemon", "restart"])?.refused("no-state")?;
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, target.pid())?.is_some(), "{status}");
    Ok(())
}

#[test]
fn only_root_and_the_daemons_user_restart_it() -> Result<()> {
    if !integration::is_root_for("only_root_and_the_daemons_user_restart_it")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let state = scene.path("state");
    let daemon = scene.daemon_with(&["--state-dir", state.to_str().context("no text")?])?;
    let nobody = scene.with(&daemon)?.as_user(NOBODY);
    nobody.run(["daemon", "restart"])?.refused("permission")?;
    ensure!(
        daemon.log().matches("listening").count() == 1,
        "{}",
        daemon.log()
    );
    Ok(())
}
