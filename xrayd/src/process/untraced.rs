//! A program without sleds that xrayd started. It runs, and a thread waits for its end, because
//! processes that it starts may be traced. It gets no session.

use std::{
    process::ExitStatus,
    sync::{Arc, Mutex},
};

use super::started::Started;
use crate::{
    control::{Held, Holder},
    lock::lock,
    pid::Pid,
    refusal::Result,
    sys::collect_child,
};

/// The handle to the program.
#[derive(Debug)]
pub(crate) struct Untraced {
    pid: Pid,
    /// If it is dropped before the program runs, the thread that holds the program kills it.
    held: Held,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// The thread's part.
#[derive(Debug)]
pub(super) struct LaunchThread {
    started: Started,
    holder: Holder,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// Both parts, for a program that has not run yet.
pub(crate) fn untraced(started: Started) -> (Untraced, LaunchThread) {
    let (held, holder) = Held::new(started.undo.pid());
    let exit_status = Arc::default();
    let untraced = Untraced {
        pid: started.undo.pid(),
        held,
        exit_status: Arc::clone(&exit_status),
    };
    let launch_thread = LaunchThread {
        started,
        holder,
        exit_status,
    };
    (untraced, launch_thread)
}

// === impl Untraced ===

impl Untraced {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the program run.
    pub(crate) fn resume(&self) -> Result<()> {
        self.held.resume()
    }

    /// The exit status of the program, once it has ended.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        *lock(&self.exit_status)
    }
}

// === impl LaunchThread ===

impl LaunchThread {
    /// Holds the program until it may run, then waits for its end. Runs on the thread that started
    /// it.
    pub(crate) fn run(self) {
        let Self {
            started,
            holder,
            exit_status,
        } = self;
        let Some(release) = holder.wait() else {
            // The user did not ask for an untraced run. The program is killed as `started` is
            // dropped.
            return;
        };
        let Started {
            undo,
            mut child,
            thread,
        } = started;
        undo.disarm();
        release.release(thread);
        match collect_child(&mut child) {
            Ok(status) => *lock(&exit_status) = Some(status),
            Err(error) => {
                tracing::warn!(%error, "cannot collect the exit status of a child process");
            }
        }
    }
}
