//! A tracer enables and disables functions, attaches, detaches, records, is killed and takes over,
//! while a program works.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, opens_map_files, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;
use xrayd::export::TraceWriter;

use crate::{
    scene::{Cli, Daemon, Running, Scene, row_of, rows, sleds_on_in},
    trace,
};

/// Sizes of rings: one that loses many events, and the usual one.
const RINGS: [&str; 2] = ["64KiB", "1MiB"];

/// A program that can be given work.
pub(crate) trait Work: Sync {
    /// The file that all processes run.
    fn program(&self) -> &Path;

    /// Its processes, which never change.
    fn pids(&self) -> Vec<i32>;

    /// The number of sides that can work at the same time.
    fn sides(&self) -> usize;

    /// Does a piece of work from one side. The same result as untraced is no error.
    fn work(&self, side: usize) -> Result<()>;

    /// Selectors of one function, and the number of its calls in each piece of work of side 0.
    /// `None` if only the constancy of the number is known.
    fn counted(&self) -> (&'static [&'static str], Option<u64>);

    /// Checks that all processes live and have logged no complaint.
    fn healthy(&self) -> Result<()>;
}

/// The number of finished pieces of work, of all sides.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    /// True if no side is to go on.
    stop: AtomicBool,
}

/// The tracing side.
struct Storm<'work> {
    scene: Scene,
    daemon: Daemon,
    cli: Cli,
    work: &'work dyn Work,
    pids: Vec<String>,
    round: usize,
}

/// Numbers of recorded and of lost events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    events: u64,
    lost: u64,
    /// The part of `lost` that a slow recorder missed: events and losses.
    lost_by_reader: u64,
    /// Events and losses that a recording beside others leaves out.
    events_excluded: u64,
    lost_excluded: u64,
}

/// Traces the program, in one round or in as many as take `XRAYD_SOAK_SECONDS`.
pub(crate) fn trace(work: &dyn Work) -> Result<()> {
    let length = match std::env::var("XRAYD_SOAK_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().context("XRAYD_SOAK_SECONDS")?),
        Err(_) => Duration::ZERO,
    };
    let mut storm = Storm::new(work)?;
    let begun = Instant::now();
    loop {
        storm
            .round()
            .with_context(|| format!("round {}; {}", storm.round, storm.daemon.log()))?;
        work.healthy()?;
        if begun.elapsed() >= length {
            return Ok(());
        }
    }
}

// === impl Storm ===

impl<'work> Storm<'work> {
    fn new(work: &'work dyn Work) -> Result<Self> {
        let scene = Scene::new()?;
        let daemon = scene.daemon()?;
        Ok(Self {
            cli: scene.with(&daemon)?,
            scene,
            daemon,
            work,
            pids: work.pids().iter().map(i32::to_string).collect(),
            round: 0,
        })
    }

    /// Runs each kind of tracing once.
    fn round(&mut self) -> Result<()> {
        self.round += 1;
        self.exact().context("exactly")?;
        let (work, progress) = (self.work, &Progress::default());
        thread::scope(|scope| {
            let sides: Vec<_> = (0..work.sides())
                .map(|side| scope.spawn(move || progress.keep_on(work, side)))
                .collect();
            let traced = self.under_load(progress);
            progress.stop.store(true, Ordering::Relaxed);
            for side in sides {
                // An error there explains the others.
                side.join().ok().context("panicked")??;
            }
            traced
        })
    }

    fn under_load(&mut self, progress: &Progress) -> Result<()> {
        self.switched(progress).context("switched")?;
        self.recorded(progress).context("recorded")?;
        self.recorded_beside(progress).context("attached")?;
        self.recorded_alone(progress).context("alone")?;
        self.flown(progress).context("in flight")?;
        self.killed(progress).context("killed")
    }

    /// With one function on, its events are exactly its calls by the work, while it is on and no
    /// longer.
    fn exact(&mut self) -> Result<()> {
        let (selector, calls) = self.work.counted();
        let mut counted = calls;
        for pieces in [1, 3] {
            self.attach(RINGS[1])?;
            self.switch("enable", selector)?;
            for _ in 0..pieces {
                self.work.work(0)?;
            }
            self.switch("disable", selector)?;
            self.work.work(0)?;
            let counts = self.detach()?;
            ensure!(counts.lost == 0 && counts.events > 0, "{counts:?}");
            let calls = *counted.get_or_insert(counts.events / 2);
            ensure!(
                counts.events == 2 * pieces * calls,
                "{counts:?} of {pieces} times {calls} calls"
            );
        }
        Ok(())
    }

    fn switched(&mut self, progress: &Progress) -> Result<()> {
        let (selector, _) = self.work.counted();
        self.attach(RINGS[self.round % RINGS.len()])?;
        for _ in 0..3 {
            self.switch("enable", &["--all"])?;
            self.more_events(1000)?;
            self.switch("disable", &["--all"])?;
            self.switch("enable", selector)?;
            progress.more(1)?;
        }
        let before = self.counts()?;
        let after = self.detach()?;
        ensure!(
            before.events <= after.events && before.lost <= after.lost,
            "{before:?} and later {after:?}"
        );
        Ok(())
    }

