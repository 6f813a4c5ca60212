//! A new directory for an export of several files. An existing directory is never replaced. The
//! directory gets its name when all files are complete. Until then its name ends in `.unfinished`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xray_trace::sink::Folder;

use crate::private;
use crate::whole_file::unfinished;

/// A new directory. Dropping it before it is finished removes it.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    /// Its final path.
    path: PathBuf,
    files: Files,
    finished: bool,
}

#[derive(Debug)]
struct Files {
    /// The path of the directory until it is finished.
    path: PathBuf,
    /// The names of its files.
    names: Vec<String>,
    /// The file that is being written.
    current: Option<BufWriter<File>>,
    /// Bytes of the finished files.
    len: u64,
    nowhere: Nowhere,
}

/// The output before the first file. Writing to it fails.
#[derive(Debug)]
struct Nowhere;

// === impl OutputFolder ===

impl OutputFolder {
    /// Makes the directory, so that an error in its name or place is found at once.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        if path.symlink_metadata().is_ok() {
            anyhow::bail!(
                "{} already exists: this format is a directory, which xrayctl never replaces",
                path.display()
            );
        }
        // A path that ends in a slash has no name that can be extended.
        let path = path.components().collect::<PathBuf>();
        let unfinished = unfinished(&path);
        private::create_dir(&unfinished).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => anyhow::anyhow!(
                "{} already exists, from an interrupted conversion: remove it",
                unfinished.display()
            ),
            _ => anyhow::Error::new(error).context(format!("cannot create {}", path.display())),
        })?;
        Ok(Self {
            path,
            files: Files {
                path: unfinished,
                names: Vec::new(),
                current: None,
                len: 0,
                nowhere: Nowhere,
            },
            finished: false,
        })
    }

    /// Lets a function write all files, and gives the directory its name. Also returns the bytes of
    /// the files.
    pub(crate) fn write_with<T>(
        mut self,
        write: impl FnOnce(&mut dyn Folder) -> io::Result<T>,
    ) -> anyhow::Result<(T, u64)> {
        let written = write(&mut self.files);
        let finished = written.and_then(|value| {
            self.files.finish()?;
            fs::rename(&self.files.path, &self.path)?;
            self.finished = true;
            Ok((value, self.files.len))
        });
        finished.with_context(|| format!("cannot write into {}", self.path.display()))
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Files that another program has put there stay.
        let Files { path, names, .. } = &self.files;
        for name in names {
            let _ = fs::remove_file(path.join(name));
        }
        let _ = fs::remove_dir(path);
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
        let file = private::create_new(&self.path.join(name))?;
        self.names.push(name.to_owned());
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
    fn a_directory_is_new_and_gets_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ctf");
        drop(OutputFolder::create(&path).unwrap());
        let mut entries = fs::read_dir(dir.path()).unwrap();
        assert!(entries.next().is_none());
        let folder = OutputFolder::create(&path).unwrap();
        let written = folder.write_with(|folder| {
            for name in ["one", "two"] {
                folder.begin(name)?;
                folder.current().write_all(name.as_bytes())?;
            }
            assert!(!path.exists());
            Ok(())
        });
        assert_eq!(written.unwrap(), ((), 6));
        assert_eq!(fs::read_to_string(path.join("two")).unwrap(), "two");
        let error = format!("{:#}", OutputFolder::create(&path).unwrap_err());
        assert!(error.contains("t.ctf already exists"), "{error}");
    }

    #[test]
    fn nothing_is_written_before_a_file_was_begun() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OutputFolder::create(&dir.path().join("t")).unwrap();
        let written = folder.write_with(|folder| folder.current().write_all(b"x"));
        assert!(written.is_err());
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
