//! Reads the segments that an earlier daemon has left of a process.
//!
//! They are files that another program may have changed. A segment is used only if it is a whole
//! trace of this very process. The event store checks the blocks.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Seek as _, SeekFrom},
    sync::Arc,
};

use xray_trace::{
    container::ReadError,
    instr_map::{Machine, MapFunction, Object},
    model::{
        BuildId, FilterNote, FunctionId, Gap, GapCause, Module as TraceModule, ModuleId,
        Overwritten, Process, ProcessId, Suppression, Thread, ThreadId, Ticks, Trace,
    },
};

use super::EarlierChoices;
use crate::{
    pid::Pid,
    segments::Segment,
    store::{ArchivedBlock, EarlierEvents, FORGOTTEN, FunctionNumbers, fingerprint},
    target::{Functions, Loaded, Module},
};

/// The longest segment that is read, in bytes. The longest block can make one longer than the
/// archive wants.
const LONGEST: u64 = 64 << 20;
/// The machine of the traced processes.
const MACHINE: Machine = match cfg!(target_arch = "aarch64") {
    true => Machine::Aarch64,
    false => Machine::X86_64,
};

/// What the segments of a process have.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    pub(crate) events: EarlierEvents,
    /// The segments, with the number of their blocks in `events`.
    pub(crate) segments: Vec<(Segment, u32)>,
    /// The number of the next segment.
    pub(crate) next: u32,
    pub(crate) choices: EarlierChoices,
    pub(crate) gaps: Vec<Gap>,
}

/// The usable segments of a process, open.
#[derive(Debug, Default)]
pub(crate) struct OpenSegments {
    traces: Vec<(Segment, Trace)>,
    /// The number of the next segment.
    next: u32,
    /// True if some segment was refused.
    is_damaged: bool,
    /// True if some segment cannot be read now, and stays for the next daemon.
    pub(crate) is_left: bool,
}

/// The reason why what an earlier daemon has left is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than any segment")]
    TooLong,
    #[error("it is of another process")]
    OtherProcess,
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    #[error("it is damaged")]
    Damaged(#[from] ReadError),
    #[error("its sums are damaged: {0}")]
    Sums(String),
}

impl Unusable {
    /// True if the segment may be readable later.
    fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(_) | Self::Damaged(ReadError::Io { .. })
        )
    }
}

// === impl OpenSegments ===

impl OpenSegments {
    /// Opens the segments of the process with this pid and start time. They are in order.
    pub(crate) fn open(pid: Pid, start_time: u64, segments: Vec<Segment>) -> Self {
        let mut opened = Self::default();
        for segment in segments {
            opened.next = segment.name.number.saturating_add(1);
            match read(&segment, (pid.as_u32(), start_time)) {
                Ok(trace) => opened.traces.push((segment, trace)),
                // The daemon was killed when it had made the file.
                Err(Unusable::Empty) => {}
                Err(why) => {
                    opened.is_damaged = true;
                    tracing::warn!(
                        name = %segment.name, %why,
                        "refused a file of retained events of an earlier daemon"
                    );
                    if why.may_pass() {
                        opened.is_left = true;
                        segment.leave();
                    }
                }
            }
        }
        opened
    }

    /// Leaves the segments to the next daemon.
    pub(crate) fn leave(self) {
        for (segment, _) in self.traces {
            segment.leave();
        }
    }

    /// The process, by the latest segment. `None` if no segment can be used.
    pub(crate) fn process(&self) -> Option<&Process> {
        self.traces.last()?.1.processes().first()
    }

    /// The functions that the segments describe, for a process that has ended.
    pub(crate) fn functions(&self, pid: Pid) -> Functions {
        let mut modules = BTreeMap::<_, BTreeMap<_, MapFunction>>::new();
        let mut formats = BTreeMap::new();
        for (_, trace) in &self.traces {
            for module in trace.modules() {
                let build_id = module.build_id.as_ref().map(|id| id.0.clone());
                let key = (module.path.clone(), module.load_bias, build_id);
                formats.insert(key, &module.event_formats);
            }
            for function in trace.functions() {
                let module = trace.modules().get(function.module.0 as usize);
                let Some(module) = module.filter(|module| module.id == function.module) else {
                    continue;
                };
                let build_id = module.build_id.as_ref().map(|id| id.0.clone());
                let key = (module.path.clone(), module.load_bias, build_id);
                let functions = modules.entry(key).or_default();
                let described = MapFunction {
                    id: function.xray_id,
                    section: 0,
                    address: function.address,
                    size: 0,
                    symbol: function.symbol.as_deref().map(Into::into),
                    name: function.name.as_str().into(),
                    sleds: 0..function.sleds as usize,
                };
                functions.insert((function.xray_id, function.address), described);
            }
        }
        let all = Functions::new(pid);
        for (key, functions) in modules {
            let described = formats.get(&key).map(|texts| (*texts).clone());
            let (path, bias, build_id) = key;
            let build_id = build_id.map(BuildId);
            let functions = functions.into_values().collect();
            let object = Object::of_functions(MACHINE, build_id, functions);
            let object = object.with_event_formats(described.unwrap_or_default());
            all.add_ended(Module::ended(path, bias, object));
        }
        all
    }

