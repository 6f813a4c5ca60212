//! The inputs of the offline commands: traces of a synthetic program. Every run makes them anew,
//! and they are the same in each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, build, target_dir};
use serde_json::Value;

use super::super::daemon::number;
use super::super::{Bench, Effort};
use crate::shell::{cargo, execute};

/// The ratio of events in the large log to those in the other one.
pub(super) const TIMES: u64 = 10;

/// All inputs.
#[derive(Debug)]
pub(super) struct Inputs {
    /// The program that lends its functions to all of them.
    pub(super) program: PathBuf,
    /// A log of the flight data recorder.
    pub(super) log: Input,
    /// The same events as a trace.
    pub(super) same: Input,
    /// A longer log.
    pub(super) large: Input,
    /// A long trace.
    pub(super) trace: Input,
}

/// A trace in a file.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) path: PathBuf,
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// The time from the first event to the last.
    pub(super) duration_ns: u64,
}

/// The number of threads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Schedule {
    Together,
    InTurn,
}

// === impl Inputs ===

impl Inputs {
    pub(super) fn make(bench: &Bench, xrayctl: &Path, dir: &Path) -> Result<Self> {
        let (events, in_trace) = match bench.effort {
            Effort::Full => (8_000_000, 100_000_000),
            Effort::Quick => (800_000, 10_000_000),
        };
        execute(cargo("build").args([
            "--release",
            "--package",
            "xray-trace",
            "--example",
            "synthetic",
        ]))?;
        let program = build(Fixture::Many400)?;
        let make = |events: u64, schedule, names: &[&str]| -> Result<Vec<Input>> {
            let paths: Vec<_> = names.iter().map(|name| dir.join(name)).collect();
            let mut command = Command::new(target_dir()?.join("release/examples/synthetic"));
            command.arg(&program).arg(events.to_string());
            command.arg(match schedule {
                Schedule::Together => "together",
                Schedule::InTurn => "in-turn",
            });
            execute(command.args(&paths))?;
            let inputs = paths.into_iter();
            inputs
                .map(|path| Input::checked(xrayctl, path, events))
                .collect()
        };
        let same = make(events, Schedule::InTurn, &["log.fdr", "log.xtrace"])?;
        let large = make(events * TIMES, Schedule::InTurn, &["large.fdr"])?;
        let trace = make(in_trace, Schedule::Together, &["trace.xtrace"])?;
        let mut inputs = same.into_iter().chain(large).chain(trace);
        let mut next = || inputs.next().context("a file is missing");
        Ok(Self {
            log: next()?,
            same: next()?,
            large: next()?,
            trace: next()?,
            program,
        })
    }
}

// === impl Input ===

impl Input {
    /// True for a log of LLVM's, which does not hold the names of functions.
    pub(super) fn is_log(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension == "fdr")
    }

    /// Checks the input: nothing is measured with a file that does not hold what it should.
    fn checked(xrayctl: &Path, path: PathBuf, events: u64) -> Result<Self> {
        let output = Command::new(xrayctl)
            .args(["info", "--json"])
            .arg(&path)
            .output()
            .context("cannot start xrayctl")?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "xrayctl info: {}", printed.trim());
        let info: Value =
            serde_json::from_slice(&output.stdout).context("what xrayctl info says")?;
        let found = number(&info["trace"], "events")?;
        let bytes = fs::metadata(&path)?.len();
        ensure!(
            found == events,
            "{}: {found} events instead of {events}",
            path.display()
        );
        Ok(Self {
            duration_ns: number(&info["trace"], "duration_ns")?,
            path,
            events,
            bytes,
        })
    }
}
