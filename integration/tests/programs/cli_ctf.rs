//! The Common Trace Format beside traces of another tracer.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, LTTNG_MALLOC, Target, Tool, build, is_root_for, wait_until};

use crate::scene::Scene;

/// LTTng's session daemon, which ends with this.
struct SessionDaemon(Child);

impl Drop for SessionDaemon {
    fn drop(&mut self) {
        // It ends its own children at SIGTERM.
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn lttng(home: &Path, arguments: &[&str]) -> Result<bool> {
    let mut command = Tool::Lttng.command()?;
    command.env("LTTNG_HOME", home).args(arguments);
    let output = command.output().context("cannot start lttng")?;
    Ok(output.status.success())
}

/// One event of babeltrace2's output: its time in nanoseconds since 1970, and the rest of the line.
fn event(line: &str) -> Result<(u64, &str)> {
    let (time, rest) = line.split_once("] ").context("no time")?;
    let (seconds, nanoseconds) = time
        .trim_start_matches('[')
        .split_once('.')
        .context("no dot")?;
    let seconds: u64 = seconds.parse()?;
    let nanoseconds: u64 = nanoseconds.parse()?;
    Ok((seconds * 1_000_000_000 + nanoseconds, rest))
}

/// Nanoseconds since 1970.
fn wall_ns() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}

/// LTTng and xrayd trace the same process. Its mallocs and its calls are in one timeline.
#[test]
fn events_of_lttng_and_calls_are_in_one_timeline() -> Result<()> {
    // LTTng has one session daemon for root and all its programs.
    if !is_root_for("events_of_lttng_and_calls_are_in_one_timeline")? {
        return Ok(());
    }
    let scene = Scene::new()?;
    let home = scene.path("lttng");
    std::fs::create_dir(&home)?;
    let daemon = Command::new("lttng-sessiond")
        .arg("--no-kernel")
        .env("LTTNG_HOME", &home)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let lttng_daemon = SessionDaemon(daemon.context("cannot start lttng-sessiond")?);
    wait_until(DEADLINE, "LTTng's daemon answers", || {
        Ok(lttng(&home, &["list"])?.then_some(()))
    })?;
    let output = scene.path("mallocs");
    let to = format!("--output={}", output.display());
    for arguments in [
        &["create", "xrayd-test", &to][..],
        &["enable-event", "--userspace", "lttng_ust_libc:malloc"],
        &["start"],
    ] {
        ensure!(lttng(&home, arguments)?, "lttng {arguments:?} has failed");
    }
    let mut command = Command::new(build(Fixture::Counted)?);
    command.args(["--threads", "2", "--calls", "50"]);
    command
        .env("LD_PRELOAD", LTTNG_MALLOC)
        .env("LTTNG_HOME", &home);
    // The program waits until its mallocs are traced.
    command.env("LTTNG_UST_REGISTER_TIMEOUT", "-1");
    let moments = [wall_ns()?];
    let mut target = Target::spawn_command(command)?;
    let pid = target.pid().to_string();
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    cli.ok(["attach", &pid, "--mode", "stream"])?;
    cli.ok(["enable", "--all"])?;
    let moments = [moments[0], wall_ns()?];
    target.ask("go", "result ")?;
    let moments = [moments[0], moments[1], wall_ns()?];
    cli.ok(["snapshot", "-o", "calls.xtrace"])?;
    cli.ok(["detach", "--all"])?;
    target.still_running()?;
    target.kill()?;
    for arguments in [&["stop"][..], &["destroy", "xrayd-test"]] {
        ensure!(lttng(&home, arguments)?, "lttng {arguments:?} has failed");
    }
    drop(lttng_daemon);
    cli.ok(["convert", "calls.xtrace", "-o", "calls.ctf"])?;
    let shown = Tool::Babeltrace2.run([
        "--clock-seconds".as_ref(),
        "--no-delta".as_ref(),
        output.as_os_str(),
        scene.path("calls.ctf").as_os_str(),
    ])?;
    let events: Vec<_> = shown.lines().map(event).collect::<Result<_>>()?;
    ensure!(events.is_sorted_by_key(|(time, _)| *time));
    let times = |name: &str| -> Vec<u64> {
        let named = events.iter().filter(|(_, rest)| rest.contains(name));
        named.map(|(time, _)| *time).collect()
    };
    let (mallocs, entries) = (times("lttng_ust_libc:malloc"), times("function_enter"));
    // The program allocates before it is ready. Its threads call later.
    let [started, went, done] = moments;
    let is_between = |time: &u64, from, to| (from..to).contains(time);
    ensure!(!mallocs.is_empty() && !entries.is_empty());
    ensure!(
        mallocs.iter().any(|time| is_between(time, started, went)),
        "{mallocs:?} {moments:?}"
    );
    ensure!(
        entries.iter().all(|time| is_between(time, went, done)),
        "{:?} {:?} {moments:?}",
        entries.first(),
        entries.last()
    );
    Ok(())
}
