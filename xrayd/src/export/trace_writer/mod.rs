//! The trace writer: the items of one or several processes in, the bytes of one `.xtrace` file out.
//! It has no clock and never waits.
//!
//! What was written so far is a readable file at any time. A function is described before the first
//! block that has an event of it, and otherwise never. So a program with 100,000 functions of which
//! three are on costs three descriptions.
//!
//! Each process numbers its modules, functions and threads for itself, from 0 on. In a trace,
//! numbers are unique:
//!
//! ```text
//!  process, module    in ascending order
//!  thread             in runs of 64, each given out with the first thread of the run
//!  function           a run for each load of a file, shared by the processes with the same file
//! ```
//!
//! So the calls of a function count for one function in all processes of a group, and the events of
//! a process and its forks need no new numbers. A block whose functions have other numbers in the
//! trace is encoded anew. A trace of one process has the numbers of that process.

mod budget;
mod numbers;
mod sums;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    sync::Arc,
};

use xray_trace::{
    analysis::SPACING,
    container::{Block, ClosedBlock, End, OpenCalls, StreamIndex, Writer},
    model::{
        ClockAnchor, EventType, Function, FunctionId, Lifetime, Module, ModuleId, Origin,
        Overwritten, Process, ProcessId, RecordingWindow, SnapshotWindow, Thread, ThreadId, Ticks,
    },
};

use crate::{
    export::trace_writer::numbers::{Described, ModuleNumbers, Numbers, Run, WrittenRows},
    store::{NumberedModule, Source, Tables},
};

/// Threads of a process that get their numbers together.
const RUN: u32 = 64;
/// Shortest time between anchors of different processes, in nanoseconds. All processes have the
/// same clock.
const ANCHORS_APART: u64 = 500_000_000;

/// The number for functions that their process does not know.
const NO_FUNCTION: FunctionId = FunctionId(u32::MAX);

/// A writer of one trace.
#[derive(Debug)]
pub struct TraceWriter<W> {
    writer: Writer<W>,
    /// The processes that are being written. An entry is removed when its process ends.
    sources: BTreeMap<Source, Numbers>,
    /// The runs of all files, by path, allocation, and the number of the load in its process.
    files: HashMap<(String, usize, usize), Run>,
    /// Next numbers: how many of each were described.
    processes: u32,
    modules: u32,
    functions: u32,
    threads: u32,
    /// The functions that were described, by their numbers in the trace.
    described: Described,
    /// The process of the last anchor, and the time of the anchor.
    anchored: Option<(Source, u64)>,
    /// True if the function was described that stands for all stacks that were not kept apart.
    more_stacks: bool,
    /// True if sums of calls were added.
    sums: bool,
    /// The open calls at the begins of blocks, as far as they are not written.
    index: StreamIndex,
    /// Entries of calls in all blocks.
    entries: u64,
    /// Events that the reader lost in the whole stream.
    reader_lost: u64,
}

// === impl TraceWriter ===

impl<W: Write> TraceWriter<W> {
    /// The thread in the file for losses of the reader. They may be of any thread. No thread of a
    /// process has this id.
    pub const READER: ThreadId = ThreadId(u32::MAX);

