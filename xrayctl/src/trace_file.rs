//! Trace files: opened before there is anything to write, and counted and finished however a
//! recording ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::OFlag;
use serde::Serialize;
use xray_trace::analysis::{SPACING, Survey};
use xray_trace::container::{Completeness, OpenCalls, SectionCheck, Writer};
use xray_trace::model::{Totals, Trace};

use crate::output::excluded::{Excluded, RecordedTime};
use crate::output::remedies::FrequentFunctions;
use crate::output::trace_summary::{self, OverwrittenEvents};
use crate::private;

/// Permission to replace an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overwrite {
    /// An existing file is replaced.
    Yes,
    /// An existing file is an error.
    No,
}

/// A file that is to be written. Until [`OutputFile::begin`], the file system is unchanged, except
/// that a new, empty file may exist. Dropping this removes that file.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    /// True for a new file that is still empty: dropping this removes it. Cleared by `begin`.
    removable: bool,
    /// True if some bytes are written. The first bytes are the header of a trace.
    has_header: bool,
    /// The checksums of the bytes that were written.
    check: SectionCheck,
    /// The number of entries, if the sender reports that the trace has its index.
    indexed: Option<u64>,
}

/// The treatment of a trace without an end mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The stream was left before the sender could finish the trace, so the trace is finished here.
    Finish,
    /// The trace stays as it is.
    Leave,
}

/// The contents of a trace.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Entries and exits.
    pub(crate) events: u64,
    /// Entries.
    pub(crate) calls: u64,
    /// Events lost.
    pub(crate) lost: u64,
    /// The functions with the most events, if events were lost.
    pub(crate) frequent: Option<FrequentFunctions>,
    /// Older events that were overwritten.
    pub(crate) overwritten: Option<OverwrittenEvents>,
    /// Events that a recording leaves out because another client wanted them.
    pub(crate) excluded: Option<Excluded>,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Threads that have events.
    pub(crate) threads: u64,
    /// Processes.
    pub(crate) processes: u64,
    /// Time from the first event to the last.
    pub(crate) duration_ns: u64,
    /// `None` if no tracepoints were recorded.
    pub(crate) kernel_events: Option<KernelEvents>,
}

/// The kernel events of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct KernelEvents {
    /// Events of kernel tracepoints.
    pub(crate) events: u64,
    /// How many are missing, at most.
    pub(crate) most_lost: u64,
}

// === impl OutputFile ===

impl OutputFile {
    /// Opens the file, so that an error in its name or place is found at once.
    pub(crate) fn open(path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        let (file, removable) = match private::create_new(path) {
            Ok(file) => (Ok(file), true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match overwrite {
                Overwrite::Yes => (open_there(path), false),
                Overwrite::No if path.is_file() => {
                    anyhow::bail!("{} already exists; --force replaces it", path.display())
                }
                Overwrite::No => anyhow::bail!("{} is not a regular file", path.display()),
            },
            Err(error) => (Err(error), false),
        };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let this = Self {
            path: path.to_owned(),
            file,
            removable,
            has_header: false,
            check: SectionCheck::new(),
            indexed: None,
        };
        // A finished trace is read back, and a pipe or a device cannot be.
        if !this
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file())
        {
            anyhow::bail!("{} is not a regular file", path.display());
        }
        Ok(this)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Empties the file for writing. From now on it stays.
    pub(crate) fn begin(&mut self) -> anyhow::Result<()> {
        self.removable = false;
        self.file
            .set_len(0)
            .with_context(|| format!("cannot empty {}", self.path.display()))
    }

    /// Writes the next bytes of a trace. After an error, such as a full disk, the file stays: it
    /// can be read up to the place where it was cut.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.path.display();
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.has_header = true;
                self.check.pass(bytes);
                Ok(())
            }
            Err(error) if self.has_header => Err(anyhow::anyhow!(
                "cannot write {path}: {error}; the trace is cut: {path} holds the events up to that moment"
            )),
            Err(error) => Err(error).with_context(|| format!("cannot write {path}")),
        }
    }

    /// Sets the number of entries in the trace, as its sender reports it, if the trace has its
    /// index.
    pub(crate) fn set_indexed(&mut self, entries: Option<u64>) {
        self.indexed = entries;
    }

    /// Counts the contents of the written trace. Adds an index of time and an end mark to a
    /// complete trace that has no index, and to an unfinished one that is to be finished. Reads the
    /// events back only if the trace needs an index.
    pub(crate) fn finish_trace(&mut self, unfinished: Unfinished) -> anyhow::Result<Tally> {
        let path = self.path.clone();
        let cannot = || format!("cannot read {} back", path.display());
        let trace = File::open(&path).with_context(cannot)?;
        let trace = Trace::open(trace).with_context(cannot)?;
        let calls = match self.indexed_entries(&trace) {
            Some(entries) => entries,
            None => {
                let survey = Survey::new(&trace, SPACING);
                check_blocks(survey.damaged_blocks).with_context(cannot)?;
                let wanted = match (trace.coverage().completeness, unfinished) {
                    (Completeness::Complete, _) => !survey.index.is_empty(),
                    (Completeness::Unfinished { .. }, Unfinished::Finish) => true,
                    (Completeness::Unfinished { .. }, Unfinished::Leave)
                    | (Completeness::Cut { .. }, _) => false,
                };
                if wanted {
                    self.write_end(&trace, &survey.index)?;
                }
                survey.calls
            }
        };
        let bytes = self.file.metadata().with_context(cannot)?.len();
        Ok(Tally::new(&trace, calls, bytes))
    }

    /// The number of entries, if the trace is complete and has its index. `None` if what the sender
    /// reports cannot be, or if a checksum was wrong.
    fn indexed_entries(&self, trace: &Trace) -> Option<u64> {
        let is_whole =
            self.check.is_whole() && trace.coverage().completeness == Completeness::Complete;
        let possible = |entries: &u64| is_whole && *entries <= trace.totals().calls;
        self.indexed.filter(possible)
    }

    fn write_end(&mut self, trace: &Trace, index: &[OpenCalls]) -> anyhow::Result<()> {
        let output = BufWriter::new(&mut self.file);
        let written = Writer::going_on(output, trace.totals().into()).finish(index);
        written.map(drop).map_err(|error| {
            let path = self.path.display();
            anyhow::anyhow!("cannot write the end of {path}: {error}; {path} holds all events")
        })
    }
}

