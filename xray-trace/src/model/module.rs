//! ELF files mapped into a traced process.

use std::fmt;

use super::{ProcessId, Ticks};

/// A module's index in its trace, from 0. The first module of a process is its main program, where that has sleds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// An executable or a shared library, as mapped into one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its index in the trace.
    pub id: ModuleId,
    /// The process it is mapped into.
    pub process: ProcessId,
    /// Its path, as the process sees it.
    pub path: String,
    /// The build id from its notes, if it has one.
    pub build_id: Option<BuildId>,
    /// What to add to an address of the file to get the address in the process, modulo 2^64.
    pub load_bias: u64,
}

/// A time for which a module was loaded, where it has not been there all the time. A module that is loaded again at the same place has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// The module.
    pub module: ModuleId,
    /// From when on, as soon as that was noticed; `None` if it was there before the trace began.
    pub loaded: Option<Ticks>,
    /// Until when, as soon as that was noticed; `None` if it was still there when the trace ended.
    pub unloaded: Option<Ticks>,
}

/// The bytes by which a linker names one build of a file. Shown in hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BuildId(pub Vec<u8>);

// === impl BuildId ===

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}
