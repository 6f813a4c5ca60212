//! Shutdown: the signals that end the daemon, and a notification for all tasks that must end with
//! it. Nothing is taken down here.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::watch;

use crate::sys::HeldSignals;

/// The signals that end the daemon, and SIGUSR1. The kernel keeps them until they are read, in the
/// order in which that matters: SIGUSR1 is there before the signal that it is meant for. Handlers
/// have no order, because two threads of the process can run those of two signals.
#[derive(Debug)]
pub(crate) struct Signals {
    held: HeldSignals,
    /// SIGUSR1 was received.
    leaves: bool,
    /// SIGTERM or SIGINT was received.
    ends: bool,
    /// SIGHUP was received.
    restarts: bool,
}

/// What a signal asks of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopKind {
    /// SIGTERM or SIGINT: detach from all processes, and end.
    Detach,
    /// The same after SIGUSR1: leave all processes as they are for the next daemon, and end.
    Leave,
    /// SIGHUP: leave all processes as they are, and execute the daemon's program anew.
    Restart,
}

/// The sender of the stop notification.
#[derive(Debug)]
pub(crate) struct Stop(watch::Sender<bool>);

/// A receiver of the stop notification.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<bool>);

/// A connected pair of sender and receiver.
#[must_use]
pub(crate) fn channel() -> (Stop, Stopping) {
    let (sender, receiver) = watch::channel(false);
    (Stop(sender), Stopping(receiver))
}

// === impl Signals ===

impl Signals {
    /// Has the kernel keep the signals until they are read. To be called before any other thread
    /// begins.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub(crate) fn hold() -> io::Result<()> {
        HeldSignals::hold(Self::set())
    }

    fn set() -> SigSet {
        let all = [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
        ];
        all.into_iter().collect()
    }

    /// Reads the signals that [`Self::hold`] keeps. Works within a tokio runtime only.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            held: HeldSignals::listen(Self::set())?,
            leaves: false,
            ends: false,
            restarts: false,
        })
    }

    /// Waits for the next signal that ends the daemon.
    pub(crate) async fn next(&mut self) -> StopKind {
        loop {
            if let Some(kind) = self.take() {
                return kind;
            }
            if self.held.wait().await.is_err() {
                // The runtime ends, and no task waits here by then.
                std::future::pending().await
            }
        }
    }

    /// Reads all signals that are there. Returns what they ask for.
    fn take(&mut self) -> Option<StopKind> {
        while let Some(signal) = self.held.take() {
            match signal {
                Signal::SIGUSR1 => self.leaves = true,
                Signal::SIGHUP => self.restarts = true,
                _ => self.ends = true,
            }
        }
        match (self.ends, self.leaves) {
            (true, true) => Some(StopKind::Leave),
            (true, false) => Some(StopKind::Detach),
            (false, _) => std::mem::take(&mut self.restarts).then_some(StopKind::Restart),
        }
    }
}

// === impl Stop ===

impl Stop {
    /// Notifies all receivers. Further calls change nothing.
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

// === impl Stopping ===

impl Stopping {
    /// Waits for the notification, or until the sender is gone.
    pub(crate) async fn wait(mut self) {
        // An error means that the sender is gone, which ends the wait as well.
        let _gone = self.0.wait_for(|stop| *stop).await;
    }
}

#[cfg(test)]
mod tests {
    use nix::{sys::signal::kill, unistd::getpid};

    use super::*;

    /// What signals ask for that arrive in this order before any is read.
    fn asked(signals: &[Signal]) -> Option<StopKind> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let _context = runtime.enter();
        let mut held = Signals::listen().unwrap();
        for signal in signals {
            kill(getpid(), *signal).unwrap();
        }
        held.take()
    }

    /// It runs in a process of its own, all of whose threads hold the signals.
    #[test]
    fn sigusr1_counts_for_a_signal_that_follows_at_once() {
        const VARIABLE: &str = "XRAYD_TEST_OF_SIGNALS";
        if std::env::var_os(VARIABLE).is_none() {
            let test = "shutdown::tests::sigusr1_counts_for_a_signal_that_follows_at_once";
            // All threads of the program inherit the mask.
            let mut child = std::process::Command::new("env");
            child
                .arg("--block-signal=TERM,INT,HUP,USR1")
                .arg(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture", "--test-threads=1"]);
            let ran = child.env(VARIABLE, "1").output().unwrap();
            assert!(ran.status.success(), "{ran:?}");
            return;
        }
        use Signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        for (signals, expected) in [
            (&[SIGUSR1, SIGTERM][..], Some(StopKind::Leave)),
            (&[SIGUSR1, SIGINT], Some(StopKind::Leave)),
            (&[SIGTERM], Some(StopKind::Detach)),
            (&[SIGINT], Some(StopKind::Detach)),
            (&[SIGHUP], Some(StopKind::Restart)),
            (&[SIGHUP, SIGTERM], Some(StopKind::Detach)),
            (&[SIGUSR1, SIGHUP], Some(StopKind::Restart)),
            (&[SIGUSR1], None),
            (&[], None),
        ] {
            assert_eq!(asked(signals), expected, "{signals:?}");
        }
    }
}
