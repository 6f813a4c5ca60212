//! Processes: attaching to them, following their children, and the registry of all.
//!
//! | file | holds |
//! |---|---|
//! | `registry` | which processes are attached |
//! | `attach` | the steps from a pid to a session |
//! | `launch` | starting a program, stopped before its `main` |
//! | `session` | one attached process |
//! | `group` | process groups: a process, and the processes that are followed from it |
//! | `follow` | finding processes to follow |
//! | `parallel` | the same work for many processes, some of which may hang |
//! | `trigger` | a trigger, and the sessions that it is armed in |
//! | `untraced` | a program without sleds that xrayd started |

mod attach;
mod follow;
mod group;
mod launch;
mod parallel;
mod registry;
mod session;
mod trigger;
mod untraced;

pub use attach::{AttachOptions, AttachReport, Attached, SkippedSleds};
pub use follow::{Finding, Follow, NotFollowed};
pub use group::{Group, GroupStatus};
#[cfg(test)]
pub(crate) use parallel::MOST_IN_A_GROUP;
pub(crate) use parallel::{MOST_IN_A_CALL, in_parallel};
pub use registry::{LaunchOptions, Launched, Registry, RegistryConfig};
pub use session::{Profiling, Session, write_profile};
pub use trigger::{Firing, Trigger};
