//! From the trace model to files of other tools. One file per format.
//!
//! Every sink unpacks one block of a thread at a time. Those that sum up hold as much as there are different stacks; the
//! others hold as much as there are functions and threads, and a few batches of events that are unpacked ahead.

mod ahead;
mod basic;
mod callgrind;
mod chrome;
mod csv;
mod ctf;
mod events;
mod fdr;
mod firefox;
mod folded;
mod frames;
#[cfg(feature = "export")]
mod html;
mod json_lines;
#[cfg(feature = "export")]
mod parquet;
mod per_function;
#[cfg(feature = "export")]
mod perfetto;
#[cfg(feature = "export")]
mod pprof;
mod processor;
mod profile;
mod records;
mod speedscope;
mod stacks;
mod text;
mod unsaid;
mod xtrace;
mod yaml;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use crate::analysis::{Notes, Steps};
use crate::model::{Calibration, DataKind, Profile, ThreadId, Trace};

pub use basic::Basic;
pub use callgrind::Callgrind;
pub use chrome::Chrome;
pub use csv::Csv;
pub use ctf::Ctf;
pub use fdr::Fdr;
pub use firefox::Firefox;
pub use folded::Folded;
#[cfg(feature = "export")]
pub use html::{NoteTone, Page, PageNote, Standing};
pub use json_lines::JsonLines;
#[cfg(feature = "export")]
pub use parquet::Parquet;
#[cfg(feature = "export")]
pub use perfetto::Perfetto;
#[cfg(feature = "export")]
pub use pprof::Pprof;
pub use profile::Profile as LlvmProfile;
pub use speedscope::Speedscope;
pub use xtrace::Xtrace;
pub use yaml::Yaml;

/// A format of one file.
pub trait Sink: std::fmt::Debug + Sync {
    /// The name by which it is asked for.
    fn name(&self) -> &'static str;

    /// The ends of file names that mean it, without the dot before.
    fn extensions(&self) -> &'static [&'static str];

    /// What it is for, in a few words.
    fn about(&self) -> &'static str;

    /// Whether a terminal can show it.
    fn is_text(&self) -> bool {
        true
    }

    /// Writes the trace, in many small writes: a file wants a `BufWriter` around it, and a flush after.
    ///
    /// # Errors
    ///
    /// What `output` reports. What the format cannot hold is no error; the report tells of it.
    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report>;

    /// The same format for profiles, which have sums but no events; `None` if it is one of events.
    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        None
    }

    /// The same format with one thread's records after the other's, if it has those of all threads in one order of time.
    fn by_thread(&self) -> Option<&'static dyn Sink> {
        None
    }
}

/// A format of one file that has a place for sums of calls.
pub trait ProfileSink: std::fmt::Debug + Sync {
    /// Writes the profile, in many small writes.
    ///
    /// # Errors
    ///
    /// What `output` reports. What the format cannot hold is no error; the report tells of it.
    fn write(&self, profile: &Profile, output: &mut dyn Write) -> io::Result<Report>;
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many calls.
    pub calls: u64,
    /// What the format cannot hold, or not as it was: in words, and how many. Never with a count of 0, and nothing twice.
    pub left_out: Vec<(String, u64)>,
}

/// A format of several files in a directory of their own.
pub trait FolderSink: std::fmt::Debug + Sync {
    /// The name by which it is asked for.
    fn name(&self) -> &'static str;

    /// The ends of directory names that mean it, without the dot before.
    fn extensions(&self) -> &'static [&'static str];

    /// What it is for, in a few words.
    fn about(&self) -> &'static str;

    /// Writes the trace.
    ///
    /// # Errors
    ///
    /// What `folder` reports.
    fn write(&self, trace: &Trace, folder: &mut dyn Folder) -> io::Result<Report>;
}

/// Where a format of several files is written, one file after another.
pub trait Folder {
    /// Ends the current file and begins one of that name.
    ///
    /// # Errors
    ///
    /// If the former file cannot be finished, or the new one not be made.
    fn begin(&mut self, name: &str) -> io::Result<()>;

    /// The current file; before the first one, a place where nothing can be written.
    fn current(&mut self) -> &mut (dyn Write + Send);
}

