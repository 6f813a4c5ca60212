//! The daemon's socket: where it is, how it is bound, taken over and removed.
//!
//! A socket file of a daemon that died stays behind. It is removed only when three things hold: this daemon has the
//! lock beside it, what lies there is a socket, and nobody answers. The lock (`<socket>.lock`, held while the daemon
//! lives, never removed) keeps two daemons that start together from removing each other's socket.

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
    unistd::geteuid,
};

/// Where the daemon of the system listens.
pub const SYSTEM_SOCKET: &str = "/run/xrayd/xrayd.sock";

/// Who can connect. What a connected caller may do is decided by its credentials, call by call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every user of the host (mode 0666): the daemon of the system.
    Everybody,
    /// The owner and the file's group (mode 0660), which is the group of a directory that is
    /// set-group-id.
    Group,
    /// The owner only (mode 0600): the daemon of a user.
    Owner,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A user without a runtime directory.
    #[error("XDG_RUNTIME_DIR is not set: name the socket with --socket or XRAYD_SOCKET")]
    NoRuntimeDir,
    /// A daemon answers at this path or holds its lock.
    #[error("another xrayd is running at {}", path.display())]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// Something else lies at this path.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// What was to become the socket.
        path: PathBuf,
    },
    /// A step failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A listening socket. What was bound here is removed by [`BoundSocket::remove`], what was inherited stays.
#[derive(Debug)]
pub struct BoundSocket {
    /// Taken by the server, once.
    listener: UnixListener,
    /// Absent for a socket that the service manager keeps.
    file: Option<SocketFile>,
}

/// The file that [`BoundSocket`] bound; outlives the listener, so that it can be removed when the server is done.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of what was bound: a successor's socket is not ours to remove.
    identity: (u64, u64),
    /// Held until the file is gone.
    _lock: Flock<File>,
}

/// The socket of a daemon that this user starts: [`SYSTEM_SOCKET`] for root, else `$XDG_RUNTIME_DIR/xrayd.sock`.
///
/// # Errors
///
/// [`SocketError::NoRuntimeDir`] for a user without `XDG_RUNTIME_DIR`.
pub fn default_path() -> Result<PathBuf, SocketError> {
    path_for(geteuid().is_root(), env::var_os("XDG_RUNTIME_DIR"))
}

/// Where a client of this user looks for a daemon, in this order: its own daemon's socket, then the system's.
#[must_use]
pub fn client_paths() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = default_path().into_iter().collect();
    let system = PathBuf::from(SYSTEM_SOCKET);
    if !paths.contains(&system) {
        paths.push(system);
    }
    paths
}

fn path_for(root: bool, runtime_dir: Option<OsString>) -> Result<PathBuf, SocketError> {
    match runtime_dir.filter(|dir| !dir.is_empty()) {
        _ if root => Ok(PathBuf::from(SYSTEM_SOCKET)),
        Some(dir) => Ok(Path::new(&dir).join("xrayd.sock")),
        None => Err(SocketError::NoRuntimeDir),
    }
}

// === impl BoundSocket ===

impl BoundSocket {
    /// Binds and listens at `path`; a socket that nobody answers at is replaced.
    ///
    /// # Errors
    ///
    /// A running daemon, something that is not a socket, or what the system says; then nothing was changed but for
    /// the lock file.
    pub fn bind(path: &Path, access: Access) -> Result<Self, SocketError> {
        let failed = |step| {
            move |source| SocketError::Io {
                step,
                path: path.to_owned(),
                source,
            }
        };
        if path == Path::new(SYSTEM_SOCKET) {
            make_directory(path).map_err(failed("make the directory of"))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        let listener = listen(path, access).map_err(failed("listen at"))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("look at"))?;
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

    /// Where it was bound; `None` for one that the service manager keeps.
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
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another one lies there by now.
    ///
    /// # Errors
    ///
    /// What the system says; a file that is gone already is fine.
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
        Err(error) => return Err(failed("look at")(error)),
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
    // (https://elixir.bootlin.com/linux/v6.12/source/net/unix/af_unix.c#L1213), so the socket is never wider than
    // it will be, not for a moment.
    let mode = match access {
        Access::Everybody => Mode::from_bits_truncate(0o666),
        Access::Group => Mode::from_bits_truncate(0o660),
        Access::Owner => Mode::from_bits_truncate(0o600),
    };
    fchmod(&fd, mode)?;
    socket::bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(path)?)?;
    // Where the umask took bits away.
    fs::set_permissions(path, Permissions::from_mode(mode.bits()))?;
    socket::listen(&fd, Backlog::new(128)?)?;
    Ok(UnixListener::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_listens_below_run_and_a_user_in_the_runtime_directory() {
        let dir = || Some(OsString::from("/run/user/1000"));
        assert_eq!(path_for(true, dir()).unwrap(), Path::new(SYSTEM_SOCKET));
        assert_eq!(path_for(true, None).unwrap(), Path::new(SYSTEM_SOCKET));
        assert_eq!(
            path_for(false, dir()).unwrap(),
            Path::new("/run/user/1000/xrayd.sock")
        );
        for unset in [None, Some(OsString::new())] {
            let error = path_for(false, unset).unwrap_err();
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
        // The listener is dropped, the file stays: what a killed daemon leaves behind.
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
        // Even without its file the first daemon is there.
        fs::remove_file(&path).unwrap();
        let error = BoundSocket::bind(&path, Access::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Running { .. }), "{error}");
        drop(first);
        BoundSocket::bind(&path, Access::Owner).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_is_never_removed() {
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
        // A file in between, so that the inode number is not handed out again at once.
        fs::write(dir.path().join("other"), "").unwrap();
        let _successor = UnixListener::bind(&path).unwrap();
        file.unwrap().remove().unwrap();
        assert!(path.exists());
    }
}
