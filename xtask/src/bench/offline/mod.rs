//! The commands that work on files, beside `llvm-xray` with the same input: their time and their
//! memory.
//!
//! `llvm-xray` has no format for long traces. So for a long trace in xrayd's format the events a
//! second count. `llvm-xray` is not run on the large log: it would need 20 GB of memory.

mod inputs;
mod runs;
mod task;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use integration::{Tool, target_dir};
use nix::sys::statvfs::statvfs;

use self::inputs::{Input, Inputs, TIMES};
use self::runs::{Outputs, Runs, mib};
use self::task::{Task, Words};
use super::drain::bytes_row;
use super::table::{Row, Table};
use super::{Bench, Effort};
use crate::shell::say;

const FASTER: f64 = 20.0;
const RATE_PER_CORE: f64 = 50e6;
const PEAK_MIB: f64 = 100.0;
/// Two peaks with a smaller ratio count as the same.
const SAME: f64 = 1.2;
/// The most of a file that may be read for a hundredth of its time.
const READ_PERCENT: f64 = 5.0;
/// The largest size of an event in a conversion, with something to spare: LLVM's YAML has 134
/// bytes.
const ROOM_PER_EVENT: u64 = 150;

/// The programs, their inputs and their outputs.
struct Bed {
    xrayctl: PathBuf,
    llvm_xray: PathBuf,
    inputs: Inputs,
    outputs: Outputs,
}

/// A command, and its runs on every input.
struct Measurement {
    task: Task,
    /// `llvm-xray` on the log; `None` if it has no such command.
    theirs: Option<Runs>,
    log: Runs,
    /// Runs of a conversion on the same events as a trace.
    same: Runs,
    /// Runs of an analysis on the long trace.
    trace: Runs,
    /// One run on the large log, or the reason for none.
    large: Result<Runs>,
}

/// A command of `llvm-xray` to compare with, and its time.
#[derive(Clone, Copy)]
struct Rival {
    task: Task,
    seconds: f64,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let rounds = match bench.effort {
        Effort::Full => 3,
        Effort::Quick => 1,
    };
    let dir = bench.scratch("offline")?;
    let xrayctl = target_dir()?.join("release/xrayctl");
    let bed = Bed {
        inputs: Inputs::make(bench, &xrayctl, &dir)?,
        outputs: Outputs::new(&dir),
        xrayctl,
        llvm_xray: Tool::LlvmXray19.path()?,
    };
    let mut measurements: Vec<_> = Task::ALL.into_iter().map(Measurement::new).collect();
    let mut window = Runs::default();
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}"))?;
        for measurement in &mut measurements {
            measurement.round(&bed)?;
        }
        bed.window(&mut window)?;
    }
    say(&format!("{TIMES} times the events"))?;
    for measurement in &mut measurements {
        measurement.large = bed.large(measurement.task);
    }
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    note(table);
    Ok(rows(&bed.inputs, &measurements, &window))
}

fn rows(inputs: &Inputs, measurements: &[Measurement], window: &Runs) -> Vec<Row> {
    let Inputs {
        log, same, trace, ..
    } = inputs;
    let mut rows = Vec::new();
    for (what, input) in [
        ("the log of LLVM's flight data recorder", log),
        ("the same events as .xtrace", same),
    ] {
        let size = format!("{} events, {:.1} MiB", input.events, mib(input.bytes));
        rows.push(Row::new(what, size, ""));
    }
    let each = trace.bytes as f64 / trace.events as f64;
    rows.push(bytes_row(
        "bytes per event of the long .xtrace",
        each,
        trace.events,
        0,
    ));
    for measurement in measurements {
        let rival = measurement.rival(measurements);
        rows.extend(measurement.beside_theirs(rival, log.events));
    }
    let analyses = || {
        let analysis = |measurement: &&Measurement| !measurement.task.is_conversion();
        measurements.iter().filter(analysis)
    };
    rows.extend(analyses().map(|measurement| measurement.on_trace(trace.events)));
    if let Some(whole) = analyses().find(|measurement| measurement.task == Task::Account) {
        rows.push(window_row(window, &whole.trace, trace));
    }
    rows.extend(measurements.iter().map(Measurement::memory));
    rows
}

