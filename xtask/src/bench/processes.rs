//! Many processes that do nearly nothing, all functions on: what the daemon takes of the host for
//! them, in each mode, and how long it takes to attach to all of them and to detach.
//!
//! Each process has four threads. A thread makes two calls a second.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, build, wait_until};
use serde_json::Value;

use super::daemon::{Daemon, Guard, number};
use super::table::Row;
use super::{Bench, Effort};

const THREADS: usize = 4;
/// The daemon's figures are taken when it has settled after an attach.
const SETTLE: Duration = Duration::from_secs(3);
/// The most processes named in one command.
const AT_ONCE: usize = 1000;

/// The goals for 1,000 processes.
const MOST_MEMORY: u64 = 300 << 20;
const MOST_DAEMON_THREADS: u64 = 32;
const LONGEST_ATTACH: Duration = Duration::from_secs(20);
const LONGEST_DETACH: Duration = Duration::from_secs(10);

/// A mode, and the most processor time of the daemon in it, in percent of one processor.
const MODES: [(&str, f64); 4] = [
    ("flight", 1.0),
    ("stream", 3.0),
    ("profile", 1.0),
    ("count", 1.0),
];

/// Processes that run until this is dropped.
struct Quiet(Vec<Guard>);

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (numbers, measured): (&[usize], _) = match bench.effort {
        Effort::Full => (&[1, 200, 1000], Duration::from_secs(10)),
        Effort::Quick => (&[1, 50], Duration::from_secs(3)),
    };
    let mut rows = Vec::new();
    for &many in numbers {
        let quiet = Quiet::start(many)?;
        for (mode, most) in MODES {
            rows.extend(measure(&quiet, mode, most, measured)?);
        }
    }
    Ok(rows)
}

/// The figures of one mode, with a daemon of its own.
fn measure(quiet: &Quiet, mode: &str, most: f64, measured: Duration) -> Result<Vec<Row>> {
    let daemon = Daemon::start()?;
    let idle = daemon.cpu()?;
    let begun = Instant::now();
    quiet.each(&daemon, &["attach", "--mode", mode, "--all"])?;
    let attached = begun.elapsed();
    let attaching = daemon.cpu()?.saturating_sub(idle);
    sleep(SETTLE);
    let (before, begun) = (daemon.cpu()?, Instant::now());
    sleep(measured);
    let spent = daemon.cpu()?.saturating_sub(before);
    let percent = 100.0 * spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    let (threads, memory) = daemon.threads_and_memory()?;
    let status = daemon.ctl(&["status"])?;
    let processes = status["processes"].as_array().map_or(0, Vec::len);
    ensure!(processes == quiet.0.len(), "{processes} are attached");
    let begun = Instant::now();
    detach_all(&daemon, quiet.0.len())?;
    let detached = begun.elapsed();

    let many = quiet.0.len();
    let name = |what: &str| format!("{many} in mode {mode}: {what}");
    let each = |time: Duration| format!("{:.1} ms each", 1e3 * time.as_secs_f64() / many as f64);
    let mib = memory as f64 / f64::from(1 << 20);
    Ok(vec![
        Row::new(
            name("the daemon's processor time"),
            format!("{percent:.1} % of a processor"),
            "",
        )
        .goal(format!("≤ {most} %"), percent <= most),
        Row::new(
            name("its memory"),
            format!("{mib:.0} MiB"),
            format!("{:.2} MiB each", mib / many as f64),
        )
        .goal("≤ 300 MiB", memory <= MOST_MEMORY),
        Row::new(name("its threads"), threads.to_string(), "")
            .goal("≤ 32", threads <= MOST_DAEMON_THREADS),
        Row::new(
            name("attaching by one command"),
            format!("{:.1} s", attached.as_secs_f64()),
            format!(
                "{}, {} of its processor time",
                each(attached),
                each(attaching)
            ),
        )
        .goal("≤ 20 s", attached <= LONGEST_ATTACH),
        Row::new(
            name("detaching with proofs"),
            format!("{:.1} s", detached.as_secs_f64()),
            each(detached),
        )
        .goal("≤ 10 s", detached <= LONGEST_DETACH),
    ])
}

/// Detaches from every process, and fails without the proof of each.
fn detach_all(daemon: &Daemon, many: usize) -> Result<()> {
    let answer = daemon.ctl(&["detach", "--all"])?;
    let reports = answer["processes"].as_array().context("no processes")?;
    ensure!(reports.len() == many, "{} were detached", reports.len());
    for report in reports {
        let is_proven = number(report, "sleds_on")? == 0
            && number(report, "text_bytes_different")? == 0
            && number(report, "text_bytes_compared")? > 0;
        ensure!(is_proven, "no proof: {report}");
    }
    Ok(())
}

// === impl Quiet ===

impl Quiet {
    fn start(many: usize) -> Result<Self> {
        let program = build(Fixture::Quiet)?;
        let start = || -> Result<Child> {
            Command::new(&program)
                .args(["--threads", &THREADS.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .context("cannot start a program")
        };
        let started = (0..many).map(|_| Ok(Guard::new(start()?)));
        let all = Self(started.collect::<Result<_>>()?);
        for guard in &all.0 {
            let pid = guard.pid().as_raw();
            wait_until(DEADLINE, "all threads have begun", || {
                let tasks = procfs::process::Process::new(pid)?.tasks()?.count();
                Ok((tasks == THREADS).then_some(()))
            })?;
        }
        Ok(all)
    }

    /// Runs a command for all processes.
    fn each(&self, daemon: &Daemon, words: &[&str]) -> Result<Vec<Value>> {
        let pids: Vec<String> = self.0.iter().map(|guard| guard.pid().to_string()).collect();
        let answers = pids.chunks(AT_ONCE).map(|pids| {
            let pids = pids.iter().map(String::as_str);
            let words: Vec<&str> = words.iter().copied().chain(pids).collect();
            daemon.ctl(&words)
        });
        answers.collect()
    }
}
