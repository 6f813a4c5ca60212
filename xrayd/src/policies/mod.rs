//! Tracing policies: files that say which processes are traced, and how.
//!
//! | file | holds |
//! |---|---|
//! | `handle` | the policies as the rest of the daemon sees them |
//! | `engine` | the thread that carries policies out |
//! | `policy` | a policy in force, and the processes that it matches |
//! | `traced` | what a policy has on in one process |
//! | `processes` | the processes that the engine has looked at |
//! | `folder` | the folder of policies |
//! | `kept` | what a daemon keeps of its policies for the next one |
//! | `status` | the state of a policy |
//! | `spec` | a policy as its text describes it |
//! | `trigger_spec` | a trigger of a policy as its text describes it |

use std::time::{Duration, SystemTime};

mod engine;
mod folder;
mod handle;
mod kept;
mod policy;
mod processes;
mod spec;
mod status;
mod traced;
mod trigger_spec;

#[cfg(test)]
pub(crate) use engine::MOST_ATTACHES;
pub use folder::default_folder;
pub use handle::Policies;
pub(crate) use kept::{KeptPolicy, PolicyKeeper};
pub use spec::{Matching, OutputSpec, PolicySpec, TraceSpec};
pub use status::{PolicySource, PolicyStatus, TracedProcess};
pub use trigger_spec::TriggerSpec;

/// The time since the Unix epoch. Zero if the clock is before it.
fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}
