//! What is retained of processes that have ended outlives the daemon.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::Signal;

use crate::cli_follow::{child_of, is_traced, works};
use crate::daemon_quotas::program_of;
use crate::daemon_recovery::files_in;
use crate::daemon_retained::{daemon, read, status_of, with_files};
use crate::scene::{Cli, NOBODY, Scene, rows, send};
use crate::trace::ensure_exact;

/// Checks that the daemon keeps no record and no event for the next one.
fn nothing_is_kept(scene: &Scene) -> Result<()> {
    let kept = files_in(&scene.path("state"))?;
    ensure!(kept.is_empty(), "{kept:?}");
    Ok(())
}

fn has_ended(cli: &Cli, pid: i32) -> Result<()> {
    wait_until(DEADLINE, "the daemon has noticed the end", || {
        Ok((status_of(cli, pid)?["state"] == "exited").then_some(()))
    })
}

/// The process is killed after the daemon, or before it. Rings are read along, or keep their newest
/// events by themselves. The next daemons have its events until a detach.
#[test]
fn the_events_of_a_process_that_has_ended_are_retained() -> Result<()> {
    for (mode, daemon_first) in [("stream", true), ("stream", false), ("flight", false)] {
        let scene = Scene::new()?;
        let mut daemon = with_files(&scene)?;
        let cli = scene.with(&daemon)?;
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
        let pid = target.pid();
        cli.ok(["attach", &pid.to_string(), "--mode", mode])?;
        cli.ok(["enable", "--all"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        if mode == "stream" {
            read(&cli, pid, truth.events())?;
        }
        if daemon_first {
            daemon.kill()?;
            target.kill()?;
        } else {
            target.kill()?;
            has_ended(&cli, pid)?;
            daemon.kill()?;
        }
        for _ in 0..2 {
            daemon = with_files(&scene)?;
            let row = status_of(&cli, pid)?;
            let context = || format!("{mode} {daemon_first} {row:#} {}", daemon.log());
            ensure!(row["state"] == "exited", context());
            ensure!(row["retained_events"] == truth.events(), context());
            cli.ok(["snapshot", "--force", "-o", "t.xtrace"])?;
            ensure_exact(&scene.path("t.xtrace"), &truth).with_context(context)?;
            let functions = cli.json(["functions", "--pid", &pid.to_string()])?;
            ensure!(!rows(&functions, "functions")?.is_empty(), "{functions}");
            daemon.kill()?;
        }
        daemon = with_files(&scene)?;
        let detached = cli.json(["detach", &pid.to_string()])?;
        ensure!(detached["processes"][0]["exited"] == true, "{detached}");
        nothing_is_kept(&scene)?;
        daemon.kill()?;
    }
    Ok(())
}

/// A daemon that is executed anew keeps them in memory.
#[test]
fn a_daemon_that_is_executed_anew_has_the_events_of_ended_processes() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = daemon(&scene, &[])?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string()])?;
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    target.kill()?;
    has_ended(&cli, pid)?;
    cli.ok(["daemon", "restart"])?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
    cli.ok(["detach", "--all"])?;
    nothing_is_kept(&scene)?;
    Ok(())
}

/// Only users who could trace the process get its events from the next daemon.
#[test]
fn other_users_do_not_get_the_events_of_a_process_that_has_ended() -> Result<()> {
    if !integration::is_root_for("other_users_do_not_get_the_events_of_a_process_that_has_ended")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let first = with_files(&scene)?;
    let root = scene.with(&first)?;
    let mut target = program_of(&scene, NOBODY, Fixture::Counted, &["--threads", "1"])?;
    let pid = target.pid();
    let (owner, other) = (root.as_user(NOBODY), root.as_user(NOBODY - 1));
    owner.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    owner.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    read(&owner, pid, truth.events())?;
    first.kill()?;
    target.kill()?;
    let second = with_files(&scene)?;
    let functions = |cli: &Cli| cli.run(["functions", "--pid", &pid.to_string()]);
    functions(&other)?.refused("permission")?;
    ensure!(rows(&other.json(["status"])?, "processes")?.is_empty());
    let listed = functions(&owner)?;
    ensure!(listed.code == Some(0), "{listed:?} {}", second.log());
    Ok(())
}

