//! The only code that changes a target. A borrowed thread maps memory there; machine code and the
//! bytes that switch sleds are written through `/proc/<pid>/mem`. This module does not decide which
//! functions are switched. A mark like (P3) names a row of `docs/pitfalls.md`.

mod borrow;
#[cfg(fuzzing)]
mod fuzzing;
mod gadgets;
mod halt;
mod install;
mod install_plan;
mod left;
mod mappings;
mod page;
mod patch;
mod patch_report;
mod private_pages;
mod proof;
mod recording_deadline;
mod recovery_frame;
mod region;
mod remote;
mod ring_plan;
mod rings_file;
mod slot_table;
mod switched_sites;
mod thread_id;
mod tracer_record;
mod trampoline_filter;

pub(crate) use borrow::Victim;
#[cfg(fuzzing)]
pub use fuzzing::{adopt, switch_sleds};
pub(crate) use install::{Installed, SETTLE, clear_live, crowded, extend, install};
pub(crate) use left::{LeftCode, left_code, living_tracer};
pub(crate) use patch::{Patcher, RunState};
pub(crate) use patch_report::PatchReport;
pub(crate) use recording_deadline::TableSession;
pub(crate) use region::{Layout, Neighbourhood};
pub(crate) use ring_plan::{RingPlan, RingsNeeded};
pub(crate) use rings_file::RingsFile;
pub(crate) use sled_encoders::x86_64::{DispatchMode, Enable};
pub(crate) use switched_sites::SwitchedSites;
pub(crate) use thread_id::finds_thread_id;
pub(crate) use tracer_record::{ClaimState, RENEW_EVERY};
pub(crate) use trampoline_filter::TrampolineFilter;
