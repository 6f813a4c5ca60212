//! The trace of an import that names its processes, threads and functions: an export in rows, or
//! trace events. Ticks are nanoseconds.
//!
//! Blocks are written as they fill. The tables stay in memory until the end of the import, because
//! a name can come after the events of its thread.

mod event_types;

use std::io;

use self::event_types::EventTypes;
use super::OpenError;
use super::anchors::anchors;
use super::ids::next_id;
use super::notes::Notes;
use super::spool::Spool;
use crate::FileAddr;
use crate::container::{BlockEncoder, MAX_DATA_LEN, MAX_TEXT_LEN};
use crate::model::{
    CallKind, DataKind, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread,
    ThreadId, Ticks, Trace, Values,
};

/// The most threads with a block in progress.
const MOST_OPEN: usize = 256;
/// Ticks per second.
const FREQUENCY: u64 = 1_000_000_000;

/// A trace in progress.
#[derive(Debug)]
pub(super) struct TraceBuilder {
    spool: Spool,
    /// By id.
    processes: Vec<Process>,
    /// By id.
    threads: Vec<ThreadState>,
    /// By id.
    modules: Vec<Module>,
    /// In the order in which they were added.
    functions: Vec<Function>,
    event_types: EventTypes,
    /// The threads with a block in progress, at most [`MOST_OPEN`].
    open: Vec<ThreadId>,
    /// Events that are missing, of unknown threads.
    lost: u64,
    notes: Notes,
}

/// A thread, and its block in progress.
#[derive(Debug)]
struct ThreadState {
    thread: Thread,
    /// The time of its latest event.
    now: u64,
    /// The block in progress; `None` before its first event, and after a flush of all blocks.
    encoder: Option<BlockEncoder>,
    /// The time of a mark that belongs to the next event. Both have to be in one block.
    unmatched: Option<Ticks>,
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body<'a> {
    /// A function began or ended.
    Call {
        function: FunctionId,
        kind: CallKind,
        values: Values,
    },
    /// A custom or typed event.
    Data {
        kind: DataKind,
        function: Option<FunctionId>,
        /// The number of bytes that the program gave, if `data` has fewer.
        size: Option<u32>,
        data: &'a [u8],
    },
    /// The thread runs on this processor from here on.
    Cpu(u16),
    /// This number of the innermost calls ended without an exit.
    Unwound(u64),
    /// The next event is an exit that belongs to no open call.
    UnmatchedExit,
    /// This number of events is missing.
    Lost(u64),
}

// === impl TraceBuilder ===

