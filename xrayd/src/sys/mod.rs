//! The raw system calls, each behind a function that cannot be misused. All unsafe code of the
//! crate is here, except for one descriptor in `notify.rs`.
//!
//! Nothing here decides anything: policy lives in `target`, `inject` and `control`. A mark like
//! (P3) names a row of `docs/pitfalls.md`.

mod alarm;
mod allocator;
mod claim;
mod clock;
mod collect_child;
mod descriptors;
mod held_signals;
mod ioctl;
mod memory;
mod naming;
mod peer;
mod perf;
mod pid_namespace;
mod pidfd;
mod priority_boost;
pub(crate) mod ptrace;
mod robust;
mod spawn;
mod user_namespace;
mod wait;
mod write_job;
mod xstate;

pub(crate) use allocator::return_large_allocations;
pub(crate) use claim::Claim;
pub(crate) use clock::{
    counter_is_invariant, instant_of, monotonic_now, now_anchor, ns_of, since_boot_ns, ticks_in,
    ticks_now, ticks_of_readings,
};
pub(crate) use collect_child::{collect_child, try_collect_child};
pub(crate) use descriptors::DescriptorRoom;
pub(crate) use held_signals::HeldSignals;
pub(crate) use memory::Memory;
pub(crate) use naming::{PR_SET_VMA, kernel_names_mappings};
pub(crate) use peer::{peer_groups, security_label};
pub(crate) use perf::{
    lost_records, open_mapping_event, open_switch_event, open_task_clock, open_task_event,
    open_tracepoint,
};
pub(crate) use pid_namespace::PidNamespace;
pub(crate) use pidfd::PidFd;
pub(crate) use priority_boost::{PriorityBoost, prefer_thread};
pub(crate) use robust::robust_list;
pub(crate) use spawn::spawn_traced;
pub(crate) use user_namespace::{owner_of_namespace, parent_of_namespace};
pub(crate) use write_job::{TracerThread, WriteJob};
pub(crate) use xstate::XstateSizes;
