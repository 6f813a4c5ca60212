//! A directory that an export of several files is written to. It is new: what is there already is never replaced.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xray_trace::sink::Folder;

/// A new directory. Until something is written it goes away again with this.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    path: PathBuf,
    files: Files,
}

#[derive(Debug)]
struct Files {
    path: PathBuf,
    /// The file that is being written.
    current: Option<BufWriter<File>>,
    /// Bytes of the files that are finished.
    len: u64,
    nowhere: Nowhere,
}

/// What stands for a file before the first one.
#[derive(Debug)]
struct Nowhere;

// === impl OutputFolder ===

impl OutputFolder {
    /// Makes the directory, so that what is wrong with its name or place is found at once.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => anyhow::anyhow!("{} is there already", path.display())
                .context("this format is a directory, which is never replaced"),
            _ => anyhow::Error::new(error).context(format!("cannot make {}", path.display())),
        })?;
        Ok(Self {
            path: path.to_owned(),
            files: Files {
                path: path.to_owned(),
                current: None,
                len: 0,
                nowhere: Nowhere,
            },
        })
    }

    /// Lets a function write files.
    pub(crate) fn write_with<T>(
        &mut self,
        write: impl FnOnce(&mut dyn Folder) -> io::Result<T>,
    ) -> anyhow::Result<T> {
        let written = write(&mut self.files);
        let written = written.and_then(|value| self.files.finish().map(|()| value));
        written.with_context(|| format!("cannot write into {}", self.path.display()))
    }

    /// How many bytes there are in all its files.
    pub(crate) fn len(&self) -> u64 {
        self.files.len
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        // Only an empty one can be removed this way.
        let _ = fs::remove_dir(&self.path);
    }
}

// === impl Files ===

impl Files {
    fn finish(&mut self) -> io::Result<()> {
        if let Some(mut current) = self.current.take() {
            current.flush()?;
            self.len += current.get_ref().metadata()?.len();
        }
        Ok(())
    }
}

impl Folder for Files {
    fn begin(&mut self, name: &str) -> io::Result<()> {
        self.finish()?;
        let file = File::create_new(self.path.join(name))?;
        self.current = Some(BufWriter::with_capacity(1 << 18, file));
        Ok(())
    }

    fn current(&mut self) -> &mut (dyn Write + Send) {
        match &mut self.current {
            Some(current) => current,
            None => &mut self.nowhere,
        }
    }
}

// === impl Nowhere ===

impl Write for Nowhere {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("no file was begun"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_new_and_goes_away_while_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ctf");
        drop(OutputFolder::create(&path).unwrap());
        assert!(!path.exists());
        let mut folder = OutputFolder::create(&path).unwrap();
        let written = folder.write_with(|folder| {
            for name in ["one", "two"] {
                folder.begin(name)?;
                folder.current().write_all(name.as_bytes())?;
            }
            Ok(())
        });
        written.unwrap();
        assert_eq!(folder.len(), 6);
        drop(folder);
        assert_eq!(fs::read_to_string(path.join("two")).unwrap(), "two");
        let error = format!("{:#}", OutputFolder::create(&path).unwrap_err());
        assert!(error.ends_with("t.ctf is there already"), "{error}");
    }

    #[test]
    fn nothing_is_written_before_a_file_was_begun() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = OutputFolder::create(&dir.path().join("t")).unwrap();
        let written = folder.write_with(|folder| folder.current().write_all(b"x"));
        assert!(written.is_err());
    }
}
