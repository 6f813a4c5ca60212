//! Traced processes.

/// A process's index in its trace, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// How a process came to be traced that nobody chose: it was followed from one that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's number of the process that forked it; of one that became another program, its own.
    pub parent: u32,
    /// What made it what it is.
    pub by: Birth,
    /// How long it had run at most before its events were recorded, in nanoseconds: what it did in that time is not in the trace.
    pub unrecorded_ns: u64,
}

/// What made a process what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// `fork`: it runs the program of its parent.
    Fork,
    /// `exec`: it runs a program of its own.
    Exec,
}

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
