//! A file that exists when it is complete. Until then it has no name, so that the remains of a run
//! that Ctrl-C, a full disk or an error has ended are not mistaken for the whole. An existing file
//! stays until then, too.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

use crate::private;
use crate::trace_file::Overwrite;
use crate::write_behind;

/// The end of the name of an incomplete file or directory, where it needs a name.
const UNFINISHED: &str = ".unfinished";

/// A file that is being written. Dropping it before it is finished removes it, unless it is written
/// in its final place.
#[derive(Debug)]
pub(crate) struct WholeFile {
    /// Its path on the command line.
    path: PathBuf,
    /// Its final path.
    target: PathBuf,
    /// The existing file that it replaces.
    replaced: Option<Metadata>,
    file: File,
    place: TempPlace,
}

/// A function that makes the file for a final path.
type Way = fn(&Path) -> io::Result<(File, TempPlace)>;

/// The ways, in order of preference.
const WAYS: [Way; 2] = [nameless, beside];

/// The place of an unfinished file.
#[derive(Debug, PartialEq, Eq)]
enum TempPlace {
    /// The file has no name.
    Nameless,
    /// The file is beside its final path, under another name. Not every file system has nameless
    /// files.
    Beside(PathBuf),
    /// The file is at its final path, because no other file can be made in its directory.
    There,
}

// === impl WholeFile ===

impl WholeFile {
    /// Makes sure that the file can be written, so that an error in its name or place is found at
    /// once.
    pub(crate) fn open(path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        Self::open_by(&WAYS, path, overwrite)
    }

