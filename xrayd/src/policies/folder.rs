//! The folder of policies: files of TOML that the administrator writes.

use std::{
    fs,
    fs::File,
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
};

use super::spec::PolicySpec;
use crate::toml_file::{self, Mistake};

/// The most files of a folder.
pub(super) const MOST_FILES: usize = 256;
/// The most entries of a folder that are looked at.
const MOST_ENTRIES: usize = 4096;

/// A file of the folder.
#[derive(Debug)]
pub(super) struct PolicyFile {
    pub(super) path: PathBuf,
    /// The policy and its text, or why it is none.
    pub(super) policy: Result<(PolicySpec, String), Vec<Mistake>>,
}

/// The folder of this user's daemon: `/etc/xrayd/policies.d` for root, else
/// `$XDG_CONFIG_HOME/xrayd/policies.d` or `~/.config/xrayd/policies.d`. `None` for a user without a
/// home.
pub fn default_folder() -> Option<PathBuf> {
    Some(toml_file::default_folder()?.join("policies.d"))
}

/// Reads the policies of a folder, in the order of the files' names. A folder that is missing has
/// none.
///
/// # Errors
/// The folder cannot be read, or other users may write to it.
pub(super) fn read(folder: &Path) -> io::Result<Vec<PolicyFile>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = match open(folder, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        opened => File::from(opened?),
    };
    toml_file::check_owner(&opened.metadata()?)?;
    let mut names = Vec::new();
    let entries = fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    for entry in entries.take(MOST_ENTRIES) {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if name.ends_with(".toml") && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    if names.len() > MOST_FILES {
        let message = format!("there are more than {MOST_FILES} files");
        return Err(io::Error::other(message));
    }
    let files = names.into_iter().filter_map(|name| {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let text = match openat(&opened, &*name, flags, Mode::empty()) {
            // It was removed meanwhile.
            Err(Errno::ENOENT) => return None,
            Err(errno) => Err(errno.into()),
            Ok(file) => toml_file::read_opened(File::from(file)),
        };
        let policy = text
            .map_err(|error| vec![Mistake::of_file(format!("cannot be read: {error}"))])
            .and_then(|text| Ok((PolicySpec::parse(&text)?, text)));
        let path = folder.join(name);
        Some(PolicyFile { path, policy })
    });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const POLICY: &str = "name = \"x\"\n[match]\nuser = \"0\"\n[trace]\nenable = \"*\"\n";

    #[test]
    fn files_are_read_in_order_and_each_has_its_own_mistakes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(read(&at("missing")).unwrap().is_empty());
        fs::write(at("20-good.toml"), POLICY).unwrap();
        fs::write(at("10-bad.toml"), "name = 1\n").unwrap();
        for ignored in [".hidden.toml", "notes.txt", "x.toml~"] {
            fs::write(at(ignored), "?").unwrap();
        }
        nix::unistd::mkfifo(&at("30-fifo.toml"), Mode::S_IRUSR).unwrap();
        fs::write(at("40-foreign.toml"), POLICY).unwrap();
        fs::set_permissions(at("40-foreign.toml"), fs::Permissions::from_mode(0o666)).unwrap();
        let files = read(folder.path()).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.path.file_name().unwrap())
            .collect();
        let expected = [
            "10-bad.toml",
            "20-good.toml",
            "30-fifo.toml",
            "40-foreign.toml",
        ];
        assert_eq!(names, expected);
        let mistakes = |at: usize| files[at].policy.as_ref().unwrap_err();
        assert!(mistakes(0).len() > 1);
        assert_eq!(files[1].policy.as_ref().unwrap().0.name, "x");
        assert!(mistakes(2)[0].what.contains("no regular file"));
        assert!(mistakes(3)[0].what.contains("chmod go-w"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = read(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
