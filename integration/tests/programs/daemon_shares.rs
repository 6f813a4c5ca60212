//! Several users at the same time. Each has a share of the daemon, and only a user whose share is
//! used up is refused.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Fixture, SilentMount, Target, copy_into, is_root_for, wait_until};

use crate::scene::{Cli, Daemon, NOBODY, Running, Scene, row_of, rows};

/// Calls that a user may have in progress (`xrayd/src/rpc/service.rs`).
const CALLS: usize = 16;
/// The number of users with calls that never end.
const GREEDY: u32 = 4;

/// A program that a user owns.
fn program_of(scene: &Scene, name: &str, uid: u32, fixture: Fixture) -> Result<Target> {
    let dir = scene.path(&format!("{name}-{uid}"));
    fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(fixture, &dir)?);
    if fixture == Fixture::Counted {
        // Works until it gets the line to stop.
        command.args(["--threads", "1", "--calls", "0"]);
    }
    command.uid(uid).gid(uid).current_dir("/");
    Target::spawn_command(command)
}

/// The number of the daemon's threads for requests.
fn request_threads(daemon: &Daemon) -> Result<usize> {
    let names = fs::read_dir(format!("/proc/{}/task", daemon.pid()))?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Ok(names.filter(|name| name == "xrayd-rpc\n").count())
}

/// The commands of a user with small needs.
fn is_served(cli: &Cli, target: &Target) -> Result<()> {
    let pid = target.pid().to_string();
    cli.ok([
        "attach",
        &pid,
        "--ring-size",
        "64KiB",
        "--max-threads",
        "16",
    ])?;
    cli.ok(["enable", "--pid", &pid, "--all"])?;
    ensure!(!rows(&cli.json(["status"])?, "processes")?.is_empty());
    cli.ok(["detach", &pid])?;
    Ok(())
}

/// Four users' calls wait for ever. A fifth user and root still get threads, and the four can undo.
#[test]
fn users_whose_calls_hang_leave_threads_to_others() -> Result<()> {
    let Some(mount) = SilentMount::new("users_whose_calls_hang_leave_threads_to_others")? else {
        return Ok(());
    };
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    let file = mount.file();
    let file = file.to_str().context("a path that is no text")?;
    let mut greedy = Vec::new();
    for uid in (0..GREEDY).map(|number| NOBODY - 1 - number) {
        let user = root.as_user(uid);
        // Another process of this user is traced already.
        let traced = program_of(&scene, "traced", uid, Fixture::Counted)?;
        user.ok(["attach", &traced.pid().to_string()])?;
        let mut hung = program_of(&scene, "hung", uid, Fixture::Mappings)?;
        hung.ask(&format!("map {file}"), "mapped")?;
        greedy.push((user, traced, hung));
    }
    let before = request_threads(&daemon)?;
    let mut waiting: Vec<Running> = Vec::new();
    for (user, _, hung) in &greedy {
        for _ in 0..CALLS {
            waiting.push(user.start(["doctor", &hung.pid().to_string()])?);
        }
    }
    // 64 threads are for calls. A user gets another thread as long as more threads are free than
    // the user has. So the four get 56 of them at least.
    wait_until(DEADLINE, "calls take their threads", || {
        let taken = request_threads(&daemon)? >= before + 40;
        let refused = greedy.iter().map(|(user, ..)| user.run(["status"]));
        let refused = refused.collect::<Result<Vec<_>>>()?;
        Ok((taken && refused.iter().all(|ran| ran.code == Some(4))).then_some(refused))
    })?
    .iter()
    .try_for_each(|ran| ran.refused("too-many"))?;

    let modest = program_of(&scene, "modest", NOBODY, Fixture::Counted)?;
    is_served(&root.as_user(NOBODY), &modest)?;
    let roots = Target::spawn(Fixture::Counted, [""; 0])?;
    is_served(&root, &roots)?;
    for (user, traced, _) in &greedy {
        user.ok(["detach", &traced.pid().to_string()])?;
    }
    for waits in &mut waiting {
        ensure!(
            waits.has_ended()?.is_none(),
            "a call ended that should hang"
        );
    }
    drop(mount);
    for waits in waiting {
        let ran = waits.wait()?;
        ensure!(ran.code.is_some(), "{ran:?}");
    }
    for (user, ..) in &greedy {
        user.ok(["status"])?;
    }
    Ok(())
}

