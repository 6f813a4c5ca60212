//! The daemon and the command line of the release build, run as a user runs them. The sections take
//! the figures.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, target_dir, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::measured::children_cpu;

/// The time limit of every command, in seconds.
const LIMIT: &str = "120";

/// A daemon of its own, which ends with its guard.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Guard,
    dir: TempDir,
    xrayctl: PathBuf,
}

/// A child that does not outlive its guard.
#[derive(Debug)]
pub(crate) struct Guard(Child);

/// `xrayctl record` under way.
#[derive(Debug)]
pub(crate) struct Recording {
    child: Guard,
    /// The file of its report, written at its end.
    printed: PathBuf,
    /// Processor time of children that had ended before it began.
    before: Duration,
}

/// The result of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// Processor time of `xrayctl record`.
    pub(crate) cpu: Duration,
}

// === impl Daemon ===

impl Daemon {
    /// Starts a daemon and waits until it answers.
    pub(crate) fn start() -> Result<Self> {
        Self::start_under(&[])
    }

    /// The same under a program that executes the rest of its command line.
    pub(crate) fn start_under(program: &[&OsStr]) -> Result<Self> {
        let release = target_dir()?.join("release");
        let xrayd = release.join("xrayd");
        let words: Vec<_> = program.iter().copied().chain([xrayd.as_os_str()]).collect();
        let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
        let socket = dir.path().join("xrayd.sock");
        let log = File::create(dir.path().join("log")).context("cannot create the log")?;
        let child = Command::new(words[0])
            .args(&words[1..])
            .arg("--socket")
            .arg(&socket)
            .args(["--log-level", "warn"])
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start xrayd")?;
        let mut daemon = Self {
            child: Guard(child),
            dir,
            xrayctl: release.join("xrayctl"),
        };
        wait_until(DEADLINE, "the daemon answers", || {
            if let Some(status) = daemon.child.ended()? {
                let log = fs::read_to_string(daemon.dir.path().join("log"))?;
                bail!("xrayd ended: {status}: {}", log.trim());
            }
            Ok(UnixStream::connect(&socket).ok().map(drop))
        })?;
        Ok(daemon)
    }

    /// Runs `xrayctl` with these arguments and `--json`.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIMIT])
            .arg(&self.xrayctl)
            .args(arguments)
            .arg("--json")
            .env("XRAYD_SOCKET", self.socket());
        let output = command.output().context("cannot start xrayctl")?;
        ensure!(
            output.status.success(),
            "xrayctl {}: {}: {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("what xrayctl {} says", arguments.join(" ")))
    }