fn window_row(window: &Runs, whole: &Runs, trace: &Input) -> Row {
    let what = "account of 1 % of the long .xtrace's time";
    if let Some(failure) = window.failure().or(whole.failure()) {
        return Row::not_measured(what, failure);
    }
    let (read, of) = (window.read_bytes(), trace.bytes);
    let percent = 100.0 * read as f64 / of as f64;
    let result = format!(
        "{}; {:.1} of {:.1} MiB read, {percent:.1} %",
        window.reported(),
        mib(read),
        mib(of)
    );
    let share = 100.0 * window.seconds().median() / whole.seconds().median();
    Row::new(what, result, format!("{share:.1} % of the whole's time")).goal(
        format!("≤ {READ_PERCENT:.0} % read"),
        percent <= READ_PERCENT,
    )
}

fn note(table: &mut Table) {
    table.note(
        "The offline commands work on what a synthetic program of 400 functions did in four threads, from the page cache; medians of \
         interleaved rounds, conversions into a file on the disk. llvm-xray is told to write names, as xrayctl does. So that it can read the log, the log's \
         threads run one after the other (its `account` refuses others) and the seconds of buffers differ (it mixes up others); \
         threads of the long `.xtrace` run together. A core's rate is that by user and system time of all threads.",
    );
    table.note(format!(
        "Peak memory is VmHWM at a command's end, the largest of all rounds; of {TIMES} times the events, of one run. It is \"the \
         same\" up to a factor of {SAME}. Bytes read are those of `rchar` in `/proc/PID/io`.",
    ));
}

// === impl Bed ===

impl Bed {
    fn ours(&self, task: Task, input: &Input, runs: &mut Runs) -> Result<()> {
        self.outputs.run(runs, &self.words(task, input))
    }

    fn words(&self, task: Task, input: &Input) -> Words {
        let program = input.is_log().then_some(self.inputs.program.as_path());
        task.ours(&self.xrayctl, program, &input.path, &self.outputs.file)
    }

    /// Runs on a hundredth of the long trace's time, from the middle of it.
    fn window(&self, runs: &mut Runs) -> Result<()> {
        let trace = &self.inputs.trace;
        let since = trace.duration_ns / 2;
        let until = since + trace.duration_ns / 100;
        let words = self
            .words(Task::Account, trace)
            .and(["--since", &format!("{since}ns")])
            .and(["--until", &format!("{until}ns")]);
        self.outputs.run(runs, &words)
    }

    /// Makes one run on the large log.
    fn large(&self, task: Task) -> Result<Runs> {
        let large = &self.inputs.large;
        if task.is_conversion() {
            let disk = statvfs(&large.path).context("cannot tell how full the disk is")?;
            let free = disk.blocks_available() * disk.fragment_size();
            let wanted = large.events * ROOM_PER_EVENT;
            ensure!(
                free >= wanted,
                "it takes {:.0} MiB of disk, and {:.0} MiB are free",
                mib(wanted),
                mib(free)
            );
        }
        let mut runs = Runs::default();
        self.ours(task, large, &mut runs)?;
        Ok(runs)
    }

    /// The numbers and the counts of the functions in the table that `account` has printed last.
    fn counts(&self) -> Result<Vec<String>> {
        let printed = fs::read_to_string(&self.outputs.printed)
            .with_context(|| format!("cannot read {}", self.outputs.printed.display()))?;
        let line = |line: &str| {
            let words: Vec<_> = line.split_whitespace().take(2).collect();
            words.join(" ")
        };
        Ok(printed.lines().map(line).collect())
    }
}

// === impl Measurement ===

impl Measurement {
    fn new(task: Task) -> Self {
        Self {
            task,
            theirs: None,
            log: Runs::default(),
            same: Runs::default(),
            trace: Runs::default(),
            large: Ok(Runs::default()),
        }
    }

    fn round(&mut self, bed: &Bed) -> Result<()> {
        let (task, inputs) = (self.task, &bed.inputs);
        bed.ours(task, &inputs.log, &mut self.log)?;
        // The faster program must give the same answer.
        let ours = (task == Task::Account).then(|| bed.counts()).transpose()?;
        let theirs = task.theirs(
            &bed.llvm_xray,
            &inputs.program,
            &inputs.log.path,
            &bed.outputs.file,
        );
        if let Some(words) = theirs {
            let runs = self.theirs.get_or_insert_default();
            bed.outputs.run(runs, &words)?;
            let comparable = runs.failure().or(self.log.failure()).is_none();
            if let Some(ours) = ours.filter(|_| comparable) {
                let same = bed.counts()? == ours;
                ensure!(same, "llvm-xray and xrayctl count different calls");
            }
        }
        if task.is_conversion() {
            bed.ours(task, &inputs.same, &mut self.same)
        } else {
            bed.ours(task, &inputs.trace, &mut self.trace)
        }
    }