/// A format that traces can be written in.
#[derive(Debug, Clone, Copy)]
pub enum Format {
    /// One file.
    File(&'static dyn Sink),
    /// Several files in a directory.
    Folder(&'static dyn FolderSink),
}

/// Every format.
pub const FORMATS: &[Format] = &[
    Format::File(&Xtrace),
    Format::File(&Fdr),
    Format::File(&Basic::BY_TIME),
    Format::File(&Yaml::BY_TIME),
    Format::File(&Chrome),
    #[cfg(feature = "export")]
    Format::File(&Perfetto),
    Format::Folder(&Ctf),
    Format::File(&Speedscope),
    Format::File(&Firefox),
    Format::File(&Folded),
    #[cfg(feature = "export")]
    Format::File(&Pprof),
    Format::File(&Callgrind),
    Format::File(&LlvmProfile),
    Format::File(&Csv),
    Format::File(&JsonLines),
    #[cfg(feature = "export")]
    Format::Folder(&Parquet),
];

/// The format with that name.
#[must_use]
pub fn by_name(name: &str) -> Option<Format> {
    let mut formats = FORMATS.iter().copied();
    formats.find(|format| format.name() == name)
}

/// The format that the end of a file's name means; the longest end that fits counts.
#[must_use]
pub fn by_extension(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?;
    let fits = |extension: &&'static str| {
        let stem = name.strip_suffix(*extension);
        stem.is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
    };
    let len = |format: &Format| {
        let extensions = format.extensions().iter().filter(|end| fits(end));
        extensions.map(|extension| extension.len()).max()
    };
    let formats = FORMATS.iter().copied();
    formats
        .filter(|format| len(format).is_some())
        .max_by_key(len)
}

/// What is told of blocks that do not hold what they should.
const DAMAGED_BLOCKS: &str = "blocks whose events could not all be unpacked";

/// How the kernel knows a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    pid: u32,
    tid: u32,
}

// === impl Format ===

impl Format {
    /// The name by which it is asked for.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::File(sink) => sink.name(),
            Self::Folder(sink) => sink.name(),
        }
    }

    /// The ends of file names that mean it, without the dot before.
    #[must_use]
    pub fn extensions(&self) -> &'static [&'static str] {
        match self {
            Self::File(sink) => sink.extensions(),
            Self::Folder(sink) => sink.extensions(),
        }
    }

    /// What it is for, in a few words.
    #[must_use]
    pub fn about(&self) -> &'static str {
        match self {
            Self::File(sink) => sink.about(),
            Self::Folder(sink) => sink.about(),
        }
    }

    /// The same format for profiles; `None` if it is one of events.
    #[must_use]
    pub fn of_profile(&self) -> Option<&dyn ProfileSink> {
        match self {
            Self::File(sink) => sink.of_profile(),
            Self::Folder(_) => None,
        }
    }
}

// === impl Place ===

impl Place {
    /// By the kernel's numbers; a thread that the table does not have stands by its own id, in process 0.
    fn of(trace: &Trace, thread: ThreadId) -> Self {
        let known = trace.thread(thread);
        let process = known.and_then(|known| trace.process(known.process));
        Self {
            pid: process.map_or(0, |process| process.pid),
            tid: known.map_or(thread.0, |known| known.tid),
        }
    }
}

// === impl Report ===

impl Report {
    /// Adds to what was left out, if there is anything to tell.
    fn leave_out(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.left_out.iter_mut().find(|(told, _)| told == what) {
            Some((_, told)) => *told = told.saturating_add(count),
            None => self.left_out.push((what.to_owned(), count)),
        }
    }

    /// What a thread's steps, all of them taken, did not say.
    fn leave_out_of_steps(&mut self, steps: &Steps<'_>) {
        self.leave_out_of_notes(&steps.notes());
        self.leave_out(processor::UNSAID, steps.processors());
    }

    /// The same, for formats that say on which processor a thread ran.
    fn leave_out_of_notes(&mut self, notes: &Notes) {
        self.leave_out(
            "exits of calls that began before the trace or in a gap, or that had been left",
            notes.exits_without_entry,
        );
        self.leave_out(DAMAGED_BLOCKS, notes.damaged_blocks);
    }

    /// Of a profile of which every stack was written.
    fn of_profile(profile: &Profile) -> Self {
        let calls = profile.stacks().iter().map(|stack| stack.calls);
        Self {
            calls: calls.fold(0, u64::saturating_add),
            left_out: Vec::new(),
        }
    }

    /// Losses that no event stands for.
    fn leave_out_unplaced(&mut self, trace: &Trace) {
        for (_, events) in trace.losses() {
            self.leave_out("lost events whose place is not known", *events);
        }
    }
}

/// What an event of the program's own is called: by its type's name, where the program has registered one.
fn said_name(trace: &Trace, thread: ThreadId, kind: DataKind) -> Cow<'_, str> {
    match kind {
        DataKind::Custom => "custom event".into(),
        DataKind::Typed(number) => match trace.event_type_in(thread, number) {
            Some(name) => name.into(),
            None => format!("typed event {number}").into(),
        },
    }
}

/// What the times of a trace rest on, for people.
fn calibration(trace: &Trace) -> &'static str {
    match trace.clock().calibration() {
        Calibration::None => "none: a tick is shown as a nanosecond",
        Calibration::SingleAnchor => "one anchor: a tick is shown as a nanosecond",
        Calibration::Measured => "measured",
    }
}
