//! The folder in which xray-relay writes recordings: `POLICY/DATE/NAME.xtrace`.
//!
//! The folder belongs to the relay, and root looks into it. So folders and files are opened by the
//! folders that are open already, and no link is followed.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::output::text::quoted;

/// The most recordings that are listed.
const MOST: usize = 1_000_000;
/// The most bytes of a policy's lines that are read.
const MOST_LINES: u64 = 4 << 20;

/// The folder of all recordings.
#[derive(Debug)]
pub(crate) struct Recordings(OwnedFd);

/// A recording in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recording {
    pub(crate) policy: String,
    pub(crate) date: String,
    /// The name of its file.
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// When it was written last, in seconds since the Unix epoch.
    pub(crate) written_s: i64,
}

// === impl Recording ===

impl Recording {
    /// Its name for other subcommands.
    pub(crate) fn name(&self) -> String {
        let Self {
            policy, date, file, ..
        } = self;
        format!("{policy}/{date}/{file}")
    }

    /// The pid of its process, by its name.
    pub(crate) fn pid(&self) -> Option<u32> {
        let (_, pid) = self.file.split_once('-')?;
        let end = pid.find(|character: char| !character.is_ascii_digit());
        pid.get(..end.unwrap_or(pid.len()))?.parse().ok()
    }

    /// True if it is still written.
    pub(crate) fn is_part(&self) -> bool {
        self.file.ends_with(".part")
    }
}

// === impl Recordings ===

impl Recordings {
    /// Opens the folder.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let opened = open(path, flags, Mode::empty());
        let opened = opened.with_context(|| {
            format!(
                "cannot open the folder of recordings {} (xray-relay writes it; --folder names \
                 another one)",
                path.display()
            )
        })?;
        Ok(Self(opened))
    }

    /// All recordings, the oldest first.
    pub(crate) fn list(&self) -> anyhow::Result<Vec<Recording>> {
        let mut found = Vec::new();
        for policy in names(&self.0)? {
            let Some(folder) = folder(&self.0, &policy)? else {
                continue;
            };
            for date in names(&folder)? {
                let Some(day) = self::folder(&folder, &date)? else {
                    continue;
                };
                for file in names(&day)? {
                    if !file.trim_end_matches(".part").ends_with(".xtrace") {
                        continue;
                    }
                    let status = fstatat(&day, &*file, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW);
                    // It may be gone meanwhile.
                    let Some(status) = status.ok().filter(is_file) else {
                        continue;
                    };
                    if found.len() >= MOST {
                        bail!("there are more than {MOST} recordings");
                    }
                    found.push(Recording {
                        policy: policy.clone(),
                        date: date.clone(),
                        file,
                        bytes: u64::try_from(status.st_size).unwrap_or(0),
                        written_s: status.st_mtime,
                    });
                }
            }
        }
        found.sort_by(|one, other| {
            (&one.date, &one.file, &one.policy).cmp(&(&other.date, &other.file, &other.policy))
        });
        Ok(found)
    }

    /// Opens a recording by its name.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<File> {
        let (day, file) = self.day_of(name)?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let opened = openat(&day, file, flags, Mode::empty());
        let opened = opened.with_context(|| format!("cannot open {}", quoted(name)))?;
        if !is_file(&fstat(&opened)?) {
            bail!("{} is no regular file", quoted(name));
        }
        Ok(File::from(opened))
    }

    /// Removes a recording by its name, and its folder with the last one of the day.
    pub(crate) fn remove(&self, name: &str) -> anyhow::Result<()> {
        let (day, file) = self.day_of(name)?;
        unlinkat(&day, file, UnlinkatFlags::NoRemoveDir)
            .with_context(|| format!("cannot remove {}", quoted(name)))?;
        let parts: Vec<&str> = name.split('/').collect();
        if let [policy, date, _] = parts[..]
            && let Some(policy) = folder(&self.0, policy)?
        {
            // It may have others.
            let _ = unlinkat(&policy, date, UnlinkatFlags::RemoveDir);
        }
        Ok(())
    }

    /// The lines of the files `NAME.jsonl` of all policies, each with its policy. Those of a policy
    /// are in order, the oldest first.
    pub(crate) fn lines(&self, name: &str) -> anyhow::Result<Vec<(String, String)>> {
        let mut lines = Vec::new();
        for policy in names(&self.0)? {
            let Some(folder) = folder(&self.0, &policy)? else {
                continue;
            };
            for file in [format!("{name}.1.jsonl"), format!("{name}.jsonl")] {
                let flags =
                    OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
                let Ok(opened) = openat(&folder, &*file, flags, Mode::empty()) else {
                    continue;
                };
                if !is_file(&fstat(&opened)?) {
                    continue;
                }
                let mut text = Vec::new();
                File::from(opened).take(MOST_LINES).read_to_end(&mut text)?;
                let text = String::from_utf8_lossy(&text).into_owned();
                lines.extend(text.lines().map(|line| (policy.clone(), line.to_owned())));
            }
        }
        Ok(lines)
    }

    /// The folder of the day of a recording, and the name of its file.
    fn day_of<'n>(&self, name: &'n str) -> anyhow::Result<(OwnedFd, &'n str)> {
        let parts: Vec<&str> = name.split('/').collect();
        let is_plain = |part: &&str| !part.is_empty() && !part.starts_with('.');
        let [policy, date, file] = parts[..] else {
            bail!(
                "{} is no recording: it has the form POLICY/DATE/FILE",
                quoted(name)
            );
        };
        if !parts.iter().all(is_plain) {
            bail!("{} is no recording", quoted(name));
        }
        let missing = || format!("there is no recording {}", quoted(name));
        let policy = folder(&self.0, policy)?.with_context(missing)?;
        let day = folder(&policy, date)?.with_context(missing)?;
        Ok((day, file))
    }
}

