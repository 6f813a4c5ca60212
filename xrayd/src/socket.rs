//! The daemon's socket: its path, its bind, takeover and removal.
//!
//! A daemon that died leaves its socket file behind. A new daemon removes the file only if it holds
//! the lock beside it, the file is a socket, and no process answers there. The lock
//! (`<socket>.lock`) is held while the daemon lives, and its file is never removed. It keeps two
//! daemons that start together from removing each other's socket.

use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{
                DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
                PermissionsExt as _,
            },
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::{
        socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr},
        stat::{Mode, fchmod},
    },
    unistd::{Uid, geteuid},
};

/// The socket of the system daemon.
pub const SYSTEM_SOCKET: &str = "/run/xrayd/xrayd.sock";

/// The users who can connect. The daemon authorises each call by the caller's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every user of the host (mode 0666): the system daemon.
    Everybody,
    /// The owner and the file's group (mode 0660), which is the group of a directory that is
    /// set-group-id.
    Group,
    /// The owner only (mode 0600): the daemon of a user.
    Owner,
}

/// The reason why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The user has no runtime directory.
    #[error(
        "XDG_RUNTIME_DIR is not set: give the path of the socket with --socket or XRAYD_SOCKET"
    )]
    NoRuntimeDir,
    /// A daemon answers at this path or holds its lock.
    #[error("another xrayd is running at {}", path.display())]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The file at this path is not a socket.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path of the socket.
        path: PathBuf,
    },
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
}

/// A listening socket. [`SocketFile::remove`] removes a socket that was bound here. An inherited
/// socket stays.
#[derive(Debug)]
pub struct BoundSocket {
    /// Taken by the server, once.
    listener: UnixListener,
    /// `None` for a socket that the service manager keeps.
    file: Option<SocketFile>,
}

/// The file that [`BoundSocket`] bound. It outlives the listener, so that it can be removed after
/// the server has ended.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the bound file. They keep a successor's socket from being removed.
    identity: (u64, u64),
    /// Held until the file is gone.
    _lock: Flock<File>,
}

/// The socket of a daemon that this user starts: [`SYSTEM_SOCKET`] for root, else
/// `$XDG_RUNTIME_DIR/xrayd.sock`.
///
/// # Errors
///
/// [`SocketError::NoRuntimeDir`] for a user without `XDG_RUNTIME_DIR`.
pub fn default_path() -> Result<PathBuf, SocketError> {
    path_for(geteuid(), env::var_os("XDG_RUNTIME_DIR"))
}

/// The paths at which a client of this user looks for a daemon: the user's own socket, then the
/// system's.
#[must_use]
pub fn client_paths() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = default_path().into_iter().collect();
    let system = PathBuf::from(SYSTEM_SOCKET);
    if !paths.contains(&system) {
        paths.push(system);
    }
    paths
}

fn path_for(user: Uid, runtime_dir: Option<OsString>) -> Result<PathBuf, SocketError> {
    match runtime_dir.filter(|dir| !dir.is_empty()) {
        _ if user.is_root() => Ok(PathBuf::from(SYSTEM_SOCKET)),
        Some(dir) => Ok(Path::new(&dir).join("xrayd.sock")),
        None => Err(SocketError::NoRuntimeDir),
    }
}

// === impl BoundSocket ===

impl BoundSocket {
    /// Binds and listens at `path`. A socket at which no process answers is replaced.
    ///
    /// # Errors
    ///
    /// A running daemon, a file that is not a socket, or an error of the system. Nothing but the
    /// lock file was changed then.
    pub fn bind(path: &Path, access: Access) -> Result<Self, SocketError> {
        let failed = |step| {
            move |source| SocketError::Io {
                step,
                path: path.to_owned(),
                source,
            }
        };
        if path == Path::new(SYSTEM_SOCKET) {
            make_directory(path).map_err(failed("create the directory of"))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = listen(path, access).map_err(failed("listen on"))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("read the metadata of"))?;
        let identity = (metadata.dev(), metadata.ino());
        let file = SocketFile {
            path: path.to_owned(),
            identity,
            _lock: lock,
        };
        Ok(Self {
            listener,
            file: Some(file),
        })
    }

    /// A socket that the service manager opened.
    #[must_use]
    pub fn inherited(listener: UnixListener) -> Self {
        Self {
            listener,
            file: None,
        }
    }

    /// The path of a socket that was bound here. `None` for one that the service manager keeps.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(SocketFile::path)
    }

    /// The listener, and the file to remove at the end.
    #[must_use]
    pub fn into_parts(self) -> (UnixListener, Option<SocketFile>) {
        let Self { listener, file } = self;
        (listener, file)
    }
}

