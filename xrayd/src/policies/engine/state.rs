//! The state of the engine. Each part has a file that works with it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;

use super::sweeps::Sweeps;
use crate::{
    pid::Pid,
    policies::{
        kept::PolicyKeeper, policy::Policy, processes::Processes, spec::PolicySpec,
        status::PolicyStatus, traced::Tracing,
    },
    process::{Registry, Session},
    refusal::Result,
    target::Subscription,
    types::LeaseId,
};

/// A request to the engine.
#[derive(Debug)]
pub(in crate::policies) enum Command {
    /// Reads the folder of policies again.
    Load(SyncSender<Result<()>>),
    /// Puts a policy in force.
    Apply(
        Box<(PolicySpec, String, Option<u64>)>,
        SyncSender<Result<()>>,
    ),
    /// Ends a policy that was applied.
    Remove(String, SyncSender<Result<()>>),
    /// Tells the state of all policies.
    Status(SyncSender<Vec<PolicyStatus>>),
}

/// What the thread shares with its handle.
#[derive(Debug)]
pub(in crate::policies) struct Signal {
    pub(in crate::policies) eventfd: Arc<EventFd>,
    /// True if the daemon ends, and leaves processes as they are.
    pub(in crate::policies) over: AtomicBool,
    /// The number of requests that wait for the thread.
    pub(in crate::policies) waiting: AtomicUsize,
    /// The state of the policies after the last round.
    pub(in crate::policies) latest: Mutex<Vec<PolicyStatus>>,
}

/// The policies in force, and the processes that they are for.
#[derive(Debug)]
pub(in crate::policies) struct Engine {
    pub(super) registry: Registry,
    pub(super) folder: Option<PathBuf>,
    pub(super) keeper: Option<Arc<dyn PolicyKeeper>>,
    pub(super) signal: Arc<Signal>,
    /// The oldest first.
    pub(super) policies: Vec<Policy>,
    /// Files that have never been policies.
    pub(super) broken: Vec<PolicyStatus>,
    /// Policies that clients have applied and that have expired.
    pub(super) expired: Vec<PolicyStatus>,
    pub(super) processes: Processes,
    /// Processes that clients have detached from, with their start times.
    pub(super) left_alone: HashMap<Pid, u64>,
    /// Leases that are to end.
    pub(super) left: Vec<Left>,
    pub(super) attaches: Attaches,
    pub(super) subscription: Option<Subscription>,
    /// True once perf events were found to be forbidden, which was logged.
    pub(super) is_deaf: bool,
    pub(super) sweeps: Sweeps,
    /// True until everything that earlier daemons have left was looked at.
    pub(super) has_earlier: bool,
    pub(super) last: Instant,
    pub(super) took: Duration,
}

/// A lease of a policy that is to end in a process.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) session: Arc<Session>,
    pub(super) lease: LeaseId,
    /// When it is to end, and the pause after that if a client still needs the session.
    pub(super) next: Instant,
    pub(super) pause: Duration,
}

/// The most attaches at the same time.
pub(crate) const MOST_ATTACHES: usize = 8;

/// The attaches that are under way.
#[derive(Debug)]
pub(super) struct Attaches {
    pub(super) running: usize,
    pub(super) results: Receiver<Attach>,
    pub(super) sender: SyncSender<Attach>,
}

/// The outcome of an attach.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) tracing: Arc<Tracing>,
    pub(super) process: (Pid, u64),
    pub(super) tries: u32,
    pub(super) outcome: Result<Arc<Session>>,
}

// === impl Engine ===

impl Engine {
    /// An engine without policies.
    pub(in crate::policies) fn new(
        registry: Registry,
        folder: Option<PathBuf>,
        keeper: Option<Arc<dyn PolicyKeeper>>,
        signal: Arc<Signal>,
    ) -> Self {
        let now = Instant::now();
        Self {
            registry,
            folder,
            keeper,
            signal,
            policies: Vec::new(),
            broken: Vec::new(),
            expired: Vec::new(),
            processes: Processes::default(),
            left_alone: HashMap::new(),
            left: Vec::new(),
            attaches: Attaches::new(),
            subscription: None,
            is_deaf: false,
            sweeps: Sweeps::new(now),
            has_earlier: true,
            last: now,
            took: Duration::ZERO,
        }
    }

    /// True if the daemon ends.
    pub(super) fn is_over(&self) -> bool {
        self.signal.over.load(Ordering::Acquire)
    }
}

// === impl Attaches ===

impl Attaches {
    /// None.
    pub(super) fn new() -> Self {
        // Room for one outcome of each attach.
        let (sender, results) = sync_channel(MOST_ATTACHES);
        Self {
            running: 0,
            results,
            sender,
        }
    }
}