    /// Begins a trace: writes the header.
    ///
    /// # Errors
    /// The error of the inner writer, here and in the other methods.
    pub fn new(out: W) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::new(out)?,
            sources: BTreeMap::new(),
            files: HashMap::new(),
            processes: 0,
            modules: 0,
            functions: 0,
            threads: 0,
            described: Described::default(),
            anchored: None,
            more_stacks: false,
            sums: false,
            index: StreamIndex::new(SPACING),
            entries: 0,
            reader_lost: 0,
        })
    }

    /// Adds a process. Items from `source` are its.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn process(
        &mut self,
        source: Source,
        process: &Process,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        let id = ProcessId(self.processes);
        self.processes = self.processes.saturating_add(1);
        self.writer.process(&Process {
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
        self.add_modules(source, tables)
    }

    /// Adds the origin of a process.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn origin(&mut self, source: Source, origin: Origin) -> io::Result<()> {
        match self.sources.get(&source) {
            Some(numbers) => self.writer.origin(numbers.process, origin),
            None => Ok(()),
        }
    }

    /// Sets the earliest time of items from `source`. Suppressions, windows and filters before it
    /// are not in the trace.
    pub fn begins(&mut self, source: Source, at: Ticks) {
        if let Some(numbers) = self.sources.get_mut(&source) {
            numbers.first = Some(numbers.first.map_or(at, |first| first.min(at)));
        }
    }

    /// Ends a process. Adds the load times of its described modules, and its suppressions, windows
    /// and filters.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn ended(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
        let first = self.sources.get(&source).and_then(|numbers| numbers.first);
        // Sums have no times, so everything counts.
        self.budget(source, first.unwrap_or(Ticks(0)), tables, true)?;
        let Some(numbers) = self.sources.remove(&source) else {
            return Ok(());
        };
        let mut runs: Vec<u32> = numbers.threads.values().copied().collect();
        runs.sort_unstable();
        for thread in runs.into_iter().flat_map(|first| first..first + RUN) {
            let sections = self.index.end_thread(ThreadId(thread));
            self.open_calls(&sections)?;
        }
        for lifetime in tables.lifetimes() {
            if let Some(module) = numbers.modules.get(lifetime.module.0 as usize) {
                self.writer.lifetime(&Lifetime {
                    module: module.row,
                    ..lifetime
                })?;
            }
        }
        Ok(())
    }

    /// Adds a thread, or its new name.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn thread(&mut self, source: Source, thread: &Thread) -> io::Result<()> {
        let id = self.thread_number(source, thread.id);
        let numbers = self.sources.get(&source);
        self.writer.thread(&Thread {
            id,
            process: numbers.map_or(thread.process, |numbers| numbers.process),
            ..thread.clone()
        })
    }

    /// Adds the name of a type of typed events, or its new name.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn event_type(&mut self, source: Source, event_type: &EventType) -> io::Result<()> {
        let numbers = self.sources.get(&source);
        self.writer.event_type(&EventType {
            process: numbers.map_or(event_type.process, |numbers| numbers.process),
            ..event_type.clone()
        })
    }

    /// Adds a clock anchor, unless another process has just added one.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn anchor(&mut self, source: Source, anchor: &ClockAnchor) -> io::Result<()> {
        if self.anchored.is_some_and(|(other, last)| {
            other != source && anchor.monotonic_ns < last.saturating_add(ANCHORS_APART)
        }) {
            return Ok(());
        }
        self.anchored = Some((source, anchor.monotonic_ns));
        self.writer.anchor(anchor)
    }

    /// Adds a function, unless it was added before.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn function(
        &mut self,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.function_number(source, id, tables).map(drop)
    }

    /// Adds a block of which nothing is known: its events are unpacked to find its functions. The
    /// trace then has no index of open calls.
    ///
    /// # Errors
    /// As [`Self::closed_block`].
    pub fn block(&mut self, source: Source, block: &Block, tables: &dyn Tables) -> io::Result<()> {
        self.closed_block(source, &ClosedBlock::unpacked(block.clone()), tables)
    }

    /// Adds a block, after the functions and modules of the block that were not described yet.
    /// `tables` are those of its process. The block is unpacked only if its functions have other
    /// numbers in the trace.
    ///
    /// # Errors
    /// A block that is longer than the format allows, or the error of the inner writer.
    pub fn closed_block(
        &mut self,
        source: Source,
        closed: &ClosedBlock,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        let ClosedBlock {
            block,
            functions,
            entries,
            stack,
        } = closed;
        let thread = self.thread_number(source, block.thread);
        if let Some(numbers) = self.sources.get_mut(&source) {
            let first = numbers.first.unwrap_or(block.first);
            numbers.first = Some(first.min(block.first));
        }
        let mut same = true;
        for id in functions.iter() {
            let number = self.function_number(source, id, tables)?;
            same &= number == id;
        }
        let numbers = self.sources.get(&source);
        let number = |id| numbers.map_or(id, |numbers| numbers.function(id).unwrap_or(NO_FUNCTION));
        let written = match same {
            true => Some(Block {
                thread,
                ..block.clone()
            }),
            false => block.renumbered(thread, number),
        };
        let Some(written) = written else {
            return Ok(());
        };
        self.writer.block(&written)?;
        self.entries = self.entries.saturating_add(u64::from(*entries));
        let len = written.encoded_len() as u64;
        let sections = self.index.block(thread, len, stack.as_ref(), number);
        self.open_calls(&sections)
    }

    fn open_calls(&mut self, sections: &[OpenCalls]) -> io::Result<()> {
        let mut sections = sections.iter();
        sections.try_for_each(|section| self.writer.open_calls(section))
    }

    /// Adds losses of a thread whose place among its events is unknown.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn lost(&mut self, source: Source, thread: ThreadId, events: u64) -> io::Result<()> {
        let thread = self.thread_number(source, thread);
        self.writer.lost(thread, events)
    }

    /// Marks the trace as a snapshot of a time.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn snapshot(&mut self, window: &SnapshotWindow) -> io::Result<()> {
        self.writer.snapshot(window)
    }

    /// Adds the time that the trace covers of a process, and what it leaves out.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn recording(&mut self, source: Source, window: &RecordingWindow) -> io::Result<()> {
        match self.sources.get(&source) {
            Some(numbers) => self.writer.recording(&RecordingWindow {
                process: numbers.process,
                ..*window
            }),
            None => Ok(()),
        }
    }

    /// Adds the number of events of a thread that newer ones have overwritten. They are not losses.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn overwritten(&mut self, source: Source, overwritten: &Overwritten) -> io::Result<()> {
        let thread = self.thread_number(source, overwritten.thread);
        self.writer.overwritten(&Overwritten {
            thread,
            ..*overwritten
        })
    }

    /// Adds events that this trace lost because its reader was too slow.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn reader_lost(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.reader_lost = self.reader_lost.saturating_add(events);
        // Nothing tells which calls have begun and ended in the missing blocks.
        self.index.give_up();
        self.writer.lost(Self::READER, events)
    }

    /// Adds the rest of the index, and marks the trace as finished. Nothing may follow.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn end(&mut self) -> io::Result<()> {
        let sections = self.index.finish();
        self.open_calls(&sections)?;
        self.writer.end(&self.writer.totals())
    }

    /// The inner writer.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    /// Totals of the whole trace. Losses of the reader are among the losses.
    #[must_use]
    pub fn totals(&self) -> End {
        self.writer.totals()
    }

    /// Entries of calls in the whole trace.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// True if the trace has its whole index of open calls once it is ended.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.index.is_complete()
    }

    /// Events that the reader lost in the whole trace.
    #[must_use]
    pub fn reader_lost_total(&self) -> u64 {
        self.reader_lost
    }

    /// Describes a function unless it was described before, and returns its number.
    fn function_number(
        &mut self,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<FunctionId> {
        let found = |this: &Self| {
            let numbers = this.sources.get(&source)?;
            Some((numbers.function(id)?, numbers.module_of(id)?))
        };
        let known = match found(self) {
            Some(known) => Some(known),
            // The function may be of a library that was loaded since.
            None => {
                self.add_modules(source, tables)?;
                found(self)
            }
        };
        let Some((number, module)) = known else {
            return Ok(NO_FUNCTION);
        };
        if self.described.insert(number)
            && let Some(function) = tables.function(id)
        {
            self.writer.function(&Function {
                id: number,
                module,
                ..function
            })?;
        }
        Ok(number)
    }

    /// Adds the modules that were loaded since the last call.
    fn add_modules(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
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
            self.writer.module(&Module {
                id,
                process: numbers.process,
                ..module
            })?;
        }
        Ok(())
    }

    fn thread_number(&mut self, source: Source, id: ThreadId) -> ThreadId {
        let Some(numbers) = self.sources.get_mut(&source) else {
            return id;
        };
        let first = numbers.threads.entry(id.0 / RUN).or_insert_with(|| {
            let first = self.threads;
            // After four thousand million threads, further threads share their numbers.
            self.threads = first.saturating_add(RUN).min(Self::READER.0 - RUN);
            first
        });
        ThreadId(*first + id.0 % RUN)
    }
}