/// Root's trigger covers more processes that hang than it arms at a time. It is armed in another
/// process all the same, and fires. Once the memory of the others answers, all their functions are
/// off.
#[test]
fn processes_that_hang_keep_root_s_trigger_from_no_other() -> Result<()> {
    const HUNG: usize = 20;
    // No other test lists processes of this user. A list would lack those that come after these.
    const HANGS: u32 = NOBODY - 100;
    let Some(mount) = SilentMount::new("processes_that_hang_keep_root_s_trigger_from_no_other")?
    else {
        return Ok(());
    };
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    let mut hung = Vec::new();
    for number in 0..HUNG {
        let mut target = program_of(&scene, &format!("hung-{number}"), HANGS, Fixture::Mappings)?;
        root.ok(["attach", &target.pid().to_string()])?;
        let file = mount.numbered(number);
        let file = file.to_str().context("a path that is no text")?;
        target.ask(&format!("cover {file}"), "covered")?;
        hung.push(target);
    }
    // It comes last, unless pids have wrapped.
    let mut other = Target::spawn(Fixture::Mappings, [""; 0])?;
    root.ok(["attach", &other.pid().to_string()])?;
    let when = [
        "trigger",
        "--json",
        "--when",
        "call(*)",
        "--do",
        "exec true",
    ];
    let mut trigger = root.start(when)?;
    let row = |target: &Target| {
        let status = root.json(["status"])?;
        row_of(&status, target.pid())?.cloned().context("no row")
    };
    trigger.until("it is armed in the other process", || {
        Ok((row(&other)?["triggers"] == 1).then_some(()))
    })?;
    ensure!(mount.was_read());
    other.ask("call", "called")?;
    let ran = trigger.wait()?;
    ensure!(
        ran.code == Some(0) && ran.out.contains("\"fired\""),
        "{ran:?}"
    );
    ensure!(row(&other)?["functions_on"] == 0);

    drop(mount);
    for target in &mut hung {
        wait_until(DEADLINE, "nothing is on", || {
            Ok((row(target)?["functions_on"] == 0).then_some(()))
        })?;
        target.ask("call", "called")?;
    }
    Ok(())
}

/// Attaches, or enables functions, until a command is refused. Returns its number, and the text of
/// the refusal.
fn until_refused<S: AsRef<OsStr>>(
    cli: &Cli,
    commands: impl IntoIterator<Item = Vec<S>>,
) -> Result<(usize, String)> {
    for (number, command) in commands.into_iter().enumerate() {
        let ran = cli.run(command)?;
        if ran.code != Some(0) {
            ran.refused("quota")?;
            return Ok((number, ran.err));
        }
    }
    bail!("nothing was refused")
}

