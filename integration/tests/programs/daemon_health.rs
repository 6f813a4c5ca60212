//! `xrayctl status --check`.

use anyhow::{Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};

use crate::scene::{Scene, rows};

/// A process that loses events needs a person, and one that is merely attached does not.
#[test]
fn a_check_tells_what_needs_a_person() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    cli.run(["status", "--check"])?
        .failed(5, &["no daemon answers"])?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let text = cli.ok(["status", "--check"])?;
    ensure!(
        text == "nothing needs a person; 0 processes attached\n",
        "{text}"
    );
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
    ensure!(
        text == "nothing needs a person; 1 process attached\n",
        "{text}"
    );
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
    told.failed(7, &["1 problem: somebody has to look after it"])?;
    ensure!(told.out.contains(&format!("{pid}: it loses ")), "{told:?}");
    let ran = cli.run(["status", "--check", "--modules"])?;
    ensure!(
        ran.code == Some(2) && ran.err.contains("cannot be used with"),
        "{ran:?}"
    );
    // What was lost needs nobody any more.
    target.ask("stop", "stop")?;
    wait_until(DEADLINE, "no losses", || {
        Ok((cli.run(["status", "--check"])?.code == Some(0)).then_some(()))
    })?;
    cli.ok(["detach", &pid])?;
    target.still_running()
}
