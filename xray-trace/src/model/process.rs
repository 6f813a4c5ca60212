//! Traced processes.

/// A process's index in its trace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// The origin of a process that was followed from another process, not chosen by a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's id of the process that forked it. A process that called `exec` is its own
    /// parent here.
    pub parent: u32,
    /// The call that made the process run its program.
    pub by: Birth,
    /// The longest time that it can have run before its events were recorded, in nanoseconds.
    /// Events of that time are not in the trace.
    pub unrecorded_ns: u64,
}

/// The call that made a process run its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// `fork`: it runs the program of its parent.
    Fork,
    /// `exec`: it runs a program of its own.
    Exec,
}

/// A process. `pid` and `start_time_ticks` together identify it as long as its machine is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its index in the trace.
    pub id: ProcessId,
    /// The kernel's id of the process, as the tracer saw it.
    pub pid: u32,
    /// The time of its start: field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// Its name (`comm`).
    pub command: String,
    /// The path of its executable.
    pub executable: String,
    /// The name of its machine, if known.
    pub host: Option<String>,
}