    /// Ends the daemon in a way that it cannot notice.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.end(Signal::SIGKILL, DEADLINE).map(drop)
    }

    /// Attaches, and returns the report.
    pub(crate) fn attach(&self, pid: i32) -> Result<Value> {
        self.attach_in(pid, "stream")
    }

    /// The same in this mode.
    pub(crate) fn attach_in(&self, pid: i32, mode: &str) -> Result<Value> {
        self.attach_with(pid, &["--mode", mode])
    }

    /// The same with these options.
    pub(crate) fn attach_with(&self, pid: i32, options: &[&str]) -> Result<Value> {
        let pid = pid.to_string();
        Ok(self.ctl(&[&["attach", &pid], options].concat())?["report"].take())
    }

    /// Switches everything on or off, and returns the process's report.
    pub(crate) fn toggle(&self, pid: i32, to: &str) -> Result<Value> {
        let mut answer = self.ctl(&[to, "--pid", &pid.to_string(), "--all"])?;
        let report = answer["processes"][0].take();
        ensure!(
            number(&report, "foreign")? == 0,
            "sleds left alone: {report}"
        );
        Ok(report)
    }

    /// Detaches, and fails without the proof of it. Returns the process's report.
    pub(crate) fn detach(&self, pid: i32) -> Result<Value> {
        let mut answer = self.ctl(&["detach", &pid.to_string()])?;
        let report = answer["processes"][0].take();
        let proven = number(&report, "sleds_on")? == 0
            && number(&report, "text_bytes_different")? == 0
            && number(&report, "text_bytes_compared")? > 0;
        ensure!(proven, "no proof: {report}");
        Ok(report)
    }

    /// The status of an attached process.
    pub(crate) fn status(&self, pid: i32) -> Result<Value> {
        let mut answer = self.ctl(&["status", "--pid", &pid.to_string()])?;
        Ok(answer["processes"][0].take())
    }

    /// Starts `xrayctl watch`, which prints a line of JSON for each event.
    pub(crate) fn watch(&self, pid: i32) -> Result<Guard> {
        let mut command = Command::new(&self.xrayctl);
        command
            .args(["watch", "--json", "--pid", &pid.to_string()])
            .env("XRAYD_SOCKET", self.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = command.spawn().context("cannot start xrayctl")?;
        Ok(Guard::new(child))
    }

    /// Events and losses of an attached process.
    pub(crate) fn counters(&self, pid: i32) -> Result<(u64, u64)> {
        let process = self.status(pid)?;
        Ok((number(&process, "events")?, number(&process, "lost")?))
    }

    /// Processor time of all its threads so far, in steps of a clock tick, 10 ms.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu(self.pid().as_raw())
    }

    /// Its number of threads, and its resident memory in bytes.
    pub(crate) fn threads_and_memory(&self) -> Result<(u64, u64)> {
        let process = procfs::process::Process::new(self.pid().as_raw())?;
        let status = process.status()?;
        let resident = status.vmrss.context("no VmRSS")?;
        Ok((status.threads, resident << 10))
    }

    /// The most memory that it has had, in bytes.
    pub(crate) fn peak_memory(&self) -> Result<u64> {
        let process = procfs::process::Process::new(self.pid().as_raw())?;
        let peak = process.status()?.vmhwm.context("no VmHWM")?;
        Ok(peak << 10)
    }

    /// Starts to record everything that process `pid` does, with a further option of `record`. From
    /// the return on the recording misses nothing.
    pub(crate) fn record(&self, pid: i32, file: &Path, option: Option<&str>) -> Result<Recording> {
        let printed = self.dir.path().join(format!("record-{pid}.json"));
        let before = children_cpu()?;
        let child = Command::new(&self.xrayctl)
            .args([
                "record",
                &pid.to_string(),
                "--all",
                "--force",
                "--json",
                "-o",
            ])
            .arg(file)
            .args(option)
            .env("XRAYD_SOCKET", self.socket())
            .stdin(Stdio::null())
            .stdout(File::create(&printed).context("cannot create a file")?)
            .spawn()
            .context("cannot start xrayctl")?;
        let mut child = Guard(child);
        let status = ["status", "--json"];
        wait_until(DEADLINE, "functions are on", || {
            if let Some(status) = child.ended()? {
                bail!("xrayctl record ended: {status}");
            }
            // A process that is not attached yet is no failure.
            let answer = Command::new(&self.xrayctl)
                .args(status)
                .env("XRAYD_SOCKET", self.socket())
                .stderr(Stdio::null())
                .output()?;
            let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
            let processes = answer["processes"].as_array().into_iter().flatten();
            let on = processes
                .filter(|process| process["pid"] == pid)
                .any(|process| process["functions_on"].as_u64() > Some(0));
            Ok(on.then_some(()))
        })?;
        // The commands above were children as well.
        let before = before.max(children_cpu()?);
        Ok(Recording {
            child,
            printed,
            before,
        })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("xrayd.sock")
    }

    fn pid(&self) -> Pid {
        self.child.pid()
    }
}

// === impl Guard ===

impl Guard {
    pub(crate) fn new(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// Its input and output, where they are pipes. Each is returned once.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.0.stdin.take(), self.0.stdout.take())
    }

    /// Its exit status, once it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("cannot wait for a child")
    }

    /// Sends it a signal, and waits until it has ended.
    pub(crate) fn end(&mut self, signal: Signal, patience: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        kill(self.pid(), signal).context("cannot signal a child")?;
        wait_until(patience, "a child ends", || self.ended())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A daemon that ends by itself detaches first. A program that does not end is killed.
        if self.end(Signal::SIGTERM, Duration::from_secs(10)).is_err() {
            let _gone_already = self.0.kill();
            let _reaped_already = self.0.wait();
        }
    }
}

// === impl Recording ===

impl Recording {
    /// Ends it as Ctrl-C does. No other child may have ended since its start.
    pub(crate) fn finish(mut self) -> Result<Recorded> {
        let status = self.child.end(Signal::SIGINT, Duration::from_secs(120))?;
        let cpu = children_cpu()?.saturating_sub(self.before);
        let text = fs::read_to_string(&self.printed).context("cannot read what xrayctl said")?;
        ensure!(status.success(), "xrayctl record: {status}: {text}");
        let answer: Value = serde_json::from_str(&text).context("what xrayctl record says")?;
        Ok(Recorded {
            events: number(&answer, "events")?,
            lost: number(&answer, "lost")?,
            bytes: number(&answer, "bytes")?,
            cpu,
        })
    }
}

/// Processor time of all threads of a process so far, in steps of a clock tick, 10 ms.
pub(crate) fn cpu(pid: i32) -> Result<Duration> {
    let stat = procfs::process::Process::new(pid)?.stat()?;
    let ticks = stat.utime + stat.stime;
    Ok(Duration::from_secs_f64(
        ticks as f64 / procfs::ticks_per_second() as f64,
    ))
}

/// A number in an answer.
pub(crate) fn number(answer: &Value, field: &str) -> Result<u64> {
    answer[field]
        .as_u64()
        .with_context(|| format!("no number {field:?} in {answer}"))
}