    fn open_by(ways: &[Way], path: &Path, overwrite: Overwrite) -> anyhow::Result<Self> {
        let shown = path.display();
        let cannot = || format!("cannot write {shown}");
        let replaced = match fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                anyhow::bail!("{shown} is not a regular file; - is standard output")
            }
            Ok(_) if overwrite == Overwrite::No => {
                anyhow::bail!("{shown} already exists; --force replaces it")
            }
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(cannot),
        };
        if replaced.is_none() && (path.is_symlink() || path.as_os_str().as_bytes().ends_with(b"/"))
        {
            anyhow::bail!("{shown} is not a regular file; - is standard output");
        }
        let target = match replaced {
            Some(_) => fs::canonicalize(path).with_context(cannot)?,
            None => path.to_owned(),
        };
        // A user who may not write the file may not replace it either.
        let there = replaced
            .as_ref()
            .map(|_| OpenOptions::new().write(true).open(&target));
        let there = there.transpose().with_context(cannot)?;
        let mut made = Err(io::ErrorKind::Unsupported.into());
        for way in ways {
            made = made.or_else(|_: io::Error| way(&target));
        }
        let (file, place) = match (made, there) {
            (Ok(made), _) => made,
            (Err(_), Some(file)) => (file, TempPlace::There),
            (Err(error), None) => return Err(anyhow::Error::new(error).context(cannot())),
        };
        Ok(Self {
            path: path.to_owned(),
            target,
            replaced,
            file,
            place,
        })
    }

    /// Lets a function write the whole file, in pieces of any size, and gives the file its name.
    /// Also returns its size in bytes.
    pub(crate) fn write_with<T>(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> anyhow::Result<(T, u64)> {
        let written = self
            .begin()
            .and_then(|()| write_behind::write(&self.file, write));
        let finished = written.and_then(|value| {
            let len = self.file.metadata()?.len();
            self.finish()?;
            Ok((value, len))
        });
        finished.with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn begin(&self) -> io::Result<()> {
        match (&self.place, &self.replaced) {
            (TempPlace::There, _) => self.file.set_len(0),
            (TempPlace::Nameless | TempPlace::Beside(_), None) => Ok(()),
            (TempPlace::Nameless | TempPlace::Beside(_), Some(replaced)) => {
                self.file.set_permissions(replaced.permissions())?;
                // Only root can give files away. Other users usually replace files of their own.
                let _ = fchown(&self.file, Some(replaced.uid()), Some(replaced.gid()));
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match &self.place {
            TempPlace::There => return Ok(()),
            TempPlace::Nameless if self.replaced.is_none() => name(&self.file, &self.target)?,
            TempPlace::Nameless => {
                let beside = unfinished(&self.target);
                remove_leftover(&beside)?;
                name(&self.file, &beside)?;
                self.place = TempPlace::Beside(beside.clone());
                fs::rename(beside, &self.target)?;
            }
            TempPlace::Beside(beside) => fs::rename(beside, &self.target)?,
        }
        self.place = TempPlace::There;
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let TempPlace::Beside(beside) = &self.place {
            // The name of a file that stays shows that it is unfinished.
            let _ = fs::remove_file(beside);
        }
    }
}

/// The path of the unfinished file or directory for a final path.
pub(crate) fn unfinished(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// A nameless file, on the file system of the final path.
fn nameless(target: &Path) -> io::Result<(File, TempPlace)> {
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let mode = Mode::from_bits_truncate(private::FILE_MODE);
    let file = File::from(nix::fcntl::open(directory, flags, mode)?);
    // The file will get its name through this path.
    fs::metadata(by_number(&file))?;
    Ok((file, TempPlace::Nameless))
}

/// A file beside the final path. Its name shows that it is unfinished.
fn beside(target: &Path) -> io::Result<(File, TempPlace)> {
    let path = unfinished(target);
    remove_leftover(&path)?;
    Ok((private::create_new(&path)?, TempPlace::Beside(path)))
}

/// Removes the unfinished file of an earlier run that was killed. It may be a link of another user,
/// so nothing is written through it.
fn remove_leftover(unfinished: &Path) -> io::Result<()> {
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn name(file: &File, path: &Path) -> io::Result<()> {
    let flags = AtFlags::AT_SYMLINK_FOLLOW;
    Ok(linkat(AT_FDCWD, &by_number(file), AT_FDCWD, path, flags)?)
}

fn by_number(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the names in the directory while the file is written, and afterwards.
    fn check(ways: &[Way], overwrite: Overwrite, during: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names = names.collect::<Vec<_>>();
            names.sort();
            names
        };
        let path = dir.path().join("a");
        if overwrite == Overwrite::Yes {
            fs::write(&path, "what was there").unwrap();
        }
        let before = names();
        let dropped = WholeFile::open_by(ways, &path, overwrite).unwrap();
        assert_eq!(names(), during);
        drop(dropped);
        assert_eq!(names(), before);
        let failed = WholeFile::open_by(ways, &path, overwrite).unwrap();
        let error = failed.write_with(|_| Err::<(), _>(io::Error::other("reason")));
        assert!(format!("{:#}", error.unwrap_err()).ends_with("/a: reason"));
        assert_eq!(names(), before);
        let file = WholeFile::open_by(ways, &path, overwrite).unwrap();
        let written = file.write_with(|out| {
            assert_eq!(names(), during);
            out.write_all(b"new").map(|()| 7)
        });
        assert_eq!(written.unwrap(), (7, 3));
        assert_eq!(names(), ["a"]);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_file_has_no_name_until_it_is_finished() {
        check(&WAYS, Overwrite::No, &[]);
        check(&WAYS, Overwrite::Yes, &["a"]);
    }

    #[test]
    fn without_nameless_files_the_name_says_unfinished() {
        check(&[beside], Overwrite::No, &["a.unfinished"]);
        check(&[beside], Overwrite::Yes, &["a", "a.unfinished"]);
    }

    /// An earlier run that was killed may have left the file, or another user may have put a link
    /// there.
    #[test]
    fn a_file_of_the_unfinished_name_is_replaced_and_not_written_to() {
        let beside: &[Way] = &[beside];
        for (ways, overwrite) in [
            (beside, Overwrite::No),
            (beside, Overwrite::Yes),
            (&WAYS, Overwrite::Yes),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let [path, left, other] =
                ["a", "a.unfinished", "other"].map(|name| dir.path().join(name));
            fs::write(&other, "another file").unwrap();
            std::os::unix::fs::symlink(&other, &left).unwrap();
            if overwrite == Overwrite::Yes {
                fs::write(&path, "what was there").unwrap();
            }
            let file = WholeFile::open_by(ways, &path, overwrite).unwrap();
            file.write_with(|out| out.write_all(b"new")).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::read(&other).unwrap(), b"another file");
            assert!(!path.is_symlink() && !left.is_symlink());
        }
    }

    #[test]
    fn in_a_read_only_folder_an_existing_file_is_written() {
        check(&[], Overwrite::Yes, &["a"]);
        let dir = tempfile::tempdir().unwrap();
        WholeFile::open_by(&[], &dir.path().join("a"), Overwrite::No).unwrap_err();
    }
}
