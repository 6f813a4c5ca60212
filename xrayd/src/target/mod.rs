//! What the daemon can find out about a process by reading alone. Nothing here changes a process. A
//! mark like (P18) names a row of `docs/pitfalls.md`.

mod access;
mod build_id;
mod check;
mod counter;
pub(crate) mod cpu_time;
mod credentials;
mod ending;
mod errand;
mod event_types;
mod exit_watch;
mod facts;
mod functions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod identity;
mod image;
mod large_image;
mod lasting;
mod linked;
mod listing;
mod map_file;
mod mapped;
mod maps;
mod memory_limit;
mod memory_lock;
mod modules;
mod objects;
mod outcome;
mod owner;
mod perf_events;
mod perf_watcher;
mod proc_file;
mod record;
mod ring_room;
mod run_clocks;
mod run_history;
mod run_recorder;
mod seccomp;
mod settle;
mod sleds;
mod threads;
mod tracepoint;
mod tree;
mod vm_size;
mod walk;

pub use access::Caller;
pub use check::{Check, Sleds};
pub use ending::Ending;
pub use facts::ProcessFacts;
pub use listing::{ProcessState, ProcessSummary};
pub use mapped::{MappedFile, mapped_files};
pub use outcome::Outcome;

pub(crate) use access::{
    Confinement, Credentials, Denial, MOST_CALLER_THREADS, Namespace, Rights, SYS_PTRACE, Yama,
};
pub(crate) use build_id::build_id_of;
pub(crate) use check::{Launch, Preflight, preflight, tracer_of};
pub(crate) use credentials::{OwnProcess, namespace_at};
pub(crate) use event_types::{
    BETWEEN_NAMES, MOST_TYPE_NAMES, has_type_name, has_type_names, new_type_names,
};
pub(crate) use exit_watch::{AwaitedExit, ExitWatch};
pub(crate) use functions::{Functions, Indexes, Loaded};
pub(crate) use identity::{Target, command_of};
pub(crate) use image::{Image, Parts};
pub(crate) use lasting::lasting_text;
pub(crate) use linked::linked;
pub(crate) use listing::{cgroup_of, list, unit_in};
pub(crate) use map_file::{FoundFile, open_map_file, open_mapped};
pub(crate) use maps::{MapEntry, Maps, stack_limit};
pub(crate) use memory_limit::{MemoryGroup, memory_room};
pub(crate) use memory_lock::{has_limited_address_space, has_locked_memory, memory_lock_limit};
pub(crate) use modules::{Load, Module, RefusedModule, Stay, loads_of, modules_among};
pub(crate) use objects::Objects;
pub(crate) use owner::{effective_user, memory_owner};
pub(crate) use perf_events::{PerfEvents, PerfUnavailable, Subject};
pub(crate) use perf_watcher::{Activity, PerfWatcher, Subscriber, Subscription};
pub(crate) use ring_room::{RingRoom, overcommit_is_strict, ring_rooms};
pub(crate) use run_clocks::{MOST_CLOCKS, RunClocks};
pub(crate) use run_history::RunHistory;
pub(crate) use run_recorder::{RunRecord, RunRecorder};
pub(crate) use seccomp::Passage;
pub(crate) use settle::let_threads_run;
pub(crate) use sleds::{Survey, survey};
pub(crate) use threads::{StartTime, ThreadCount, ThreadState, ThreadStatus, Threads};
pub(crate) use tracepoint::{KernelTracepoint, TracepointError, tracepoint_of};
pub(crate) use tree::{
    Children, Glance, Incarnation, Program, age_of, has_ended, has_sleds, is_older, is_there,
};
pub(crate) use vm_size::VmSize;
pub(crate) use walk::walk;
