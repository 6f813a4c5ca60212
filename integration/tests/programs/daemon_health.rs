//! `xrayctl status --check`.

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};

use crate::scene::{Scene, rows};

/// A process that loses events is a problem, and one that is merely attached is not.
#[test]
fn a_check_prints_only_problems() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    cli.run(["status", "--check"])?
        .failed(5, &["no daemon answers"])?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let text = cli.ok(["status", "--check"])?;
    ensure!(text == "no problem; 0 processes attached\n", "{text}");
    let mut target = Target::spawn(Fixture::Budget, ["--threads", "4"])?;
    let pid = target.pid().to_string();
    let attach = [
        "attach",
        &pid,
        "--mode",
        "stream",
        "--ring-size",
        "64KiB",
        "--all",
    ];
    cli.ok(attach)?;
    let text = cli.ok(["status", "--check", "--pid", &pid])?;
    ensure!(text == "no problem; 1 process attached\n", "{text}");
    let checked = cli.json(["status", "--check"])?;
    ensure!(
        rows(&checked, "problems")?.is_empty() && checked["processes"] == 1,
        "{checked}"
    );
    // More than the daemon can read.
    target.ask("go", "go")?;
    let told = wait_until(DEADLINE, "losses", || {
        let ran = cli.run(["status", "--check"])?;
        Ok((ran.code != Some(0)).then_some(ran))
    })?;
    told.failed(7, &["1 problem found"])?;
    ensure!(told.out.contains(&format!("{pid}: it loses ")), "{told:?}");
    let ran = cli.run(["status", "--check", "--modules"])?;
    ensure!(
        ran.code == Some(2) && ran.err.contains("cannot be used with"),
        "{ran:?}"
    );
    // Losses of the past are no problem.
    target.ask("stop", "stop")?;
    wait_until(DEADLINE, "no losses", || {
        Ok((cli.run(["status", "--check"])?.code == Some(0)).then_some(()))
    })?;
    cli.ok(["detach", &pid])?;
    target.still_running()
}
