//! What is said to, and received from, the service manager (systemd's notify and socket activation protocols).
//!
//! Outside of a service manager all of it does nothing.

use std::{
    io,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::net::UnixListener,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::socket::{UnixAddr, getsockname, getsockopt, sockopt};
use sd_notify::NotifyState;

/// Why an inherited descriptor is not used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The environment is not what the protocol says.
    #[error("LISTEN_FDS or LISTEN_PID is unusable")]
    Environment(#[source] io::Error),
    /// More than one socket.
    #[error("the service manager passed {count} sockets, expected one")]
    Count {
        /// How many.
        count: usize,
    },
    /// Another kind of descriptor.
    #[error("the descriptor passed by the service manager is not a listening unix socket")]
    Kind(#[source] io::Error),
}

/// Says that the socket is bound and calls are answered.
pub(crate) fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("no process traced")]);
}

/// Shows `text` in `systemctl status`.
pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

/// Says that the daemon goes away.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("detaching")]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager was not reached");
    }
}

/// The listening socket that the service manager opened for us, if it did. Answers once; later calls find none.
///
/// # Errors
///
/// A descriptor was passed and is not one listening unix socket.
pub(crate) fn inherited_listener() -> Result<Option<UnixListener>, InheritError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag guards the descriptor's ownership by itself, nothing is published with it.
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    let mut descriptors = sd_notify::listen_fds().map_err(InheritError::Environment)?;
    let count = descriptors.len();
    let Some(number) = descriptors.next() else {
        return Ok(None);
    };
    if count != 1 {
        return Err(InheritError::Count { count });
    }
    #[expect(
        unsafe_code,
        reason = "a descriptor that was passed by number can be owned in no other way"
    )]
    // SAFETY: by the protocol this number is an open descriptor that was passed to this process for its own use
    // (`listen_fds` compared LISTEN_PID and has just set close-on-exec on it, which fails for a closed one); nobody
    // else here owns it, because only this function takes it and TAKEN lets it do so once.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    check_listening(&descriptor).map_err(InheritError::Kind)?;
    let listener = UnixListener::from(descriptor);
    listener.set_nonblocking(true).map_err(InheritError::Kind)?;
    Ok(Some(listener))
}

fn check_listening(descriptor: &OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    getsockname::<UnixAddr>(descriptor.as_raw_fd())?;
    if getsockopt(descriptor, sockopt::AcceptConn)? {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it does not listen",
        ))
    }
}
