//! Descriptions of processes, modules and functions in a trace, each written once, and the numbers
//! that modules, functions and threads have in it.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    sync::Arc,
};

use xray_trace::{
    FileAddr,
    analysis::MORE_STACKS,
    container::Writer,
    model::{Function, FunctionId, Module, ModuleId, Process, ProcessId, ThreadId},
};

use super::numbers::{Described, ModuleNumbers, Numbers, Run, WrittenRows};
use crate::store::{NumberedModule, Source, Tables};

/// The thread in the file for losses of the reader. They may be of any thread. No thread of a
/// process has this id.
pub(super) const READER: ThreadId = ThreadId(u32::MAX);

/// Threads of a process that get their numbers together.
pub(super) const RUN: u32 = 64;

/// The number for functions that their process does not know.
const NO_FUNCTION: FunctionId = FunctionId(u32::MAX);

/// The processes, modules and functions that a trace describes.
#[derive(Debug, Default)]
pub(super) struct Descriptions {
    /// The processes that are being written. An entry is removed when its process ends.
    pub(super) sources: BTreeMap<Source, Numbers>,
    /// The runs of all files, by path, allocation, and the number of the load in its process.
    files: HashMap<(String, usize, usize), Run>,
    /// Next numbers: how many of each were described.
    processes: u32,
    modules: u32,
    functions: u32,
    threads: u32,
    /// The functions that were described, by their numbers in the trace.
    described: Described,
    /// True if threads have the numbers of their process.
    keeps_threads: bool,
    /// True if the function was described that stands for all stacks that were not kept apart.
    more_stacks: bool,
}

// === impl Descriptions ===

impl Descriptions {
    /// The number of a process in the trace.
    pub(super) fn process_id(&self, source: Source) -> Option<ProcessId> {
        Some(self.sources.get(&source)?.process)
    }

    /// Gives threads the numbers that they have in their process. To be called for a trace of one
    /// process.
    pub(super) fn keep_threads(&mut self) {
        self.keeps_threads = true;
    }

    /// The number of a thread in the trace.
    pub(super) fn thread_number(&mut self, source: Source, id: ThreadId) -> ThreadId {
        if self.keeps_threads {
            return id;
        }
        let Some(numbers) = self.sources.get_mut(&source) else {
            return id;
        };
        let first = numbers.threads.entry(id.0 / RUN).or_insert_with(|| {
            let first = self.threads;
            // After four thousand million threads, further threads share their numbers.
            self.threads = first.saturating_add(RUN).min(READER.0 - RUN);
            first
        });
        ThreadId(*first + id.0 % RUN)
    }

    /// The number of a function in the trace, whether it was described or not.
    pub(super) fn function_number(&self, source: Source, id: FunctionId) -> FunctionId {
        let numbers = self.sources.get(&source);
        numbers.map_or(id, |numbers| {
            numbers
                .function(id)
                .map_or(NO_FUNCTION, |(number, _)| number)
        })
    }

    /// Describes a process and its modules.
    pub(super) fn add_process<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        source: Source,
        process: &Process,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        let id = ProcessId(self.processes);
        self.processes = self.processes.saturating_add(1);
        writer.add(&Process {
            id,
            ..process.clone()
        })?;
        let numbers = Numbers {
            process: id,
            first: None,
            reported: WrittenRows::default(),
            modules: Vec::new(),
            threads: HashMap::new(),
        };
        self.sources.insert(source, numbers);
        self.add_modules(writer, source, tables)
    }

    /// Describes a function unless it was described before, and returns its number.
    pub(super) fn add_function<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<FunctionId> {
        let found = |this: &Self| this.sources.get(&source)?.function(id);
        let known = match found(self) {
            Some(known) => Some(known),
            // The function may be of a library that was loaded since.
            None => {
                self.add_modules(writer, source, tables)?;
                found(self)
            }
        };
        let Some((number, module)) = known else {
            return Ok(NO_FUNCTION);
        };
        if self.described.insert(number)
            && let Some(function) = tables.function(id)
        {
            writer.add(&Function {
                id: number,
                module,
                ..function
            })?;
        }
        Ok(number)
    }

    /// Describes the function that stands for all stacks that were not kept apart.
    pub(super) fn add_more_stacks<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        source: Source,
    ) -> io::Result<()> {
        let numbers = self.sources.get(&source);
        let Some(module) = numbers.and_then(|numbers| numbers.modules.first()) else {
            return Ok(());
        };
        if std::mem::replace(&mut self.more_stacks, true) {
            return Ok(());
        }
        writer.add(&Function {
            id: MORE_STACKS,
            module: module.row,
            xray_id: 0,
            address: FileAddr(0),
            symbol: None,
            name: "[more stacks]".to_owned(),
            source: None,
            sleds: 0,
        })
    }

    /// Describes the modules that were loaded since the last call.
    fn add_modules<W: Write>(
        &mut self,
        writer: &mut Writer<W>,
        source: Source,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        let Some(numbers) = self.sources.get_mut(&source) else {
            return Ok(());
        };
        for module in tables.modules().into_iter().skip(numbers.modules.len()) {
            let NumberedModule {
                module,
                first: own,
                functions,
                file,
            } = module;
            let id = ModuleId(self.modules);
            self.modules = self.modules.saturating_add(1);
            let address = Arc::as_ptr(&file).cast::<()>().addr();
            let loads = numbers
                .modules
                .iter()
                .filter(|module| module.file == address);
            let load = loads.count();
            let next = self.functions;
            let mut is_new = false;
            let run = self
                .files
                .entry((module.path.clone(), address, load))
                .or_insert_with(|| {
                    is_new = true;
                    Run {
                        module: id,
                        first: next,
                        _file: file,
                    }
                });
            numbers.modules.push(ModuleNumbers {
                own: own.0,
                functions,
                first: run.first,
                module: run.module,
                row: id,
                file: address,
            });
            if is_new {
                self.functions = next.saturating_add(functions);
            }
            writer.add(&Module {
                id,
                process: numbers.process,
                ..module
            })?;
        }
        Ok(())
    }
}
