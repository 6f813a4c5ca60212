//! The ids of functions in LLVM's logs and tools.
//!
//! An instrumentation map numbers its functions from 1. Since LLVM 20 a process can have several
//! maps. LLVM's runtime numbers them from 0, which is the main program's, and packs both numbers
//! into 32 bits (`__xray_pack_id`, compiler-rt/lib/xray):
//!
//! ```text
//!  31     24 23                      0
//! │ object  │ function in its object  │
//! ```
//!
//! So the ids of a main program are those of its map. A trace can have several processes. Here each
//! file has one number for all processes that have mapped it. 0 is the main program of the first
//! process, also if it has no functions in the trace. The others follow in the order of the files
//! in the trace. So functions with the same id are the same function, and a function without an id
//! never gets the id of another one.

use std::collections::{BTreeMap, HashMap};

use super::{Function, FunctionId, Module, ModuleId, Trace};

/// Bits of a function's number in its object.
const FUNCTION_BITS: u32 = 24;
/// The greatest number of an object.
const MAX_OBJECT: u32 = 0xff;

/// The ids of a trace's functions in LLVM's logs and tools.
#[derive(Debug)]
pub struct XrayIds<'a> {
    trace: &'a Trace,
    objects: BTreeMap<ModuleId, u32>,
    /// The number of objects.
    count: u32,
}

/// The reason why a function has no id of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoXrayId {
    /// The trace does not have the function, or its module.
    Unknown,
    /// The function is in the 257th object or a later one, or is not among the first 2^24 - 1
    /// functions of its object.
    TooGreat,
}

// === impl XrayIds ===

impl<'a> XrayIds<'a> {
    /// Numbers the objects of a trace.
    #[must_use]
    pub fn new(trace: &'a Trace) -> Self {
        let program = trace.processes().first();
        let is_program = |module: &&Module| {
            program.is_some_and(|program| {
                program.id == module.process && program.executable == module.path
            })
        };
        let first = trace.modules().iter().find(is_program);
        let mut files = HashMap::new();
        let mut objects = BTreeMap::new();
        let mut count = 1;
        files.extend(first.map(|Module { path, build_id, .. }| ((path, build_id), 0)));
        for module in trace.modules() {
            let Module { path, build_id, .. } = module;
            let object = *files.entry((path, build_id)).or_insert_with(|| {
                count += 1;
                count - 1
            });
            objects.insert(module.id, object);
        }
        Self {
            trace,
            objects,
            count,
        }
    }

    /// The object and the function, packed as LLVM 20 packs them.
    ///
    /// # Errors
    ///
    /// The reason why there is no such id.
    pub fn packed(&self, id: FunctionId) -> Result<u32, NoXrayId> {
        let (object, function) = self.parts(id).ok_or(NoXrayId::Unknown)?;
        pack(object, function).ok_or(NoXrayId::TooGreat)
    }

    /// A number to show: the packed id if there is one. Other functions get different numbers from
    /// 2^32 on, which LLVM's tools do not use: the object's number, from 1, times 2^32, plus the
    /// function's number. A function that is not in the trace's tables counts as in an additional
    /// object behind all others, with its number in the trace.
    #[must_use]
    pub fn shown(&self, id: FunctionId) -> u64 {
        let (object, function) = match (self.packed(id), self.parts(id)) {
            (Ok(packed), _) => return packed.into(),
            (Err(_), Some(parts)) => parts,
            (Err(_), None) => (self.count, id.0),
        };
        (u64::from(object) + 1) << 32 | u64::from(function)
    }

    fn parts(&self, id: FunctionId) -> Option<(u32, u32)> {
        let Function {
            module, xray_id, ..
        } = self.trace.function(id)?;
        Some((*self.objects.get(module)?, *xray_id))
    }
}

/// The packed id of a function in an object, if it exists.
pub(crate) fn pack(object: u32, function: u32) -> Option<u32> {
    let fits = object <= MAX_OBJECT && function >> FUNCTION_BITS == 0;
    fits.then_some(object << FUNCTION_BITS | function)
}

/// The object and the function of a packed id.
#[cfg(feature = "import")]
pub(crate) fn unpacked(id: u32) -> (u32, u32) {
    (id >> FUNCTION_BITS, id & ((1 << FUNCTION_BITS) - 1))
}
