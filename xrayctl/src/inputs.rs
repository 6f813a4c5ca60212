//! The traces and profiles that a command reads. Several of them are shown as one: traces are
//! merged, and profiles are added up.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xray_trace::llvm::Format;
use xray_trace::model::Trace;
use xray_trace::source::{self, CommonUnit, OpenError, Opened, OpenedProfile, ProfileSum};

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

/// One or more files, shown as one.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The file; for several ones the first, and the number of the others. For people.
    pub(crate) name: PathBuf,
    pub(crate) log: Log,
    /// The size of all files, in bytes.
    pub(crate) bytes: u64,
}

/// The treatment of a file that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The command ends.
    Fails,
    /// The command goes on with the other files.
    IsNoted,
}

/// The treatment of a trace and a profile among the same files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mixed {
    Fails,
    Apart,
}

/// Opened traces.
#[derive(Debug, Default)]
struct Traces<'a> {
    paths: Vec<&'a Path>,
    bytes: u64,
    unit: CommonUnit,
    opened: Vec<Opened>,
}

/// Opened profiles. At most one of them is in memory beside the sum.
#[derive(Debug, Default)]
struct Profiles<'a> {
    paths: Vec<&'a Path>,
    bytes: u64,
    unit: CommonUnit,
    /// The first profile, until there is a second one.
    first: Option<OpenedProfile>,
    /// The sum of all profiles, if there are several.
    sum: Option<ProfileSum>,
}

// === impl Inputs ===

impl Inputs {
    /// One file.
    pub(crate) fn of(file: PathBuf) -> Self {
        Self { files: vec![file] }
    }

    /// All files.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(PathBuf::as_path).collect()
    }

    /// The file; for several ones the first, and the number of the others. For people.
    pub(crate) fn name(&self) -> PathBuf {
        name_of(&self.paths())
    }

    /// Opens the trace, or merges all traces. Notes the data that could not be kept.
    pub(crate) fn open(&self, logs: &Logs, console: &Console) -> anyhow::Result<Trace> {
        if let [only] = &self.files[..] {
            return logs.open(only, console);
        }
        let mut unit = CommonUnit::default();
        let traces = self.files.iter().map(|file| -> anyhow::Result<Trace> {
            let trace = logs.open(file, console)?;
            let fits = unit.add_trace(&trace);
            fits.with_context(|| cannot("merge", file))?;
            Ok(trace)
        });
        let traces = traces.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(merged(&traces, console)?.trace)
    }

    /// Opens the trace or the profile, or merges all traces, or adds up all profiles.
    pub(crate) fn open_any(&self, logs: &Logs, console: &Console) -> anyhow::Result<Log> {
        Ok(self.open_sized(logs, console)?.log)
    }

    /// The same, with the size of the files.
    pub(crate) fn open_sized(&self, logs: &Logs, console: &Console) -> anyhow::Result<Shown> {
        let shown = self.open_files(logs, Unreadable::Fails, Mixed::Fails, console)?;
        let first = shown.into_iter().next();
        // The command line has at least one file, and each file is in the result.
        first.ok_or_else(|| Failure::Usage("a file is missing".to_owned()).into())
    }

    /// Opens all files: the traces as one, and the profiles as one.
    pub(crate) fn open_kinds(
        &self,
        logs: &Logs,
        unreadable: Unreadable,
        console: &Console,
    ) -> anyhow::Result<Vec<Shown>> {
        self.open_files(logs, unreadable, Mixed::Apart, console)
    }

    fn open_files(
        &self,
        logs: &Logs,
        unreadable: Unreadable,
        mixed: Mixed,
        console: &Console,
    ) -> anyhow::Result<Vec<Shown>> {
        let (mut traces, mut profiles) = (Traces::default(), Profiles::default());
        for file in &self.files {
            let (log, bytes) = match logs.open_sized(file, console) {
                Err(error) if unreadable == Unreadable::IsNoted => {
                    console.note(&format!("{error:#}"));
                    continue;
                }
                opened => opened?,
            };
            let (unit, what) = match &log {
                Log::Trace(_) => (&mut traces.unit, "merge"),
                Log::Profile(_) => (&mut profiles.unit, "add up"),
            };
            match add_unit(&log, unit).with_context(|| cannot(what, file)) {
                Err(error) if unreadable == Unreadable::IsNoted => {
                    console.note(&format!("{error:#}"));
                    continue;
                }
                fits => fits?,
            }
            match log {
                Log::Trace(opened) => traces.add(file, opened, bytes),
                Log::Profile(opened) => profiles.add(file, opened, bytes)?,
            }
            if mixed == Mixed::Fails
                && let ([trace, ..], [profile, ..]) = (&traces.paths[..], &profiles.paths[..])
            {
                let what = format!(
                    "{} is a trace and {} is a profile: give only traces, which are merged, or \
                     only profiles, which are added up",
                    trace.display(),
                    profile.display(),
                );
                return Err(Failure::Usage(what).into());
            }
        }
        let shown = [traces.finish(console)?, profiles.finish(console)?];
        Ok(shown.into_iter().flatten().collect())
    }
}