    /// Records each process into a file, through the daemon, which attaches for that.
    fn recorded(&mut self, progress: &Progress) -> Result<()> {
        let recordings = self.record(&self.cli)?;
        progress.more(2)?;
        let counts = self.finish(recordings, "stopped")?;
        ensure!(counts.events > 0, "{counts:?}");
        Ok(())
    }

    /// The same for attached processes, which stay attached. The events in the files, and those
    /// that the files exclude, are together all counted events. The excluded ones are exits of
    /// calls that were open when their functions were switched on, and events while the functions
    /// were switched off.
    fn recorded_beside(&mut self, progress: &Progress) -> Result<()> {
        self.attach(RINGS[self.round % RINGS.len()])?;
        let recordings = self.record(&self.cli)?;
        progress.more(2)?;
        let files = self.finish(recordings, "still-attached")?;
        let all = self.detach()?;
        let events = all.events.checked_sub(files.events + files.events_excluded);
        let lost = all
            .lost
            .checked_sub(files.lost - files.lost_by_reader + files.lost_excluded);
        let missing = events.zip(lost).map(|(events, lost)| events + lost);
        ensure!(
            files.events > 0 && missing == Some(files.lost_by_reader),
            "{files:?} in the files of {all:?}"
        );
        Ok(())
    }

    /// Records without a daemon, and with a recorder that is killed in the middle.
    fn recorded_alone(&mut self, progress: &Progress) -> Result<()> {
        let alone = self.scene.alone()?;
        let recordings = self.record(&alone)?;
        progress.more(1)?;
        self.finish(recordings, "stopped")?;
        // Dropping the guard kills the recorder.
        drop(self.record(&alone)?);
        progress.more(1)?;
        self.attach(RINGS[1])?;
        self.detach().map(drop)
    }

    /// In flight mode, the rings are not read, and a snapshot has their events at any time.
    fn flown(&mut self, progress: &Progress) -> Result<()> {
        self.attach(RINGS[self.round % RINGS.len()])?;
        self.cli.ok(["mode", "flight"])?;
        self.switch("enable", &["--all"])?;
        self.more_events(1000)?;
        for _ in 0..3 {
            let mut shown = 0;
            for pid in &self.pids {
                let file = file_of(pid);
                let arguments = ["snapshot", "--pid", pid, "--force", "-o", &file];
                let taken = self.cli.json(arguments)?;
                let events = taken["files"][0]["events"].as_u64();
                shown += events.with_context(|| format!("no events in {taken}"))?;
                let account = ["account", &file, "--by", "process", "--format", "json"];
                let account: Value = serde_json::from_str(&self.cli.ok(account)?)?;
                let trace = &account["trace"];
                ensure!(
                    trace["completeness"] == "complete" && trace["notes"]["damaged_blocks"] == 0,
                    "{account}"
                );
                std::fs::remove_file(self.scene.path(&file))?;
            }
            // A process like nginx's master may be idle.
            ensure!(shown > 0, "nothing was seen of any process");
            progress.more(1)?;
        }
        self.detach().map(drop)
    }

    /// The daemon is killed while all functions are on, or during a toggle or an attach. The next
    /// daemon takes over.
    fn killed(&mut self, progress: &Progress) -> Result<()> {
        let attaching = self.round % 4 == 3;
        let mut others = Vec::new();
        if attaching {
            for pid in &self.pids {
                others.push(self.cli.start(["attach", pid])?);
            }
        } else {
            self.attach(RINGS[1])?;
            self.switch("enable", &["--all"])?;
            self.more_events(1000)?;
        }
        match self.round % 4 {
            0 => others.push(self.cli.start(["disable", "--all"])?),
            2 => others.extend(self.record(&self.cli)?),
            _ => {}
        }
        self.daemon.signal(Signal::SIGKILL)?;
        self.daemon.wait()?;
        drop(others);
        progress.more(2)?;

        self.daemon = self.scene.daemon()?;
        let adopted = self.attach(RINGS[1])?;
        ensure!(
            attaching || adopted == opens_map_files()?,
            "the memory of the killed one was not taken over"
        );
        self.switch("enable", &["--all"])?;
        self.more_events(1000)?;
        progress.more(1)?;
        self.detach().map(drop)
    }

    /// Attaches every process. Returns true if all of them had memory of an earlier attach.
    fn attach(&self, ring: &str) -> Result<bool> {
        let mut adopted = true;
        for pid in &self.pids {
            let attached =
                self.cli
                    .json(["attach", pid, "--ring-size", ring, "--mode", "stream"])?;
            adopted &= attached["report"]["adopted"] == true;
        }
        Ok(adopted)
    }

    /// Enables or disables functions in every process. None may be left out.
    fn switch(&self, command: &str, selector: &[&str]) -> Result<()> {
        let answer = self.cli.json([&[command], selector].concat())?;
        let processes = rows(&answer, "processes")?;
        ensure!(processes.len() == self.pids.len(), "{answer}");
        for row in processes {
            ensure!(
                row["foreign"] == 0 && row["refusal"].is_null() && row["matched"] != 0,
                "{command} {selector:?}: {row}"
            );
        }
        Ok(())
    }