    /// Reads the segments of `process`, whose functions are `functions`. `now` is the time at which
    /// what the earlier daemon did has ended.
    pub(crate) fn read(self, process: &Process, functions: &Functions, now: Ticks) -> Earlier {
        let Self {
            traces,
            next,
            is_damaged,
            is_left: _,
        } = self;
        let mut earlier = Earlier {
            next,
            ..Earlier::default()
        };
        let overwritten = latest_overwritten(traces.iter().map(|(_, trace)| trace));
        let modules = functions.modules();
        let mut threads = BTreeMap::<ThreadId, Thread>::new();
        let mut filters = BTreeMap::<Option<Ticks>, FilterNote>::new();
        for (segment, trace) in traces {
            let numbers = Arc::new(numbers_of(&trace, &modules));
            for thread in trace.threads() {
                let process = process.id;
                let thread = Thread {
                    process,
                    ..thread.clone()
                };
                threads.insert(thread.id, thread);
            }
            let mut blocks = 0;
            for block in trace.blocks() {
                // The daemon was killed while it wrote this block. The ring still has its words.
                if !block.payload.is_in_file() {
                    continue;
                }
                let blocks_of_marks = &mut earlier.events.last_blocks;
                blocks_of_marks.insert(block.thread, fingerprint(block));
                let dropped = overwritten.get(&block.thread);
                // These count as overwritten.
                if dropped.is_some_and(|dropped| block.last <= dropped.until) {
                    continue;
                }
                blocks += 1;
                let archived = ArchivedBlock {
                    block: block.clone(),
                    segment: segment.name.number,
                };
                earlier.events.blocks.push((archived, Arc::clone(&numbers)));
            }
            earlier.segments.push((segment, blocks));
            earlier.events.anchors.extend(trace.clock().anchors());
            earlier
                .events
                .event_types
                .extend(trace.event_types().iter().cloned());
            let choices = &mut earlier.choices;
            let coverage = trace.coverage();
            let suppressions = coverage.suppressions.iter();
            let suppressions = suppressions.map(|one| Suppression {
                process: process.id,
                function: numbers.of(one.function),
                until: one.until.or(Some(now)),
                ..*one
            });
            choices.suppressions.extend(suppressions);
            choices.duty.extend(coverage.duty.iter().cloned());
            let notes = coverage.filters.iter();
            filters.extend(notes.map(|note| (note.since, note.clone())));
            earlier.gaps.extend(coverage.gaps.iter().cloned());
        }
        earlier.events.threads = threads.into_values().collect();
        earlier.events.overwritten = overwritten.into_values().collect();
        earlier.events.anchors.sort_by_key(|anchor| anchor.ticks);
        earlier.events.anchors.dedup();
        tidy(&mut earlier.choices, process);
        earlier.choices.filters = filters.into_values().collect();
        if is_damaged {
            earlier.gaps.push(damage_before(process.id, now));
        }
        earlier.gaps.sort_by_key(|gap| gap.until);
        earlier.gaps.dedup();
        earlier
    }
}

/// The gap for damaged events of an earlier daemon, which ended at `now`.
pub(crate) fn damage_before(process: ProcessId, now: Ticks) -> Gap {
    Gap {
        process,
        from: None,
        // Gaps of a process differ in their ends. The attach may report another one.
        until: Ticks(now.0.saturating_sub(1)),
        cause: GapCause::DamagedEvents,
    }
}

/// The latest complete list of dropped events. Each segment begins with a list. The daemon may have
/// been killed while it wrote the last one.
fn latest_overwritten<'a>(
    traces: impl DoubleEndedIterator<Item = &'a Trace>,
) -> BTreeMap<ThreadId, Overwritten> {
    // A list that was cut is the last one of its segment.
    let is_end = |row: &Overwritten| row.thread == FORGOTTEN;
    let lists = traces.rev().map(|trace| &trace.coverage().overwritten);
    let list = lists.into_iter().find_map(|rows| {
        let end = rows.iter().rposition(is_end)?;
        let before = rows[..end].iter().rposition(is_end);
        Some(&rows[before.map_or(0, |before| before + 1)..=end])
    });
    let rows = list.unwrap_or_default().iter();
    rows.filter(|row| row.events > Some(0))
        .map(|row| (row.thread, *row))
        .collect()
}

/// The number of events of calls in a segment of a process that has ended. `None`: it cannot be
/// read.
pub(crate) fn events_of(segment: &Segment) -> Option<u64> {
    let trace = open(segment).ok()?;
    let calls = trace.blocks().iter().map(|block| u64::from(block.calls));
    Some(calls.sum())
}

/// Several segments may have the same rows.
fn tidy(choices: &mut EarlierChoices, process: &Process) {
    let EarlierChoices {
        suppressions, duty, ..
    } = choices;
    suppressions.sort_by_key(|one| (one.function, one.from, one.until));
    // The later row of a suppression has its end.
    suppressions.reverse();
    suppressions.dedup_by_key(|one| (one.function, one.from));
    suppressions.reverse();
    for window in &mut *duty {
        window.process = process.id;
    }
    // The same, as a window stands for more when the next one comes.
    duty.sort_by_key(|window| (window.from, window.stands_for));
    duty.reverse();
    duty.dedup_by_key(|window| window.from);
    duty.reverse();
}

