//! A daemon that dies, and the next one, which goes on with its sessions.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, Target, copy_program, mark_as_other_version, opens_map_files,
    wait_until, xrayd,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli_follow::{child_of, is_traced, work, works};
use crate::cli_profile::ensure_exact as ensure_exact_sums;
use crate::daemon_users::spawn_as_nobody;
use crate::scene::{
    Cli, Daemon, NOBODY, Scene, all_on, ensure_as_compiled, row_of, rows, send, sleds_on,
};
use crate::trace::{ensure_exact, seen};

/// Starts a daemon that keeps its state in the scene's folder.
pub(crate) fn daemon(scene: &Scene) -> Result<Daemon> {
    let state = scene.path("state");
    scene.daemon_with(&["--state-dir", state.to_str().context("no text")?])
}

/// The part of a process's status that a new daemon does not change.
fn lasting(status: &Value, pid: i32) -> Result<Value> {
    let mut row = row_of(status, pid)?.context("not attached")?.clone();
    let fields = row.as_object_mut().context("no object")?;
    // Counters of one daemon, and its times.
    for counter in [
        "attached_wall_ns",
        "clock_faults",
        "events",
        "events_per_second",
        "filtered",
        "gaps",
        "group",
        "left_out",
        "losses",
        "lost",
        "lost_by_others",
        "modules",
        "overwritten_events",
        "retained_bytes",
        "retained_events",
        "ring_use_permille",
        "budget",
        "threads",
    ] {
        fields.remove(counter);
    }
    Ok(row)
}

pub(crate) fn files_in(state: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(state)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != "lock");
    Ok(names)
}

#[test]
fn the_next_daemon_goes_on_as_the_killed_one_was() -> Result<()> {
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "400"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    cli.ok(["disable", "--glob", "work::p*"])?;
    let functions = cli.json(["functions", "--pid", &pid.to_string()])?;
    let by_id = functions["functions"][2]["id"].to_string();
    cli.ok(["enable", "--id", &by_id, "--args", "2"])?;
    cli.ok(["filter", "--max-depth", "7"])?;
    let before = lasting(&cli.json(["status"])?, pid)?;
    let on_before = cli.json(["functions", "--pid", &pid.to_string()])?;
    let sleds = sleds_on(&target)?;
    ensure!(sleds > 0);
    first.kill()?;
    let second = daemon(&scene)?;
    let after = lasting(&cli.json(["status"])?, pid)?;
    ensure!(before == after, "{before:#}\n{after:#}\n{}", second.log());
    let on_after = cli.json(["functions", "--pid", &pid.to_string()])?;
    ensure!(on_before == on_after, "{on_before:#}\n{on_after:#}");
    ensure!(sleds_on(&target)? == sleds);
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)?;
    ensure!(files_in(&scene.path("state"))?.is_empty());
    target.still_running()
}

/// Nothing reads the rings between the two daemons.
#[test]
fn calls_between_two_daemons_are_recorded() -> Result<()> {
    if !opens_map_files()? {
        // Without map_files, the second daemon cannot open the rings of the first one.
        return Ok(());
    }
    for mode in ["flight", "stream"] {
        let scene = Scene::new()?;
        let first = daemon(&scene)?;
        let cli = scene.with(&first)?;
        let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "300"])?;
        cli.ok(["attach", &target.pid().to_string(), "--mode", mode])?;
        cli.ok(["enable", "--all"])?;
        all_on(&target)?.context("not everything is on")?;
        first.kill()?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        all_on(&target)?.context("not everything is on any more")?;
        let _second = daemon(&scene)?;
        all_on(&target)?.context("the second daemon has switched sleds")?;
        cli.ok(["snapshot", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).context(mode)?;
        cli.ok(["detach", "--all"])?;
        ensure_as_compiled(&target)?;
    }
    Ok(())
}

/// The daemon is killed in the middle of the program's work, while the program stands still. What
/// the next daemon reads is the rest, without a gap and without an event twice.
/// The next daemon goes on with the sums in the program. They have the calls that were made while
/// there was no daemon, too.
#[test]
fn calls_that_the_program_adds_up_outlive_the_daemon() -> Result<()> {
    if !opens_map_files()? {
        // As above.
        return Ok(());
    }
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "4", "--calls", "3000"])?;
    let pid = target.pid().to_string();
    cli.ok(["attach", &pid, "--mode", "profile"])?;
    cli.ok(["enable", "--all"])?;
    first.kill()?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let second = daemon(&scene)?;
    all_on(&target)?.context("the second daemon has switched sleds")?;
    for _ in 0..2 {
        let table = cli.json(["profile", &pid, "--kept", "--top", "0"])?;
        ensure_exact_sums(&table, &truth)?;
    }
    ensure!(!second.log().contains("panicked"));
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)?;
    target.still_running()
}

