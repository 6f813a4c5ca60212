//! The Common Trace Format beside traces of another tracer.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, LTTNG_CALLS, LTTNG_MALLOC, Target, Tool, build, is_root_for, wait_until,
};
use serde_json::Value;

use crate::scene::{Scene, rows};

/// Root has one session daemon at a time.
static SESSION_DAEMON: Mutex<()> = Mutex::new(());

/// LTTng's session daemon, which ends with this. Its files are in a folder of its own.
struct SessionDaemon {
    daemon: Child,
    home: PathBuf,
    _only: MutexGuard<'static, ()>,
}

impl SessionDaemon {
    fn start(scene: &Scene) -> Result<Self> {
        // A test that failed leaves no daemon.
        let only = SESSION_DAEMON
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let home = scene.path("lttng");
        std::fs::create_dir(&home)?;
        let daemon = Command::new("lttng-sessiond")
            .arg("--no-kernel")
            .env("LTTNG_HOME", &home)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start lttng-sessiond")?;
        let this = Self {
            daemon,
            home,
            _only: only,
        };
        wait_until(DEADLINE, "LTTng's daemon answers", || {
            Ok(lttng(&this.home, &["list"])?.then_some(()))
        })?;
        Ok(this)
    }

    fn tell(&self, commands: &[&[&str]]) -> Result<()> {
        for arguments in commands {
            ensure!(
                lttng(&self.home, arguments)?,
                "lttng {arguments:?} has failed"
            );
        }
        Ok(())
    }

    /// Lets a program be traced that loads these libraries. It waits at its start for the daemon.
    fn lets(&self, command: &mut Command, libraries: &str) {
        command
            .env("LD_PRELOAD", libraries)
            .env("LTTNG_HOME", &self.home)
            .env("LTTNG_UST_REGISTER_TIMEOUT", "-1");
    }
}

impl Drop for SessionDaemon {
    fn drop(&mut self) {
        // It ends its own children at SIGTERM.
        let pid = nix::unistd::Pid::from_raw(self.daemon.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM);
        let _ = self.daemon.wait();
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
    let lttng_daemon = SessionDaemon::start(&scene)?;
    let output = scene.path("mallocs");
    let to = format!("--output={}", output.display());
    lttng_daemon.tell(&[
        &["create", "xrayd-test", &to],
        &["enable-event", "--userspace", "lttng_ust_libc:malloc"],
        &["start"],
    ])?;
    let mut command = Command::new(build(Fixture::Counted)?);
    command.args(["--threads", "2", "--calls", "50"]);
    // The program waits until its mallocs are traced.
    lttng_daemon.lets(&mut command, LTTNG_MALLOC);
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
    lttng_daemon.tell(&[&["stop"], &["destroy", "xrayd-test"]])?;
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

/// Calls that LTTng has recorded of a program that was compiled for it.
#[test]
fn calls_that_lttng_recorded_are_read() -> Result<()> {
    if !is_root_for("calls_that_lttng_recorded_are_read")? {
        return Ok(());
    }
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let lttng_daemon = SessionDaemon::start(&scene)?;
    for (library, folder) in LTTNG_CALLS.into_iter().zip(["calls", "fast"]) {
        let to = format!("--output={}", scene.path(folder).display());
        let event = ["enable-event", "--userspace", "lttng_ust_cyg_profile*"];
        let of_thread = ["-t", "vpid", "-t", "vtid", "-t", "procname"];
        let context = [&["add-context", "--userspace"][..], &of_thread].concat();
        lttng_daemon.tell(&[&["create", folder, &to], &event, &context, &["start"]])?;
        let mut command = Command::new(build(Fixture::Instrumented)?);
        lttng_daemon.lets(&mut command, library);
        let mut target = Target::spawn_command(command)?;
        let pid = target.pid();
        target.ask("go", "done")?;
        target.kill()?;
        lttng_daemon.tell(&[&["stop"], &["destroy", folder]])?;
        // The folder of 64-bit processes of root.
        let trace = format!("{folder}/ust/uid/0/64-bit");
        let refused = cli.run(["account", folder])?;
        refused.failed(1, &["no file 'metadata'"])?;
        let account: Value = serde_json::from_str(&cli.ok(["account", &trace, "-f", "json"])?)?;
        let mut calls: Vec<_> = rows(&account, "rows")?
            .iter()
            .map(|row| row["calls"].as_u64())
            .collect();
        calls.sort_unstable();
        ensure!(calls == [Some(20), Some(60)], "{folder}: {account}");
        let info = cli.json(["info", &trace])?;
        let threads = rows(&info, "threads")?;
        ensure!(
            info["format"] == "ctf" && threads.len() == 2,
            "{folder}: {info}"
        );
        for thread in threads {
            ensure!(
                thread["pid"] == pid && thread["events"] == 80 && thread["name"] == "instrumented",
                "{folder}: {info}"
            );
        }
    }
    Ok(())
}
