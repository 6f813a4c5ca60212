//! Processes: attaching to them, following their children, and the registry of all.
//!
//! | file | holds |
//! |---|---|
//! | `process_or_group` | the target of a request: a group, or one process |
//! | `recovery` | going on with the sessions of a daemon that has ended |
//! | `ended` | sessions of processes that ended before this daemon came |
//! | `registry` | the order of attach, launch and detach |
//! | `follow` | finding processes to follow |
//! | `retention` | the retained events of living processes, and the sessions of ended ones |
//! | `launch` | starting a program, stopped before its `main` |
//! | `session_table` | which processes are attached, and their groups |
//! | `attach_thread` | the thread that attaches, and holds a program until it runs |
//! | `inherited` | forked processes that nothing follows |
//! | `left_on` | the state of processes with sleds on and without a session |
//! | `attach` | the steps from a pid to a session |
//! | `group` | process groups: a process, and the processes that are followed from it |
//! | `members` | the members of a group, and the readers of later ones |
//! | `trigger` | a trigger, and the sessions that it is armed in |
//! | `profiling` | sums of calls of one process that a client asks for |
//! | `session` | one attached process |
//! | `session_record` | what a later daemon needs of a session |
//! | `switching` | switching the functions of a session |
//! | `session_status` | the parts of a session's status that are made up of tables |
//! | `group_profiling` | sums of calls of all members that a group has and gains |
//! | `group_status` | the state of a group |
//! | `untraced` | a program without sleds that xrayd started |
//! | `started` | a process that xrayd started, until it runs |
//! | `attach_options`, `attach_report` | the options and the result of an attach |
//! | `refusals` | refusals that several files give |
//! | `parallel` | the same work for many processes, some of which may hang |
//!
//! Each file imports only files that stand below it in this list. The policy of following and the
//! handle to its thread, `follow::policy` and `follow::follower`, stand at the bottom.

mod attach;
mod attach_options;
mod attach_report;
mod attach_thread;
mod earlier_sums;
mod ended;
mod follow;
mod group;
mod group_profiling;
mod group_status;
mod inherited;
mod launch;
mod left_on;
mod members;
mod parallel;
mod process_or_group;
mod profiling;
mod recovery;
mod refusals;
mod registry;
mod retention;
mod session;
mod session_record;
mod session_status;
mod session_table;
mod started;
mod switching;
mod trigger;
mod untraced;

pub use attach::Attached;
pub use attach_options::AttachOptions;
pub use attach_report::{AttachReport, SkippedSleds};
pub use follow::{Finding, Follow, NotFollowed};
pub use group::Group;
pub use group_profiling::write_profile;
pub(crate) use group_profiling::{GroupProfiling, Outlook};
pub use group_status::GroupStatus;
pub use launch::{LaunchOptions, Launched};
#[cfg(test)]
pub(crate) use parallel::MOST_IN_A_GROUP;
pub(crate) use parallel::{MOST_IN_A_CALL, in_parallel};
pub(crate) use process_or_group::{Outcomes, ProcessOrGroup, Toggle};
pub use profiling::Profiling;
pub use registry::{Registry, RegistryConfig};
pub use session::Session;
pub(crate) use session_record::{GroupRecord, KeptForNext, SessionRecord, SessionRecords};
pub(crate) use session_status::event_formats;
pub use trigger::{Firing, Trigger};