fn open(segment: &Segment) -> Result<Trace, Unusable> {
    let mut file = segment.file.try_clone()?;
    match file.metadata()?.len() {
        0 => return Err(Unusable::Empty),
        1..=LONGEST => {}
        _ => return Err(Unusable::TooLong),
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(Trace::open(file)?)
}

fn read(segment: &Segment, process: (u32, u64)) -> Result<Trace, Unusable> {
    let trace = open(segment)?;
    check_process(&trace, process)?;
    Ok(trace)
}

/// Checks that a trace is of the process with this pid and start time, and of no other.
fn check_process(trace: &Trace, process: (u32, u64)) -> Result<(), Unusable> {
    let is_same = |other: &Process| (other.pid, other.start_time_ticks) == process;
    match trace.processes() {
        [other] if is_same(other) => Ok(()),
        _ => Err(Unusable::OtherProcess),
    }
}

/// The loaded modules of a process, by file and place.
pub(super) struct LoadedByFile(HashMap<FileAndPlace, Arc<Loaded>>);

/// The path of a module, its build id, and its load bias.
type FileAndPlace = (String, Option<Vec<u8>>, u64);

// === impl LoadedByFile ===

impl LoadedByFile {
    pub(super) fn new(modules: &[Arc<Loaded>]) -> Self {
        let modules = modules.iter().map(|loaded| {
            let described = loaded.describe(ProcessId(0));
            (file_and_place(&described), Arc::clone(loaded))
        });
        Self(modules.collect())
    }

    /// The module that a trace describes, if it is loaded.
    pub(super) fn find(&self, module: &TraceModule) -> Option<&Arc<Loaded>> {
        self.0.get(&file_and_place(module))
    }
}

fn file_and_place(module: &TraceModule) -> FileAndPlace {
    let build_id = module.build_id.as_ref().map(|id| id.0.to_vec());
    (module.path.clone(), build_id, module.load_bias)
}

/// The ids of this daemon for the functions of a segment, as far as they are loaded.
fn numbers_of(trace: &Trace, modules: &[Arc<Loaded>]) -> FunctionNumbers {
    let by_file = LoadedByFile::new(modules);
    let mut loaded = HashMap::<ModuleId, &Arc<Loaded>>::new();
    for module in trace.modules() {
        if let Some(found) = by_file.find(module) {
            loaded.insert(module.id, found);
        }
    }
    let functions = trace.functions().iter();
    let numbers = functions.filter_map(|function| {
        let now = loaded
            .get(&function.module)?
            .id_of(function.xray_id, function.address)?;
        Some((function.id, now))
    });
    let numbers: HashMap<FunctionId, FunctionId> = numbers.collect();
    FunctionNumbers::new(numbers, trace.functions().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::trace_writer::TraceWriter;
    use crate::store::Source;

    #[test]
    fn the_latest_complete_list_of_dropped_events_holds() {
        let row = |thread, events| Overwritten {
            thread,
            events: Some(events),
            until: Ticks(9),
        };
        let trace = |rows: &[(u32, u64)]| {
            let mut bytes = Vec::new();
            let mut writer = TraceWriter::of_one_process(&mut bytes).unwrap();
            for &(thread, events) in rows {
                let written = writer.overwritten(Source(0), &row(ThreadId(thread), events));
                written.unwrap();
            }
            Trace::read(&bytes[..]).unwrap()
        };
        let forgotten = FORGOTTEN.0;
        let list = |traces: &[&[(u32, u64)]]| {
            let traces: Vec<_> = traces.iter().map(|rows| trace(rows)).collect();
            let rows = latest_overwritten(traces.iter()).into_values();
            let rows = rows.map(|row| (row.thread.0, row.events.unwrap()));
            rows.collect::<Vec<_>>()
        };
        // The counts of a forgotten thread move to another row.
        let first: &[_] = &[(1, 100), (2, 5), (forgotten, 0)];
        let second: &[_] = &[(2, 7), (forgotten, 100)];
        assert_eq!(list(&[first]), [(1, 100), (2, 5)]);
        assert_eq!(list(&[first, second]), [(2, 7), (forgotten, 100)]);
        assert_eq!(
            list(&[&[first, second].concat()]),
            [(2, 7), (forgotten, 100)]
        );
        // The daemon was killed while it wrote the last list.
        assert_eq!(list(&[first, &[(2, 8)]]), [(1, 100), (2, 5)]);
        let cut = [first, second, &[(2, 8)]].concat();
        assert_eq!(list(&[&cut]), [(2, 7), (forgotten, 100)]);
        assert_eq!(list(&[&cut, first]), [(1, 100), (2, 5)]);
        assert_eq!(list(&[&[(1, 3)], second]), [(2, 7), (forgotten, 100)]);
        assert_eq!(list(&[&[], &[(2, 8)]]), []);
    }
}