    /// The counts of all processes together.
    fn counts(&self) -> Result<Counts> {
        let status = self.cli.json(["status"])?;
        let mut sum = Counts::default();
        for pid in self.work.pids() {
            let row = row_of(&status, pid)?.with_context(|| format!("no {pid} in {status}"))?;
            sum.add(row)?;
        }
        Ok(sum)
    }

    fn more_events(&self, more: u64) -> Result<()> {
        let before = self.counts()?.passed();
        wait_until(DEADLINE, "more events", || {
            Ok((self.counts()?.passed() >= before + more).then_some(()))
        })
    }

    /// Detaches every process, with the proof that each is as it was.
    fn detach(&self) -> Result<Counts> {
        let mut sum = Counts::default();
        for pid in &self.pids {
            let answer = self.cli.json(["detach", pid])?;
            let row = &rows(&answer, "processes")?[0];
            let proven = row["sleds_on"] == 0
                && row["text_bytes_different"] == 0
                && row["text_bytes_compared"].as_u64() > Some(0)
                && row["exited"] == false;
            ensure!(proven, "no proof: {row}");
            sum.add(row)?;
        }
        Ok(sum)
    }

    /// Records every process. Returns when functions are on in all of them.
    fn record(&self, cli: &Cli) -> Result<Vec<Running>> {
        let mut recordings = Vec::new();
        for (pid, process) in self.pids.iter().zip(self.work.pids()) {
            let file = file_of(pid);
            let arguments = ["record", pid, "--all", "--force", "--json", "-o", &file];
            let mut recording = cli.start(arguments)?;
            let program = self.work.program();
            recording.until("functions are on", || {
                Ok((sleds_on_in(process, program)? > 0).then_some(()))
            })?;
            recordings.push(recording);
        }
        Ok(recordings)
    }

    /// Ends recordings. Their files must be complete and agree with their summaries.
    fn finish(&self, recordings: Vec<Running>, outcome: &str) -> Result<Counts> {
        for recording in &recordings {
            recording.signal(Signal::SIGINT)?;
        }
        let mut sum = Counts::default();
        for (recording, pid) in recordings.into_iter().zip(&self.pids) {
            let ran = recording.wait()?;
            ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
            let recorded: Value = serde_json::from_str(&ran.out)?;
            ensure!(recorded["outcome"] == outcome, "{recorded}");
            let file = file_of(pid);
            let arguments = ["account", &file, "--by", "process", "--format", "json"];
            let account: Value = serde_json::from_str(&self.cli.ok(arguments)?)?;
            let trace = &account["trace"];
            ensure!(
                trace["completeness"] == "complete" && trace["notes"]["damaged_blocks"] == 0,
                "{account}"
            );
            for field in ["events", "lost"] {
                ensure!(trace[field] == recorded[field], "{recorded} but {account}");
            }
            let calls: u64 = rows(&account, "rows")?
                .iter()
                .filter_map(|row| row["calls"].as_u64())
                .sum();
            ensure!(recorded["calls"] == calls, "{recorded} but {account}");
            sum.add(&recorded)?;
            let losses = trace::read(&self.scene.path(&file))?;
            let losses = losses.coverage().losses.iter();
            let by_reader = losses.filter(|(thread, _)| *thread == TraceWriter::<Vec<u8>>::READER);
            sum.lost_by_reader += by_reader.map(|(_, lost)| lost).sum::<u64>();
            std::fs::remove_file(self.scene.path(&file))?;
        }
        Ok(sum)
    }
}

// === impl Progress ===

impl Progress {
    /// Works until the stop, or until an error.
    fn keep_on(&self, work: &dyn Work, side: usize) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let done = work.work(side);
            if done.is_err() {
                self.stop.store(true, Ordering::Relaxed);
            }
            done.with_context(|| format!("side {side} of the work"))?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until this many more pieces are done that began under the current conditions.
    fn more(&self, pieces: u64) -> Result<()> {
        let wanted = self.done.load(Ordering::Relaxed) + pieces;
        wait_until(DEADLINE, "the work goes on", || {
            ensure!(!self.stop.load(Ordering::Relaxed), "the work went wrong");
            Ok((self.done.load(Ordering::Relaxed) >= wanted).then_some(()))
        })
    }
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, row: &Value) -> Result<()> {
        let field = |name: &str| {
            row[name]
                .as_u64()
                .with_context(|| format!("no {name} in {row}"))
        };
        self.events += field("events")?;
        self.lost += field("lost")?;
        let excluded = &row["excluded"];
        if !excluded.is_null() {
            let field = |name: &str| {
                let number = excluded[name].as_u64();
                number.with_context(|| format!("no {name} in {excluded}"))
            };
            self.events_excluded += field("earlier_exits")? + field("later_events")?;
            self.lost_excluded += field("later_lost")?;
        }
        Ok(())
    }

    /// Events of sleds, recorded or lost.
    fn passed(self) -> u64 {
        self.events + self.lost
    }
}

fn file_of(pid: &str) -> String {
    format!("{pid}.xtrace")
}
