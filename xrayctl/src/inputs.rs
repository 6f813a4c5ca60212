//! The traces that a command reads. Several of them are shown as one.

use std::path::{Path, PathBuf};

use xray_trace::model::Trace;
use xray_trace::source::{self, Opened};

use crate::failure::Failure;
use crate::input::Logs;
use crate::log::Log;
use crate::output::{Console, text};

/// The traces of a command, at least one.
#[derive(Debug, clap::Args)]
pub(crate) struct Inputs {
    /// The trace, or several to be shown as one: of hosts, of runs, of parts of a run; - is
    /// standard input
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
}

// === impl Inputs ===

impl Inputs {
    /// All files.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(PathBuf::as_path).collect()
    }

    /// The file; for several ones the first, and the number of the others. For people.
    pub(crate) fn name(&self) -> PathBuf {
        match &self.files[..] {
            [] => PathBuf::new(),
            [only] => only.clone(),
            [first, others @ ..] => format!("{} and {} more", first.display(), others.len()).into(),
        }
    }

    /// Opens the trace, or merges all traces. Notes the data that could not be kept.
    pub(crate) fn open(&self, logs: &Logs, console: &Console) -> anyhow::Result<Trace> {
        match &self.files[..] {
            [only] => logs.open(only, console),
            files => Ok(merged(files, logs, console)?.trace),
        }
    }

    /// The same, or opens the profile. Profiles are not merged.
    pub(crate) fn open_any(&self, logs: &Logs, console: &Console) -> anyhow::Result<Log> {
        match &self.files[..] {
            [only] => logs.open_any(only, console),
            files => merged(files, logs, console).map(Log::Trace),
        }
    }
}

fn merged(files: &[PathBuf], logs: &Logs, console: &Console) -> anyhow::Result<Opened> {
    let mut traces = Vec::new();
    for file in files {
        match logs.open_any(file, console)? {
            Log::Trace(opened) => traces.push(opened.trace),
            Log::Profile(_) => {
                let what = format!(
                    "{} is a profile; only traces are shown as one",
                    file.display()
                );
                return Err(Failure::Usage(what).into());
            }
        }
    }
    let merged = source::merge(&traces)?;
    for (what, count) in &merged.notes {
        console.note(&format!("{}: {count}", text::printable(what)));
    }
    Ok(merged)
}
