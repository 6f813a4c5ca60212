//! Messages to the service manager, and sockets and files from it (systemd's protocols for
//! notifications, socket activation and stored descriptors).
//!
//! Without a service manager all of it does nothing.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::{self, IoSlice},
    net::TcpListener,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixListener},
    },
    process,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockaddrLike as _, SockaddrStorage, getsockname,
        getsockopt, sendmsg, sockopt,
    },
};
use sd_notify::NotifyState;

/// The variable with the socket of the service manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The variable by which a daemon that executes its program anew passes descriptors on. It has the
/// daemon's pid, and the number of each descriptor, as in `321:3,7,8`.
pub(crate) const DESCRIPTORS: &str = "XRAYD_DESCRIPTORS";

/// The variables of the service manager for descriptors.
pub(crate) const OF_MANAGER: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The reason why an inherited descriptor is not used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The environment variables violate the protocol.
    #[error("LISTEN_FDS or LISTEN_PID is invalid")]
    Environment(#[source] io::Error),
    /// Two sockets of one kind.
    #[error(
        "the service manager passed two sockets of one kind; it may pass one unix socket for \
         clients and one TCP socket for metrics"
    )]
    SecondSocket,
    /// A descriptor of another kind.
    #[error("a descriptor passed by the service manager is not a listening unix or TCP socket")]
    Kind(#[source] io::Error),
}

/// A file that the daemon before has left open.
#[derive(Debug)]
pub(crate) struct NamedFile {
    /// The name that it was given.
    pub(crate) name: String,
    /// What came under that name. It may be something else than a file.
    pub(crate) descriptor: OwnedFd,
}

/// What this process got at its start.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The socket for clients.
    pub(crate) clients: Option<UnixListener>,
    /// The socket for metrics.
    pub(crate) metrics: Option<TcpListener>,
    /// The files that the daemon before has left.
    pub(crate) files: Vec<NamedFile>,
    /// The descriptors of the sockets. A program that this process executes inherits them if
    /// [`pass_on`] says so.
    pub(crate) sockets: Vec<OwnedFd>,
}

/// Reports that the socket is bound and the daemon answers calls.
pub(crate) fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("no process traced")]);
}

/// Shows `text` in `systemctl status`.
pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

/// Reports that the daemon shuts down.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("detaching")]);
}

/// Reports that the daemon makes room for a new one in the same process.
pub(crate) fn restarting() {
    send(&[NotifyState::Status("restarting")]);
}

/// The time within which the service manager wants to hear of the daemon again and again. `None`:
/// it does not watch.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Reports that the daemon is at work.
pub(crate) fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// True if there is a service manager.
pub(crate) fn has_manager() -> bool {
    env::var_os(NOTIFY_SOCKET).is_some()
}

/// Gives a file to the service manager, which passes it to the next daemon. May wait for the
/// service manager.
///
/// # Errors
/// The error of the system.
pub(crate) fn store(name: &str, file: &File) -> io::Result<()> {
    let Some(path) = env::var_os(NOTIFY_SOCKET) else {
        return Ok(());
    };
    // FDPOLL: the file has no events to wait for.
    let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
    let socket = UnixDatagram::unbound()?;
    match path.to_string_lossy().strip_prefix('@') {
        Some(name) => {
            let address = SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        None => socket.connect(&path)?,
    }
    let descriptors = [file.as_raw_fd()];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(message.as_bytes())],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Has the service manager close a file that it was given.
///
/// # Errors
/// The error of the system.
pub(crate) fn remove_stored(name: &str) -> io::Result<()> {
    let remove = format!("FDSTOREREMOVE=1\nFDNAME={name}");
    sd_notify::notify(&[NotifyState::Custom(&remove)])
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot reach the service manager");
    }
}

