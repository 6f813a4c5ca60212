//! Finding the processes that come from one that is traced. No tracer stays with them: they are looked for.
//!
//! ```text
//!             a look finds it         it has sleds, and the policy means it
//!  (unknown) ─────────────────► watched ─────────────────────────────────► traced
//!                                  ▲  ▲                                      │
//!                exec, no sleds ───┘  └────────────────────────── exec ──────┘
//!                                                      detached by somebody, or exec that is not followed
//!                                     traced ─────────────────────────────────────────────────────────────► left
//! ```
//!
//! The kernel's notices say when to look, where they are to be had; a look is what finds out. Where they are not, the
//! thread looks again and again.
//!
//! Whoever is watched or traced has its children looked for. A child is told from a fork of its parent by what it runs
//! (`Program`): after `exec` it is another program, be it the same file.

mod known;
mod pace;
mod search;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{family::Family, registry::Inner};
use crate::{
    panics::message_of,
    pid::Pid,
    process::follow::search::Search,
    refusal::{Refusal, Result},
};

/// Which processes are traced besides the one that is attached to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// None.
    #[default]
    None,
    /// Those that it forks, and that those fork, for as long as they run the same program.
    Fork,
    /// The program that it becomes by `exec`.
    Exec,
    /// Everything that comes from it, whichever program it runs.
    All,
}

/// How it is noticed who comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// By the kernel's perf events.
    Perf,
    /// By looking every few milliseconds, and why.
    Looks(String),
}

/// A process with sleds that comes from a traced one and is not traced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFollowed {
    /// Its id.
    pub pid: Pid,
    /// Its command line.
    pub command: String,
    /// Why.
    pub refusal: Refusal,
}

/// The thread that looks.
#[derive(Debug)]
pub(crate) struct Follower {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

/// What wakes it.
#[derive(Debug)]
struct Signal {
    bell: Arc<EventFd>,
    /// Nobody is to be looked for any more. Written before the bell is rung.
    over: AtomicBool,
}

// === impl Follow ===

impl Follow {
    /// Whether children are followed.
    pub fn forks(self) -> bool {
        matches!(self, Self::Fork | Self::All)
    }

    /// Whether who becomes another program is followed.
    pub fn execs(self) -> bool {
        matches!(self, Self::Exec | Self::All)
    }

    /// Whether everybody is followed whom `other` follows.
    pub(crate) fn covers(self, other: Self) -> bool {
        (self.forks() || !other.forks()) && (self.execs() || !other.execs())
    }
}

// === impl Follower ===

impl Follower {
    /// Begins to look for those that come from the family's first process.
    ///
    /// # Errors
    /// It has ended, or there can be no thread.
    pub(crate) fn spawn(registry: &Arc<Inner>, family: Arc<Family>) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_flags(flags)
            .map_err(|error| Refusal::from_io(family.root(), "make a descriptor", &error.into()))?;
        let signal = Arc::new(Signal {
            bell: Arc::new(bell),
            over: AtomicBool::new(false),
        });
        let subscription = registry.processes().listen(Arc::clone(&signal.bell));
        // Not strong: a registry that is dropped drops its sessions.
        let registry = Arc::downgrade(registry);
        let root = family.root();
        let search = Search::new(family, Arc::clone(&signal), subscription)
            .map_err(|error| Refusal::from_io(root, "look at it", &error))?;
        let thread = std::thread::Builder::new()
            .name(format!("follow-{root}"))
            .spawn(move || {
                let family = search.family();
                // Nothing of the search is used after a panic.
                let ran = catch_unwind(AssertUnwindSafe(|| search.run(&registry)));
                if let Err(payload) = ran {
                    let message = message_of(&*payload);
                    tracing::error!(%root, message, "no more processes are followed: a thread panicked");
                    family.finish();
                }
            })
            .map_err(|error| Refusal::from_io(root, "start a thread", &error))?;
        Ok(Self { signal, thread })
    }

    /// Ends it, and waits for its end.
    pub(crate) fn stop(self) {
        let Self { signal, thread } = self;
        signal.over.store(true, Ordering::Release);
        // One that has been rung so often that it overflows is heard all the same.
        let _ = signal.bell.write(1);
        // A panic was caught and logged where it happened.
        let _ = thread.join();
    }
}
