//! The cost of a copy of full rings: rings of a gibibyte together, in mode `flight`, while their
//! threads go on.
//!
//! The copy decides how far rings still reach back, and how long others wait. Making events of it,
//! and the file, comes afterwards. Threads that go on use the processors as well. So the same is
//! measured with one processor that they leave to others, and while they stand still.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, wait_until};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::Process;
use procfs::{FromRead as _, Meminfo};

use super::daemon::{Daemon, number};
use super::samples::Samples;
use super::table::{Row, Table};
use super::{Bench, Effort};

const THREADS: u64 = 16;
const RING_MIB: u64 = 64;
const RINGS_BYTES: u64 = (THREADS * RING_MIB) << 20;
/// Bytes of a ring that most events take.
const EVENT_BYTES: u64 = 8;
/// The most of a full ring that may be missing from its copy: headers, the chunk under way, and
/// chunks that were overwritten meanwhile.
const MISSING_AT_MOST: f64 = 0.1;
/// Rings, their copy, and as much again for the events made of it and the file.
const MEMORY_NEEDED: u64 = 3 * RINGS_BYTES;
/// The time limit of filling all rings twice.
const FILLING: Duration = Duration::from_secs(120);
const MOST_SECONDS: f64 = 1.0;

/// The state of the threads meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// They run on all processors.
    GoingOn,
    /// They run on all processors but one.
    GoingOnAside,
    Stopped,
}

/// The results of all copies.
#[derive(Debug, Default)]
struct Measured {
    /// The time until everything was copied, by the report, in seconds.
    copied: Samples,
    /// The whole command, in seconds.
    whole: Samples,
    events: Samples,
    file_bytes: Samples,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let repetitions = match bench.effort {
        Effort::Full => 5,
        Effort::Quick => 2,
    };
    let memory = File::open("/proc/meminfo").context("cannot read how much memory there is")?;
    let free = Meminfo::from_read(memory)?.mem_available.unwrap_or(0);
    ensure!(
        free >= MEMORY_NEEDED,
        "{} MiB of memory are available, rings, copies and events take {}",
        free >> 20,
        MEMORY_NEEDED >> 20
    );
    let file = bench.scratch("snapshot")?.join("snapshot.xtrace");
    let path = file.to_str().context("not UTF-8")?;
    let daemon = Daemon::start()?;
    let threads = THREADS.to_string();
    let mut target = Target::spawn(Fixture::Counted, ["--threads", &threads, "--calls", "0"])?;
    let pid = target.pid();
    let ring = format!("{RING_MIB}MiB");
    let rings = ["--ring-size", &ring, "--max-threads", "64"];
    daemon.attach_with(pid, &[&["--mode", "flight"], &rings[..]].concat())?;
    daemon.toggle(pid, "enable")?;
    target.send("go")?;
    let twice = 2 * RINGS_BYTES / EVENT_BYTES;
    wait_until(FILLING, "all rings are full", || {
        let (events, _) = daemon.counters(pid)?;
        Ok((events >= twice).then_some(()))
    })?;
    let mut rows = Vec::new();
    for meanwhile in [
        Meanwhile::GoingOn,
        Meanwhile::GoingOnAside,
        Meanwhile::Stopped,
    ] {
        match meanwhile {
            Meanwhile::GoingOn => {}
            Meanwhile::GoingOnAside => leave_a_processor(pid)?,
            Meanwhile::Stopped => {
                kill(Pid::from_raw(pid), Signal::SIGSTOP).context("cannot stop the program")?;
            }
        }
        let mut measured = Measured::default();
        for _ in 0..repetitions {
            measured.take(&daemon, pid, path)?;
        }
        rows.extend(measured.rows(meanwhile));
    }
    kill(Pid::from_raw(pid), Signal::SIGCONT).context("cannot let the program go on")?;
    target.still_running()?;
    daemon.detach(pid)?;
    let peak = daemon.peak_memory()? >> 20;
    let of = format!("{} MiB of mapped rings in it", RINGS_BYTES >> 20);
    rows.push(Row::new(
        "  the daemon's peak memory",
        format!("{peak} MiB"),
        of,
    ));
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    table.note(format!(
        "Snapshots are of {THREADS} threads that do nothing but call functions, with rings of {RING_MIB} MiB, medians of {repetitions}."
    ));
    Ok(rows)
}

