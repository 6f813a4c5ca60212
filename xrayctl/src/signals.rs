//! The signals that end a recording. While they are held they do not end this process, so that what was switched on
//! in a target is switched off again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, `kill`, and a terminal that goes away.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

// === impl Signals ===

impl Signals {
    /// Begins to hold them.
    pub(crate) fn hold() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
