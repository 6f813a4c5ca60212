//! Numbers of modules, functions and threads: those of each process, and those of the trace.
//! Nothing is written here.

use std::{any::Any, collections::HashMap, sync::Arc};

use xray_trace::model::{FunctionId, ModuleId, ProcessId, Ticks};

/// Functions that one trace can describe. An event with a greater id is kept, without a name.
const MAX_FUNCTIONS: u32 = 1 << 24;

/// The functions of one file in a trace.
#[derive(Debug)]
pub(super) struct Run {
    /// The module row that describes them.
    pub(super) module: ModuleId,
    pub(super) first: u32,
    /// Keeps the allocation, so that no other file gets its address.
    pub(super) _file: Arc<dyn Any + Send + Sync>,
}

/// The numbers of one process, its own and the trace's.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) process: ProcessId,
    /// The first tick of its blocks that were written.
    pub(super) first: Option<Ticks>,
    /// The suppressions, windows and filters that were written.
    pub(super) reported: WrittenRows,
    /// By id, which is also the order of `own`.
    pub(super) modules: Vec<ModuleNumbers>,
    /// First numbers of runs, by the number of the run in the process.
    pub(super) threads: HashMap<u32, u32>,
}

/// The suppressions, windows, filters and gaps of a process that were written. A trace that goes on
/// adds the changes.
#[derive(Debug, Default)]
pub(super) struct WrittenRows {
    /// By function: the begin of its latest suppression, and whether the end was written.
    pub(super) suppressions: HashMap<FunctionId, (Ticks, bool)>,
    /// The begin of the last window.
    pub(super) windows: Option<Ticks>,
    /// The begin of the last filter.
    pub(super) filters: Option<Ticks>,
    /// The end of the latest gap.
    pub(super) gaps: Option<Ticks>,
}

/// The report of a process's suppressions, windows and filters: one of several, or the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Interim,
    Final,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ModuleNumbers {
    /// Its first function in the process, and the number of its functions.
    pub(super) own: u32,
    pub(super) functions: u32,
    /// Its first function in the trace.
    pub(super) first: u32,
    /// The module row that describes its functions, and its own row.
    pub(super) module: ModuleId,
    pub(super) row: ModuleId,
    /// The address of its file's allocation.
    pub(super) file: usize,
}

/// A set of function ids. Ids are dense, so each takes a bit. Ids beyond the bound are never
/// described.
#[derive(Debug, Default)]
pub(super) struct Described(Vec<u64>);

// === impl Numbers ===

impl Numbers {
    /// The number of a function in the trace, and the module row that describes it.
    pub(super) fn function(&self, id: FunctionId) -> Option<(FunctionId, ModuleId)> {
        let after = self.modules.partition_point(|module| module.own <= id.0);
        let module = self.modules.get(after.checked_sub(1)?)?;
        let place = id.0.checked_sub(module.own)?;
        let number = FunctionId(module.first.saturating_add(place));
        (place < module.functions).then_some((number, module.module))
    }
}

// === impl Described ===

impl Described {
    /// Adds an id. True if it was not in the set before.
    pub(super) fn insert(&mut self, id: FunctionId) -> bool {
        if id.0 >= MAX_FUNCTIONS {
            return false;
        }
        let (word, bit) = ((id.0 / 64) as usize, 1_u64 << (id.0 % 64));
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }
}
