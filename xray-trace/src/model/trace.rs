//! A whole trace in memory: its tables, and its blocks, which stay packed. It does not interpret
//! events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use super::coverage::Coverage;
use super::{
    Clock, DataKind, EventType, Function, FunctionId, Module, ModuleId, Origin, Process, ProcessId,
    Thread, ThreadId, ThreadRuns, Ticks,
};
use crate::container::{
    Block, End, KernelPart, KernelRecord, KernelRecordKind, OpenCall, OpenCalls, ProfilePart,
    RunsPart, Writer,
};
use crate::event_format::{EventFormats, Tracepoint, TypeOfEvent};

/// A trace in memory. Its tables are sorted by id. Its blocks are in the order in which they were
/// written; the blocks of one thread are in order of time.
#[derive(Debug, Clone)]
pub struct Trace {
    pub(super) processes: Vec<Process>,
    /// Only of processes that were followed.
    pub(super) origins: BTreeMap<ProcessId, Origin>,
    pub(super) modules: Vec<Module>,
    pub(super) functions: Vec<Function>,
    pub(super) threads: Vec<Thread>,
    /// By process and number.
    pub(super) event_types: Vec<EventType>,
    pub(super) blocks: Vec<Block>,
    /// By thread, in order of their first blocks.
    pub(super) open_calls: BTreeMap<ThreadId, Vec<OpenCalls>>,
    /// By thread, in the order in which they were written.
    pub(super) runs: BTreeMap<ThreadId, Vec<RunsPart>>,
    /// By number.
    pub(super) tracepoints: BTreeMap<u16, Tracepoint>,
    /// By thread, in the order in which they were written.
    pub(super) kernel_events: BTreeMap<ThreadId, Vec<KernelPart>>,
    pub(super) profile: Vec<ProfilePart>,
    pub(super) clock: Clock,
    pub(super) coverage: Coverage,
}

/// The amount of data in a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Call events.
    pub calls: u64,
    /// Lost events.
    pub lost: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of packed events.
    pub encoded_len: u64,
}

// === impl Trace ===

impl Trace {
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

