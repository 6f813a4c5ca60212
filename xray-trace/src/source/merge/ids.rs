//! The ids of processes, modules, functions, threads and tracepoints, given out anew for the merged
//! trace. It decides when functions of several traces are one function.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;

use crate::event_format::Tracepoint;
use crate::model::{Function, FunctionId, Module, ModuleId, ProcessId, ThreadId};

/// The thread of losses that no thread had. It is the same in all traces.
pub(super) const NO_THREAD: ThreadId = ThreadId(u32::MAX);

/// A function as all traces know it: file, build, address, id in the map, name.
type FunctionKey = (String, Option<Vec<u8>>, u64, u32, String);

/// The ids that were given out.
#[derive(Debug, Default)]
pub(super) struct Ids {
    processes: u32,
    modules: u32,
    threads: u32,
    functions: u32,
    known_functions: HashMap<FunctionKey, FunctionId>,
    /// By name and description.
    tracepoints: HashMap<(String, String), u16>,
}

/// The ids of one trace in the merged one.
#[derive(Debug, Default)]
pub(super) struct Places {
    processes: HashMap<ProcessId, ProcessId>,
    modules: HashMap<ModuleId, ModuleId>,
    threads: HashMap<ThreadId, ThreadId>,
    functions: HashMap<FunctionId, FunctionId>,
    tracepoints: HashMap<u16, u16>,
}

// === impl Ids ===

impl Ids {
    /// The next id.
    fn next(count: &mut u32) -> io::Result<u32> {
        let id = *count;
        // The last id stands for losses without a thread.
        if id >= u32::MAX - 1 {
            return Err(io::Error::other("the traces have too many ids"));
        }
        *count += 1;
        Ok(id)
    }
}

// === impl Places ===

impl Places {
    /// Makes a process of this trace the same as one of the merged trace.
    pub(super) fn set_process(&mut self, id: ProcessId, merged: ProcessId) {
        self.processes.insert(id, merged);
    }

    /// Makes a thread of this trace the same as one of the merged trace.
    pub(super) fn set_thread(&mut self, id: ThreadId, merged: ThreadId) {
        self.threads.insert(id, merged);
    }

    pub(super) fn process(&mut self, ids: &mut Ids, id: ProcessId) -> io::Result<ProcessId> {
        place(&mut self.processes, id, &mut ids.processes, ProcessId)
    }

    pub(super) fn module(&mut self, ids: &mut Ids, id: ModuleId) -> io::Result<ModuleId> {
        place(&mut self.modules, id, &mut ids.modules, ModuleId)
    }

    pub(super) fn thread(&mut self, ids: &mut Ids, id: ThreadId) -> io::Result<ThreadId> {
        match id {
            NO_THREAD => Ok(id),
            id => place(&mut self.threads, id, &mut ids.threads, ThreadId),
        }
    }

    /// The id of a function of the table. The second value is true if no trace has had it so far.
    pub(super) fn function(
        &mut self,
        ids: &mut Ids,
        function: &Function,
        module: Option<&Module>,
    ) -> io::Result<(FunctionId, bool)> {
        let name = function.symbol.as_ref().unwrap_or(&function.name);
        let path = module.map_or_else(String::new, |module| module.path.clone());
        let build = module.and_then(|module| module.build_id.as_ref());
        let key = (
            path,
            build.map(|build| build.0.clone()),
            function.address.0,
            function.xray_id,
            name.clone(),
        );
        let known = ids.known_functions.get(&key).copied();
        let id = match known {
            Some(id) => id,
            None => FunctionId(Ids::next(&mut ids.functions)?),
        };
        ids.known_functions.insert(key, id);
        self.functions.insert(function.id, id);
        Ok((id, known.is_none()))
    }

    /// Gives a tracepoint its number in the merged trace. Returns the number if no trace has had
    /// the tracepoint so far.
    pub(super) fn add_tracepoint(
        &mut self,
        ids: &mut Ids,
        number: u16,
        tracepoint: &Tracepoint,
    ) -> io::Result<Option<u16>> {
        let key = (tracepoint.name.clone(), tracepoint.description().to_owned());
        if let Some(known) = ids.tracepoints.get(&key) {
            self.tracepoints.insert(number, *known);
            return Ok(None);
        }
        let merged = ids.tracepoints.len();
        let merged = u16::try_from(merged)
            .ok()
            .filter(|merged| *merged < u16::MAX)
            .ok_or_else(|| io::Error::other("the traces have too many tracepoints"))?;
        self.tracepoints.insert(number, merged);
        ids.tracepoints.insert(key, merged);
        Ok(Some(merged))
    }

    /// The number of a tracepoint in the merged trace; the greatest one for a tracepoint that the
    /// trace does not describe.
    pub(super) fn tracepoint(&self, number: u16) -> u16 {
        self.tracepoints.get(&number).copied().unwrap_or(u16::MAX)
    }

    /// The id of a function in an event. The table may lack it.
    pub(super) fn function_of_event(
        &mut self,
        ids: &mut Ids,
        id: FunctionId,
    ) -> io::Result<FunctionId> {
        place(&mut self.functions, id, &mut ids.functions, FunctionId)
    }
}

/// The id in the merged trace. A new one is the next of `count`.
fn place<Id: Copy + Eq + Hash>(
    places: &mut HashMap<Id, Id>,
    id: Id,
    count: &mut u32,
    of: impl FnOnce(u32) -> Id,
) -> io::Result<Id> {
    if let Some(known) = places.get(&id) {
        return Ok(*known);
    }
    let new = of(Ids::next(count)?);
    places.insert(id, new);
    Ok(new)
}