#[test]
fn the_next_daemon_reads_on_where_the_killed_one_stopped() -> Result<()> {
    if !opens_map_files()? {
        return Ok(());
    }
    let mut tries = 0..50;
    loop {
        let scene = Scene::new()?;
        let first = daemon(&scene)?;
        let cli = scene.with(&first)?;
        let arguments = ["--threads", "2", "--calls", "6000", "--first", "100000000"];
        let mut target = Target::spawn(Fixture::Counted, arguments)?;
        let pid = target.pid();
        let words = [
            "attach",
            &pid.to_string(),
            "--mode",
            "stream",
            "--ring-size",
            "16MiB",
        ];
        cli.ok(words)?;
        cli.ok(["enable", "--all"])?;
        target.send("go")?;
        std::thread::sleep(Duration::from_millis(1));
        send(pid.unsigned_abs(), Signal::SIGSTOP)?;
        let read = events_at_rest(&cli)?;
        first.kill()?;
        send(pid.unsigned_abs(), Signal::SIGCONT)?;
        let truth = GroundTruth::parse(&target.line_with("result ", DEADLINE)?)?;
        if read == 0 || read == truth.events() {
            tries
                .next()
                .context("the program never stood still in the middle of its work")?;
            continue;
        }
        let _second = daemon(&scene)?;
        cli.ok(["disable", "--all"])?;
        cli.ok(["snapshot", "-o", "t.xtrace"])?;
        let seen = seen(&scene.path("t.xtrace"), &truth)?;
        ensure!(seen.lost == 0, "{} lost", seen.lost);
        let mut rest = 0;
        for thread in &truth.threads {
            let Some(events) = seen.threads.get(&thread.tid) else {
                continue;
            };
            rest += events.len() as u64;
            ensure!(
                thread.first.ends_with(events),
                "thread {}: {} events that are not the end of its {}",
                thread.tid,
                events.len(),
                thread.first.len()
            );
        }
        ensure!(
            read + rest == truth.events(),
            "{read} and {rest} events of {}",
            truth.events()
        );
        return Ok(());
    }
}

/// The number of events that the daemon has read, once it reads no more of them. All of them are
/// retained: the next daemon reads those again that are not.
fn events_at_rest(cli: &Cli) -> Result<u64> {
    let mut last = None;
    wait_until(DEADLINE, "the daemon has read everything", || {
        std::thread::sleep(Duration::from_millis(50));
        let status = cli.json(["status"])?;
        let row = &status["processes"][0];
        let events = row["events"].as_u64();
        let same = events.filter(|_| last == events && row["retained_events"] == row["events"]);
        last = events;
        Ok(same)
    })
}

/// The process was attached to, and has executed another program or ended since.
#[test]
fn sessions_of_processes_that_are_gone_are_not_gone_on_with() -> Result<()> {
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut gone = Target::spawn(Fixture::Counted, ["--calls", "1"])?;
    let living = Target::spawn(Fixture::Counted, ["--calls", "1"])?;
    for target in [&gone, &living] {
        cli.ok(["attach", &target.pid().to_string()])?;
    }
    ensure!(files_in(&scene.path("state"))?.len() == 2);
    first.kill()?;
    gone.kill()?;
    let second = daemon(&scene)?;
    let status = cli.json(["status"])?;
    ensure!(row_of(&status, living.pid())?.is_some(), "{status}");
    ensure!(
        status["processes"].as_array().map(Vec::len) == Some(1),
        "{status}"
    );
    ensure!(
        second.log().contains("a session does not go on"),
        "{}",
        second.log()
    );
    ensure!(files_in(&scene.path("state"))?.len() == 1);
    Ok(())
}