/// The names in a folder that is open, but hidden ones.
fn names(folder: &OwnedFd) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(PathBuf::from(format!(
        "/proc/self/fd/{}",
        folder.as_raw_fd()
    )))?;
    for entry in entries.take(MOST) {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a folder within another one. `None` if it is none.
fn folder(within: &impl AsFd, name: &str) -> anyhow::Result<Option<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    match openat(within, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(nix::Error::ENOENT | nix::Error::ENOTDIR | nix::Error::ELOOP) => Ok(None),
        Err(error) => Err(io::Error::from(error)).with_context(|| format!("cannot open {name}")),
    }
}

fn is_file(status: &FileStat) -> bool {
    SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn recordings_are_listed_read_and_removed_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let day = root.join("p/2026-11-30");
        fs::create_dir_all(&day).unwrap();
        fs::create_dir_all(root.join("p/.sums")).unwrap();
        fs::write(day.join("100000.000Z-7.xtrace"), "abc").unwrap();
        fs::write(day.join("110000.000Z-8-2.xtrace.part"), "d").unwrap();
        fs::write(day.join("notes"), "x").unwrap();
        fs::write(root.join("p/losses.jsonl"), "{}\n").unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("1-1.xtrace"), "secret").unwrap();
        symlink(outside.path(), root.join("p/2026-12-01")).unwrap();
        symlink("/etc/passwd", day.join("1-1.xtrace")).unwrap();
        let recordings = Recordings::open(root).unwrap();
        let listed = recordings.list().unwrap();
        let seen: Vec<_> = listed
            .iter()
            .map(|it| (it.name(), it.pid(), it.bytes, it.is_part()))
            .collect();
        let expected = [
            (
                "p/2026-11-30/100000.000Z-7.xtrace".to_owned(),
                Some(7),
                3,
                false,
            ),
            (
                "p/2026-11-30/110000.000Z-8-2.xtrace.part".to_owned(),
                Some(8),
                1,
                true,
            ),
        ];
        assert_eq!(seen, expected);
        assert_eq!(
            recordings.lines("losses").unwrap(),
            [("p".to_owned(), "{}".to_owned())]
        );
        let mut text = String::new();
        let mut file = recordings.read(&listed[0].name()).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        for name in [
            "p/2026-12-01/1-1.xtrace",
            "p/2026-11-30/1-1.xtrace",
            "../x/y",
            "p/../p",
            "p/2026-11-30/..",
            "/etc/passwd",
            "p",
        ] {
            assert!(recordings.read(name).is_err(), "{name}");
        }
        assert!(recordings.remove("p/2026-12-01/1-1.xtrace").is_err());
        assert!(outside.path().join("1-1.xtrace").exists());
        recordings.remove(&listed[0].name()).unwrap();
        assert_eq!(recordings.list().unwrap().len(), 1);
    }
}
