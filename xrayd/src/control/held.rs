//! A program that xrayd started, and that has not run yet. A tracer is a thread, so the thread that
//! started the program holds it, and lets it run when another thread says so.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    sys::ptrace::Stopped,
};

/// The way to let the program run.
#[derive(Debug)]
pub(crate) struct Held {
    pid: Pid,
    resume: SyncSender<SyncSender<Result<()>>>,
}

/// The thread's part.
#[derive(Debug)]
pub(crate) struct Holder {
    pid: Pid,
    resume: Receiver<SyncSender<Result<()>>>,
}

/// The permission to let the program run.
#[derive(Debug)]
pub(crate) struct Release {
    pid: Pid,
    answer: SyncSender<Result<()>>,
}

// === impl Held ===

impl Held {
    /// Both parts for this program.
    pub(crate) fn new(pid: Pid) -> (Self, Holder) {
        let (resume, received) = sync_channel(1);
        let resume = Self { pid, resume };
        let holder = Holder {
            pid,
            resume: received,
        };
        (resume, holder)
    }

    /// Lets the program run.
    ///
    /// # Errors
    /// The program has ended, or the thread that held it.
    pub(crate) fn resume(&self) -> Result<()> {
        let (answer, answered) = sync_channel(1);
        let lost = || {
            let message = format!("process {}: the thread that held it has ended", self.pid);
            Refusal::new(Reason::Io, message)
        };
        self.resume.send(answer).map_err(|_| lost())?;
        answered.recv().map_err(|_| lost())?
    }
}

// === impl Holder ===

impl Holder {
    /// Waits until the program may run. `None` if its [`Held`] was dropped.
    pub(crate) fn wait(self) -> Option<Release> {
        let answer = self.resume.recv().ok()?;
        Some(Release {
            pid: self.pid,
            answer,
        })
    }
}

// === impl Release ===

impl Release {
    /// Lets the program run whose thread this is.
    pub(crate) fn release(self, thread: Stopped) {
        let released = thread.release().map(drop);
        let released = released
            .map_err(|error| Refusal::new(Reason::Io, format!("process {}: {error}", self.pid)));
        // The program runs even if the receiver is gone.
        let _ = self.answer.send(released);
    }
}
