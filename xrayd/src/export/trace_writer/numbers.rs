//! The numbers of processes' modules, functions and threads, their own and a trace's.

use std::{any::Any, collections::HashMap, sync::Arc};

use xray_trace::model::{FunctionId, ModuleId, ProcessId, Ticks};

/// Functions that one trace can describe: an event that names a greater id is kept, without a name.
const MAX_FUNCTIONS: u32 = 1 << 24;

/// The functions of a file.
#[derive(Debug)]
pub(super) struct Run {
    /// The row of the module that they are described with.
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
    /// What was told of what was not recorded on purpose.
    pub(super) told: Told,
    /// By id, which is also the order of `own`.
    pub(super) modules: Vec<ModuleNumbers>,
    /// By the number of the run.
    pub(super) threads: HashMap<u32, u32>,
}

/// What was told of a process, so that a trace that goes on tells what has changed.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Of each function, since when its latest rest was, and whether its end was told.
    pub(super) rests: HashMap<FunctionId, (Ticks, bool)>,
    /// When the last window began.
    pub(super) windows: Option<Ticks>,
    /// Since when the last filter was in force.
    pub(super) filters: Option<Ticks>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ModuleNumbers {
    /// Its first function in the process, and how many it has.
    pub(super) own: u32,
    pub(super) functions: u32,
    /// Its first function in the trace.
    pub(super) first: u32,
    /// The row that its functions are described with, and its own.
    pub(super) module: ModuleId,
    pub(super) row: ModuleId,
    /// The address of its file's allocation.
    pub(super) file: usize,
}

/// A set of function ids. Ids are dense, so a bit each; those beyond the bound are never described.
#[derive(Debug, Default)]
pub(super) struct Described(Vec<u64>);

// === impl Numbers ===

impl Numbers {
    pub(super) fn function(&self, id: FunctionId) -> Option<FunctionId> {
        let module = self.find(id)?;
        Some(FunctionId(
            module.first.saturating_add(id.0.checked_sub(module.own)?),
        ))
    }

    pub(super) fn module_of(&self, id: FunctionId) -> Option<ModuleId> {
        Some(self.find(id)?.module)
    }

    fn find(&self, id: FunctionId) -> Option<&ModuleNumbers> {
        let after = self.modules.partition_point(|module| module.own <= id.0);
        let module = self.modules.get(after.checked_sub(1)?)?;
        (id.0 - module.own < module.functions).then_some(module)
    }
}

// === impl Described ===

impl Described {
    /// Whether `id` was not in the set yet and is now.
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
