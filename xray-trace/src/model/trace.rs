//! A whole trace in memory: its tables, and its blocks, which stay packed. It does not interpret
//! events.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;

use super::{
    Clock, ClockAnchor, DutyWindow, EventType, FilterNote, Function, FunctionId, Lifetime, Module,
    ModuleId, Origin, Overwritten, Process, ProcessId, RecordingWindow, SnapshotWindow,
    Suppression, Thread, ThreadId, Ticks,
};
use crate::container::{
    Block, Completeness, End, Item, OpenCall, OpenCalls, ProfilePart, ReadError, Reader,
    SectionKind, Writer,
};

/// The most suppressions, duty windows and filters of a trace that are kept, of each. Further ones
/// are dropped.
const MOST_KEPT: usize = 1 << 16;

/// A trace in memory. Its tables are sorted by id. Its blocks are in the order in which they were
/// written; the blocks of one thread are in order of time.
#[derive(Debug, Clone)]
pub struct Trace {
    processes: Vec<Process>,
    /// Only of processes that were followed.
    origins: BTreeMap<ProcessId, Origin>,
    modules: Vec<Module>,
    lifetimes: Vec<Lifetime>,
    /// By function, process and time.
    suppressions: Vec<Suppression>,
    /// By process and time.
    duty: Vec<DutyWindow>,
    /// By process and time.
    filters: Vec<FilterNote>,
    functions: Vec<Function>,
    threads: Vec<Thread>,
    /// By process and number.
    event_types: Vec<EventType>,
    blocks: Vec<Block>,
    losses: Vec<(ThreadId, u64)>,
    overwritten: Vec<Overwritten>,
    snapshot: Option<SnapshotWindow>,
    /// By process.
    recordings: Vec<RecordingWindow>,
    /// By thread, in order of their first blocks.
    open_calls: BTreeMap<ThreadId, Vec<OpenCalls>>,
    profile: Vec<ProfilePart>,
    clock: Clock,
    completeness: Completeness,
}

/// The amount of data in a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Call events.
    pub calls: u64,
    /// Lost events.
    pub lost: u64,
    /// Bytes of packed events.
    pub encoded_len: u64,
}

// === impl Trace ===

