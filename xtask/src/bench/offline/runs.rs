//! Repeated runs of a command, and their cost. The commands are in `task.rs`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::super::measured::{Measured, measure};
use super::super::samples::Samples;
use super::task::Words;

/// The outputs of commands. Each command finds them empty.
#[derive(Debug)]
pub(super) struct Outputs {
    /// The file of a conversion.
    pub(super) file: PathBuf,
    /// Standard output.
    pub(super) printed: PathBuf,
    /// Standard error.
    complaints: PathBuf,
    /// The common start of the paths of all files.
    prefix: String,
}

/// The runs of one command.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs(Vec<Measured>);

// === impl Outputs ===

impl Outputs {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            file: dir.join("converted"),
            printed: dir.join("printed"),
            complaints: dir.join("complaints"),
            prefix: format!("{}/", dir.display()),
        }
    }

    /// Runs a command once. Its standard output stays until the next run.
    pub(super) fn run(&self, runs: &mut Runs, words: &Words) -> Result<()> {
        let printed = File::create(&self.printed)
            .with_context(|| format!("cannot create {}", self.printed.display()))?;
        let mut run = measure(&words.0, printed, &self.complaints)?;
        // The place of the inputs is of no interest.
        run.failure = run.failure.map(|why| why.replace(&self.prefix, ""));
        runs.0.push(run);
        // At once: bytes that have not reached the disk by then never have to.
        if self.file.exists() {
            fs::remove_file(&self.file)
                .with_context(|| format!("cannot remove {}", self.file.display()))?;
        }
        Ok(())
    }
}

// === impl Runs ===

impl Runs {
    pub(super) fn seconds(&self) -> Samples {
        self.0.iter().map(|run| run.seconds).collect()
    }

    pub(super) fn cpu_seconds(&self) -> Samples {
        self.0.iter().map(|run| run.cpu_seconds).collect()
    }

    /// The highest peak of all runs.
    pub(super) fn peak_mib(&self) -> f64 {
        mib(self.0.iter().map(|run| run.peak_bytes).max().unwrap_or(0))
    }

    /// The bytes that each run read; all runs read the same.
    pub(super) fn read_bytes(&self) -> u64 {
        self.0.iter().map(|run| run.read_bytes).max().unwrap_or(0)
    }

    /// The reason of a failure, if a run failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.0.iter().find_map(|run| run.failure.as_deref())
    }

    /// The times in words.
    pub(super) fn reported(&self) -> String {
        let seconds = self.seconds();
        let (median, min, max) = (seconds.median(), seconds.min(), seconds.max());
        format!("{median:.2} s, {min:.2} to {max:.2}")
    }
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
