//! The folder of the daemon's state: a file for each session, replaced as a whole.
//!
//! A new record is written beside the old one, and takes its name. So a daemon that is killed
//! leaves the old record or the new one. Nothing waits for the disk: a record is of use until the
//! machine starts anew, and the kernel keeps written files until then. A power cut can leave a
//! torn file. Its boot is over, and its checksum is wrong.
//!
//! The folder belongs to the daemon's user, and no other user may write to it. One daemon at a time
//! uses it.

use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{Uid, UnlinkatFlags, geteuid, unlinkat},
};

use super::file::{self, PidScope, Unusable};
use crate::process::{SessionRecord, SessionRecords};

/// Begin of the names of records.
const SESSION: &str = "session-";
const NEW: &str = "new-";
const LOCK: &str = "lock";
/// Longest record that is read, in bytes. It has room for a million ranges of functions.
const LONGEST_RECORD: u64 = 16 << 20;
/// Most records that are read.
const MOST_RECORDS: usize = 1 << 13;

/// The folder, while this daemon uses it.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    folder: OwnedFd,
    scope: PidScope,
    /// True while records cannot be written.
    fails: AtomicBool,
    _lock: Flock<File>,
}

/// The reason why the daemon has no state that outlives it.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A step failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The path that the step used.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another daemon uses the folder.
    #[error("another xrayd uses {}", .0.display())]
    InUse(PathBuf),
    /// Another user could have written the files.
    #[error(
        "{} has to belong to user {}, and no other user may write to it", path.display(), geteuid()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
}

/// The folder of this user's daemon, unless another one is configured: the one that systemd made,
/// `/var/lib/xrayd` for root, else `$XDG_STATE_HOME/xrayd` or `~/.local/state/xrayd`. `None` for a
/// user without a home.
pub fn default_folder() -> Option<PathBuf> {
    folder_for(geteuid(), |name| env::var_os(name))
}

fn folder_for(user: Uid, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(folders) = variable("STATE_DIRECTORY") {
        // systemd separates several folders by colons.
        return env::split_paths(&folders).next();
    }
    if user.is_root() {
        return Some(PathBuf::from("/var/lib/xrayd"));
    }
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    Some(state?.join("xrayd"))
}

// === impl StateFolder ===

impl StateFolder {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(path: &Path) -> Result<Arc<Self>, FolderError> {
        let failed = |step| {
            let path = path.to_owned();
            move |source| FolderError::Io { step, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed("create"))?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = nix::fcntl::open(path, flags, Mode::empty());
        let folder = folder.map_err(|errno| failed("open")(errno.into()))?;
        let metadata = File::from(folder.try_clone().map_err(failed("open"))?);
        let metadata = metadata.metadata().map_err(failed("look at"))?;
        if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            let path = path.to_owned();
            return Err(FolderError::Foreign { path });
        }
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let lock = openat(&folder, LOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let lock = lock.map_err(|errno| failed("write to")(errno.into()))?;
        let lock = Flock::lock(File::from(lock), FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => FolderError::InUse(path.to_owned()),
            errno => failed("lock")(errno.into()),
        })?;
        let opened = Self {
            path: path.to_owned(),
            folder,
            scope: PidScope::this().map_err(failed("read the boot id for"))?,
            fails: AtomicBool::new(false),
            _lock: lock,
        };
        // No other daemon writes here: these files were never finished.
        let unfinished = opened.names(NEW).map_err(failed("list"))?;
        unfinished.iter().for_each(|name| opened.unlink(name));
        Ok(Arc::new(opened))
    }

    /// The records of the sessions of a daemon that has ended. Files that give no record are
    /// logged. Files of another boot are removed, because their processes are gone.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub(crate) fn records(&self) -> io::Result<Vec<SessionRecord>> {
        let names = self.names(SESSION)?;
        let mut records = Vec::new();
        for name in names {
            match self.read(&name) {
                Ok(record) if name == name_of(&record) => records.push(record),
                Ok(record) => {
                    tracing::warn!(file = name, pid = %record.pid, "a record has a wrong name");
                }
                Err(Unusable::Outdated) => {
                    tracing::debug!(file = name, "removed a record of another boot");
                    self.unlink(&name);
                }
                Err(why) => {
                    let folder = self.path.display();
                    tracing::warn!(%folder, file = name, %why, "cannot use a record of a session");
                }
            }
        }
        Ok(records)
    }

    /// The names that begin so, in order.
    pub(super) fn names(&self, begin: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))? {
            let Ok(name) = entry?.file_name().into_string() else {
                continue;
            };
            if name.starts_with(begin) {
                if names.len() == MOST_RECORDS {
                    tracing::warn!("read only the first {MOST_RECORDS} files {begin}*");
                    break;
                }
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<SessionRecord, Unusable> {
        file::read(self.scope, &self.bytes_of(name)?)
    }

    /// The bytes of a file of this user.
    pub(super) fn bytes_of(&self, name: &str) -> Result<Vec<u8>, Unusable> {
        let damaged = |error: io::Error| Unusable::Damaged(error.to_string());
        // A fifo does not block the open.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| damaged(errno.into()))?);
        let metadata = file.metadata().map_err(damaged)?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return Err(Unusable::Damaged("it is no file of this user".to_owned()));
        }
        let mut bytes = Vec::new();
        let read = file.take(LONGEST_RECORD + 1).read_to_end(&mut bytes);
        match read.map_err(damaged)? as u64 {
            ..=LONGEST_RECORD => Ok(bytes),
            _ => Err(Unusable::Damaged("it is too long".to_owned())),
        }
    }

    /// Writes a file as a whole.
    pub(super) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!("{NEW}{name}");
        let flags = OFlag::O_WRONLY
            | OFlag::O_CREAT
            | OFlag::O_TRUNC
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC;
        let file = openat(&self.folder, &*new, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let written = File::from(file).write_all(bytes).and_then(|()| {
            renameat(&self.folder, &*new, &self.folder, name).map_err(io::Error::from)
        });
        written.inspect_err(|_| self.unlink(&new))
    }

    /// The open folder.
    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// The scope of this process.
    pub(super) fn scope(&self) -> PidScope {
        self.scope
    }

    pub(super) fn unlink(&self, name: &str) {
        if let Err(errno) = unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir)
            && errno != Errno::ENOENT
        {
            let folder = self.path.display();
            tracing::warn!(%folder, file = name, error = %errno, "cannot remove a file");
        }
    }
}