/// SIGHUP executes the daemon anew; SIGUSR1 and SIGTERM end it for another one.
#[test]
fn a_restart_leaves_processes_as_they_are() -> Result<()> {
    let scene = Scene::new()?;
    let mut first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let before = lasting(&cli.json(["status"])?, pid)?;
    let its_pid = first.pid();
    first.signal(Signal::SIGHUP)?;
    wait_for_restart(&first)?;
    ensure!(first.pid() == its_pid);
    let after = lasting(&cli.json(["status"])?, pid)?;
    ensure!(before == after, "{before:#}\n{after:#}\n{}", first.log());
    all_on(&target)?.context("not everything is on any more")?;
    first.signal(Signal::SIGUSR1)?;
    first.signal(Signal::SIGTERM)?;
    ensure!(first.wait()?.success());
    all_on(&target)?.context("the end of the daemon has switched sleds")?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let second = daemon(&scene)?;
    let after = lasting(&cli.json(["status"])?, pid)?;
    ensure!(before == after, "{before:#}\n{after:#}\n{}", second.log());
    if opens_map_files()? {
        cli.ok(["snapshot", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth)?;
    }
    // SIGTERM alone detaches.
    second.signal(Signal::SIGTERM)?;
    let mut second = second;
    ensure!(second.wait()?.success());
    ensure_as_compiled(&target)?;
    ensure!(files_in(&scene.path("state"))?.is_empty());
    Ok(())
}

fn wait_for_restart(daemon: &Daemon) -> Result<()> {
    wait_until(DEADLINE, "the daemon is executed anew", || {
        let log = daemon.log();
        Ok((log.matches("listening").count() == 2).then_some(()))
    })
}

/// All processes of a group are members of the group again, and new ones join.
#[test]
fn a_group_is_followed_on() -> Result<()> {
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let root = target.pid().to_string();
    cli.ok(["attach", &root, "--follow", "fork", "--mode", "stream"])?;
    cli.ok(["enable", "--pid", &root, "--all"])?;
    let old = child_of(&mut target)?;
    is_traced(&cli, old)?;
    first.kill()?;
    let _second = daemon(&scene)?;
    let status = cli.json(["status"])?;
    let members = rows(&status, "processes")?;
    ensure!(members.len() == 2, "{status:#}");
    ensure!(members[0]["group"]["follow"] == "fork", "{status:#}");
    ensure!(members[1]["kinship"]["root"] == target.pid(), "{status:#}");
    is_traced(&cli, old)?;
    let new = child_of(&mut target)?;
    is_traced(&cli, new)?;
    for child in [old, new] {
        work(&mut target, child)?;
    }
    cli.ok(["snapshot", "-o", "all"])?;
    let found = works(&scene.path("all"))?;
    ensure!(
        found == BTreeMap::from([(old, 1000), (new, 1000)]),
        "{found:?}"
    );
    let detached = cli.json(["detach", &root])?;
    ensure!(rows(&detached, "processes")?.len() == 3, "{detached}");
    ensure!(files_in(&scene.path("state"))?.is_empty());
    Ok(())
}

/// The next daemon is of another version: it goes on with the same functions, in memory of its own.
#[test]
fn a_daemon_of_another_version_goes_on() -> Result<()> {
    let scene = Scene::new()?;
    let first = daemon(&scene)?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "3", "--calls", "200"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    cli.ok(["disable", "--glob", "work::p*"])?;
    let before = lasting(&cli.json(["status"])?, pid)?;
    let sleds = sleds_on(&target)?;
    first.kill()?;
    mark_as_other_version(pid)?;
    let second = daemon(&scene)?;
    let after = lasting(&cli.json(["status"])?, pid)?;
    ensure!(before == after, "{before:#}\n{after:#}\n{}", second.log());
    ensure!(sleds_on(&target)? == sleds);
    let status = cli.json(["status"])?;
    let gaps = &row_of(&status, pid)?.context("not attached")?["gaps"];
    ensure!(gaps[0]["cause"] == "unread_rings", "{gaps}");
    cli.ok(["enable", "--all"])?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    cli.ok(["disable", "--all"])?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth)?;
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// A user's daemon may not open `map_files`, and so not the rings of the killed one. It puts new
/// rings in their place, and goes on all the same.
#[test]
fn the_daemon_of_a_user_goes_on() -> Result<()> {
    if !integration::is_root_for("the_daemon_of_a_user_goes_on")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    for name in ["run", "state"] {
        std::fs::create_dir(scene.path(name))?;
        std::os::unix::fs::chown(scene.path(name), Some(NOBODY), Some(NOBODY))?;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(scene.path("state"), mode)?;
    let program = scene.path("xrayd");
    copy_program(&xrayd()?, &program)?;
    let start = || -> Result<Daemon> {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        scene.daemon_at(
            command.arg("--state-dir").arg(scene.path("state")),
            "run/xrayd.sock",
        )
    };
    let first = start()?;
    let cli = scene.with(&first)?.as_user(NOBODY);
    let mut target = spawn_as_nobody(&scene, &["--threads", "2", "--calls", "200"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    cli.ok(["filter", "--max-depth", "100"])?;
    let before = lasting(&cli.json(["status"])?, pid)?;
    first.kill()?;
    let second = start()?;
    let after = lasting(&cli.json(["status"])?, pid)?;
    ensure!(before == after, "{before:#}\n{after:#}\n{}", second.log());
    all_on(&target)?.context("not everything is on any more")?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    cli.ok(["disable", "--all"])?;
    let detached = cli.json(["detach", "--all"])?;
    let row = row_of(&detached, pid)?.context("not detached")?;
    ensure!(row["events"] == truth.events() && row["lost"] == 0, "{row}");
    ensure_as_compiled(&target)
}
