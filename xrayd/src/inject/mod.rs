//! The only code that changes a target: memory mapped by a borrowed thread, machine code written through
//! `/proc/<pid>/mem`, and the bytes that switch sleds.

mod install;
mod patch;
mod region;
mod remote;
mod restart;
mod thread_id;

pub(crate) use install::{Installed, SETTLE, Victim, clear_live, install, is_ours_still};
pub use patch::Switch;
pub(crate) use patch::{PatchReport, Patcher, Site as PatchSite};
pub(crate) use region::{Layout, Neighbourhood};
pub(crate) use thread_id::finds_thread_id;
