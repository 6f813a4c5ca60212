//! Triggers that are refused: contradictory conditions, and processes of other users.

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target};

use super::Stage;
use crate::scene::{NOBODY, Scene, row_of};

/// Errors are found before the wait begins.
#[test]
fn contradictory_conditions_are_refused_at_once() -> Result<()> {
    let stage = Stage::new("0")?;
    for (arguments, code, expected) in [
        (
            vec!["--when", "duration(slow) < 1s", "-o", "x"],
            2,
            "column 16: expected > or >=",
        ),
        (
            vec!["--when", "duration(slow) > 10", "-o", "x"],
            2,
            "column 18: expected a unit behind the number: write `> 10ms`",
        ),
        (vec!["--when", "call(slow)"], 2, "a snapshot needs --output"),
        (
            vec!["--when", "call(slow)", "--do", "exec true", "-o", "x"],
            2,
            "is for snapshots",
        ),
        (
            vec!["--when", "call(nothing)", "-o", "x"],
            3,
            "call(nothing): nothing matched",
        ),
        (vec!["--when", "death", "-o", "no/such/x"], 1, "no/such/x"),
        (
            vec!["--when", "death", "--after", "61s", "-o", "x"],
            4,
            "at most 60s",
        ),
        (
            vec!["--when", "death", "--pid", "1", "-o", "x"],
            4,
            "not attached",
        ),
    ] {
        let ran = stage.cli.run([&["trigger"][..], &arguments].concat())?;
        ensure!(
            ran.code == Some(code) && ran.err.contains(expected),
            "{arguments:?}: {ran:?}"
        );
        ensure!(!stage.path("x").exists());
    }
    ensure!(stage.armed()? == 0);
    stage.cli.ok(["detach", "--all"])?;
    let ran = stage.cli.run(["trigger", "--when", "death", "-o", "x"])?;
    ran.failed(3, &["no process is attached"])?;
    let ran = stage.cli.run(["snapshot", "--all-processes", "-o", "x"])?;
    ran.failed(3, &["no process is attached"])
}

/// A user gets no events of other users' processes, and does not learn that they exist.
#[test]
fn a_user_waits_for_what_is_the_users_own() -> Result<()> {
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let (root, user) = (scene.with(&daemon)?, scene.with(&daemon)?.as_user(NOBODY));
    let mut target = Target::spawn(Fixture::Triggers, ["--threads", "0"])?;
    let pid = target.pid().to_string();
    root.ok(["attach", &pid])?;
    let when = ["trigger", "--when", "call(quick)", "--do", "exec true"];
    user.run([&when[..], &["--pid", &pid]].concat())?
        .refused("permission")?;
    user.run(when)?.failed(3, &["no process is attached"])?;
    user.run(["snapshot", "--all-processes", "-o", "/dev/null"])?
        .failed(3, &["no process is attached"])?;
    target.ask("quick 1", "quick")?;
    let status = root.json(["status"])?;
    let row = row_of(&status, target.pid())?.context("no row")?;
    ensure!(row["triggers"] == 0 && row["functions_on"] == 0, "{row}");
    Ok(())
}