/// Adds the unit of a file to the common one. Fails if they differ.
pub(crate) fn add_unit(log: &Log, unit: &mut CommonUnit) -> Result<(), OpenError> {
    match log {
        Log::Trace(opened) => unit.add_trace(&opened.trace),
        Log::Profile(opened) => unit.add_profile(&opened.profile),
    }
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

fn name_of(paths: &[&Path]) -> PathBuf {
    match paths {
        [] => PathBuf::new(),
        [only] => only.to_path_buf(),
        [first, others @ ..] => format!("{} and {} more", first.display(), others.len()).into(),
    }
}

fn merged(traces: &[Trace], console: &Console) -> anyhow::Result<Opened> {
    let merged = source::merge(traces)?;
    note_all(&merged.notes, console);
    Ok(merged)
}

fn note_all(notes: &[(String, u64)], console: &Console) {
    for (what, count) in notes {
        console.note(&format!("{}: {count}", text::printable(what)));
    }
}

// === impl Traces ===

impl<'a> Traces<'a> {
    fn add(&mut self, path: &'a Path, opened: Opened, bytes: u64) {
        self.paths.push(path);
        self.bytes = self.bytes.saturating_add(bytes);
        self.opened.push(opened);
    }

    /// The traces as one; `None` without any.
    fn finish(mut self, console: &Console) -> anyhow::Result<Option<Shown>> {
        let opened = match self.opened.len() {
            0 => return Ok(None),
            1 => self.opened.pop(),
            _ => Some(self.merge(console)?),
        };
        Ok(opened.map(|opened| Shown {
            name: name_of(&self.paths),
            log: Log::Trace(opened),
            bytes: self.bytes,
        }))
    }

    /// The merged trace has the format of the files if they have one in common.
    fn merge(&mut self, console: &Console) -> anyhow::Result<Opened> {
        let kinds = self.opened.iter().map(|opened| opened.format);
        let format = kinds.reduce(|one, other| {
            match std::mem::discriminant(&one) == std::mem::discriminant(&other) {
                true => one,
                false => Format::Unknown,
            }
        });
        let traces = self.opened.drain(..).map(|opened| opened.trace);
        let traces = traces.collect::<Vec<_>>();
        Ok(Opened {
            format: format.unwrap_or(Format::Unknown),
            ..merged(&traces, console)?
        })
    }
}

// === impl Profiles ===

impl<'a> Profiles<'a> {
    fn add(&mut self, path: &'a Path, opened: OpenedProfile, bytes: u64) -> anyhow::Result<()> {
        if self.paths.is_empty() {
            self.first = Some(opened);
        } else {
            let sum = match &mut self.sum {
                Some(sum) => sum,
                none => none.insert(ProfileSum::new()?),
            };
            let first = self.first.take();
            let mut all = first.iter().chain([&opened]);
            all.try_for_each(|opened| sum.add(opened))
                .with_context(|| cannot("add up", path))?;
        }
        self.paths.push(path);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    /// The profiles as one; `None` without any.
    fn finish(self, console: &Console) -> anyhow::Result<Option<Shown>> {
        let opened = match self.sum {
            Some(sum) => {
                let opened = sum.finish()?;
                note_all(&opened.notes, console);
                Some(opened)
            }
            None => self.first,
        };
        Ok(opened.map(|opened| Shown {
            name: name_of(&self.paths),
            log: Log::Profile(opened),
            bytes: self.bytes,
        }))
    }
}
