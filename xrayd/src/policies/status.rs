//! The state of policies, as clients and metrics see it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{spec::OutputSpec, trigger_spec::TriggerSpec};
use crate::{pid::Pid, refusal::Refusal, toml_file::Mistake, types::Mode};

/// The state of a policy.
#[derive(Debug, Clone)]
pub struct PolicyStatus {
    /// Its name; empty for a file that was never a policy.
    pub name: String,
    /// Its text; empty for a file that was never a policy.
    pub text: Arc<str>,
    /// Where it comes from.
    pub source: PolicySource,
    /// True if its time is over.
    pub has_expired: bool,
    /// The moment at which it ends, in seconds since the Unix epoch. `None`: it does not end.
    pub expires: Option<u64>,
    /// The mistakes of its file as that is now. If there are any, the text is the last one without.
    pub mistakes: Vec<Mistake>,
    /// Processes that it matches.
    pub matched: u32,
    /// The processes in which it has functions on.
    pub traced: Vec<TracedProcess>,
    /// Processes that are not as old as `min_age` so far.
    pub too_young: u32,
    /// Processes beyond `max_processes`.
    pub beyond: u32,
    /// The processes that are not traced, and why.
    pub refused: Vec<(Pid, Refusal)>,
    /// Events of all processes that it has had so far, as far as they were read.
    pub events: u64,
    /// Events that they have lost.
    pub lost: u64,
    /// The mode that it asks for.
    pub mode: Mode,
    /// The files that a recorder writes for it.
    pub output: Option<OutputSpec>,
    /// The moments of which a recorder writes snapshots.
    pub triggers: Arc<[TriggerSpec]>,
}

/// A process in which a policy has functions on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedProcess {
    /// The process.
    pub pid: Pid,
    /// The begin of the process, or of the policy if that is later, since the Unix epoch.
    pub meant_since: Duration,
    /// The begin of its session, since the Unix epoch.
    pub traced_since: Duration,
}

// === impl PolicyStatus ===

impl PolicyStatus {
    /// A file that has never been a policy.
    pub(super) fn of_broken(source: PolicySource, mistakes: Vec<Mistake>) -> Self {
        Self {
            name: String::new(),
            text: Arc::from(""),
            source,
            has_expired: false,
            expires: None,
            mistakes,
            matched: 0,
            traced: Vec::new(),
            too_young: 0,
            beyond: 0,
            refused: Vec::new(),
            events: 0,
            lost: 0,
            mode: Mode::Profile,
            output: None,
            triggers: Arc::default(),
        }
    }
}

/// Where a policy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// A file of the folder of policies.
    File(PathBuf),
    /// A client has applied it.
    Applied,
}
