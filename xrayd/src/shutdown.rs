//! When to stop: the signals that end the daemon, and the word that is passed on to whoever must end with it.

use std::io;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// SIGTERM and SIGINT. While this lives, neither of them kills the process.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Says "stop" to everybody who holds a [`Stopping`].
#[derive(Debug)]
pub(crate) struct Stop(watch::Sender<bool>);

/// Hears it.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<bool>);

/// A pair of the one that says stop and the one that hears it.
#[must_use]
pub(crate) fn channel() -> (Stop, Stopping) {
    let (sender, receiver) = watch::channel(false);
    (Stop(sender), Stopping(receiver))
}

// === impl Signals ===

impl Signals {
    /// Takes the signals over from their default action. Within a tokio runtime only.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of them and names it.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.terminate.recv() => "SIGTERM",
            Some(()) = self.interrupt.recv() => "SIGINT",
            // Both streams end only with the runtime, and then nobody waits here.
            else => std::future::pending().await,
        }
    }
}

// === impl Stop ===

impl Stop {
    /// Says it. Saying it again changes nothing.
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

// === impl Stopping ===

impl Stopping {
    /// Waits until it is said, or the one who would say it is gone.
    pub(crate) async fn wait(mut self) {
        // An error means that the sender is gone, which ends the wait as well.
        let _gone = self.0.wait_for(|stop| *stop).await;
    }
}