    /// The command of `llvm-xray` to compare with, which does not fail: the same one, or, where
    /// there is none, its fastest conversion.
    fn rival(&self, all: &[Measurement]) -> Option<Rival> {
        let same = |other: &&Measurement| match self.theirs {
            Some(_) => other.task == self.task,
            None => other.task.is_conversion(),
        };
        let rivals = all.iter().filter(same).filter_map(|other| {
            let runs = other.theirs.as_ref()?;
            let seconds = runs.seconds().median();
            let task = other.task;
            runs.failure().is_none().then_some(Rival { task, seconds })
        });
        rivals.min_by(|one, other| one.seconds.total_cmp(&other.seconds))
    }

    /// Rows on both programs with the log, and on xrayctl with the same events as a trace.
    fn beside_theirs(&self, rival: Option<Rival>, events: u64) -> Vec<Row> {
        let name = self.task.name();
        let mut rows = Vec::new();
        if let Some(own) = &self.theirs {
            let result = match own.failure() {
                None => format!("{}; {:.0} MiB", own.reported(), own.peak_mib()),
                Some(why) => format!("FAILS after {:.2} s: {why}", own.seconds().median()),
            };
            rows.push(Row::new(format!("{name}: llvm-xray-19"), result, ""));
        }
        let mut inputs = vec![(format!("{name}: xrayctl"), &self.log)];
        if self.task.is_conversion() {
            inputs.push((format!("{name}: xrayctl, from the .xtrace"), &self.same));
        }
        for (what, runs) in inputs {
            rows.push(self.compared(what, runs, rival, events));
        }
        rows
    }

    fn on_trace(&self, events: u64) -> Row {
        let what = format!("{}, {events} events of .xtrace", self.task.name());
        if let Some(failure) = self.trace.failure() {
            return Row::not_measured(what, failure);
        }
        let rate = events as f64 / self.trace.seconds().median();
        let per_core = events as f64 / self.trace.cpu_seconds().median();
        let result = format!("{}; {:.1} M events/s", self.trace.reported(), rate / 1e6);
        let ratio = format!("{:.1} M events/s per core", per_core / 1e6);
        let goal = format!("≥ {:.0} M events/s per core", RATE_PER_CORE / 1e6);
        Row::new(what, result, ratio).goal(goal, per_core >= RATE_PER_CORE)
    }

    /// A row on the most memory with the log and with the large one.
    fn memory(&self) -> Row {
        let what = format!("{}: peak memory", self.task.name());
        let large = match &self.large {
            Ok(large) => large,
            Err(error) => return Row::not_measured(what, format!("{error:#}")),
        };
        if let Some(failure) = self.log.failure().or(large.failure()) {
            return Row::not_measured(what, failure);
        }
        let (small, large) = (self.log.peak_mib(), large.peak_mib());
        let mut result = format!("{small:.0} MiB; {large:.0} MiB of {TIMES} times the events");
        if !self.task.is_conversion() {
            result += &format!("; {:.0} MiB of the long .xtrace", self.trace.peak_mib());
        }
        let growth = large / small;
        let theirs = self.theirs.as_ref().map_or(String::new(), |theirs| {
            format!(", llvm-xray-19 {:.0} MiB", theirs.peak_mib())
        });
        let peak = small.max(large).max(self.trace.peak_mib());
        Row::new(what, result, format!("{growth:.2} × the log's{theirs}")).goal(
            format!("≤ {PEAK_MIB:.0} MiB, the same"),
            peak <= PEAK_MIB && growth <= SAME,
        )
    }

    /// A row that compares the time of xrayctl with that of the other program.
    fn compared(&self, what: String, runs: &Runs, rival: Option<Rival>, events: u64) -> Row {
        if let Some(failure) = runs.failure() {
            return Row::not_measured(what, failure);
        }
        let seconds = runs.seconds().median();
        let rate = events as f64 / seconds / 1e6;
        let result = format!("{}; {rate:.1} M events/s", runs.reported());
        let Some(rival) = rival else {
            return Row::new(what, result, "nothing to compare with");
        };
        let faster = rival.seconds / seconds;
        let than = if rival.task == self.task {
            String::new()
        } else {
            format!(" than {}", rival.task.name())
        };
        Row::new(what, result, format!("{faster:.1} × faster{than}"))
            .goal(format!("≥ {FASTER:.0} × faster"), faster >= FASTER)
    }
}