/// Two users at the same time use up their share of everything. The refusals name the quota, its
/// value and the option. Root and a third user are served all the time.
#[test]
fn two_users_use_their_quotas_up_and_others_are_served() -> Result<()> {
    const SESSIONS: usize = 2;
    if !is_root_for("two_users_use_their_quotas_up_and_others_are_served")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let quotas = [
        "sessions=2/6",
        "threads=8/24",
        "mapped=64MiB/1GiB",
        "retained=4MiB/64MiB",
        "patterns=1MiB/64MiB",
    ];
    let options: Vec<&str> = quotas.iter().flat_map(|it| ["--quota", it]).collect();
    let daemon = scene.daemon_with(&options)?;
    let root = scene.with(&daemon)?;
    let users = [NOBODY - 1, NOBODY - 2];
    let mut programs = Vec::new();
    for uid in users {
        let own = |name: &str| program_of(&scene, name, uid, Fixture::Counted);
        programs.push((uid, [own("first")?, own("second")?, own("third")?]));
    }
    let modest = program_of(&scene, "modest", NOBODY, Fixture::Counted)?;
    let roots = Target::spawn(Fixture::Counted, [""; 0])?;

    let use_up = |uid: u32, targets: &[Target]| -> Result<()> {
        let user = root.as_user(uid);
        let pids: Vec<String> = targets.iter().map(|it| it.pid().to_string()).collect();
        let attach = |pid: &str, ring: &str| {
            let words = ["attach", pid, "--mode", "stream", "--ring-size", ring];
            [&words[..], &["--max-threads", "16"]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<String>>()
        };
        let whose = format!("user {uid} has ");
        let names = |reported: &str, parts: [&str; 2]| {
            ensure!(reported.contains(&whose), "{reported}");
            for part in parts {
                ensure!(reported.contains(part), "no {part:?} in {reported}");
            }
            Ok(())
        };
        let (_, reported) = until_refused(&user, [attach(&pids[0], "2MiB")])?;
        names(&reported, ["of at most 64MiB", "--quota mapped=64MiB/1GiB"])?;
        let all = pids.iter().map(|pid| attach(pid, "64KiB"));
        let (attached, reported) = until_refused(&user, all)?;
        ensure!(attached == SESSIONS, "{attached}: {reported}");
        names(
            &reported,
            ["2 sessions of at most 2", "--quota sessions=2/6"],
        )?;
        // Patterns that every rule keeps for later libraries.
        let patterns = (0..100).map(|number| {
            let regexes = (0..10).flat_map(|at| {
                let pattern = format!("a{number}_{at}\\w{{4}}");
                ["--regex".to_owned(), pattern]
            });
            let words = ["enable", "--pid", &pids[0], "--pending"].map(str::to_owned);
            words.into_iter().chain(regexes).collect::<Vec<String>>()
        });
        let (_, reported) = until_refused(&user, patterns)?;
        names(
            &reported,
            ["of at most 1MiB", "--quota patterns=1MiB/64MiB"],
        )?;
        // An undo needs no quota.
        user.ok(["disable", "--pid", &pids[0], "--all"])?;
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let using = programs
            .iter()
            .map(|(uid, targets)| scope.spawn(|| use_up(*uid, targets)));
        let using: Vec<_> = using.collect();
        while !using.iter().all(thread::ScopedJoinHandle::is_finished) {
            is_served(&root.as_user(NOBODY), &modest)?;
            is_served(&root, &roots)?;
        }
        for used in using {
            used.join().ok().context("a user panicked")??;
        }
        Ok(())
    })?;
    is_served(&root.as_user(NOBODY), &modest)?;
    is_served(&root, &roots)?;
    // Root has no quota, even for a user's process.
    let (_, targets) = &programs[0];
    is_served(&root, &targets[2])?;

    // The events that a user's sessions retain have a common limit. Reaching it refuses nothing.
    let user = root.as_user(programs[0].0);
    for target in programs[0].1.iter_mut().take(SESSIONS) {
        user.ok(["enable", "--pid", &target.pid().to_string(), "--all"])?;
        target.send("go")?;
    }
    let status = wait_until(DEADLINE, "the oldest events go", || {
        let status = user.json(["status"])?;
        let mut processes = rows(&status, "processes")?.iter();
        let is_full = processes.all(|row| row["overwritten_events"].as_u64() > Some(0));
        Ok(is_full.then_some(status))
    })?;
    let retained = rows(&status, "processes")?.iter();
    let retained: Vec<u64> = retained
        .filter_map(|row| row["retained_bytes"].as_u64())
        .collect();
    ensure!(retained.len() == SESSIONS, "{status}");
    ensure!(retained.iter().all(|bytes| *bytes <= 2 << 20), "{status}");
    Ok(())
}