/// Keeps all threads of the process off one of the processors from now on, if there are several.
fn leave_a_processor(pid: i32) -> Result<()> {
    let own = sched_getaffinity(Pid::from_raw(0)).context("cannot read the processors")?;
    let allowed: Vec<_> = (0..CpuSet::count())
        .filter(|&cpu| own.is_set(cpu).unwrap_or(false))
        .collect();
    let (_left, theirs) = allowed.split_last().context("no processors")?;
    ensure!(!theirs.is_empty(), "there is no processor to leave");
    let mut set = CpuSet::new();
    theirs.iter().try_for_each(|&cpu| set.set(cpu))?;
    for task in Process::new(pid)?.tasks()? {
        sched_setaffinity(Pid::from_raw(task?.tid), &set).context("cannot choose processors")?;
    }
    Ok(())
}

// === impl Measured ===

impl Measured {
    fn take(&mut self, daemon: &Daemon, pid: i32, path: &str) -> Result<()> {
        let begun = Instant::now();
        let pid = pid.to_string();
        let answer = daemon.ctl(&["snapshot", "--pid", &pid, "--force", "-o", path])?;
        self.whole.push(begun.elapsed().as_secs_f64());
        let taken = &answer["files"][0];
        let copied = number(taken, "copied_within_ns")?;
        ensure!(copied > 0, "nothing was copied: {taken}");
        self.copied.push(copied as f64 / 1e9);
        self.events.push(number(taken, "events")? as f64);
        self.file_bytes.push(number(taken, "bytes")? as f64);
        Ok(())
    }

    fn rows(&self, meanwhile: Meanwhile) -> [Row; 2] {
        let Self {
            copied,
            whole,
            events,
            file_bytes,
        } = self;
        let what = match meanwhile {
            Meanwhile::GoingOn => "while they go on on all processors",
            Meanwhile::GoingOnAside => "while they go on on all but one",
            Meanwhile::Stopped => "while they stand still",
        };
        let there = events.median() * EVENT_BYTES as f64 / RINGS_BYTES as f64;
        let all_there = there >= 1.0 - MISSING_AT_MOST;
        let gibibytes = RINGS_BYTES as f64 / (1 << 30) as f64;
        let copy = Row::new(
            format!("{THREADS} threads, rings of {gibibytes} GiB, {what}: copied"),
            format!(
                "{:.0} ms, {:.0} to {:.0}; {:.0} % of what rings hold",
                copied.median() * 1e3,
                copied.min() * 1e3,
                copied.max() * 1e3,
                100.0 * there
            ),
            format!("{:.1} GiB/s", gibibytes / copied.median()),
        );
        let met = copied.median() <= MOST_SECONDS * gibibytes && all_there;
        let copy = match meanwhile {
            Meanwhile::GoingOn | Meanwhile::GoingOnAside => copy.goal(
                format!("≤ {MOST_SECONDS} s for 1 GiB, 90 % of it there"),
                met,
            ),
            Meanwhile::Stopped => copy,
        };
        let command = Row::new(
            "  the whole command",
            format!(
                "{:.1} s, {:.1} to {:.1}; {:.0} M events, {:.0} MiB",
                whole.median(),
                whole.min(),
                whole.max(),
                events.median() / 1e6,
                file_bytes.median() / (1 << 20) as f64
            ),
            format!("{:.1} M events/s", events.median() / whole.median() / 1e6),
        );
        [copy, command]
    }
}
