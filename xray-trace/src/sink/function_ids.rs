//! The ids that functions have in LLVM's logs.

use std::collections::BTreeMap;

use crate::model::{Function, FunctionId, ModuleId, ProcessId, Trace};

/// Function ids have 28 bits in a record, of which the lower 24 are the id in its object.
const OBJECT_SHIFT: u32 = 24;
const MAX_OBJECT: u32 = 15;

/// Functions by the ids they have in the log.
pub(super) struct FunctionIds<'a> {
    trace: &'a Trace,
    /// The number of each module in its process: 0 is the main program.
    objects: BTreeMap<ModuleId, u32>,
}

/// Why a function has no id in the log.
#[derive(Debug, Clone, Copy)]
pub(super) enum Misfit {
    Unknown,
    TooGreat,
}

// === impl FunctionIds ===

impl<'a> FunctionIds<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let mut next = BTreeMap::<ProcessId, u32>::new();
        let modules = trace.modules().iter().map(|module| {
            let next = next.entry(module.process).or_default();
            let object = *next;
            *next += 1;
            (module.id, object)
        });
        Self {
            trace,
            objects: modules.collect(),
        }
    }

    /// Packed as the runtime of LLVM 20 does: the object above 24 bits of the id in that object.
    pub(super) fn get(&self, id: FunctionId) -> Result<u32, Misfit> {
        let Function {
            module, xray_id, ..
        } = self.trace.function(id).ok_or(Misfit::Unknown)?;
        let object = *self.objects.get(module).ok_or(Misfit::Unknown)?;
        if object > MAX_OBJECT || *xray_id >> OBJECT_SHIFT != 0 {
            return Err(Misfit::TooGreat);
        }
        Ok(object << OBJECT_SHIFT | xray_id)
    }
}