/// The descriptors that this process got at its start. These are listening sockets that the service
/// manager opened (a unix socket for clients, and a TCP socket for metrics), and files of the
/// daemon before. Only the first call returns them.
///
/// # Errors
///
/// A descriptor is neither a file in memory nor a listening socket of these kinds, or two sockets
/// are of one kind.
pub(crate) fn inherited() -> Result<Inherited, InheritError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let mut inherited = Inherited::default();
    // Relaxed: the flag guards the descriptors' ownership by itself, nothing is published with it.
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(inherited);
    }
    let of_manager = sd_notify::listen_fds().map_err(InheritError::Environment)?;
    let mut numbers: BTreeSet<i32> = of_manager.collect();
    numbers.extend(passed_on(
        env::var(DESCRIPTORS).ok().as_deref(),
        process::id(),
    ));
    for number in numbers {
        #[expect(
            unsafe_code,
            reason = "a descriptor that was passed by number can be owned in no other way"
        )]
        // SAFETY: by the protocols this number is an open descriptor that was passed to this
        // process for its own use. `listen_fds` compared LISTEN_PID, `passed_on` compares the pid
        // in its variable, and both have just set close-on-exec on it, which fails for a closed
        // one. Nothing else here owns it, because only this function takes it, each number once,
        // and TAKEN lets it do so once.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        if let Some(name) = name_in_memory(&descriptor) {
            inherited.files.push(NamedFile { name, descriptor });
            continue;
        }
        let listening = descriptor.try_clone().and_then(Listening::try_from);
        let listening = listening.map_err(InheritError::Kind)?;
        inherited.sockets.push(descriptor);
        let is_second = match listening {
            Listening::Clients(listener) => inherited.clients.replace(listener).is_some(),
            Listening::Metrics(listener) => inherited.metrics.replace(listener).is_some(),
        };
        if is_second {
            return Err(InheritError::SecondSocket);
        }
    }
    Ok(inherited)
}

/// The name of a file in memory. `None` for other descriptors.
fn name_in_memory(descriptor: &OwnedFd) -> Option<String> {
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let link = link.ok()?.into_os_string().into_string().ok()?;
    let name = link.strip_prefix("/memfd:")?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

/// The descriptors that the program before, in this process, has passed on. They are closed when
/// another program is executed.
fn passed_on(variable: Option<&str>, pid: u32) -> Vec<i32> {
    let of_this = variable.and_then(|text| text.split_once(':'));
    let numbers = match of_this {
        Some((its, numbers)) if its == pid.to_string() => numbers,
        _ => return Vec::new(),
    };
    let numbers = numbers.split(',').filter_map(|number| number.parse().ok());
    let is_open = |number: &i32| {
        #[expect(
            unsafe_code,
            reason = "a descriptor that was passed by number can be used in no other way"
        )]
        // SAFETY: the descriptor is used for this one call, which fails for a closed one.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).is_ok()
    };
    numbers
        .filter(|number| *number > 2)
        .filter(is_open)
        .collect()
}

/// Lets a program that this process executes inherit these descriptors. Returns the value of
/// [`DESCRIPTORS`] for it.
///
/// # Errors
/// The error of the system.
pub(crate) fn pass_on<'a>(descriptors: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<String> {
    let numbers = descriptors.map(|descriptor| {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(descriptor.as_raw_fd().to_string())
    });
    let numbers: Vec<_> = numbers.collect::<io::Result<_>>()?;
    Ok(format!("{}:{}", process::id(), numbers.join(",")))
}

/// A socket that was passed, by its purpose.
#[derive(Debug)]
enum Listening {
    Clients(UnixListener),
    Metrics(TcpListener),
}

// === impl Listening ===

impl TryFrom<OwnedFd> for Listening {
    type Error = io::Error;

    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        if !getsockopt(&descriptor, sockopt::AcceptConn)? {
            let message = "the socket does not listen";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let address: SockaddrStorage = getsockname(descriptor.as_raw_fd())?;
        match address.family() {
            Some(AddressFamily::Unix) => {
                let listener = UnixListener::from(descriptor);
                listener.set_nonblocking(true)?;
                Ok(Self::Clients(listener))
            }
            Some(AddressFamily::Inet | AddressFamily::Inet6) => {
                let listener = TcpListener::from(descriptor);
                listener.set_nonblocking(true)?;
                Ok(Self::Metrics(listener))
            }
            _ => {
                let message = "the socket has another address group";
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }
}
