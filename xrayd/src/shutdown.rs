//! Shutdown: the signals that end the daemon, and a notification for all tasks that must end with
//! it. Nothing is taken down here.

use std::io;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// The signals that end the daemon. While this value lives, none of them kills the process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user: Signal,
    /// True after SIGUSR1.
    leaves: bool,
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
    /// Replaces the default action of the signals. Works within a tokio runtime only.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
            leaves: false,
        })
    }

    /// Waits for the next signal that ends the daemon.
    pub(crate) async fn next(&mut self) -> StopKind {
        loop {
            tokio::select! {
                // SIGUSR1 comes before the signal that it is meant for.
                biased;
                Some(()) = self.user.recv() => self.leaves = true,
                Some(()) = self.hang_up.recv() => return StopKind::Restart,
                Some(()) = self.terminate.recv() => return self.end(),
                Some(()) = self.interrupt.recv() => return self.end(),
                // The streams end only with the runtime, and no task waits here by then.
                else => std::future::pending().await,
            }
        }
    }

    fn end(&self) -> StopKind {
        match self.leaves {
            true => StopKind::Leave,
            false => StopKind::Detach,
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
