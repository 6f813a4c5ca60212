//! The harness of the end-to-end tests. It builds the target programs in `fixtures/`, starts them,
//! talks to them, and looks at them from outside. It uses none of xrayd's own code, so its results
//! are a second opinion.
//!
//! * [`Fixture`]: each target program, compiled on demand and kept below `target/fixtures/`;
//! * [`Program`]: real programs, built from Debian's source packages;
//! * [`copy_into`], [`stripped_into`], [`sectionless_into`]: copies of a fixture that are not as
//!   the compiler left them;
//! * [`Target`]: a running program, which ends with its guard;
//! * [`text_differences`], [`Sled`], [`ProcessState`]: changes in a process, and the absence of
//!   changes;
//! * [`Container`]: a booted systemd;
//! * [`MemoryGroup`]: processes with little memory;
//! * [`GroundTruth`]: the report of the program `counted` on its own calls;
//! * [`scene`]: the daemon and the command line as processes;
//! * [`Tool`]: external programs, each with its Debian package.

mod ability;
mod binaries;
mod build;
mod cache;
mod container;
mod debian;
mod fixture;
mod ground_truth;
mod memory_group;
mod process;
mod programs;
mod recipe;
mod replay;
pub mod scene;
mod silent_mount;
mod sleds;
mod soak;
mod target;
mod text;
mod tool;
mod user;
mod variant;
mod wait;
mod xrayd_memory;

pub use ability::{cannot_run, not_run};
pub use binaries::{
    copy_program, profile_dir, relay, shifted_xrayd, target_dir, workspace_dir, xrayctl, xrayd,
};
pub use build::build;
pub use container::{Container, debian_root};
pub use fixture::Fixture;
pub use ground_truth::{CallEvent, EventKind, GroundTruth, SequenceHash, ThreadTruth};
pub use memory_group::MemoryGroup;
pub use process::{ProcessState, ThreadState};
pub use programs::{Built, Program, build_program};
pub use replay::ran_right;
pub use silent_mount::SilentMount;
pub use sleds::{Sled, SledKind, sleds_of};
pub use soak::soak;
pub use target::Target;
pub use text::{TextDifference, text_differences};
pub use tool::{LTTNG_CALLS, LTTNG_MALLOC, Tool, missing_packages};
pub use user::{is_root_for, opens_map_files};
pub use variant::{copy_into, sectionless_into, stripped_into};
pub use wait::{DEADLINE, wait_until};
pub use xrayd_memory::{
    close_recording, has_closed, mark_as_other_version, pass_deadline, slot_owners,
};
