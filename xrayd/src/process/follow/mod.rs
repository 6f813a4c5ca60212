//! The search for processes that come from a traced one. No tracer stays with a process, so a
//! thread looks for them.
//!
//! ```text
//!             a look finds it         it has sleds, and the policy traces it
//!  (unknown) ─────────────────► watched ─────────────────────────────────► traced
//!                                  ▲  ▲                                      │
//!                exec, no sleds ───┘  └────────────────────────── exec ──────┘
//!
//!             detached by a client, or exec that is not followed
//!   traced ────────────────────────────────────────────────────────► left
//! ```
//!
//! Where the kernel allows it, perf events wake the thread for a look. Elsewhere the thread looks
//! at short intervals.
//!
//! The children of watched and traced processes are looked for. The program of a child (`Program`)
//! distinguishes a fork of its parent from an `exec`: after `exec` the program is another one, even
//! if the file is the same.

mod known;
mod pace;
mod search;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{attach::lost_thread, group::Group, registry::Inner};
use crate::{
    liveness::{Liveness, NoAnswer},
    panics::message_of,
    pid::Pid,
    process::follow::search::Search,
    refusal::{Refusal, Result},
};

/// The processes that are traced besides the one that is attached to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// None.
    #[default]
    None,
    /// Processes that it forks, and their forks, as long as they run the same program.
    Fork,
    /// The program that it becomes by `exec`.
    Exec,
    /// All processes that come from it, whichever program they run.
    All,
}

/// The detection method for processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The kernel's perf events.
    Perf,
    /// Looks every few milliseconds, and the reason for them.
    Looks(String),
}

/// A process with sleds that comes from a traced one and is not traced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFollowed {
    /// Its id.
    pub pid: Pid,
    /// Its command line.
    pub command: String,
    /// The reason.
    pub refusal: Refusal,
}

/// The handle to the thread that searches.
#[derive(Debug)]
pub(crate) struct Follower {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
    liveness: Arc<Liveness>,
    /// Disconnected when the thread ends.
    end: Receiver<()>,
}

/// The signal that wakes the thread.
#[derive(Debug)]
struct Signal {
    eventfd: Arc<EventFd>,
    /// True if the search is to end. Written before the eventfd is rung.
    over: AtomicBool,
}

// === impl Follow ===

impl Follow {
    /// True if children are followed.
    pub fn forks(self) -> bool {
        matches!(self, Self::Fork | Self::All)
    }

    /// True if a process is followed through `exec`.
    pub fn execs(self) -> bool {
        matches!(self, Self::Exec | Self::All)
    }

    /// True if this policy follows all processes that `other` follows.
    pub(crate) fn covers(self, other: Self) -> bool {
        (self.forks() || !other.forks()) && (self.execs() || !other.execs())
    }
}

// === impl Follower ===

impl Follower {
    /// Starts the search for processes that come from the group's first process.
    ///
    /// # Errors
    /// No thread can be started, or the process cannot be looked at.
    pub(crate) fn spawn(registry: &Arc<Inner>, group: Arc<Group>) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_flags(flags)
            .map_err(|error| Refusal::from_io(group.root(), "create an eventfd", &error.into()))?;
        let signal = Arc::new(Signal {
            eventfd: Arc::new(eventfd),
            over: AtomicBool::new(false),
        });
        let subscription = registry.processes().listen(Arc::clone(&signal.eventfd));
        // A weak reference, so that a registry that is dropped drops its sessions.
        let registry = Arc::downgrade(registry);
        let root = group.root();
        let liveness = Liveness::new(root);
        let of_thread = Arc::clone(&liveness);
        let (running, end) = sync_channel(0);
        // A thread that hangs counts as one of its user.
        let ticket = group
            .root_session()
            .map(|session| Arc::clone(&session.ticket));
        let mut search = Search::new(group, Arc::clone(&signal), subscription);
        let (begin, begun) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("follow-{root}"))
            .spawn(move || {
                let _running: SyncSender<()> = running;
                let _ticket = ticket;
                of_thread.looks_for_requests();
                let group = search.group();
                // Nothing of the search is used after a panic.
                let ran = catch_unwind(AssertUnwindSafe(move || {
                    let begun = search.begin();
                    let has_begun = begun.is_ok();
                    // Without a receiver, the search ends after a look.
                    let _ = begin.send(begun);
                    if has_begun {
                        search.run(&registry);
                    }
                }));
                if let Err(payload) = ran {
                    let message = message_of(&*payload);
                    tracing::error!(
                        %root,
                        message,
                        "a thread panicked: the daemon follows no more processes of the group"
                    );
                    group.finish();
                }
            })
            .map_err(|error| Refusal::from_io(root, "start a thread", &error))?;
        // The program does not run on before it was looked at: it may become another one.
        match liveness.watch().wait(&begun) {
            Ok(begun) => {
                begun.map_err(|error| Refusal::from_io(root, "read its state in /proc", &error))?
            }
            Err(NoAnswer::Ended) => return Err(lost_thread(root)),
            Err(why) => {
                signal.over.store(true, Ordering::Release);
                return Err(liveness.refusal(why));
            }
        }
        Ok(Self {
            signal,
            thread,
            liveness,
            end,
        })
    }

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
