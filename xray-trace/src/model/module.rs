//! ELF files mapped into a traced process. Their functions are in `function`.

use std::fmt;

use super::{ProcessId, Ticks};

/// A module's index in its trace, from 0. The first module of a process is its main program, if
/// that has sleds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// An executable or a shared library, as mapped into one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its index in the trace.
    pub id: ModuleId,
    /// The process into which it is mapped.
    pub process: ProcessId,
    /// Its path in the process's view.
    pub path: String,
    /// The build id from its notes, if it has one.
    pub build_id: Option<BuildId>,
    /// This plus an address of the file is the address in the process, modulo 2^64.
    pub load_bias: u64,
    /// The descriptions that it has of the data of its events: `TYPE=FIELDS`, see
    /// [`EventFormats::of_modules`](crate::event_format::EventFormats::of_modules). They need not
    /// be valid.
    pub event_formats: Vec<String>,
}

/// A time for which a module was loaded. A module that was always loaded has none. A module that is
/// loaded again at the same place has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// The module.
    pub module: ModuleId,
    /// The time at which its load was noticed; `None` if it was loaded before the trace began.
    pub loaded: Option<Ticks>,
    /// The time at which its unload was noticed; `None` if it was still loaded at the end of the
    /// trace.
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
