//! The place to which a trace is written while it arrives: a file, or standard output.
//!
//! A trace is written from its beginning to its end, so it can go into a pipe. A file is read back
//! if the index of open calls did not come with it. Standard output cannot be read back.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::Context as _;

use crate::args::Format;
use crate::failure::Failure;
use crate::output;
use crate::trace_file::{OutputFile, Overwrite};

/// The place of a trace.
#[derive(Debug)]
pub(crate) enum TraceOutput {
    File(OutputFile),
    Standard(StandardOutput),
}

/// Standard output, which is no terminal.
#[derive(Debug)]
pub(crate) struct StandardOutput(File);

/// True for `-`, which stands for standard output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses JSON and a trace on the same standard output.
pub(crate) fn refuse_json(path: &Path, format: Format) -> Result<(), Failure> {
    if is_standard(path) && format.json {
        let what = "--json and -o - both write to standard output: name a file with -o";
        return Err(Failure::Usage(what.to_owned()));
    }
    Ok(())
}

// === impl TraceOutput ===

impl TraceOutput {
    /// Opens the place, so that an error is found at once. `-` is standard output.
    pub(crate) fn open(path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        if is_standard(path) {
            let file = io::stdout().as_fd().try_clone_to_owned();
            let file = file.context("cannot write to standard output")?;
            return Ok(Self::Standard(StandardOutput::new(file.into())?));
        }
        OutputFile::open(path, overwrite).map(Self::File)
    }

    /// Empties a file for writing.
    pub(crate) fn begin(&mut self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.begin(),
            Self::Standard(_) => Ok(()),
        }
    }

    /// Writes the next bytes of a trace.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Standard(StandardOutput(file)) => {
                Ok(file.write_all(bytes).map_err(output::closed)?)
            }
        }
    }

    /// The number of entries of the index of open calls that a file has so far. `None` if the index
    /// is not whole.
    pub(crate) fn set_indexed(&mut self, entries: Option<u64>) {
        if let Self::File(file) = self {
            file.set_indexed(entries);
        }
    }
}

// === impl StandardOutput ===

impl StandardOutput {
    /// Refuses a terminal.
    fn new(file: File) -> Result<Self, Failure> {
        if file.is_terminal() {
            let what = "a trace is not text, and standard output is a terminal: name a file with \
                        -o, or pass the trace to another program with |";
            return Err(Failure::Usage(what.to_owned()));
        }
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;

    use super::*;
    use crate::failure;

    #[test]
    fn standard_output_is_refused_if_it_is_a_terminal() {
        let terminal = File::options()
            .read(true)
            .write(true)
            .open("/dev/ptmx")
            .unwrap();
        let refused = StandardOutput::new(terminal);
        assert!(matches!(refused, Err(Failure::Usage(_))), "{refused:?}");
        let other = File::options().write(true).open("/dev/null").unwrap();
        assert!(StandardOutput::new(other).is_ok());
    }

    #[test]
    fn a_trace_goes_into_a_pipe_and_a_reader_that_is_gone_is_no_failure() {
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        let mut output = TraceOutput::Standard(StandardOutput::new(writer).unwrap());
        output.begin().unwrap();
        output.write(b"trace").unwrap();
        let mut read = [0; 5];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"trace");
        drop(reader);
        let error = output.write(b"more").unwrap_err();
        assert_eq!(failure::exit_code(&error), None, "{error:#}");
    }

    #[test]
    fn a_dash_is_standard_output_and_any_other_path_is_a_file() {
        let json = Format { json: true };
        assert!(matches!(
            refuse_json(Path::new("-"), json),
            Err(Failure::Usage(_))
        ));
        assert!(refuse_json(Path::new("-"), Format::default()).is_ok());
        assert!(refuse_json(Path::new("./-"), json).is_ok());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("-");
        let mut output = TraceOutput::open(&path, Overwrite::No).unwrap();
        output.begin().unwrap();
        output.write(b"trace").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"trace");
    }
}
