//! The destination of a command's output: a file, or standard output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::failure::Failure;

/// An opened output.
pub(super) struct Output {
    path: PathBuf,
    file: Box<dyn Write>,
}

// === impl Output ===

impl Output {
    /// Opens a file, whose content is lost, or standard output for `-`.
    pub(super) fn open(path: &OsStr) -> Result<Self, Failure> {
        let path = PathBuf::from(path);
        let file: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout().lock())
        } else {
            let file = File::create(&path);
            Box::new(file.map_err(|_| Failure::of_output(&path))?)
        };
        Ok(Self { path, file })
    }

    /// Writes the output.
    pub(super) fn write(
        self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(64 << 10, self.file);
        let written = write(&mut out).and_then(|()| out.flush());
        written.map_err(|_| Failure::of_output(&self.path))
    }
}
