//! The daemon has no descriptor or no memory left, or the clock jumps.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, MemoryGroup, Target, Tool, wait_until, workspace_dir, xrayd,
};
use nix::sys::signal::Signal;
use procfs::process::Process;

use crate::daemon_retained::{daemon, managed_by, managed_pid, read, status_of};
use crate::scene::{Daemon, Scene, ensure_as_compiled, send};
use crate::trace::ensure_exact;

/// The daemon with this many descriptors at most.
fn with_descriptors(scene: &Scene, most: usize) -> Result<Daemon> {
    let mut command = Command::new("sh");
    let run = format!("ulimit -n {most}; exec \"$@\"");
    command.args(["-c", &run, "sh"]).arg(xrayd()?);
    scene.daemon_by(command)
}

/// The processor time of a process, in clock ticks.
fn processor_time(pid: u32) -> Result<u64> {
    let stat = Process::new(pid.cast_signed())?.stat()?;
    Ok(stat.utime + stat.stime)
}

/// The daemon runs out of descriptors at an attach. The attach is refused, its process is as it
/// was, and the sessions go on. After a detach, another attach succeeds.
#[test]
fn an_attach_without_descriptors_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = with_descriptors(&scene, 64)?;
    let cli = scene.with(&daemon)?;
    let spawn = || Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"]);
    let mut traced = Vec::new();
    let (refused, target) = loop {
        let mut target = spawn()?;
        let ran = cli.run(["attach", &target.pid().to_string(), "--mode", "stream"])?;
        if ran.code != Some(0) {
            break (ran, target);
        }
        target.still_running()?;
        traced.push(target);
        ensure!(traced.len() < 64, "64 sessions in 64 descriptors");
    };
    refused.refused("limit")?;
    ensure_as_compiled(&target)?;
    for target in &mut traced {
        let pid = target.pid();
        cli.ok(["enable", "--pid", &pid.to_string(), "--all"])?;
        let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
        read(&cli, pid, truth.events())?;
        cli.ok(["snapshot", &pid.to_string(), "--force", "-o", "t.xtrace"])?;
        ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
    }
    let last = traced.pop().context("no session")?;
    cli.ok(["detach", &last.pid().to_string()])?;
    ensure_as_compiled(&last)?;
    cli.ok(["attach", &target.pid().to_string()])?;
    cli.ok(["detach", "--all"])?;
    for target in traced.iter().chain([&target]) {
        ensure_as_compiled(target)?;
    }
    Ok(())
}

