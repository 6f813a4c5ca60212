//! Running commands again and again, and what they took.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::super::measured::{Measured, measure};
use super::super::samples::Samples;
use super::task::Words;

/// Where commands write to. Every one finds it empty.
#[derive(Debug)]
pub(super) struct Outputs {
    /// The file of a conversion.
    pub(super) file: PathBuf,
    /// Standard output.
    pub(super) printed: PathBuf,
    /// Standard error.
    complaints: PathBuf,
    /// What the paths of all files begin with.
    prefix: String,
}

/// One command, as often as it was run.
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

    /// Runs a command once; what it printed stays until the next one.
    pub(super) fn run(&self, runs: &mut Runs, words: &Words) -> Result<()> {
        let printed = File::create(&self.printed)
            .with_context(|| format!("cannot create {}", self.printed.display()))?;
        let mut run = measure(&words.0, printed, &self.complaints)?;
        // Where the inputs lie is of no interest.
        run.failure = run.failure.map(|why| why.replace(&self.prefix, ""));
        runs.0.push(run);
        // At once: what has not reached the disk by then never has to.
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

    /// Of all runs.
    pub(super) fn peak_mib(&self) -> f64 {
        mib(self.0.iter().map(|run| run.peak_bytes).max().unwrap_or(0))
    }

    /// What each run read; they all read the same.
    pub(super) fn read_bytes(&self) -> u64 {
        self.0.iter().map(|run| run.read_bytes).max().unwrap_or(0)
    }

    /// Why the command failed, if it ever did.
    pub(super) fn failure(&self) -> Option<&str> {
        self.0.iter().find_map(|run| run.failure.as_deref())
    }

    /// The times in words.
    pub(super) fn told(&self) -> String {
        let seconds = self.seconds();
        let (median, min, max) = (seconds.median(), seconds.min(), seconds.max());
        format!("{median:.2} s, {min:.2} to {max:.2}")
    }
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