impl TraceBuilder {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            spool: Spool::new()?,
            processes: Vec::new(),
            threads: Vec::new(),
            modules: Vec::new(),
            functions: Vec::new(),
            event_types: EventTypes::default(),
            open: Vec::new(),
            lost: 0,
            notes: Notes::default(),
        })
    }

    /// Adds a process.
    pub(super) fn process(&mut self, pid: u32, command: &str) -> io::Result<ProcessId> {
        let id = ProcessId(next_id(self.processes.len())?);
        self.processes.push(Process {
            id,
            pid,
            start_time_ticks: 0,
            command: command.to_owned(),
            executable: String::new(),
            host: None,
        });
        Ok(id)
    }

    /// Adds a thread.
    pub(super) fn thread(
        &mut self,
        process: ProcessId,
        tid: u32,
        name: &str,
    ) -> io::Result<ThreadId> {
        let id = ThreadId(next_id(self.threads.len())?);
        self.threads.push(ThreadState {
            thread: Thread {
                id,
                process,
                tid,
                name: name.to_owned(),
            },
            now: 0,
            encoder: None,
            unmatched: None,
        });
        Ok(id)
    }

    /// Sets the name of a process.
    pub(super) fn name_process(&mut self, id: ProcessId, command: &str) {
        if let Some(process) = self.processes.get_mut(id.0 as usize) {
            command.clone_into(&mut process.command);
        }
    }

    /// Sets the name of a thread.
    pub(super) fn name_thread(&mut self, id: ThreadId, name: &str) {
        if let Some(state) = self.threads.get_mut(id.0 as usize) {
            name.clone_into(&mut state.thread.name);
        }
    }

    /// Adds a module.
    pub(super) fn module(&mut self, process: ProcessId, path: &str) -> io::Result<ModuleId> {
        let id = ModuleId(next_id(self.modules.len())?);
        self.modules.push(Module {
            id,
            process,
            path: path.to_owned(),
            build_id: None,
            load_bias: 0,
            event_formats: Vec::new(),
        });
        Ok(id)
    }

    /// Adds a function. The caller gives out the ids, each once.
    pub(super) fn function(&mut self, id: FunctionId, module: ModuleId, name: &str) {
        self.functions.push(Function {
            id,
            module,
            xray_id: id.0.saturating_add(1),
            address: FileAddr(0),
            symbol: None,
            name: name.to_owned(),
            source: None,
            sleds: 0,
        });
    }

    /// The number in the trace of a process's type of typed events with this number and name. The
    /// name is empty if the type has none.
    pub(super) fn event_type(&mut self, process: ProcessId, number: u16, name: &str) -> u16 {
        self.event_types.number(process, number, name)
    }

    /// Adds an event of a thread. A time before the thread's latest event is replaced by the time
    /// of that event, and counted.
    pub(super) fn push(&mut self, thread: ThreadId, ns: u64, body: Body<'_>) -> io::Result<()> {
        let is_open = self
            .threads
            .get(thread.0 as usize)
            .is_some_and(|state| state.encoder.is_some());
        if !is_open {
            if self.open.len() >= MOST_OPEN {
                self.end_blocks()?;
            }
            self.open.push(thread);
        }
        let Some(state) = self.threads.get_mut(thread.0 as usize) else {
            return Err(io::Error::other("an event of a thread that was not added"));
        };
        self.notes.backwards += u64::from(ns < state.now);
        state.now = state.now.max(ns);
        let ticks = Ticks(state.now);
        let former = match body {
            Body::UnmatchedExit => state.unmatched.replace(ticks),
            _ => state.unmatched.take(),
        };
        let encoder = state
            .encoder
            .get_or_insert_with(|| BlockEncoder::new(thread));
        if let Some(at) = former {
            encoder.push_unmatched_exit(at);
        }
        self.notes.cut_bytes += put(encoder, ticks, body);
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN
            && let Some(block) = encoder.finish()
        {
            self.spool.writer.block(&block)?;
        }
        Ok(())
    }

    /// Adds events that are missing, whose threads and places are unknown.
    pub(super) fn lost(&mut self, events: u64) {
        self.lost = self.lost.saturating_add(events);
    }

    /// Writes the tables, and returns the trace and the counts of data that was not kept.
    pub(super) fn finish(mut self) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
        for state in &mut self.threads {
            // A mark without a following event is kept as it is.
            if let Some(at) = state.unmatched.take() {
                let encoder = state.encoder.take();
                let mut encoder = encoder.unwrap_or_else(|| BlockEncoder::new(state.thread.id));
                encoder.push_unmatched_exit(at);
                if let Some(block) = encoder.finish() {
                    self.spool.writer.block(&block)?;
                }
            }
        }
        self.end_blocks()?;
        let Self {
            mut spool,
            processes,
            threads,
            modules,
            functions,
            event_types,
            open: _,
            lost,
            mut notes,
        } = self;
        let names = processes.iter().map(|process| &process.command);
        let names = names.chain(threads.iter().map(|state| &state.thread.name));
        let names = names.chain(modules.iter().map(|module| &module.path));
        let names = names.chain(functions.iter().map(|function| &function.name));
        let names = names.chain(event_types.names());
        notes.cut_names = names.filter(|name| name.len() > MAX_TEXT_LEN).count() as u64;
        notes.renumbered_types = event_types.renumbered;
        notes.mistyped = event_types.mistyped;
        let writer = &mut spool.writer;
        writer.add_all(&anchors(FREQUENCY, None))?;
        writer.add_all(&processes)?;
        writer.add_all(&modules)?;
        writer.add_all(&functions)?;
        writer.add_all(threads.iter().map(|state| &state.thread))?;
        for event_type in event_types.into_table() {
            writer.add(&event_type)?;
        }
        if lost > 0 {
            writer.lost(ThreadId(u32::MAX), lost)?;
        }
        let notes = notes.into_list().into_iter();
        let notes = notes.filter(|(_, count)| *count > 0).collect();
        Ok((spool.finish()?, notes))
    }

    /// Ends the blocks in progress.
    fn end_blocks(&mut self) -> io::Result<()> {
        for thread in self.open.drain(..) {
            let state = self.threads.get_mut(thread.0 as usize);
            let encoder = state.and_then(|state| state.encoder.take());
            if let Some(block) = encoder.and_then(|mut encoder| encoder.finish()) {
                self.spool.writer.block(&block)?;
            }
        }
        Ok(())
    }
}

/// Packs an event. Returns the number of bytes of its data that were cut.
fn put(encoder: &mut BlockEncoder, ticks: Ticks, body: Body<'_>) -> u64 {
    match body {
        Body::Call {
            function,
            kind,
            values,
        } => encoder.push_call(ticks, function, kind, values),
        Body::Data {
            kind,
            function: None,
            size: None,
            data,
        } if data.len() <= MAX_DATA_LEN => return encoder.push_data(ticks, kind, data) as u64,
        Body::Data {
            kind,
            function,
            size,
            data,
        } => {
            // Data that is cut here has the size before the cut.
            let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let size = size.map_or(len, |size| size.max(len));
            return encoder.push_user_event(ticks, kind, function, size, data) as u64;
        }
        Body::Cpu(cpu) => encoder.push_cpu(ticks, cpu),
        Body::Unwound(calls) => encoder.push_unwound(ticks, calls),
        // The next event of the thread puts it.
        Body::UnmatchedExit => {}
        Body::Lost(events) => encoder.push_lost(ticks, events),
    }
    0
}