/// Clients that only connect take all descriptors. Sessions are read meanwhile, and the daemon does
/// not spin. It serves once some of the clients have left.
#[test]
fn connections_without_descriptors_wait() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = with_descriptors(&scene, 64)?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let connect = |_| UnixStream::connect(daemon.socket());
    let clients = (0..100).map(connect).collect::<Result<Vec<_>, _>>()?;
    let descriptors =
        || -> Result<usize> { Ok(Process::new(daemon.pid().cast_signed())?.fd_count()?) };
    // The daemon takes four at first for a connection.
    wait_until(DEADLINE, "fewer than four descriptors are left", || {
        Ok((descriptors()? > 60).then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    let before = processor_time(daemon.pid())?;
    std::thread::sleep(Duration::from_secs(2));
    let spent = processor_time(daemon.pid())? - before;
    // A daemon that tries again all the time takes 200.
    ensure!(spent < 50, "{spent} ticks of processor time in two seconds");
    drop(clients);
    read(&cli, pid, truth.events())?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure_exact(&scene.path("t.xtrace"), &truth).with_context(|| daemon.log())?;
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// The control group of the daemon has less memory than `--retain` lets the daemon take. The kernel
/// kills the daemon. The program runs on, and the next daemon goes on with it.
#[test]
fn a_daemon_that_the_kernel_kills_for_its_memory_harms_no_program() -> Result<()> {
    let Some(group) = MemoryGroup::new("daemon")? else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let mut first = daemon(&scene, &["--retain", "1GiB"])?;
    let cli = scene.with(&first)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    group.take(first.pid())?;
    group.limit("8388608")?;
    target.send("go")?;
    let status = first.wait()?;
    ensure!(status.signal() == Some(Signal::SIGKILL as i32), "{status}");
    drop(first);
    let second = daemon(&scene, &[])?;
    let row = status_of(&cli, pid)?;
    let before = row["events"].as_u64();
    ensure!(row["state"] == "tracing", "{row:#} {}", second.log());
    ensure!(row["functions_on"] == row["functions"], "{row:#}");
    wait_until(DEADLINE, "events are recorded again", || {
        Ok((status_of(&cli, pid)?["events"].as_u64() > before).then_some(()))
    })?;
    GroundTruth::parse(&target.ask("stop", "result ")?)?;
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// The control group of the daemon allows less memory than `--retain`. The daemon drops old events
/// in time, so the kernel does not kill it. Then the group allows less still. The next daemon drops
/// the oldest events that were kept for it, so that it can work, and counts them.
#[test]
fn retained_events_leave_memory_to_the_next_daemon() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let Some(group) = MemoryGroup::new("retained")? else {
        return Ok(());
    };
    group.limit(&(192 * MIB).to_string())?;
    let scene = Scene::new()?;
    // A shell moves itself into the group, so that the daemon and its memory are in it.
    let mut command = Command::new("sh");
    let procs = group.processes();
    command
        .args(["-c", "echo $$ > \"$0\"; exec \"$@\""])
        .arg(procs);
    let manager = managed_by(&scene, command, &["--retain", "1GiB"])?;
    let cli = scene.with(&manager)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
    let pid = target.pid();
    cli.ok(["attach", &pid.to_string(), "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let number =
        |name: &str| -> Result<u64> { status_of(&cli, pid)?[name].as_u64().context("no number") };
    target.send("go")?;
    wait_until(DEADLINE, "old events are dropped", || {
        Ok((number("overwritten_events")? > 0).then_some(()))
    })?;
    // Segments are as large as a part of the session's share.
    let most = group.shared_memory()?;
    ensure!(most > 32 * MIB && most < 128 * MIB, "{most} bytes");
    GroundTruth::parse(&target.ask("stop", "result ")?)?;
    let first = managed_pid(&scene)?;
    let overwritten = number("overwritten_events")?;
    group.limit(&(group.shared_memory()? + 24 * MIB).to_string())?;
    send(first.unsigned_abs(), Signal::SIGKILL)?;
    wait_until(DEADLINE, "another daemon is started", || {
        Ok((managed_pid(&scene)? != first).then_some(()))
    })?;
    wait_until(DEADLINE, "the next daemon drops some of them", || {
        let log = manager.log();
        Ok(log
            .contains("dropped the oldest retained events")
            .then_some(()))
    })?;
    let row = status_of(&cli, pid)?;
    ensure!(row["state"] == "tracing", "{row:#} {}", manager.log());
    ensure!(number("retained_events")? > 0, "{row:#}");
    ensure!(number("overwritten_events")? > overwritten, "{row:#}");
    let second = managed_pid(&scene)?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    ensure!(managed_pid(&scene)? == second, "{}", manager.log());
    ensure!(
        manager.log().matches("listening").count() == 2,
        "{}",
        manager.log()
    );
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}

/// The wall clock of the daemon jumps while it reads and between daemons. Every event is recorded
/// once, its duration comes from the processor's counter, and no fault of the counter is reported.
#[test]
fn jumps_of_the_wall_clock_change_no_event() -> Result<()> {
    let scene = Scene::new()?;
    let (library, jump) = (scene.path("clock_jump.so"), scene.path("jump"));
    let source = workspace_dir().join("integration/fixtures/clock_jump.c");
    let mut compile = Tool::Clang19.command()?;
    compile
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source);
    ensure!(compile.status()?.success());
    let jump_to = |seconds: i64| fs::write(&jump, seconds.to_ne_bytes());
    jump_to(0)?;
    let start = || -> Result<Daemon> {
        let mut command = Command::new(xrayd()?);
        command
            .arg("--state-dir")
            .arg(scene.path("state"))
            .arg("--retain-in-files");
        command.env("LD_PRELOAD", &library).env("CLOCK_JUMP", &jump);
        scene.daemon_by(command)
    };
    let mut daemon = start()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "0"])?;
    let pid = target.pid();
    cli.ok([
        "attach",
        &pid.to_string(),
        "--mode",
        "stream",
        "--ring-size",
        "16MiB",
    ])?;
    cli.ok(["filter", "--pid", &pid.to_string(), "--one-in", "1000"])?;
    cli.ok(["enable", "--glob", "work::intake*"])?;
    let begun = Instant::now();
    target.send("go")?;
    for seconds in [3600, -7200, 0, 86_400 * 365, -86_400] {
        jump_to(seconds)?;
        let before = status_of(&cli, pid)?["events"].as_u64();
        // Long enough for some readings of all clocks, which come every second.
        std::thread::sleep(Duration::from_millis(1100));
        let after = status_of(&cli, pid)?["events"].as_u64();
        ensure!(after > before, "{before:?} {after:?}");
        if seconds == -7200 {
            cli.ok(["disable", "--all"])?;
            daemon.kill()?;
            daemon = start()?;
            cli.ok(["enable", "--glob", "work::intake*"])?;
        }
    }
    let row = status_of(&cli, pid)?;
    ensure!(row["clock_faults"] == serde_json::json!([]), "{row:#}");
    let truth = GroundTruth::parse(&target.ask("stop", "result ")?)?;
    cli.ok(["snapshot", "-o", "t.xtrace"])?;
    let report = cli.json(["report", "t.xtrace"])?;
    let trace = &report["trace"];
    ensure!(trace["calibrated"] == true, "{trace:#}");
    let (recorded, lost) = (trace["events"].as_u64(), trace["lost"].as_u64());
    let all = recorded.zip(lost).map(|(recorded, lost)| recorded + lost);
    ensure!(
        recorded > Some(0) && all <= Some(truth.events()),
        "{trace:#}"
    );
    let duration = trace["duration_ns"].as_u64().context("no duration")?;
    ensure!(
        Duration::from_nanos(duration) <= begun.elapsed(),
        "{trace:#}"
    );
    cli.ok(["detach", "--all"])?;
    ensure_as_compiled(&target)
}
