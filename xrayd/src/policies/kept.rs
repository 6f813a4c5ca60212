//! What a daemon keeps of its policies for the next one.

use std::{fmt, path::PathBuf};

/// A policy that was in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptPolicy {
    pub(crate) name: String,
    pub(crate) text: String,
    /// When it was put in force, in seconds since the Unix epoch.
    pub(crate) since: u64,
    /// The moment at which it ends, in seconds since the Unix epoch.
    pub(crate) expires: Option<u64>,
    /// Its file. `None`: a client has applied it.
    pub(crate) path: Option<PathBuf>,
}

/// The place where policies outlive the daemon. A failure is logged there.
pub(crate) trait PolicyKeeper: fmt::Debug + Send + Sync {
    /// All policies that are kept.
    fn all(&self) -> Vec<KeptPolicy>;

    /// Keeps a policy, or replaces the former one of this name.
    fn keep(&self, policy: &KeptPolicy);

    /// Forgets the policy of this name.
    fn forget(&self, name: &str);
}
