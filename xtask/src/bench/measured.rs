//! The cost of a command that runs to its end: time, processor time, memory, bytes read. Daemons
//! are in `daemon.rs`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::libc::PTRACE_EVENT_EXIT;
use nix::sys::ptrace::{self, Options};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use procfs::process::Process;

/// The shell code that starts the command. The command begins when the standard input ends, so
/// nothing of it is missed.
const GATE: &str = r#"read -r _; exec "$@" < /dev/null"#;

/// The longest error text that is shown.
const COMPLAINT_CHARS: usize = 240;

/// The cost of a command.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    /// Processor time of all its threads.
    pub(crate) cpu_seconds: f64,
    /// The most memory it had at any time.
    pub(crate) peak_bytes: u64,
    /// Bytes that it read by system calls, from the disk or from memory.
    pub(crate) read_bytes: u64,
    /// The reason of its failure, if it failed.
    pub(crate) failure: Option<String>,
}

/// Counters that go away with their process, and the time of its start.
struct Last {
    begun: Instant,
    peak_bytes: u64,
    read_bytes: u64,
}

/// Runs a command to its end, without standard input. No other child may end meanwhile. Standard
/// output goes to `output`, standard error through the file `complaints`.
///
/// # Errors The command cannot be started or observed, or is killed. Its failure is no error.
pub(crate) fn measure(words: &[OsString], output: File, complaints: &Path) -> Result<Measured> {
    let name = words.first().context("no command")?.to_string_lossy();
    let stderr = File::create(complaints)
        .with_context(|| format!("cannot create {}", complaints.display()))?;
    let cpu = children_cpu()?;
    let mut child = Command::new("sh")
        .args(["-c", GATE, "sh"])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(stderr)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let last = watch(&mut child).with_context(|| format!("cannot look at {name}"));
    if last.is_err() {
        // It is of no use any more, and may be gone already.
        let _ = child.kill();
    }
    let status = child
        .wait()
        .with_context(|| format!("cannot wait for {name}"))?;
    let Last {
        begun,
        peak_bytes,
        read_bytes,
    } = last?;
    let seconds = begun.elapsed().as_secs_f64();
    let failure = if status.success() {
        None
    } else {
        let printed =
            fs::read(complaints).context("cannot read what a command complained about")?;
        let printed = complaint(&String::from_utf8_lossy(&printed));
        Some(format!("{status}: {printed}"))
    };
    Ok(Measured {
        seconds,
        cpu_seconds: children_cpu()?.saturating_sub(cpu).as_secs_f64(),
        peak_bytes,
        read_bytes,
        failure,
    })
}

/// Processor time of all children that have been waited for.
pub(crate) fn children_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read processor times")?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.cast_unsigned()))
}

/// Lets the child through the gate, and waits for the moment at which it is about to end and still
/// has its memory. The kernel's report to a waiting parent would not do: its peak begins with the
/// memory of the process that the child was forked from.
fn watch(child: &mut Child) -> Result<Last> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACEEXIT | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).context("cannot trace it")?;
    let begun = Instant::now();
    drop(child.stdin.take());
    loop {
        match waitpid(pid, None).context("cannot wait for it")? {
            WaitStatus::PtraceEvent(_, _, PTRACE_EVENT_EXIT) => {
                let last = Last::of(pid, begun);
                ptrace::detach(pid, None).context("cannot let it end")?;
                return last;
            }
            WaitStatus::PtraceEvent(..) => ptrace::cont(pid, None)?,
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal)?,
            other => bail!("it ended unseen: {other:?}"),
        }
    }
}

/// The last line of a command's standard error, which is the reason in most cases.
fn complaint(printed: &str) -> String {
    let last = printed.lines().rfind(|line| !line.trim().is_empty());
    let line = last.unwrap_or("it says nothing").trim();
    line.chars().take(COMPLAINT_CHARS).collect()
}

// === impl Last ===

impl Last {
    fn of(pid: Pid, begun: Instant) -> Result<Self> {
        let process = Process::new(pid.as_raw())?;
        let peak = process.status()?.vmhwm.context("no VmHWM")?;
        Ok(Self {
            begun,
            peak_bytes: peak << 10,
            read_bytes: process.io()?.rchar,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Measured {
        let complaints = tempfile::NamedTempFile::new().unwrap();
        let output = File::create("/dev/null").unwrap();
        let words = ["sh", "-c", script].map(OsString::from);
        measure(&words, output, complaints.path()).unwrap()
    }

    #[test]
    fn memory_and_reads_are_those_of_the_command() {
        let small = sh("exec head -c 1000000 /dev/zero");
        let large = sh("exec dd if=/dev/zero of=/dev/null bs=64M count=1");
        assert_eq!((&small.failure, &large.failure), (&None, &None));
        assert!(small.peak_bytes < 16 << 20, "{small:?}");
        assert!(
            (64 << 20..96 << 20).contains(&large.peak_bytes),
            "{large:?}"
        );
        assert!(
            (1_000_000..2_000_000).contains(&small.read_bytes),
            "{small:?}"
        );
        assert!(large.read_bytes >= 64 << 20, "{large:?}");
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let failed = sh("echo no such log >&2; echo >&2; exit 3")
            .failure
            .unwrap();
        assert!(
            failed.contains("3") && failed.ends_with("no such log"),
            "{failed}"
        );
    }

    #[test]
    fn signals_reach_the_command() {
        let failed = sh("trap 'exit 7' TERM; kill -TERM $$; sleep 60")
            .failure
            .unwrap();
        assert!(failed.contains('7'), "{failed}");
    }
}
