//! Traced processes.

/// A process's index in its trace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A process. The pair of `pid` and `start_time_ticks` names it for as long as its machine is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its index in the trace.
    pub id: ProcessId,
    /// The kernel's number for it, as the tracer saw it.
    pub pid: u32,
    /// When it started: field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// Its name (`comm`).
    pub command: String,
    /// The path of its executable.
    pub executable: String,
    /// The name of the machine it ran on, where known.
    pub host: Option<String>,
}
