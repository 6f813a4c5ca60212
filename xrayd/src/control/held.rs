//! A program that xrayd started, and that has not run yet. A tracer is a thread, so the thread that
//! started the program holds it, and lets it run when another thread asks for that. Meanwhile it
//! carries out writes that only a tracer may make.

use std::sync::{
    Arc, Weak,
    mpsc::{Receiver, SyncSender, sync_channel},
};

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    sys::{TracerThread, WriteJob, ptrace::Stopped},
};

/// A request to the thread that holds the program.
#[derive(Debug)]
enum Request {
    /// Lets the program run.
    Resume(SyncSender<Result<()>>),
    Write(WriteJob),
}

/// The way to let the program run.
#[derive(Debug)]
pub(crate) struct Held {
    pid: Pid,
    /// Nothing else keeps the channel open: the thread kills the program when this is dropped.
    requests: Arc<SyncSender<Request>>,
}

/// The thread's part.
#[derive(Debug)]
pub(crate) struct Holder {
    pid: Pid,
    requests: Receiver<Request>,
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
        let (requests, received) = sync_channel(1);
        let held = Self {
            pid,
            requests: Arc::new(requests),
        };
        let holder = Holder {
            pid,
            requests: received,
        };
        (held, holder)
    }

    /// Passes writes to the thread, while it holds the program.
    pub(crate) fn tracer(&self) -> TracerThread {
        let requests: Weak<SyncSender<Request>> = Arc::downgrade(&self.requests);
        TracerThread::new(move |job| {
            if let Some(requests) = requests.upgrade() {
                // The job is dropped if the thread holds the program no more.
                let _ = requests.send(Request::Write(job));
            }
        })
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
        let request = Request::Resume(answer);
        self.requests.send(request).map_err(|_| lost())?;
        answered.recv().map_err(|_| lost())?
    }
}

// === impl Holder ===

impl Holder {
    /// Waits until the program may run. `None` if its [`Held`] was dropped.
    pub(crate) fn wait(self) -> Option<Release> {
        loop {
            match self.requests.recv().ok()? {
                Request::Write(job) => job.carry_out(),
                Request::Resume(answer) => {
                    return Some(Release {
                        pid: self.pid,
                        answer,
                    });
                }
            }
        }
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
