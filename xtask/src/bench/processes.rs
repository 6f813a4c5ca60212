//! Many processes that do nearly nothing, all functions on: what the daemon takes of the host for
//! them, in each mode, and how long it takes to attach to all of them and to detach. In mode stream
//! also how soon an event of a quiet process is in a live stream, and what a burst of events after
//! a quiet second loses.
//!
//! Each process has four threads. A thread makes two calls a second.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
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

/// Calls of a burst: some rings full of events, and as many as a thread makes in a good second.
const BURSTS: [u64; 2] = [200_000, 20_000_000];
/// Time from a burst to its figures.
const AFTER_BURST: Duration = Duration::from_secs(3);
/// Events whose way to a live stream is timed.
const TIMED: usize = 11;
const LONGEST_LATENCY: Duration = Duration::from_millis(50);

/// Processes that run until this is dropped.
struct Quiet {
    processes: Vec<Guard>,
    /// The pipes of the first of them.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (numbers, measured): (&[usize], _) = match bench.effort {
        Effort::Full => (&[1, 200, 1000], Duration::from_secs(10)),
        Effort::Quick => (&[1, 50], Duration::from_secs(3)),
    };
    let mut rows = Vec::new();
    for &many in numbers {
        let mut quiet = Quiet::start(many)?;
        for (mode, most) in MODES {
            rows.extend(measure(&mut quiet, mode, most, measured)?);
        }
    }
    Ok(rows)
}

/// The figures of one mode, with a daemon of its own.
fn measure(quiet: &mut Quiet, mode: &str, most: f64, measured: Duration) -> Result<Vec<Row>> {
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
    ensure!(
        processes == quiet.processes.len(),
        "{processes} are attached"
    );
    let soon = match mode {
        "stream" => quiet.react(&daemon)?,
        _ => Vec::new(),
    };
    let begun = Instant::now();
    detach_all(&daemon, quiet.processes.len())?;
    let detached = begun.elapsed();

    let many = quiet.processes.len();
    let name = |what: &str| format!("{many} in mode {mode}: {what}");
    let each = |time: Duration| format!("{:.1} ms each", 1e3 * time.as_secs_f64() / many as f64);
    let mib = memory as f64 / f64::from(1 << 20);
    let mut rows = vec![
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
    ];
    rows.extend(soon.into_iter().map(|row| Row {
        what: name(&row.what),
        ..row
    }));
    Ok(rows)
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
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start a program")
        };
        let started = (0..many).map(|_| Ok(Guard::new(start()?)));
        let mut processes = started.collect::<Result<Vec<_>>>()?;
        let first = processes.first_mut().context("no process")?;
        let (Some(input), Some(output)) = first.pipes() else {
            bail!("a program without pipes");
        };
        for guard in &processes {
            let pid = guard.pid().as_raw();
            wait_until(DEADLINE, "all threads have begun", || {
                let tasks = procfs::process::Process::new(pid)?.tasks()?.count();
                Ok((tasks == THREADS).then_some(()))
            })?;
        }
        Ok(Self {
            processes,
            input,
            output: BufReader::new(output),
        })
    }

    /// How soon the daemon reacts to the first of the processes, whose thread is quiet before.
    fn react(&mut self, daemon: &Daemon) -> Result<Vec<Row>> {
        let pid = self.processes[0].pid().as_raw();
        let mut rows = vec![self.first_events(daemon, pid)?];
        for calls in BURSTS {
            let before = daemon.counters(pid)?;
            self.burst(calls)?;
            sleep(AFTER_BURST);
            let after = daemon.counters(pid)?;
            let (events, lost) = (after.0 - before.0, after.1 - before.1);
            ensure!(events + lost >= 2 * calls, "{events} events, {lost} lost");
            let share = 100.0 * lost as f64 / (2 * calls) as f64;
            let what = format!("lost by a burst of {} events", 2 * calls);
            rows.push(Row::new(what, lost.to_string(), format!("{share:.2} %")));
        }
        Ok(rows)
    }

    /// The time from a call to its line in a live stream.
    fn first_events(&mut self, daemon: &Daemon, pid: i32) -> Result<Row> {
        let mut watch = daemon.watch(pid)?;
        let (_, Some(lines)) = watch.pipes() else {
            bail!("a stream without a pipe");
        };
        let mut lines = BufReader::new(lines).lines();
        let mut next = |function: &str| -> Result<()> {
            let wanted = format!("\"{function}\"");
            for line in lines.by_ref() {
                if line?.contains(&wanted) {
                    return Ok(());
                }
            }
            bail!("the stream has ended")
        };
        next("outer")?;
        let mut times = Vec::new();
        for _ in 0..TIMED {
            // The other threads call once a second, at another moment.
            sleep(Duration::from_millis(1130));
            let begun = Instant::now();
            self.burst(1)?;
            next("beat")?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        let ms = |time: Duration| format!("{:.1} ms", 1e3 * time.as_secs_f64());
        let row = Row::new(
            "a call of a quiet thread in a live stream",
            ms(median),
            format!("at most {}", ms(most)),
        );
        Ok(row.goal("≤ 50 ms", most <= LONGEST_LATENCY))
    }

    /// Has the thread make so many calls.
    fn burst(&mut self, calls: u64) -> Result<()> {
        writeln!(self.input, "burst {calls}").context("cannot write to a program")?;
        let mut line = String::new();
        while line.trim_end() != "done" {
            line.clear();
            let read = self.output.read_line(&mut line)?;
            ensure!(read > 0, "the program has ended");
        }
        Ok(())
    }

    /// Runs a command for all processes.
    fn each(&self, daemon: &Daemon, words: &[&str]) -> Result<Vec<Value>> {
        let pids: Vec<String> = self
            .processes
            .iter()
            .map(|guard| guard.pid().to_string())
            .collect();
        let answers = pids.chunks(AT_ONCE).map(|pids| {
            let pids = pids.iter().map(String::as_str);
            let words: Vec<&str> = words.iter().copied().chain(pids).collect();
            daemon.ctl(&words)
        });
        answers.collect()
    }
}
