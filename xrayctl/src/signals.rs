//! The signals that end a recording. While they are held they do not end this process, so that it
//! can disable the functions that it has enabled in a target.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, `kill`, and the end of a terminal.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

// === impl Signals ===

impl Signals {
    /// Begins to hold the signals.
    pub(crate) fn hold() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
