//! Messages to the service manager, and sockets from it (systemd's notify and socket activation
//! protocols).
//!
//! Without a service manager all of it does nothing.

use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixListener,
    },
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::socket::{
        AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname, getsockopt, sockopt,
    },
};
use sd_notify::NotifyState;

/// The reason why an inherited descriptor is not used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The environment variables violate the protocol.
    #[error("LISTEN_FDS or LISTEN_PID is invalid")]
    Environment(#[source] io::Error),
    /// Two sockets of one kind.
    #[error(
        "the service manager passed {count} sockets; it may pass one unix socket for clients and \
         one TCP socket for metrics"
    )]
    Count {
        /// Number of descriptors that were passed.
        count: usize,
    },
    /// A descriptor of another kind.
    #[error("a descriptor passed by the service manager is not a listening unix or TCP socket")]
    Kind(#[source] io::Error),
}

/// The sockets that the service manager passed.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The socket for clients.
    pub(crate) clients: Option<UnixListener>,
    /// The socket for metrics.
    pub(crate) metrics: Option<TcpListener>,
    /// The descriptors themselves, by number from 3 on. A program that this process executes
    /// inherits them if [`pass_on`] says so.
    pub(crate) descriptors: Vec<OwnedFd>,
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

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot reach the service manager");
    }
}

/// The listening sockets that the service manager opened for the daemon: a unix socket for clients,
/// and a TCP socket for metrics. Only the first call returns them.
///
/// # Errors
///
/// A descriptor is no listening socket of these kinds, or two descriptors are of one kind.
pub(crate) fn inherited() -> Result<Inherited, InheritError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let mut inherited = Inherited::default();
    // Relaxed: the flag guards the descriptors' ownership by itself, nothing is published with it.
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(inherited);
    }
    let descriptors = sd_notify::listen_fds().map_err(InheritError::Environment)?;
    let count = descriptors.len();
    for number in descriptors {
        #[expect(
            unsafe_code,
            reason = "a descriptor that was passed by number can be owned in no other way"
        )]
        // SAFETY: by the protocol this number is an open descriptor that was passed to this process
        // for its own use (`listen_fds` compared LISTEN_PID and has just set close-on-exec on it,
        // which fails for a closed one); nothing else here owns it, because only this function
        // takes it, each number once, and TAKEN lets it do so once.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let listening = descriptor.try_clone().and_then(Listening::try_from);
        let listening = listening.map_err(InheritError::Kind)?;
        inherited.descriptors.push(descriptor);
        let is_second = match listening {
            Listening::Clients(listener) => inherited.clients.replace(listener).is_some(),
            Listening::Metrics(listener) => inherited.metrics.replace(listener).is_some(),
        };
        if is_second {
            return Err(InheritError::Count { count });
        }
    }
    Ok(inherited)
}

/// Lets a program that this process executes inherit the sockets, as the service manager passed
/// them: `LISTEN_PID` still names this process.
///
/// # Errors
/// The error of the system.
pub(crate) fn pass_on(descriptors: &[OwnedFd]) -> io::Result<()> {
    for descriptor in descriptors {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
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
