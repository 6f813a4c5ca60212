//! The segments in the folder: files with retained events, named after their segment and the scope
//! of its process.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode,
    unistd::geteuid,
};

use super::{file::PidScope, folder::StateFolder};
use crate::segments::{SegmentFolder, SegmentName};

/// Stands between the name of a segment and its scope. No name of a segment has it.
const IN_SCOPE: char = '@';

/// The file of a segment, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A segment of this scope.
    Here(SegmentName),
    /// One of another boot. Its process is gone.
    Outdated,
    /// One of another pid namespace.
    Elsewhere,
    /// Another file.
    Other,
}

impl SegmentFolder for StateFolder {
    fn create(&self, name: SegmentName) -> io::Result<File> {
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_EXCL
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        let name = file_name(name, self.scope());
        let file = openat(self.folder(), &*name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(File::from(file))
    }

    fn remove(&self, name: SegmentName) {
        self.unlink(&file_name(name, self.scope()));
    }

    fn found(&self, most: usize) -> Vec<(SegmentName, File)> {
        let mut names = match self.segment_names() {
            Ok(names) => names,
            Err(error) => {
                tracing::error!(%error, "cannot list the files of retained events");
                Vec::new()
            }
        };
        // The order of time for each process.
        names.sort_unstable();
        if names.len() > most {
            tracing::warn!("left {} files of retained events alone", names.len() - most);
            names.truncate(most);
        }
        let opened = names
            .into_iter()
            .filter_map(|name| match self.open_segment(name) {
                Ok(file) => Some((name, file)),
                Err(error) => {
                    tracing::warn!(%name, %error, "refused a file of retained events");
                    None
                }
            });
        opened.collect()
    }
}

impl StateFolder {
    /// Removes the segments of a daemon that kept retained events in files.
    pub(crate) fn remove_segments(&self) {
        for name in self.segment_names().unwrap_or_default() {
            tracing::warn!(%name, "removed a file of retained events: see --retain-in-files");
            self.remove(name);
        }
    }

    /// The segments of this scope. Those of another boot are removed.
    fn segment_names(&self) -> io::Result<Vec<SegmentName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", self.folder().as_raw_fd()))? {
            let Ok(name) = entry?.file_name().into_string() else {
                continue;
            };
            match found(&name, self.scope()) {
                Found::Here(name) => names.push(name),
                Found::Outdated => self.unlink(&name),
                Found::Elsewhere | Found::Other => {}
            }
        }
        Ok(names)
    }

    fn open_segment(&self, name: SegmentName) -> io::Result<File> {
        // A fifo does not block the open.
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let name = file_name(name, self.scope());
        let file = File::from(openat(self.folder(), &*name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        match metadata.is_file() && metadata.uid() == geteuid().as_raw() {
            true => Ok(file),
            false => Err(io::Error::other("it is no file of this user")),
        }
    }
}

fn file_name(name: SegmentName, scope: PidScope) -> String {
    format!("{name}{IN_SCOPE}{scope}")
}

fn found(file: &str, scope: PidScope) -> Found {
    let Some((name, its)) = file.split_once(IN_SCOPE) else {
        return Found::Other;
    };
    let Ok(name) = name.parse() else {
        return Found::Other;
    };
    let here = scope.to_string();
    let boot = |scope: &str| scope.split('-').next().map(str::to_owned);
    match its {
        its if its == here => Found::Here(name),
        its if boot(its) == boot(&here) => Found::Elsewhere,
        _ => Found::Outdated,
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::fs::symlink};

    use super::*;
    use crate::pid::Pid;

    fn name(number: u32) -> SegmentName {
        SegmentName {
            pid: Pid::this(),
            start_time: 7,
            session: 9,
            number,
        }
    }

    #[test]
    fn segments_are_found_again_in_order_and_foreign_files_are_not() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        let scope = folder.scope();
        for number in [2, 0, 1, 10] {
            let mut file = folder.create(name(number)).unwrap();
            file.write_all(b"x").unwrap();
        }
        folder.remove(name(1));
        // A link, a folder, a segment of another boot, and one of another pid namespace.
        let [link, other] = [3, 4].map(|number| place.path().join(file_name(name(number), scope)));
        symlink("/etc/passwd", link).unwrap();
        fs::create_dir(other).unwrap();
        let outdated = format!("{}@{}-5", name(5), "0".repeat(32));
        let here = scope.to_string();
        let boot = here.split('-').next().unwrap();
        let elsewhere = format!("{}@{boot}-1", name(6));
        let unrelated = "events.1-2@x";
        for file in [&outdated, &elsewhere, unrelated] {
            fs::write(place.path().join(file), "").unwrap();
        }
        let found = folder.found(10);
        let numbers: Vec<_> = found.iter().map(|(name, _)| name.number).collect();
        assert_eq!(numbers, [0, 2, 10]);
        let lengths = found.iter().map(|(_, file)| file.metadata().unwrap().len());
        assert!(lengths.eq([1, 1, 1]));
        assert!(!place.path().join(outdated).exists());
        assert!(place.path().join(elsewhere).exists());
        assert!(place.path().join(unrelated).exists());
        assert_eq!(folder.found(2).len(), 2);
    }
}