    /// Writes the trace as a finished one, with an index: the calls that are open at the begins of
    /// blocks. The index may be empty. Blocks that cannot be read from their file are left out, and
    /// so is the index then.
    ///
    /// # Errors
    ///
    /// The errors of `output`.
    pub fn write<W: Write>(&self, output: W, mut index: &[OpenCalls]) -> io::Result<W> {
        let mut writer = Writer::new(output)?;
        let coverage = &self.coverage;
        writer.add_all(&self.processes)?;
        for (process, origin) in &self.origins {
            writer.origin(*process, *origin)?;
        }
        writer.add_all(&self.modules)?;
        writer.add_all(&coverage.lifetimes)?;
        writer.add_all(&coverage.suppressions)?;
        writer.add_all(&coverage.duty)?;
        writer.add_all(&coverage.filters)?;
        writer.add_all(&coverage.gaps)?;
        writer.add_all(&self.functions)?;
        writer.add_all(&self.threads)?;
        writer.add_all(&self.event_types)?;
        writer.add_all(self.clock.anchors())?;
        writer.add_all(self.clock.contradicting())?;
        for block in &self.blocks {
            match writer.block(block) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    // The index counts blocks, and is wrong if one of them is missing.
                    index = &[];
                }
                written => written?,
            }
        }
        writer.add_all(&coverage.waits)?;
        for (thread, events) in &coverage.losses {
            writer.lost(*thread, *events)?;
        }
        writer.add_all(&coverage.snapshot)?;
        writer.add_all(&coverage.recordings)?;
        writer.add_all(&coverage.overwritten)?;
        for part in self.runs.values().flatten() {
            match writer.runs(part) {
                // Nothing else depends on the switches.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                written => written?,
            }
        }
        for (number, tracepoint) in &self.tracepoints {
            writer.tracepoint(*number, tracepoint)?;
        }
        for part in self.kernel_events.values().flatten() {
            match writer.kernel_events(part) {
                // Nothing else depends on them.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                written => written?,
            }
        }
        for part in &self.profile {
            writer.profile(part)?;
        }
        writer.finish(index)
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

    /// What the events cover, and what they do not.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
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

    /// Whether the trace has run times of any thread.
    #[must_use]
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The number of context switches in the run times of all threads.
    #[must_use]
    pub fn context_switches(&self) -> u64 {
        let mut switches = 0;
        for part in self.runs.values().flatten() {
            // Those before an error count.
            let _ = part.each(|_| switches += 1);
        }
        switches
    }

    /// The number of bytes of a thread's packed context switches, in the parts that overlap the
    /// time between two moments.
    pub(crate) fn switches_len(&self, thread: ThreadId, (from_ns, until_ns): (u64, u64)) -> usize {
        let parts = self.runs.get(&thread).into_iter().flatten();
        let parts = parts.filter(|part| part.from_ns < until_ns && from_ns < part.until_ns);
        parts.fold(0, |sum, part| sum.saturating_add(part.switches.len()))
    }

    /// The run times of all threads, in parts.
    #[cfg(feature = "import")]
    pub(crate) fn runs_parts(&self) -> impl Iterator<Item = &RunsPart> {
        self.runs.values().flatten()
    }

    /// When a thread had a processor; `None` if the trace has nothing about it. Reads the switches
    /// of the thread, if they are still in the file.
    #[must_use]
    pub fn thread_runs(&self, thread: ThreadId) -> Option<ThreadRuns> {
        self.runs.get(&thread).map(|parts| ThreadRuns::of(parts))
    }

    /// The kernel tracepoints whose events the trace has, by number.
    pub fn tracepoints(&self) -> impl Iterator<Item = (u16, &Tracepoint)> + Clone {
        let tracepoints = self.tracepoints.iter();
        tracepoints.map(|(number, tracepoint)| (*number, tracepoint))
    }

    /// The time of the kernel events of a thread, in nanoseconds of `CLOCK_MONOTONIC`, both ends
    /// included: that of the recording of its process.
    pub(crate) fn kernel_window(&self, thread: ThreadId) -> (u64, u64) {
        let process = self.thread(thread).map(|thread| thread.process);
        let mut recordings = self.coverage.recordings.iter();
        let recording = recordings.find(|recording| Some(recording.process) == process);
        let ns = |ticks| self.clock.monotonic_ns(ticks);
        let since = recording.and_then(|recording| recording.since);
        let until = recording.and_then(|recording| recording.until);
        (since.map_or(0, ns), until.map_or(u64::MAX, ns))
    }

    /// The parts of a thread's kernel events, in order of time. A part that overlaps an earlier one
    /// is left out.
    pub(crate) fn kernel_parts(&self, thread: ThreadId) -> Vec<&KernelPart> {
        let mut parts: Vec<_> = self
            .kernel_events
            .get(&thread)
            .into_iter()
            .flatten()
            .collect();
        parts.sort_by_key(|part| part.from_ns);
        let mut until = 0;
        parts.retain(|part| {
            let follows = part.from_ns >= until;
            until = until.max(part.until_ns);
            follows
        });
        parts
    }

    /// The kernel events of all threads, in parts.
    #[cfg(feature = "import")]
    pub(crate) fn all_kernel_parts(&self) -> impl Iterator<Item = &KernelPart> {
        self.kernel_events.values().flatten()
    }

    /// The numbers of kernel events, by the numbers of the tracepoints. A thread without events of
    /// its own, and a time outside of the recording, have none.
    #[must_use]
    pub fn kernel_event_counts(&self) -> BTreeMap<u16, u64> {
        let mut events = BTreeMap::new();
        for what in self.kernel_records() {
            if let KernelRecordKind::Event { tracepoint, .. } = what {
                *events.entry(tracepoint).or_default() += 1;
            }
        }
        events
    }

    /// The greatest possible number of kernel events that are missing among these.
    #[must_use]
    pub fn lost_kernel_events(&self) -> u64 {
        self.kernel_records().fold(0, |lost: u64, what| match what {
            KernelRecordKind::Lost { events } => lost.saturating_add(events),
            KernelRecordKind::Event { .. } => lost,
        })
    }

    fn kernel_records(&self) -> impl Iterator<Item = KernelRecordKind> {
        let with_events: BTreeSet<_> = self.blocks.iter().map(|block| block.thread).collect();
        let threads = self.kernel_events.keys().copied();
        let threads = threads.filter(move |thread| with_events.contains(thread));
        threads.flat_map(|thread| {
            let (from_ns, until_ns) = self.kernel_window(thread);
            self.kernel_parts(thread).into_iter().flat_map(move |part| {
                let within = move |record: &KernelRecord| match record.what {
                    KernelRecordKind::Event { .. } => (from_ns..=until_ns).contains(&record.at_ns),
                    // The loss may reach to the end of the part.
                    KernelRecordKind::Lost { .. } => {
                        record.at_ns <= until_ns && part.until_ns >= from_ns
                    }
                };
                part.records().filter(within).map(|record| record.what)
            })
        })
    }

    /// All types of typed events with a name, by process and number.
    #[must_use]
    pub fn event_types(&self) -> &[EventType] {
        &self.event_types
    }

    /// The descriptions that its programs and libraries have of the data of their events.
    #[must_use]
    pub fn event_formats(&self) -> EventFormats {
        let texts = self.modules.iter().flat_map(|module| &module.event_formats);
        EventFormats::of_modules(texts.map(String::as_str))
    }

    /// The name of a type of a thread's typed events, if its program has registered one.
    #[must_use]
    pub fn event_type(&self, thread: ThreadId, number: u16) -> Option<&str> {
        let process = self.thread(thread)?.process;
        let at = self
            .event_types
            .binary_search_by_key(&(process, number), |known| (known.process, known.number));
        let known = self.event_types.get(at.ok()?)?;
        Some(&known.name)
    }

    /// The type of a thread's event of this kind.
    #[must_use]
    pub fn type_of(&self, thread: ThreadId, kind: DataKind) -> TypeOfEvent<'_> {
        match kind {
            DataKind::Custom => TypeOfEvent::Custom,
            DataKind::Typed(number) => TypeOfEvent::Typed(number, self.event_type(thread, number)),
            DataKind::Kernel(number) => {
                let known = self.tracepoints.get(&number);
                TypeOfEvent::Kernel(known.unwrap_or(Tracepoint::UNKNOWN))
            }
        }
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The begin of the trace: the first event, or the begin of a snapshot's window. `None` without
    /// events.
    #[must_use]
    pub fn begin(&self) -> Option<Ticks> {
        let first = self.blocks.iter().map(|block| block.first).min()?;
        Some(
            self.coverage
                .snapshot
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

    /// The open calls of all threads at the begins of blocks, by thread, in order of their blocks.
    #[cfg(feature = "import")]
    pub(crate) fn index(&self) -> impl Iterator<Item = (ThreadId, &[OpenCalls])> {
        let threads = self.open_calls.iter();
        threads.map(|(thread, sections)| (*thread, &sections[..]))
    }

    /// The clock, which converts ticks to nanoseconds.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
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

    /// Adds blocks, and sorts all blocks by their first events: in a log they are in any order.
    #[cfg(feature = "import")]
    pub(crate) fn add_blocks(&mut self, blocks: impl IntoIterator<Item = Block>) {
        self.blocks.extend(blocks);
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
        let mut totals = Totals {
            blocks: self.blocks.len() as u64,
            ..Totals::default()
        };
        for block in &self.blocks {
            totals.calls = totals.calls.saturating_add(u64::from(block.calls));
            totals.lost = totals.lost.saturating_add(block.lost);
            totals.encoded_len += block.encoded_len() as u64;
        }
        for (_, events) in &self.coverage.losses {
            totals.lost = totals.lost.saturating_add(*events);
        }
        totals
    }
}

/// Finds an id in a table that is sorted by id and usually has no gaps.
fn find<T>(table: &[T], id: u32, id_of: impl Fn(&T) -> u32) -> Option<&T> {
    let direct = usize::try_from(id).ok().and_then(|at| table.get(at));
    direct.filter(|entry| id_of(entry) == id).or_else(|| {
        let at = table.binary_search_by_key(&id, id_of).ok()?;
        table.get(at)
    })
}

// === impl End ===

impl From<Totals> for End {
    fn from(totals: Totals) -> Self {
        Self {
            calls: totals.calls,
            lost: totals.lost,
            blocks: totals.blocks,
        }
    }
}
