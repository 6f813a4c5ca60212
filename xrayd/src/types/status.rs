//! State and counters of one session, as clients read them.

use std::time::Duration;

use xray_trace::model::{BuildId, ClockFault, GapCause};

use super::{BudgetStatus, Filter, Kinship, Mode};
use crate::{pid::Pid, refusal::Refusal};

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The process is attached.
    Tracing,
    /// A detach is under way.
    Detaching,
    /// A bug ended the session. All functions are off. Recorded events are retained.
    Failed,
    /// The process has ended. Recorded events are retained.
    Exited,
}

/// State and counters of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The process.
    pub pid: Pid,
    /// Its effective user.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// The state of the session.
    pub phase: Phase,
    /// Its origin, if it was followed from another process.
    pub kinship: Option<Kinship>,
    /// True in [`Phase::Exited`] if the process called `exec`. The traced program is gone, and the
    /// process still runs.
    pub executed: bool,
    /// The cause of [`Phase::Failed`].
    pub failure: Option<String>,
    /// The mode that was set.
    pub mode: Mode,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Functions among them whose arguments or results are recorded. Functions whose sleds record
    /// the first argument anyway do not count.
    pub functions_with_values: u32,
    /// Threads that have a ring.
    pub threads: u32,
    /// Events recorded since the attach. Events that are still in the rings are estimated.
    pub events: u64,
    /// Events per second, averaged over about the last second.
    pub events_per_second: f64,
    /// Events among them that the collector left out because of a filter.
    pub filtered: u64,
    /// Calls and user events that the program itself left out because of a filter. They are not in
    /// `events`.
    pub left_out: u64,
    /// The filter in force.
    pub filter: Filter,
    /// The limit on what tracing costs, and its effect.
    pub budget: BudgetStatus,
    /// The newest faults of the processor's counter. Durations around a fault are wrong.
    pub clock_faults: Vec<ClockFault>,
    /// Times in which an unknown number of events was lost, oldest first.
    pub gaps: Vec<TimedGap>,
    /// Events lost in the target.
    pub lost: u64,
    /// The threads that lost the most events, in descending order. Their sum is `lost` at most.
    pub losses: Vec<ThreadLoss>,
    /// Fill level of the fullest ring when the rings were read last, in permille.
    pub ring_use_permille: u32,
    /// Size of one ring, in bytes.
    pub ring_bytes: u64,
    /// Threads that can have a ring at the same time.
    pub max_threads: u32,
    /// The limit on memory because of which threads have no ring and lose their events.
    pub rings_refused: Option<String>,
    /// Memory that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// Size of the retained events, in bytes.
    pub retained_bytes: u64,
    /// Retained events.
    pub retained_events: u64,
    /// Retained events that were dropped to make room.
    pub overwritten_events: u64,
    /// Triggers that are armed in the process.
    pub triggers: u32,
    /// Time of the attach, in nanoseconds since the Unix epoch.
    pub attached_wall_ns: u64,
    /// Modules with sleds that are loaded.
    pub modules: Vec<ModuleStatus>,
    /// The detection method for libraries that are loaded.
    pub detection: Detection,
}

/// State of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its path as the process sees it.
    pub path: String,
    /// Its build id, if it has one and the module is traced.
    pub build_id: Option<BuildId>,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Memory of the module that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// The delay until the functions of a library were on that was loaded after the attach. `None`
    /// if no rule selects one of its functions.
    pub armed: Option<Armed>,
    /// The reason why the module is not traced.
    pub refusal: Option<Refusal>,
}

/// The losses of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadLoss {
    /// Id of the thread. 0 stands for all threads that cannot be told apart.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// Lost events, 1 or more.
    pub lost: u64,
}

/// The delay until the selected functions of a newly loaded library were on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Armed {
    /// The delay.
    pub within: Duration,
    /// The start of the delay.
    pub since: Since,
}

/// The start of a measured delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// The kernel mapped the library's text. The delay is exact.
    Mapping,
    /// The last look at the maps that did not show the library. The delay is an upper bound.
    Look,
}

/// The detection method for libraries that are loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Detection {
    /// One look at the maps each second, since no rule selects functions of new libraries.
    #[default]
    Idle,
    /// The kernel's perf events.
    Perf,
    /// Looks at the maps, 4 ms apart or more, and the reason why there are no perf events.
    Maps(String),
}

/// A time in which an unknown number of events was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedGap {
    /// Its begin on `CLOCK_MONOTONIC`; `None` if unknown.
    pub from_ns: Option<u64>,
    /// Its end on `CLOCK_MONOTONIC`.
    pub to_ns: u64,
    /// Its cause.
    pub cause: GapCause,
}
