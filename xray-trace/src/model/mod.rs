//! The trace model: processes and threads, modules and functions, the clock, and the events.
//!
//! Ids are indexes that are unique within one trace and have no meaning outside it. The kernel can
//! reuse its numbers (`pid`, `tid`) during a trace; ids are never reused.

mod budget;
mod call_sums;
mod clock;
mod clock_anchor;
mod clock_faults;
mod context_switch;
mod coverage;
mod duration_scale;
mod event;
mod event_type;
mod function;
mod missing;
mod module;
mod overwritten;
mod process;
mod profile;
mod read_trace;
mod recording;
mod thread;
mod thread_runs;
mod thread_wait;
mod trace;
mod values;
mod xray_ids;

pub use budget::{DutyWindow, FilterNote, Gap, GapCause, Suppression};
pub(crate) use call_sums::MOST_RANGES;
pub use call_sums::{CallSums, Durations};
pub use clock::{Calibration, Clock, ClockReader};
pub use clock_anchor::{ClockAnchor, Ticks};
pub use clock_faults::{ClockFault, ClockFaultKind};
pub use context_switch::{ContextSwitch, RunState};
pub use coverage::Coverage;
pub(crate) use duration_scale::DurationScale;
pub use event::{CallKind, DataKind, DataRef, Event, EventBody};
pub use event_type::EventType;
pub use function::{Function, FunctionId, SourceLine};
pub use missing::Missing;
pub use module::{BuildId, Lifetime, Module, ModuleId};
pub use overwritten::{Overwritten, SnapshotWindow};
pub use process::{Birth, Origin, Process, ProcessId};
#[cfg(feature = "import")]
pub(crate) use profile::MOST_STACKS;
pub use profile::{Profile, ProfiledStack, Times, Visit};
pub use recording::RecordingWindow;
pub use thread::{Thread, ThreadId};
pub use thread_runs::{OffCpu, Run, ThreadRuns};
pub use thread_wait::ThreadWait;
pub use trace::{Totals, Trace};
pub use values::Values;
pub(crate) use xray_ids::pack;
#[cfg(feature = "import")]
pub(crate) use xray_ids::unpacked;
pub use xray_ids::{NoXrayId, XrayIds};
