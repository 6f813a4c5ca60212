//! State and counters of one session, as clients read them.

use std::time::Duration;

use xray_trace::model::{BuildId, ClockFault};

use super::{EconomyStatus, Filter, Kinship, Mode};
use crate::{pid::Pid, refusal::Refusal};

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Attached.
    Tracing,
    /// On the way out.
    Detaching,
    /// Its events cannot be read any more, because of a bug: everything is off, what was recorded is retained.
    Failed,
    /// The process has ended; what was recorded is retained.
    Exited,
}

/// State and counters of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The process.
    pub pid: Pid,
    /// Its effective user.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// Where the session is in its life.
    pub phase: Phase,
    /// How it came to be traced, if it was followed from another process.
    pub kinship: Option<Kinship>,
    /// It became another program by `exec`: in [`Phase::Exited`], what was attached to is gone and the process is not.
    pub executed: bool,
    /// What failed, in [`Phase::Failed`].
    pub failure: Option<String>,
    /// How events are kept, as was asked for.
    pub mode: Mode,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Those of them of which arguments or results are recorded, beside those whose sleds record the first argument.
    pub functions_with_values: u32,
    /// Threads that have a ring.
    pub threads: u32,
    /// Events recorded since attach; of those that nobody has read, about so many.
    pub events: u64,
    /// Over the last second or so.
    pub events_per_second: f64,
    /// Events among them that a filter has left out.
    pub filtered: u64,
    /// Calls, and what was said, that a filter has left out in the program itself: no events.
    pub left_out: u64,
    /// What is recorded and kept.
    pub filter: Filter,
    /// What tracing may cost, and what came of that.
    pub economy: EconomyStatus,
    /// When the processor's counter did not keep time, the newest faults. Durations around are
    /// wrong.
    pub clock_faults: Vec<ClockFault>,
    /// Events lost in the target.
    pub lost: u64,
    /// By which threads, those that lost the most first; never more than `lost` in sum.
    pub losses: Vec<ThreadLoss>,
    /// The fullest ring at the last drain, in permille.
    pub ring_use_permille: u32,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Threads that can have a ring at the same time.
    pub max_threads: u32,
    /// Why threads lose all their events that need a ring: a limit on memory.
    pub rings_refused: Option<String>,
    /// Memory that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// Bytes retained.
    pub retained_bytes: u64,
    /// Events in them.
    pub retained_events: u64,
    /// Events dropped from what was retained, for space.
    pub overwritten_events: u64,
    /// Triggers that are armed in it.
    pub triggers: u32,
    /// When it was attached, in nanoseconds since the Unix epoch.
    pub attached_wall_ns: u64,
    /// Modules with sleds that are loaded.
    pub modules: Vec<ModuleStatus>,
    /// How libraries that come are noticed.
    pub noticing: Noticing,
}

/// State of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its path as the process sees it.
    pub path: String,
    /// Its build id, if it has one and is traced.
    pub build_id: Option<BuildId>,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Memory in it that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// For a library that was loaded after the attach and in which rules switched anything on: how soon that was.
    pub armed: Option<Armed>,
    /// Why it is not traced.
    pub refusal: Option<Refusal>,
}

/// What a thread has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadLoss {
    /// Its id; 0 stands for threads that nobody can tell apart.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Events, at least 1.
    pub lost: u64,
}

/// How soon what the rules name was on in a library that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// How long it took.
    pub within: Duration,
    /// From when.
    pub since: Since,
}

/// What a time is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Its text was mapped, by the kernel's word: the time was measured.
    Mapping,
    /// A look at the maps did not show it yet: it took no longer.
    Look,
}

/// How libraries that come are noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Noticing {
    /// They are looked for once a second: no rule names anything that comes.
    #[default]
    Idle,
    /// By the kernel's perf events.
    Perf,
    /// By looking at the maps every few milliseconds, and why.
    Maps(String),
}
