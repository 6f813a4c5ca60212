//! Shutdown: the signals that end the daemon, and a notification for all tasks that must end with
//! it. Nothing is taken down here.

use std::io;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// SIGTERM and SIGINT. While this value lives, neither of them kills the process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
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
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.terminate.recv() => "SIGTERM",
            Some(()) = self.interrupt.recv() => "SIGINT",
            // Both streams end only with the runtime, and no task waits here by then.
            else => std::future::pending().await,
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
