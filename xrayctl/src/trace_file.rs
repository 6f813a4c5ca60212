//! Trace files: opened before there is anything to write, finished whatever happens, and counted afterwards.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xray_trace::container::{Completeness, End, HEADER_LEN, Item, ReadError, Reader, Writer};
use xray_trace::model::{CallKind, Clock, ClockAnchor, EventBody, ThreadId, Ticks};

/// Whether a file that is there already may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overwrite {
    /// It may.
    Yes,
    /// It may not.
    No,
}

/// A file that is to be written. Until [`OutputFile::begin`], nothing in the file system has changed but that a new,
/// empty file may be there, which goes away again with this.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    /// It is new and still empty: removed when this is dropped. Cleared by `begin`.
    removable: bool,
}

/// What is in a trace.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Entries and exits.
    pub(crate) events: u64,
    /// Entries.
    pub(crate) calls: u64,
    /// Events lost.
    pub(crate) lost: u64,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    blocks: u64,
    threads: BTreeSet<ThreadId>,
    anchors: Vec<ClockAnchor>,
    span: Option<(Ticks, Ticks)>,
    completeness: Option<Completeness>,
}

// === impl OutputFile ===

impl OutputFile {
    /// Opens the file, so that what is wrong with its name or place is found at once.
    pub(crate) fn open(path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, removable) = match options.clone().create_new(true).open(path) {
            Ok(file) => (Ok(file), true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match overwrite {
                Overwrite::Yes => (options.open(path), false),
                Overwrite::No if path.is_file() => {
                    anyhow::bail!("{} is there already; --force overwrites it", path.display())
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
        };
        // A trace is read back when it is done, so a pipe or a device will not do.
        if !this
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file())
        {
            anyhow::bail!("{} is not a regular file", path.display());
        }
        Ok(this)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file is going to be written: what was in it is gone, and it stays.
    pub(crate) fn begin(&mut self) -> anyhow::Result<()> {
        self.removable = false;
        self.file
            .set_len(0)
            .with_context(|| format!("cannot empty {}", self.path.display()))
    }

    /// Writes all of it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file.write_all(bytes);
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Reads a finished trace back and counts what is in it.
    pub(crate) fn tally(&self) -> anyhow::Result<Tally> {
        let cannot = || format!("cannot read {} back", self.path.display());
        let file = File::open(&self.path).with_context(cannot)?;
        Tally::read(BufReader::with_capacity(1 << 20, file)).with_context(cannot)
    }

    /// Marks a trace as finished whose sender was left before it could do so.
    pub(crate) fn finish_trace(&mut self, tally: &Tally) -> anyhow::Result<()> {
        if matches!(tally.completeness, Some(Completeness::Unfinished { .. })) {
            let mut writer = Writer::new(Vec::new())?;
            let (calls, lost, blocks) = (tally.events, tally.lost, tally.blocks);
            writer.end(&End {
                calls,
                lost,
                blocks,
            })?;
            self.write(writer.into_inner().get(HEADER_LEN..).unwrap_or_default())?;
        }
        Ok(())
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
    /// Counts what is in a trace, one block at a time.
    pub(crate) fn read(input: impl Read) -> Result<Self, ReadError> {
        let mut reader = Reader::new(input)?;
        let mut tally = Self::default();
        while let Some(item) = reader.next_item()? {
            tally.add(&item);
        }
        tally.bytes = reader.offset();
        tally.completeness = reader.completeness();
        Ok(tally)
    }

    /// Threads that have events.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// From the first event to the last.
    pub(crate) fn duration_ns(&self) -> u64 {
        let clock = Clock::new(self.anchors.clone());
        self.span.map_or(0, |(first, last)| {
            clock
                .monotonic_ns(last)
                .saturating_sub(clock.monotonic_ns(first))
        })
    }

    fn add(&mut self, item: &Item) {
        match item {
            Item::Block(block) => {
                let (first, last) = self.span.unwrap_or((block.first, block.last));
                self.span = Some((first.min(block.first), last.max(block.last)));
                self.threads.insert(block.thread);
                self.blocks += 1;
                self.events = self.events.saturating_add(block.calls.into());
                self.lost = self.lost.saturating_add(block.lost);
                // A damaged block ends at its first event that makes no sense; `report` says so.
                let entries = block.events().map_while(Result::ok).filter(|event| {
                    matches!(
                        event.body,
                        EventBody::Call {
                            kind: CallKind::Enter,
                            ..
                        }
                    )
                });
                self.calls += entries.map(|_| 1_u64).sum::<u64>();
            }
            Item::Lost { thread: _, events } => self.lost = self.lost.saturating_add(*events),
            Item::Anchor(anchor) => self.anchors.push(*anchor),
            Item::Process(_)
            | Item::Module(_)
            | Item::Function(_)
            | Item::Thread(_)
            | Item::OpenCalls(_)
            | Item::End(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::container::BlockEncoder;
    use xray_trace::model::FunctionId;

    use super::*;

    fn unfinished() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (ticks, monotonic_ns) in [(0, 0), (1000, 500)] {
            let anchor = ClockAnchor {
                ticks: Ticks(ticks),
                monotonic_ns,
                wall_ns: monotonic_ns,
            };
            writer.anchor(&anchor).unwrap();
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

    #[test]
    fn a_trace_is_counted_and_finished_in_our_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = OutputFile::open(&dir.path().join("t.xtrace"), Overwrite::No).unwrap();
        file.begin().unwrap();
        file.write(&unfinished()).unwrap();
        let tally = file.tally().unwrap();
        assert_eq!(
            (tally.events, tally.calls, tally.lost, tally.threads()),
            (3, 2, 11, 1)
        );
        assert_eq!(tally.duration_ns(), 150);
        assert!(matches!(
            tally.completeness,
            Some(Completeness::Unfinished { .. })
        ));
        file.finish_trace(&tally).unwrap();
        let tally = file.tally().unwrap();
        assert_eq!(tally.completeness, Some(Completeness::Complete));
        assert_eq!((tally.events, tally.lost), (3, 11));
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
                .ends_with("is there already; --force overwrites it")
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
