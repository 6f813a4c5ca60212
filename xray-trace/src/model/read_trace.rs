//! Reads a trace: sorts the items of its file into tables.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::sync::Arc;

use super::coverage::Coverage;
use super::{
    Clock, ClockAnchor, DutyWindow, EventType, FilterNote, Function, FunctionId, Gap, Lifetime,
    Module, ModuleId, Origin, Overwritten, Process, ProcessId, RecordingWindow, SnapshotWindow,
    Suppression, Thread, ThreadId, ThreadWait, Ticks, Trace,
};
use crate::container::{
    Block, Completeness, End, Item, KernelPart, OpenCalls, ProfilePart, ReadError, Reader,
    RunsPart, SectionKind,
};
use crate::event_format::Tracepoint;

/// The most suppressions, duty windows, filters and gaps of a trace that are kept, of each. Further
/// ones are dropped.
const MOST_KEPT: usize = 1 << 16;

// === impl Trace ===

impl Trace {
    /// Reads a whole trace. Memory is proportional to the bytes of the input.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, are not a trace, or are damaged. A trace that was cut is no
    /// error.
    pub fn read(input: impl Read) -> Result<Self, ReadError> {
        read_trace(&mut Reader::new(input)?, Reader::next_item)
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
        read_trace(&mut reader, |reader| reader.next_item_of_file(&shared, len))
    }
}

/// Reads a trace item by item. `next` takes the next item from `reader`.
fn read_trace<R: Read>(
    reader: &mut Reader<R>,
    mut next: impl FnMut(&mut Reader<R>) -> Result<Option<Item>, ReadError>,
) -> Result<Trace, ReadError> {
    let mut tables = Tables::default();
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
    gaps: BTreeMap<(ProcessId, Ticks), Gap>,
    functions: BTreeMap<FunctionId, Function>,
    threads: BTreeMap<ThreadId, Thread>,
    event_types: BTreeMap<(ProcessId, u16), EventType>,
    anchors: Vec<ClockAnchor>,
    blocks: Vec<Block>,
    waits: Vec<ThreadWait>,
    losses: Vec<(ThreadId, u64)>,
    overwritten: Vec<Overwritten>,
    snapshot: Option<SnapshotWindow>,
    recordings: BTreeMap<ProcessId, RecordingWindow>,
    open_calls: BTreeMap<ThreadId, Vec<OpenCalls>>,
    runs: BTreeMap<ThreadId, Vec<RunsPart>>,
    tracepoints: BTreeMap<u16, Tracepoint>,
    kernel_events: BTreeMap<ThreadId, Vec<KernelPart>>,
    profile: Vec<ProfilePart>,
}

// === impl Tables ===

impl Tables {
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
            Item::Gap(gap) => keep(&mut self.gaps, (gap.process, gap.until), gap),
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
            Item::Wait(wait) => self.waits.push(wait),
            Item::Lost { thread, events } => self.losses.push((thread, events)),
            Item::Overwritten(overwritten) => self.overwritten.push(overwritten),
            Item::Snapshot(window) => self.snapshot = Some(window),
            Item::Recording(window) => keep(&mut self.recordings, window.process, window),
            Item::OpenCalls(open) => self.open_calls.entry(open.thread).or_default().push(open),
            Item::Runs(part) => self.runs.entry(part.thread).or_default().push(part),
            Item::Tracepoint { number, tracepoint } => {
                self.tracepoints.insert(number, tracepoint);
            }
            Item::Kernel(part) => {
                let parts = self.kernel_events.entry(part.thread).or_default();
                parts.push(part);
            }
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
            processes: self.processes.into_values().collect(),
            origins: self.origins,
            modules: self.modules.into_values().collect(),
            functions: self.functions.into_values().collect(),
            threads: self.threads.into_values().collect(),
            event_types: self.event_types.into_values().collect(),
            blocks: self.blocks,
            open_calls: self.open_calls,
            runs: self.runs,
            tracepoints: self.tracepoints,
            kernel_events: self.kernel_events,
            profile: self.profile,
            clock: Clock::new(self.anchors),
            coverage: Coverage {
                lifetimes: self.lifetimes,
                suppressions: self.suppressions.into_values().collect(),
                duty: self.duty.into_values().collect(),
                filters: self.filters.into_values().collect(),
                gaps: self.gaps.into_values().collect(),
                waits: self.waits,
                losses: self.losses,
                overwritten: self.overwritten,
                snapshot: self.snapshot,
                recordings: self.recordings.into_values().collect(),
                completeness,
            },
        }
    }
}