// === impl SocketFile ===

impl SocketFile {
    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another file has taken its place.
    ///
    /// # Errors
    ///
    /// The error of the system. A file that is gone already is no error.
    pub fn remove(self) -> io::Result<()> {
        let metadata = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            metadata => metadata?,
        };
        if (metadata.dev(), metadata.ino()) != self.identity {
            return Ok(());
        }
        fs::remove_file(&self.path)
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    match DirBuilder::new().mode(0o755).create(parent) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn lock(path: &Path) -> Result<Flock<File>, SocketError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
        .open(&name)
        .map_err(|source| SocketError::Io {
            step: "open",
            path: name.clone(),
            source,
        })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => SocketError::Running {
            path: path.to_owned(),
        },
        errno => SocketError::Io {
            step: "lock",
            path: name,
            source: errno.into(),
        },
    })
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |step| {
        move |source| SocketError::Io {
            step,
            path: path.to_owned(),
            source,
        }
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            return Err(SocketError::NotASocket {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(failed("read the metadata of")(error)),
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Running {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Err(error) => Err(failed("connect to")(error)),
    }
}

fn listen(path: &Path, access: Access) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The mode of the descriptor is the upper bound of the file's mode at bind
    // (https://elixir.bootlin.com/linux/v6.12/source/net/unix/af_unix.c#L1213). So the socket is
    // never wider than its final mode, not for a moment.
    let mode = match access {
        Access::Everybody => Mode::from_bits_truncate(0o666),
        Access::Group => Mode::from_bits_truncate(0o660),
        Access::Owner => Mode::from_bits_truncate(0o600),
    };
    fchmod(&fd, mode)?;
    socket::bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(path)?)?;
    // Sets the bits that the umask took away.
    fs::set_permissions(path, Permissions::from_mode(mode.bits()))?;
    socket::listen(&fd, Backlog::new(128)?)?;
    Ok(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_listens_below_run_and_a_user_in_the_runtime_directory() {
        let (root, user) = (Uid::from_raw(0), Uid::from_raw(1000));
        let dir = || Some(OsString::from("/run/user/1000"));
        assert_eq!(path_for(root, dir()).unwrap(), Path::new(SYSTEM_SOCKET));
        assert_eq!(path_for(root, None).unwrap(), Path::new(SYSTEM_SOCKET));
        assert_eq!(
            path_for(user, dir()).unwrap(),
            Path::new("/run/user/1000/xrayd.sock")
        );
        for unset in [None, Some(OsString::new())] {
            let error = path_for(user, unset).unwrap_err();
            assert!(
                error.to_string().contains("XDG_RUNTIME_DIR is not set"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_stale_socket_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        // A killed daemon leaves the same behind: the listener is closed, the file stays.
        drop(UnixListener::bind(&path).unwrap());
        let (listener, file) = BoundSocket::bind(&path, Access::Owner)
            .unwrap()
            .into_parts();
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        file.unwrap().remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_answers_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let other = UnixListener::bind(&path).unwrap();
        let error = BoundSocket::bind(&path, Access::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Running { .. }), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(other);
    }

    #[test]
    fn the_lock_keeps_a_second_daemon_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let first = BoundSocket::bind(&path, Access::Owner).unwrap();
        // The lock counts even without the socket file.
        fs::remove_file(&path).unwrap();
        let error = BoundSocket::bind(&path, Access::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Running { .. }), "{error}");
        drop(first);
        BoundSocket::bind(&path, Access::Owner).unwrap();
    }

    #[test]
    fn only_a_socket_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "keep me").unwrap();
        let error = BoundSocket::bind(&path, Access::Owner).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "keep me");
    }

    #[test]
    fn the_mode_says_who_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        for (name, access, mode) in [
            ("all", Access::Everybody, 0o666),
            ("group", Access::Group, 0o660),
            ("own", Access::Owner, 0o600),
        ] {
            let path = dir.path().join(name);
            let _bound = BoundSocket::bind(&path, access).unwrap();
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                mode
            );
        }
    }

    #[test]
    fn a_successors_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (_listener, file) = BoundSocket::bind(&path, Access::Owner)
            .unwrap()
            .into_parts();
        fs::remove_file(&path).unwrap();
        // A file in between keeps the kernel from reusing the inode number at once.
        fs::write(dir.path().join("other"), "").unwrap();
        let _successor = UnixListener::bind(&path).unwrap();
        file.unwrap().remove().unwrap();
        assert!(path.exists());
    }
}
