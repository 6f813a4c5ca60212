//! The handle to the thread that searches. The search is in `search`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread::JoinHandle,
};

use nix::sys::eventfd::EventFd;

use crate::liveness::{Liveness, NoAnswer};

/// The handle to the thread that searches.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(super) signal: Arc<Signal>,
    pub(super) thread: JoinHandle<()>,
    pub(super) liveness: Arc<Liveness>,
    /// Disconnected when the thread ends.
    pub(super) end: Receiver<()>,
}

/// The signal that wakes the thread.
#[derive(Debug)]
pub(super) struct Signal {
    pub(super) eventfd: Arc<EventFd>,
    /// True if the search is to end. Written before the eventfd is rung.
    pub(super) over: AtomicBool,
}

// === impl Follower ===

impl Follower {
    /// Ends the search, and waits for its end, unless the thread hangs in a process or its files.
    pub(crate) fn stop(self) {
        let Self {
            signal,
            thread,
            liveness,
            end,
        } = self;
        signal.over.store(true, Ordering::Release);
        // The write fails only if the counter would overflow. The thread wakes up then as well.
        let _ = signal.eventfd.write(1);
        if liveness.watch().wait(&end) == Err(NoAnswer::Ended) {
            // A panic was caught and logged where it happened.
            let _ = thread.join();
        }
    }
}
