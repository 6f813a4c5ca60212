//! The destination of snapshots: one file, or a directory with a file for each.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xrayd_proto::v1::TraceChunk;

use super::super::snapshot::Snapshot;
use crate::output::moment;
use crate::output::triggered::Fired;
use crate::private;
use crate::trace_file::{OutputFile, Overwrite, Unfinished};

/// The files of one trigger.
pub(super) struct Files {
    place: Destination,
    /// The file that is being written, its pid, and the time that copying took, in nanoseconds.
    current: Option<(OutputFile, u32, u64)>,
}

enum Destination {
    /// `None` once it is written.
    File(Option<OutputFile>),
    Directory {
        path: PathBuf,
        /// True for a new directory: it is removed if it is empty at the end.
        is_ours: bool,
    },
}

// === impl Files ===

impl Files {
    /// Opens the file for the only snapshot, so that an error in its name or place is found at
    /// once.
    pub(super) fn one(path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        let file = OutputFile::open(path, overwrite)?;
        Ok(Self::at(Destination::File(Some(file))))
    }

    /// Makes the directory for all snapshots, so that an error in its name or place is found at
    /// once.
    pub(super) fn in_directory(path: &Path) -> anyhow::Result<Self> {
        let is_ours = match private::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(error) => {
                let path = path.display();
                let what = format!("cannot create the directory {path} for snapshots");
                return Err(error).context(what);
            }
        };
        Ok(Self::at(Destination::Directory {
            path: path.to_owned(),
            is_ours,
        }))
    }

    fn at(place: Destination) -> Self {
        Self {
            place,
            current: None,
        }
    }

    /// Writes the next chunk of a firing's snapshot.
    pub(super) fn take(&mut self, fired: &Fired, chunk: &TraceChunk) -> anyhow::Result<()> {
        let (file, ..) = match &mut self.current {
            Some(current) => current,
            None => {
                let mut file = self.place.next(fired)?;
                file.begin()?;
                let pid = fired.pid.unwrap_or(0);
                self.current.insert((file, pid, chunk.copied_within_ns))
            }
        };
        file.write(&chunk.data)
    }

    /// Finishes the snapshot. Returns its contents and its path, or `None` if there is no snapshot.
    pub(super) fn finish(&mut self) -> anyhow::Result<Option<(Snapshot, PathBuf)>> {
        let Some((mut file, pid, copied_within_ns)) = self.current.take() else {
            return Ok(None);
        };
        let tally = file.finish_trace(Unfinished::Leave)?;
        let path = file.path().to_owned();
        let snapshot = Snapshot::new(pid, &path, &tally, copied_within_ns);
        Ok(Some((snapshot, path)))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Destination::Directory {
            path,
            is_ours: true,
        } = &self.place
        {
            // A directory with files in it stays.
            let _ = fs::remove_dir(path);
        }
    }
}

// === impl Destination ===

impl Destination {
    fn next(&mut self, fired: &Fired) -> anyhow::Result<OutputFile> {
        match self {
            Self::File(file) => file.take().context("the trigger has fired more than once"),
            Self::Directory { path, .. } => {
                let time = moment::in_file_name(fired.wall_ns);
                let name = format!("{}-{time}.xtrace", fired.number);
                OutputFile::open(&path.join(name), Overwrite::No)
            }
        }
    }
}
