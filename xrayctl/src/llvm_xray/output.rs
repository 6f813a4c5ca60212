//! The destination of a command's output: a file, or standard output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::failure::Failure;

/// An opened output.
pub(super) struct Output(Box<dyn Write>);

// === impl Output ===

impl Output {
    /// Opens a file, whose content is lost, or standard output for `-`.
    pub(super) fn open(path: &OsStr) -> Result<Self, Failure> {
        if path == "-" {
            return Ok(Self::standard());
        }
        let file = File::create(path).map_err(|_| {
            let path = path.to_string_lossy();
            Failure::new(format!("Cannot open file '{path}' for writing."))
        })?;
        Ok(Self(Box::new(file)))
    }

    /// Standard output.
    pub(super) fn standard() -> Self {
        Self(Box::new(io::stdout().lock()))
    }

    /// Writes the output.
    pub(super) fn write(
        self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(64 << 10, self.0);
        let written = write(&mut out).and_then(|()| out.flush());
        written.map_err(|error| Failure::of_output(&error))
    }
}