impl Trace {
    /// Reads a whole trace. Memory is proportional to the bytes of the input.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, are not a trace, or are damaged. A trace that was cut is no
    /// error.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        Tables::read(&mut Reader::new(input)?, Reader::next_item)
    }

    /// Reads the tables of a trace file. Events stay in the file until they are needed, so memory
    /// does not grow with their number. The file must not change.
    ///
    /// # Errors
    ///
    /// As [`Self::read`], but damage in a block is found only when its events are read.
    pub fn open(file: File) -> Result<Self, ReadError> {
        let cannot = |source| ReadError::Io { offset: 0, source };
        let shared = Arc::new(file.try_clone().map_err(cannot)?);
        let len = file.metadata().map_err(cannot)?.len();
        let mut reader = Reader::new(BufReader::new(file))?;
        Tables::read(&mut reader, |reader| reader.next_item_of_file(&shared, len))
    }

    /// The same trace, with symbols as names of the functions that have one.
    #[must_use]
    pub fn with_symbols_as_names(mut self) -> Self {
        for function in &mut self.functions {
            if let Some(symbol) = &function.symbol {
                function.name.clone_from(symbol);
            }
        }
        self
    }

    /// Writes the trace as a finished one without an index. Blocks that cannot be read from their
    /// file are left out.
    ///
    /// # Errors
    ///
    /// The errors of `output`.
    pub fn write<W: Write>(&self, output: W) -> io::Result<W> {
        self.write_indexed(output, &[])
    }

    /// The same, with an index: the calls that are open at the begins of blocks.
    ///
    /// # Errors
    ///
    /// The errors of `output`.
    pub fn write_indexed<W: Write>(&self, output: W, index: &[OpenCalls]) -> io::Result<W> {
        let mut writer = Writer::new(output)?;
        self.processes
            .iter()
            .try_for_each(|process| writer.process(process))?;
        self.origins
            .iter()
            .try_for_each(|(process, origin)| writer.origin(*process, *origin))?;
        self.modules
            .iter()
            .try_for_each(|module| writer.module(module))?;
        self.lifetimes
            .iter()
            .try_for_each(|lifetime| writer.lifetime(lifetime))?;
        self.suppressions
            .iter()
            .try_for_each(|suppression| writer.suppression(suppression))?;
        self.duty
            .iter()
            .try_for_each(|window| writer.duty(window))?;
        self.filters
            .iter()
            .try_for_each(|note| writer.filter(note))?;
        self.functions
            .iter()
            .try_for_each(|function| writer.function(function))?;
        self.threads
            .iter()
            .try_for_each(|thread| writer.thread(thread))?;
        self.event_types
            .iter()
            .try_for_each(|event_type| writer.event_type(event_type))?;
        self.clock
            .anchors()
            .iter()
            .chain(self.clock.contradicting())
            .try_for_each(|anchor| writer.anchor(anchor))?;
        let mut index = index;
        for block in &self.blocks {
            match writer.block(block) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    // The index counts blocks, and is wrong if one of them is missing.
                    index = &[];
                }
                written => written?,
            }
        }
        self.losses
            .iter()
            .try_for_each(|(thread, events)| writer.lost(*thread, *events))?;
        self.snapshot
            .iter()
            .try_for_each(|window| writer.snapshot(window))?;
        self.recordings
            .iter()
            .try_for_each(|window| writer.recording(window))?;
        self.overwritten
            .iter()
            .try_for_each(|overwritten| writer.overwritten(overwritten))?;
        self.profile
            .iter()
            .try_for_each(|part| writer.profile(part))?;
        end(writer, index)
    }

    /// Writes the parts that the file of this trace lacks: an index, and the end mark after it.
    /// They belong at the end of that file.
    ///
    /// # Errors
    ///
    /// The errors of `output`.
    pub fn write_end<W: Write>(&self, output: W, index: &[OpenCalls]) -> io::Result<W> {
        let Totals { calls, lost, .. } = self.totals();
        let blocks = self.blocks.len() as u64;
        let totals = End {
            calls,
            lost,
            blocks,
        };
        end(Writer::going_on(output, totals), index)
    }

    /// All processes, by id.
    #[must_use]
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// All modules, by id.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The times for which modules were loaded, in order of module and time. A module without such
    /// a time was always loaded.
    #[must_use]
    pub fn lifetimes(&self) -> &[Lifetime] {
        &self.lifetimes
    }

    /// The times for which functions were suppressed to keep to a budget, in order of function,
    /// process and time.
    #[must_use]
    pub fn suppressions(&self) -> &[Suppression] {
        &self.suppressions
    }

    /// The duty windows of processes with a duty cycle, in order of process and time.
    #[must_use]
    pub fn duty(&self) -> &[DutyWindow] {
        &self.duty
    }

    /// The filters that were in force, with their begins, in order of process and time.
    #[must_use]
    pub fn filters(&self) -> &[FilterNote] {
        &self.filters
    }

    /// All functions, by id.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All threads in the thread table, by id.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Sums of calls, in the order in which they were written.
    #[must_use]
    pub fn profile_parts(&self) -> &[ProfilePart] {
        &self.profile
    }

    /// All types of typed events with a name, by process and number.
    #[must_use]
    pub fn event_types(&self) -> &[EventType] {
        &self.event_types
    }

    /// The name of a type of a process's typed events, if the program has registered one.
    #[must_use]
    pub fn event_type(&self, process: ProcessId, number: u16) -> Option<&str> {
        let at = self
            .event_types
            .binary_search_by_key(&(process, number), |known| (known.process, known.number));
        let known = self.event_types.get(at.ok()?)?;
        Some(&known.name)
    }

    /// The same for the process of a thread.
    #[must_use]
    pub fn event_type_in(&self, thread: ThreadId, number: u16) -> Option<&str> {
        self.event_type(self.thread(thread)?.process, number)
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Losses whose place among a thread's events is unknown.
    #[must_use]
    pub fn losses(&self) -> &[(ThreadId, u64)] {
        &self.losses
    }

    /// The events that were overwritten before a snapshot was taken, which is no loss. Complete
    /// threads have no entry.
    #[must_use]
    pub fn overwritten(&self) -> &[Overwritten] {
        &self.overwritten
    }

    /// The window of a snapshot with a limited time.
    #[must_use]
    pub fn snapshot(&self) -> Option<SnapshotWindow> {
        self.snapshot
    }

    /// The times that recordings of processes with several recordings cover, with the events
    /// outside of them, by process.
    #[must_use]
    pub fn recordings(&self) -> &[RecordingWindow] {
        &self.recordings
    }

    /// The begin of the trace: the first event, or the begin of a snapshot's window. `None` without
    /// events.
    #[must_use]
    pub fn begin(&self) -> Option<Ticks> {
        let first = self.blocks.iter().map(|block| block.first).min()?;
        Some(
            self.snapshot
                .map_or(first, |window| window.since.max(first)),
        )
    }

    /// The last block of a thread, up to index `block`, for whose begin the trace has the open
    /// calls. Returns its index, and the open calls, outermost first.
    pub(crate) fn open_calls(
        &self,
        thread: ThreadId,
        block: usize,
    ) -> Option<(usize, Vec<OpenCall>)> {
        let block = block as u64;
        let sections = self.open_calls.get(&thread)?;
        let after = sections.partition_point(|section| section.first_block <= block);
        let (block, open) = sections.get(after.checked_sub(1)?)?.before(block)?;
        Some((usize::try_from(block).ok()?, open))
    }

    /// The clock, which converts ticks to nanoseconds.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The completeness of the trace.
    #[must_use]
    pub fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// The process with this id.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        find(&self.processes, id.0, |process| process.id.0)
    }

    /// The origin of the process with this id, if it was followed from another one.
    #[must_use]
    pub fn origin(&self, id: ProcessId) -> Option<&Origin> {
        self.origins.get(&id)
    }

    /// The module with this id.
    #[must_use]
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        find(&self.modules, id.0, |module| module.id.0)
    }

    /// The function with this id. Events may refer to functions that the table does not have.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> Option<&Function> {
        find(&self.functions, id.0, |function| function.id.0)
    }

    /// The readable name of a function; `#id` for a function that the table does not have.
    #[must_use]
    pub fn function_name(&self, id: FunctionId) -> std::borrow::Cow<'_, str> {
        match self.function(id) {
            Some(function) => function.name.as_str().into(),
            None => format!("#{}", id.0).into(),
        }
    }

    /// The thread with this id. Blocks may refer to threads that the table does not have.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        find(&self.threads, id.0, |thread| thread.id.0)
    }

    /// Adds blocks. The blocks of one thread may be in any order.
    #[cfg(feature = "import")]
    pub(crate) fn add_blocks(&mut self, blocks: impl IntoIterator<Item = Block>) {
        self.blocks.extend(blocks);
        self.sort_blocks();
    }

    /// Sorts the blocks by their first events. For logs whose blocks are in any order.
    #[cfg(feature = "import")]
    pub(crate) fn sort_blocks(&mut self) {
        self.blocks.sort_by_key(|block| block.first);
    }

    /// Every thread with events, in order of id, with its blocks.
    #[must_use]
    pub fn blocks_by_thread(&self) -> BTreeMap<ThreadId, Vec<&Block>> {
        let mut threads = BTreeMap::<_, Vec<_>>::new();
        for block in &self.blocks {
            threads.entry(block.thread).or_default().push(block);
        }
        threads
    }

    /// The amount of data in the trace, by the counts in its blocks.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for block in &self.blocks {
            totals.calls = totals.calls.saturating_add(u64::from(block.calls));
            totals.lost = totals.lost.saturating_add(block.lost);
            totals.encoded_len += block.encoded_len() as u64;
        }
        for (_, events) in &self.losses {
            totals.lost = totals.lost.saturating_add(*events);
        }
        totals
    }
}