/// The first process of a group has ended before its child. The next daemon has the events of both,
/// and goes on with the child by the choices that were made last.
#[test]
fn a_group_whose_first_process_has_ended_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let first = with_files(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Group, ["--survives", "1"])?;
    let root = target.pid();
    let pid = root.to_string();
    cli.ok(["attach", &pid, "--follow", "fork", "--mode", "stream"])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    let child = child_of(&mut target)?;
    is_traced(&cli, child)?;
    target.ask("calls 100", "done ")?;
    read(&cli, root, 400)?;
    send(root.cast_unsigned(), Signal::SIGKILL)?;
    has_ended(&cli, root)?;
    let child = Killed(child);
    cli.ok(["disable", "--pid", &pid, "--function", "inner"])?;
    first.kill()?;

    let second = with_files(&scene)?;
    let status = cli.json(["status"])?;
    let context = || format!("{status:#} {}", second.log());
    ensure!(rows(&status, "processes")?.len() == 2, context());
    ensure!(status_of(&cli, root)?["state"] == "exited", context());
    let row = status_of(&cli, child.0.cast_signed())?;
    ensure!(
        row["state"] == "tracing" && row["functions_on"] == 1,
        context()
    );
    ensure!(row["kinship"]["root"] == root, context());
    // It waits for this.
    send(child.0, Signal::SIGUSR1)?;
    read(&cli, child.0.cast_signed(), 2000)?;
    cli.ok(["snapshot", "-o", "all"])?;
    let expected = BTreeMap::from([(root.cast_unsigned(), 100), (child.0, 1000)]);
    ensure!(works(&scene.path("all"))? == expected, context());
    cli.ok(["detach", &pid])?;
    nothing_is_kept(&scene)?;
    Ok(())
}

/// A process that is killed when this is dropped.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = send(self.0, Signal::SIGKILL);
    }
}

/// The process has executed another program, before the daemon ended or while no daemon ran. The
/// next daemon has the events of the former program, until the process is attached to again.
#[test]
fn the_events_of_a_program_that_became_another_are_retained() -> Result<()> {
    for daemon_first in [false, true] {
        let scene = Scene::new()?;
        let first = with_files(&scene)?;
        let cli = scene.with(&first)?;
        let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
        let pid = target.pid();
        cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
        cli.ok(["enable", "--all"])?;
        target.ask("fork 1", "done 100")?;
        read(&cli, pid, 200)?;
        if daemon_first {
            first.kill()?;
            target.ask("exec", "ready")?;
        } else {
            target.ask("exec", "ready")?;
            has_ended(&cli, pid)?;
            first.kill()?;
        }
        let second = with_files(&scene)?;
        let row = status_of(&cli, pid)?;
        let context = || format!("{daemon_first} {row:#} {}", second.log());
        ensure!(row["state"] == "exited", context());
        ensure!(row["retained_events"].as_u64() >= Some(200), context());
        cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
        cli.ok(["enable", "--all"])?;
        target.ask("fork 1", "done 100")?;
        second.kill()?;
        let third = with_files(&scene)?;
        let row = status_of(&cli, pid)?;
        ensure!(row["state"] == "tracing", "{row:#} {}", third.log());
        cli.ok(["detach", "--all"])?;
        nothing_is_kept(&scene)?;
    }
    Ok(())
}

/// A daemon whose quota has no room for a session leaves it to the next daemon, with its events.
#[test]
fn a_session_beyond_the_quota_is_left_to_the_next_daemon() -> Result<()> {
    if !integration::is_root_for("a_session_beyond_the_quota_is_left_to_the_next_daemon")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let mut next = with_files(&scene)?;
    let root = scene.with(&next)?;
    let owner = root.as_user(NOBODY);
    let mut ended = Vec::new();
    for _ in 0..2 {
        let mut target = program_of(&scene, NOBODY, Fixture::Counted, &["--threads", "1"])?;
        let pid = target.pid();
        owner.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
        owner.ok(["enable", "--pid", &pid.to_string(), "--all"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        read(&owner, pid, truth.events())?;
        target.kill()?;
        has_ended(&owner, pid)?;
        ended.push((pid, truth));
    }
    for (quota, there) in [("sessions=1/1", 1), ("sessions=8/8", 2)] {
        next.kill()?;
        next = daemon(&scene, &["--retain-in-files", "--quota", quota])?;
        let status = root.json(["status"])?;
        ensure!(
            rows(&status, "processes")?.len() == there,
            "{status:#} {}",
            next.log()
        );
    }
    for (pid, truth) in ended {
        root.ok(["snapshot", &pid.to_string(), "--force", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| next.log())?;
    }
    Ok(())
}
