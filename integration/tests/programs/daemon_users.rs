//! Permissions: root's daemon and other users, and users on their own.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, ProcessState, Target, copy_into, wait_until};
use nix::sys::signal::Signal;

use crate::scene::{NOBODY, Scene, all_on, ensure_as_compiled, row_of, rows};
use crate::trace::ensure_exact;

/// A program that the user owns.
pub(crate) fn spawn_as_nobody(scene: &Scene, args: &[&str]) -> Result<Target> {
    let dir = scene.path("programs");
    std::fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(Fixture::Counted, &dir)?);
    command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/");
    Target::spawn_command(command)
}

#[test]
fn roots_daemon_serves_each_user_their_own() -> Result<()> {
    if !integration::is_root_for("roots_daemon_serves_each_user_their_own")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    let nobody = root.as_user(NOBODY);
    let roots = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let mut own = spawn_as_nobody(&scene, &["--threads", "2", "--calls", "200"])?;
    let (roots_pid, own_pid) = (roots.pid().to_string(), own.pid().to_string());
    let before = ProcessState::of(roots.pid())?;

    let listing = nobody.json(["ps"])?;
    ensure!(row_of(&listing, own.pid())?.is_some(), "{listing}");
    ensure!(
        rows(&listing, "processes")?
            .iter()
            .all(|row| row["uid"] == NOBODY),
        "{listing}"
    );
    ensure!(row_of(&root.json(["ps"])?, own.pid())?.is_some());
    ensure!(row_of(&root.json(["ps"])?, roots.pid())?.is_some());

    let refused = |pid: &str| -> Result<()> {
        for command in [
            &["doctor", pid][..],
            &["attach", pid],
            &["functions", "--pid", pid],
            &["enable", "--pid", pid, "--all"],
            &["disable", "--pid", pid, "--all"],
            &["status", "--pid", pid],
            &["detach", pid],
        ] {
            nobody
                .run(command)?
                .refused("permission")
                .with_context(|| format!("{command:?}"))?;
        }
        Ok(())
    };
    refused(&roots_pid)?;
    ensure!(ProcessState::of(roots.pid())? == before);
    // Nor after root has attached it.
    root.ok(["attach", &roots_pid])?;
    root.ok(["enable", "--all"])?;
    refused(&roots_pid)?;
    ensure!(rows(&nobody.json(["status"])?, "processes")?.is_empty());
    nobody
        .run(["enable", "--all"])?
        .failed(3, &["nothing matched"])?;
    ensure!(
        nobody
            .ok(["detach", "--all"])?
            .contains("no process is attached")
    );
    all_on(&roots)?.context("somebody switched root's functions off")?;

    nobody.ok(["attach", &own_pid])?;
    nobody.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&own.ask("go", "result ")?)?;
    nobody.ok(["disable", "--all"])?;
    integration::wait_until(integration::DEADLINE, "all events are counted", || {
        let status = nobody.json(["status"])?;
        Ok((status["processes"][0]["events"] == truth.events()).then_some(()))
    })?;
    let status = nobody.json(["status"])?;
    ensure!(rows(&status, "processes")?.len() == 1, "{status}");
    // Root sees both processes.
    ensure!(rows(&root.json(["status"])?, "processes")?.len() == 2);
    root.ok(["snapshot", "--pid", &own_pid, "-o", "f"])?;
    ensure_exact(&scene.path("f"), &truth)?;
    let detached = nobody.json(["detach", "--all"])?;
    ensure!(rows(&detached, "processes")?.len() == 1, "{detached}");
    ensure!(
        detached["processes"][0]["text_bytes_different"] == 0,
        "{detached}"
    );
    ensure_as_compiled(&own)?;
    all_on(&roots)?.context("root's functions are off")
}

/// Each process of the caller's own, in any state, and no other user's.
#[test]
fn detach_all_means_all_that_the_caller_may_trace() -> Result<()> {
    if !integration::is_root_for("detach_all_means_all_that_the_caller_may_trace")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    let first = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let second = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let mut gone = Target::spawn(Fixture::Counted, ["--threads", "1"])?;
    let foreign = spawn_as_nobody(&scene, &["--threads", "1"])?;
    for target in [&first, &second, &gone, &foreign] {
        root.ok(["attach", &target.pid().to_string()])?;
    }
    root.ok(["enable", "--all"])?;
    let gone_pid = gone.pid();
    gone.kill()?;
    wait_until(DEADLINE, "the end is seen", || {
        let status = root.json(["status"])?;
        let row = row_of(&status, gone_pid)?.context("no row")?;
        Ok((row["state"] == "exited").then_some(()))
    })?;

    let detached = root.as_user(NOBODY).json(["detach", "--all"])?;
    let listed = rows(&detached, "processes")?;
    ensure!(
        listed.len() == 1 && listed[0]["pid"] == foreign.pid() && listed[0]["exited"] == false,
        "{detached}"
    );
    ensure_as_compiled(&foreign)?;
    all_on(&first)?.context("root's functions are off")?;

    let shown = root.ok(["detach", "--all"])?;
    ensure!(
        shown.contains(&format!("{gone_pid}: had already ended; ")),
        "{shown}"
    );
    for target in [&first, &second] {
        ensure!(
            shown.contains(&format!("{}: detached; ", target.pid())),
            "{shown}"
        );
        ensure_as_compiled(target)?;
    }
    ensure!(shown.matches("  proof: ").count() == 4, "{shown}");
    ensure!(rows(&root.json(["status"])?, "processes")?.is_empty());
    Ok(())
}

/// Without a daemon and without any capability.
#[test]
fn a_user_records_a_program_of_their_own() -> Result<()> {
    if !integration::is_root_for("a_user_records_a_program_of_their_own")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let out = scene.path("out");
    std::fs::create_dir(&out)?;
    std::os::unix::fs::chown(&out, Some(NOBODY), Some(NOBODY))?;
    let nobody = scene.alone()?.as_user(NOBODY);
    let mut own = spawn_as_nobody(&scene, &["--threads", "2", "--calls", "200"])?;
    let own_pid = own.pid().to_string();
    let listing = nobody.json(["ps"])?;
    ensure!(
        row_of(&listing, own.pid())?.is_some_and(|row| row["state"] == "ready"),
        "{listing}"
    );
    let before = ProcessState::of(own.pid())?;
    let mut running = nobody.start(["record", &own_pid, "-o", "out/f"])?;
    running.until("everything is on", || all_on(&own))?;
    ensure!(ProcessState::of(own.pid())? == before);
    let truth = GroundTruth::parse(&own.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_exact(&scene.path("out/f"), &truth)?;
    ensure_as_compiled(&own)?;

    let roots = Target::spawn(Fixture::Arg1, [""; 0])?;
    let pid = roots.pid().to_string();
    nobody
        .run(["record", &pid, "-o", "out/g"])?
        .refused("permission")?;
    nobody.run(["doctor", &pid])?.refused("permission")?;
    ensure!(!scene.path("out/g").exists());
    Ok(())
}