/// Writes an index, and marks the trace as finished.
fn end<W: Write>(mut writer: Writer<W>, index: &[OpenCalls]) -> io::Result<W> {
    index.iter().try_for_each(|open| writer.open_calls(open))?;
    writer.end(&writer.totals())?;
    Ok(writer.into_inner())
}

/// Finds an id in a table that is sorted by id and usually has no gaps.
fn find<T>(table: &[T], id: u32, id_of: impl Fn(&T) -> u32) -> Option<&T> {
    let direct = usize::try_from(id).ok().and_then(|at| table.get(at));
    direct.filter(|entry| id_of(entry) == id).or_else(|| {
        let at = table.binary_search_by_key(&id, id_of).ok()?;
        table.get(at)
    })
}

/// Adds an entry unless there are too many. It replaces an earlier one with the same key.
fn keep<K: Ord, T>(entries: &mut BTreeMap<K, T>, key: K, entry: T) {
    if entries.len() < MOST_KEPT || entries.contains_key(&key) {
        entries.insert(key, entry);
    }
}

/// The tables while they are read. Entries may come in any order.
#[derive(Debug, Default)]
struct Tables {
    processes: BTreeMap<ProcessId, Process>,
    origins: BTreeMap<ProcessId, Origin>,
    modules: BTreeMap<ModuleId, Module>,
    lifetimes: Vec<Lifetime>,
    suppressions: BTreeMap<(FunctionId, ProcessId, Ticks), Suppression>,
    duty: BTreeMap<(ProcessId, Ticks), DutyWindow>,
    filters: BTreeMap<(ProcessId, Option<Ticks>), FilterNote>,
    functions: BTreeMap<FunctionId, Function>,
    threads: BTreeMap<ThreadId, Thread>,
    event_types: BTreeMap<(ProcessId, u16), EventType>,
    anchors: Vec<ClockAnchor>,
    blocks: Vec<Block>,
    losses: Vec<(ThreadId, u64)>,
    overwritten: Vec<Overwritten>,
    snapshot: Option<SnapshotWindow>,
    recordings: BTreeMap<ProcessId, RecordingWindow>,
    open_calls: BTreeMap<ThreadId, Vec<OpenCalls>>,
    profile: Vec<ProfilePart>,
}