impl SessionRecords for StateFolder {
    fn write(&self, record: &SessionRecord) {
        let name = name_of(record);
        let written = self.replace(&name, &file::write(self.scope, record));
        let failed = written.is_err();
        let folder = self.path.display();
        match (self.fails.swap(failed, Relaxed), written) {
            (false, Err(error)) => tracing::error!(
                %folder, %error,
                "cannot write the record of a session: a daemon that comes after a crash does not \
                 know the latest changes"
            ),
            (true, Ok(())) => tracing::info!(%folder, "records of sessions can be written again"),
            (true, Err(_)) | (false, Ok(())) => {}
        }
    }

    fn remove(&self, record: &SessionRecord) {
        self.unlink(&name_of(record));
    }
}

/// The file of a record. A process has several sessions if it has executed other programs.
fn name_of(record: &SessionRecord) -> String {
    let SessionRecord {
        pid,
        start_time,
        session,
        ..
    } = record;
    format!("{SESSION}{pid}-{start_time}-{session}")
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::{PermissionsExt as _, symlink},
        time::Duration,
    };

    use sled_encoders::Capture;
    use xray_trace::{
        instr_map::{Rule, Selection},
        model::Birth,
    };

    use nix::sys::stat::Mode as Permission;

    use super::*;
    use crate::{
        control::{Choices, ChosenModule},
        pid::Pid,
        process::{Follow, GroupRecord},
        target::{Caller, Credentials, Namespace, Rights, Sleds},
        types::{Budget, CallFilter, Filter, Kinship, LeaseId, Mode, Settings, ToggleTo, Wanted},
    };

    fn record(pid: u32) -> SessionRecord {
        let pid = Pid::try_from(pid).unwrap();
        let rights = Rights {
            group: 100,
            permitted: 1 << 19,
            effective: 1 << 10,
            start_time: 77,
        };
        let caller = Some(Caller::peer(1000, 4, Ok(rights)));
        let values = Capture::NONE.with_arguments(3).unwrap().with_result();
        SessionRecord {
            pid,
            start_time: 42,
            session: 43,
            credentials: Credentials {
                user: 1000,
                ids: Some((1000, 100)),
                permitted: 1 << 19,
                namespace: Namespace::Below { owner: 999 },
                dumpable: true,
            },
            has_ended: pid.as_u32() % 2 == 0,
            caller,
            ring_bytes: 1 << 20,
            max_threads: 64,
            sleds: Sleds::Awaited,
            by_policy: true,
            group: GroupRecord {
                root: Pid::this(),
                root_start_time: 41,
                follow: Follow::All,
                caller,
                kinship: Some(Kinship {
                    root: Pid::this(),
                    parent: pid,
                    by: Birth::Exec,
                    within: Duration::from_micros(5),
                }),
            },
            choices: Choices {
                settings: Settings {
                    mode: Mode::Flight,
                    filter: Filter {
                        calls: CallFilter {
                            max_depth: 7,
                            inside: vec!["main*".to_owned()],
                            ..CallFilter::default()
                        },
                        ..Filter::default()
                    },
                    budget: Budget::None,
                },
                rules: vec![
                    (Selection::all(), Wanted::On(Capture::NONE).into()),
                    (
                        Selection::all(),
                        ToggleTo::leased(LeaseId::of_policy("x"), values),
                    ),
                    (
                        Selection {
                            include: vec![Rule::Glob("a*".to_owned())],
                            exclude: vec![Rule::Regex("b".to_owned())],
                        },
                        Wanted::Off.into(),
                    ),
                ],
                modules: vec![ChosenModule {
                    path: "/bin/x".to_owned(),
                    bias: 1 << 40,
                    functions: 100,
                    on: vec![
                        (0..5, Capture::NONE),
                        (7..8, Capture::NONE),
                        (8..9, values),
                        (90..100, Capture::NONE),
                    ],
                }],
            },
        }
    }

    fn folder() -> (tempfile::TempDir, Arc<StateFolder>) {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&place.path().join("state")).unwrap();
        (place, folder)
    }

    fn sorted(mut records: Vec<SessionRecord>) -> Vec<SessionRecord> {
        records.sort_by_key(|record| record.pid);
        records
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let (_place, folder) = folder();
        let [one, mut other] = [record(10), record(11)];
        folder.write(&one);
        folder.write(&other);
        other.choices.settings.mode = Mode::Count;
        other.group.kinship = None;
        other.caller = None;
        folder.write(&other);
        assert_eq!(sorted(folder.records().unwrap()), [one.clone(), other]);
        folder.remove(&record(11));
        assert_eq!(folder.records().unwrap(), [one]);
    }

    #[test]
    fn a_second_daemon_does_not_get_the_folder() {
        let (place, folder) = folder();
        let path = place.path().join("state");
        assert!(matches!(
            StateFolder::open(&path),
            Err(FolderError::InUse(_))
        ));
        drop(folder);
        StateFolder::open(&path).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o770)).unwrap();
        let refused = StateFolder::open(place.path());
        assert!(matches!(refused, Err(FolderError::Foreign { .. })));
    }

    /// Every byte is changed in turn, and every length is cut.
    #[test]
    fn a_damaged_record_is_refused_and_never_another_one() {
        let (place, folder) = folder();
        folder.write(&record(10));
        let path = place.path().join("state/session-10-42-43");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(folder.records().unwrap(), [], "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(folder.records().unwrap(), [], "length {at}");
        }
        folder.write(&record(10));
        assert_eq!(folder.records().unwrap(), [record(10)]);
    }

    #[test]
    fn files_that_are_no_records_are_left_out() {
        let (place, folder) = folder();
        let path = |name: &str| place.path().join("state").join(name);
        folder.write(&record(10));
        let good = fs::read(path("session-10-42-43")).unwrap();
        // A record under another name would be one of another process.
        fs::write(path("session-9-42-43"), &good).unwrap();
        symlink(path("session-10-42-43"), path("session-11-42-43")).unwrap();
        fs::create_dir(path("session-12-42-43")).unwrap();
        nix::unistd::mkfifo(&path("session-13-42-43"), Permission::S_IRWXU).unwrap();
        fs::write(path("new-session-14-42-43"), &good).unwrap();
        File::create(path("session-15-42-43"))
            .unwrap()
            .set_len(LONGEST_RECORD + 1)
            .unwrap();
        assert_eq!(folder.records().unwrap(), [record(10)]);
        // A file may be under way as long as its daemon lives.
        assert!(path("new-session-14-42-43").exists());
        drop(folder);
        StateFolder::open(&place.path().join("state")).unwrap();
        assert!(!path("new-session-14-42-43").exists());
    }

    /// Two daemons before this one: of another boot, and in another container.
    #[test]
    fn records_of_another_boot_are_removed() {
        let (place, folder) = folder();
        folder.write(&record(10));
        folder.write(&record(11));
        let change = |name: &str, at: usize| {
            let path = place.path().join("state").join(name);
            let mut bytes = fs::read(&path).unwrap();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            path
        };
        let other_boot = change("session-10-42-43", 8);
        let elsewhere = change("session-11-42-43", 24);
        assert_eq!(folder.records().unwrap(), []);
        assert!(!other_boot.exists() && elsewhere.exists());
    }

    #[test]
    fn a_record_that_cannot_be_written_leaves_the_old_one() {
        let (place, folder) = folder();
        folder.write(&record(10));
        // The name of the new file is taken by a folder.
        fs::create_dir(place.path().join("state/new-session-10-42-43")).unwrap();
        let mut changed = record(10);
        changed.max_threads = 1;
        folder.write(&changed);
        assert!(folder.fails.load(Relaxed));
        assert_eq!(folder.read("session-10-42-43").unwrap(), record(10));
        fs::remove_dir(place.path().join("state/new-session-10-42-43")).unwrap();
        folder.write(&changed);
        assert!(!folder.fails.load(Relaxed));
        assert_eq!(folder.records().unwrap(), [changed]);
    }

    #[test]
    fn the_default_folder_depends_on_the_user() {
        let with = |user, variables: &'static [(&str, &str)]| {
            folder_for(Uid::from_raw(user), |name| {
                let mut variables = variables.iter();
                let found = variables.find(|(its, _)| *its == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(with(0, &[("HOME", "/h")]), path("/var/lib/xrayd"));
        assert_eq!(with(0, &[("STATE_DIRECTORY", "/a:/b")]), path("/a"));
        assert_eq!(with(7, &[("HOME", "/h")]), path("/h/.local/state/xrayd"));
        let both = &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")];
        assert_eq!(with(7, both), path("/s/xrayd"));
        assert_eq!(with(7, &[("XDG_STATE_HOME", "s")]), None);
    }
}
