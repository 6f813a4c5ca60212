//! Signals that the kernel keeps until they are read from a descriptor.

use std::io;

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use tokio::io::{Interest, unix::AsyncFd};

/// The descriptor that signals are read from.
#[derive(Debug)]
pub(crate) struct HeldSignals(AsyncFd<SignalFd>);

// === impl HeldSignals ===

impl HeldSignals {
    /// Has the kernel keep these signals. To be called before any other thread begins: a thread
    /// that does not hold them takes their default action.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn hold(signals: SigSet) -> io::Result<()> {
        Ok(signals.thread_block()?)
    }

    /// Opens a descriptor for signals that are held. Works within a tokio runtime only.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn listen(signals: SigSet) -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&signals, flags)?;
        // SAFETY: a `SignalFd` owns its descriptor, returns the same one each time, and closes it
        // when it is dropped. The `AsyncFd` owns the `SignalFd`, and does not give it out.
        let held = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        held.map(Self)
            .map_err(|error| io::Error::other(error.to_string()))
    }

    /// Waits until a signal may be there.
    ///
    /// # Errors
    /// The runtime ends.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }

    /// The next signal that is there, if there is one.
    pub(crate) fn take(&self) -> Option<Signal> {
        loop {
            match self.0.get_ref().read_signal() {
                Ok(Some(read)) => {
                    let number = i32::try_from(read.ssi_signo).ok()?;
                    return Signal::try_from(number).ok();
                }
                Err(Errno::EINTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}