fn check_blocks(damaged: u64) -> anyhow::Result<()> {
    match damaged {
        0 => Ok(()),
        1 => anyhow::bail!("1 block is damaged"),
        many => anyhow::bail!("{many} blocks are damaged"),
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.removable {
            // An empty file that stays behind does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

// === impl Tally ===

impl Tally {
    /// `calls` is the number of entries in the trace.
    fn new(trace: &Trace, calls: u64, bytes: u64) -> Self {
        let Totals {
            calls: events,
            lost,
            ..
        } = trace.totals();
        let span = trace_summary::span(trace);
        Self {
            events,
            calls,
            lost,
            frequent: (lost > 0).then(|| FrequentFunctions::of(trace)).flatten(),
            overwritten: OverwrittenEvents::of(trace),
            excluded: (!trace.coverage().recordings.is_empty())
                .then(|| RecordedTime::excluded(&RecordedTime::of(trace))),
            bytes,
            threads: trace.blocks_by_thread().len() as u64,
            processes: trace.processes().len() as u64,
            duration_ns: span.map_or(0, |(first, last)| last.saturating_sub(first)),
            kernel_events: trace.tracepoints().next().map(|_| KernelEvents {
                events: trace.kernel_event_counts().values().sum(),
                most_lost: trace.lost_kernel_events(),
            }),
        }
    }
}

/// Opens an existing file for writing. Fails at once for a pipe without a reader.
fn open_there(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    options.open(path)
}

#[cfg(test)]
mod tests {
    use xray_trace::container::{BlockEncoder, Writer};
    use xray_trace::model::{CallKind, ClockAnchor, FunctionId, ThreadId, Ticks};

    use super::*;

    fn unfinished() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (ticks, monotonic_ns) in [(0, 0), (1000, 500)] {
            let anchor = ClockAnchor {
                ticks: Ticks(ticks),
                monotonic_ns,
                wall_ns: monotonic_ns,
            };
            writer.add(&anchor).unwrap();
        }
        let mut encoder = BlockEncoder::new(ThreadId(3));
        encoder.push_call(Ticks(100), FunctionId(0), CallKind::Enter, None);
        encoder.push_call(Ticks(200), FunctionId(1), CallKind::Enter, None);
        encoder.push_call(Ticks(300), FunctionId(1), CallKind::Exit, None);
        encoder.push_lost(Ticks(400), 9);
        writer.block(&encoder.finish().unwrap()).unwrap();
        writer.lost(ThreadId(3), 2).unwrap();
        writer.into_inner()
    }

    fn written(dir: &Path, bytes: &[u8]) -> OutputFile {
        let mut file = OutputFile::open(&dir.join("t.xtrace"), Overwrite::Yes).unwrap();
        file.begin().unwrap();
        file.write(bytes).unwrap();
        file
    }

    fn read(dir: &Path) -> Trace {
        Trace::open(File::open(dir.join("t.xtrace")).unwrap()).unwrap()
    }

    #[test]
    fn a_trace_is_counted_and_finished_in_our_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = written(dir.path(), &unfinished());
        let left = file.finish_trace(Unfinished::Leave).unwrap();
        assert_eq!(left.bytes, unfinished().len() as u64);
        let completeness = read(dir.path()).coverage().completeness;
        assert!(matches!(completeness, Completeness::Unfinished { .. }));
        let tally = file.finish_trace(Unfinished::Finish).unwrap();
        assert_eq!(
            (tally.events, tally.calls, tally.lost, tally.threads),
            (3, 2, 11, 1)
        );
        assert_eq!(tally.duration_ns, 150);
        assert!(tally.bytes > left.bytes);
        let trace = read(dir.path());
        assert_eq!(trace.coverage().completeness, Completeness::Complete);
        assert_eq!((trace.totals().calls, trace.totals().lost), (3, 11));
    }

    /// A trace of a long thread, with its end mark.
    fn long() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut encoder = BlockEncoder::new(ThreadId(0));
        for at in 0..400 {
            for call in 0..100 {
                let ticks = at * 1000 + call * 10;
                encoder.push_call(Ticks(ticks), FunctionId(1), CallKind::Enter, None);
                encoder.push_call(Ticks(ticks + 4), FunctionId(1), CallKind::Exit, None);
            }
            writer.block(&encoder.finish().unwrap()).unwrap();
        }
        writer.end(&writer.totals()).unwrap();
        writer.into_inner()
    }

    #[test]
    fn a_whole_trace_gets_an_index_and_a_cut_one_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let whole = long();
        let tally = written(dir.path(), &whole)
            .finish_trace(Unfinished::Leave)
            .unwrap();
        assert_eq!((tally.events, tally.calls), (80_000, 40_000));
        let bytes = fs::read(dir.path().join("t.xtrace")).unwrap();
        let added = bytes.strip_prefix(&whole[..]).unwrap();
        assert!(added.starts_with(b"OPEN"), "{added:?}");
        assert_eq!(tally.bytes, bytes.len() as u64);
        assert_eq!(
            read(dir.path()).coverage().completeness,
            Completeness::Complete
        );

        let cut = &whole[..whole.len() / 2];
        let tally = written(dir.path(), cut)
            .finish_trace(Unfinished::Finish)
            .unwrap();
        assert_eq!(tally.bytes, cut.len() as u64);
        assert!(tally.calls > 10_000);
        assert_eq!(fs::read(dir.path().join("t.xtrace")).unwrap(), cut);
    }

    /// The events of a trace with an index are not read back. What the sender reports counts only
    /// if it can be.
    #[test]
    fn a_trace_that_came_with_its_index_is_not_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let whole = long();
        let tally = |bytes: &[u8], entries| {
            let mut file = written(dir.path(), bytes);
            file.set_indexed(Some(entries));
            file.finish_trace(Unfinished::Leave).unwrap()
        };
        let indexed = tally(&whole, 30_000);
        assert_eq!((indexed.events, indexed.calls), (80_000, 30_000));
        assert_eq!(fs::read(dir.path().join("t.xtrace")).unwrap(), whole);
        assert_eq!(tally(&whole, 80_001).calls, 40_000);
        let end = whole.len() - 1;
        assert!(tally(&whole[..end], 5).calls > 10_000);
    }

    #[test]
    fn damage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = long();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        for indexed in [None, Some(40_000)] {
            let mut file = written(dir.path(), &bytes);
            file.set_indexed(indexed);
            let error = file.finish_trace(Unfinished::Leave);
            let error = format!("{:#}", error.unwrap_err());
            assert!(
                error.ends_with("t.xtrace back: 1 block is damaged"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_new_file_that_was_not_begun_goes_away_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.xtrace");
        drop(OutputFile::open(&path, Overwrite::No).unwrap());
        assert!(!path.exists());
        let mut file = OutputFile::open(&path, Overwrite::No).unwrap();
        file.begin().unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn an_old_file_is_left_alone_until_writing_begins_and_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.xtrace");
        fs::write(&path, "precious").unwrap();
        let refused = OutputFile::open(&path, Overwrite::No).unwrap_err();
        assert!(
            refused
                .to_string()
                .ends_with("already exists; --force replaces it")
        );
        let mut file = OutputFile::open(&path, Overwrite::Yes).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        file.begin().unwrap();
        file.write(b"new").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn force_is_not_recommended_for_what_is_no_file() {
        for path in ["/tmp", "/dev/null"] {
            let error = OutputFile::open(Path::new(path), Overwrite::No).unwrap_err();
            assert_eq!(error.to_string(), format!("{path} is not a regular file"));
        }
    }

    #[test]
    fn a_place_that_does_not_exist_is_found_at_once() {
        let error = OutputFile::open(Path::new("/nonexistent/t.xtrace"), Overwrite::No);
        assert!(format!("{:#}", error.unwrap_err()).starts_with("cannot write /nonexistent"));
    }
}
