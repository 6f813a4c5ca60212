//! A program that was started by us and has no sleds: it is let run, and waited for, for the sake of those that it starts.

use std::{
    process::ExitStatus,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use super::attach::{Started, lost_thread};
use crate::{
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// The program, as others see it.
#[derive(Debug)]
pub(crate) struct Untraced {
    pid: Pid,
    /// To the thread that holds it, which ends the program if nobody can ask any more before it runs.
    resume: SyncSender<SyncSender<Result<()>>>,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Keeper {
    started: Started,
    resume: Receiver<SyncSender<Result<()>>>,
    exit_status: Arc<Mutex<Option<ExitStatus>>>,
}

/// Both ends, for a program that stands still.
pub(crate) fn untraced(started: Started) -> (Untraced, Keeper) {
    let (resume, received) = sync_channel(1);
    let exit_status = Arc::default();
    let untraced = Untraced {
        pid: started.undo.pid(),
        resume,
        exit_status: Arc::clone(&exit_status),
    };
    let keeper = Keeper {
        started,
        resume: received,
        exit_status,
    };
    (untraced, keeper)
}

// === impl Untraced ===

impl Untraced {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets it run.
    pub(crate) fn resume(&self) -> Result<()> {
        let (answer, answered) = sync_channel(1);
        let lost = || lost_thread(self.pid);
        self.resume.send(answer).map_err(|_| lost())?;
        answered.recv().map_err(|_| lost())?
    }

    /// How it ended, once it has.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        *lock(&self.exit_status)
    }
}

// === impl Keeper ===

impl Keeper {
    /// Holds the program until it is let run, and waits for its end. On the thread that started it.
    pub(crate) fn run(self) {
        let Self {
            started,
            resume,
            exit_status,
        } = self;
        let Ok(answer) = resume.recv() else {
            // Nobody asked for an untraced run: it is killed as this is dropped.
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
        // If who asked has gone, it runs all the same.
        let _ = answer.send(released);
        match child.wait() {
            Ok(status) => *lock(&exit_status) = Some(status),
            Err(error) => tracing::warn!(%error, "cannot collect a child"),
        }
    }
}
