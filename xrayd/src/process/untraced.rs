//! A program without sleds that xrayd started. It runs, and a thread waits for its end, because
//! processes that it starts may be traced. It gets no session.

use std::{
    process::ExitStatus,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use super::{refusals::lost_thread, started::Started};
use crate::{
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// The handle to the program.
#[derive(Debug)]
pub(crate) struct Untraced {
    pid: Pid,
    /// The channel to the thread that holds the program. If it is closed before the program runs,
    /// the thread kills the program.
    resume: SyncSender<SyncSender<Result<()>>>,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// The thread's part.
#[derive(Debug)]
pub(super) struct LaunchThread {
    started: Started,
    resume: Receiver<SyncSender<Result<()>>>,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// Both parts, for a program that has not run yet.
pub(crate) fn untraced(started: Started) -> (Untraced, LaunchThread) {
    let (resume, received) = sync_channel(1);
    let exit_status = Arc::default();
    let untraced = Untraced {
        pid: started.undo.pid(),
        resume,
        exit_status: Arc::clone(&exit_status),
    };
    let launch_thread = LaunchThread {
        started,
        resume: received,
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
        let (answer, answered) = sync_channel(1);
        let lost = || lost_thread(self.pid);
        self.resume.send(answer).map_err(|_| lost())?;
        answered.recv().map_err(|_| lost())?
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
            resume,
            exit_status,
        } = self;
        let Ok(answer) = resume.recv() else {
            // The user did not ask for an untraced run. The program is killed as `started` is
            // dropped.
            return;
        };
        let Started {
            undo,
            mut child,
            thread,
        } = started;
        let pid = undo.pid();
        undo.disarm();
        let released = thread.release().map(drop);
        let released =
            released.map_err(|error| Refusal::new(Reason::Io, format!("process {pid}: {error}")));
        // The program runs even if the receiver is gone.
        let _ = answer.send(released);
        match child.wait() {
            Ok(status) => *lock(&exit_status) = Some(status),
            Err(error) => {
                tracing::warn!(%error, "cannot collect the exit status of a child process");
            }
        }
    }
}