// === impl Tables ===

impl Tables {
    fn read<R: Read>(
        reader: &mut Reader<R>,
        mut next: impl FnMut(&mut Reader<R>) -> Result<Option<Item>, ReadError>,
    ) -> Result<Trace, ReadError> {
        let mut tables = Self::default();
        while let Some(item) = next(reader)? {
            tables
                .add(item)
                .map_err(|(section, reason)| ReadError::Invalid {
                    section,
                    offset: reader.section_offset(),
                    reason,
                })?;
        }
        let end = Completeness::Unfinished {
            at: reader.offset(),
        };
        Ok(tables.into_trace(reader.completeness().unwrap_or(end)))
    }

    /// Adds an item. The error has the kind of the section, and the reason.
    fn add(&mut self, item: Item) -> Result<(), (SectionKind, String)> {
        let twice = |section, id| Err((section, format!("the id {id} occurs twice")));
        match item {
            Item::Process(process) => {
                if let Some(former) = self.processes.insert(process.id, process) {
                    return twice(SectionKind::PROCESS, former.id.0);
                }
            }
            Item::Origin { process, origin } => {
                self.origins.insert(process, origin);
            }
            Item::Module(module) => {
                if let Some(former) = self.modules.insert(module.id, module) {
                    return twice(SectionKind::MODULE, former.id.0);
                }
            }
            Item::Lifetime(lifetime) => self.lifetimes.push(lifetime),
            Item::Suppression(suppression) => {
                let key = (suppression.function, suppression.process, suppression.from);
                keep(&mut self.suppressions, key, suppression);
            }
            Item::Duty(window) => keep(&mut self.duty, (window.process, window.from), window),
            Item::Filter(note) => keep(&mut self.filters, (note.process, note.since), note),
            Item::Function(function) => {
                if let Some(former) = self.functions.insert(function.id, function) {
                    return twice(SectionKind::FUNCTION, former.id.0);
                }
            }
            Item::Thread(thread) => {
                self.threads.insert(thread.id, thread);
            }
            Item::EventType(event_type) => {
                let key = (event_type.process, event_type.number);
                self.event_types.insert(key, event_type);
            }
            Item::Anchor(anchor) => self.anchors.push(anchor),
            Item::Block(block) => self.blocks.push(block),
            Item::Lost { thread, events } => self.losses.push((thread, events)),
            Item::Overwritten(overwritten) => self.overwritten.push(overwritten),
            Item::Snapshot(window) => self.snapshot = Some(window),
            Item::Recording(window) => keep(&mut self.recordings, window.process, window),
            Item::OpenCalls(open) => self.open_calls.entry(open.thread).or_default().push(open),
            Item::Profile(part) => self.profile.push(part),
            Item::End(End { .. }) => {}
        }
        Ok(())
    }

    fn into_trace(mut self, completeness: Completeness) -> Trace {
        for open_calls in self.open_calls.values_mut() {
            open_calls.sort_by_key(|open| open.first_block);
        }
        self.lifetimes
            .sort_by_key(|lifetime| (lifetime.module, lifetime.loaded));
        Trace {
            lifetimes: self.lifetimes,
            suppressions: self.suppressions.into_values().collect(),
            duty: self.duty.into_values().collect(),
            filters: self.filters.into_values().collect(),
            processes: self.processes.into_values().collect(),
            origins: self.origins,
            modules: self.modules.into_values().collect(),
            functions: self.functions.into_values().collect(),
            threads: self.threads.into_values().collect(),
            event_types: self.event_types.into_values().collect(),
            blocks: self.blocks,
            losses: self.losses,
            overwritten: self.overwritten,
            snapshot: self.snapshot,
            recordings: self.recordings.into_values().collect(),
            open_calls: self.open_calls,
            profile: self.profile,
            clock: Clock::new(self.anchors),
            completeness,
        }
    }
}
