//! Makes one trace of several: of hosts, of runs, or of parts of a run. Each keeps its processes
//! and threads. A function of the same file is one function.
//!
//! The times of the traces get one clock, whose ticks are nanoseconds. For traces of one boot of a
//! machine that is its monotonic clock, which all of them have. Otherwise it is the wall clock, so
//! the traces are as far apart as the machines' clocks say.
//!
//! ```text
//!  trace 0 ─┐  ids of processes, modules, functions, threads: given out anew
//!  trace 1 ─┼─► spool: memory, or a file ─► trace
//!  trace 2 ─┘  ticks: monotonic time, or wall time
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::io;

use super::spool::Spool;
use super::{OpenError, Opened};
use crate::container::{Block, Completeness, RunsPart};
use crate::llvm::Format;
use crate::model::{
    Calibration, Clock, ClockAnchor, ClockReader, DutyWindow, EventType, FilterNote, Function,
    FunctionId, Gap, Lifetime, Module, ModuleId, Overwritten, Process, ProcessId, RecordingWindow,
    SnapshotWindow, Suppression, Thread, ThreadId, ThreadWait, Ticks, Trace,
};

/// The greatest difference between the boot times that two traces of one machine show, if they are
/// of one boot: its wall clock may have been set in between. In nanoseconds.
const ONE_BOOT: u64 = 60_000_000_000;

/// The thread of losses that no thread had. It is the same in all traces.
const NO_THREAD: ThreadId = ThreadId(u32::MAX);

/// A function as all traces know it: file, build, address, id in the map, name.
type FunctionKey = (String, Option<Vec<u8>>, u64, u32, String);

/// The ids that were given out.
#[derive(Debug, Default)]
struct Ids {
    processes: u32,
    modules: u32,
    threads: u32,
    functions: u32,
    known_functions: HashMap<FunctionKey, FunctionId>,
}

/// The ids of one trace in the merged one.
#[derive(Debug, Default)]
struct Places {
    processes: HashMap<ProcessId, ProcessId>,
    modules: HashMap<ModuleId, ModuleId>,
    threads: HashMap<ThreadId, ThreadId>,
    functions: HashMap<FunctionId, FunctionId>,
}

/// The time of one trace in the merged one.
#[derive(Debug)]
struct Time<'a> {
    clock: ClockReader<'a>,
    /// What is added to monotonic time, in nanoseconds.
    shift: i128,
}

/// Merges traces into one, in the order given. Damaged blocks are cut at the damage, and counted in
/// the notes.
///
/// # Errors
///
/// The merged trace cannot be written or read: memory, or space for temporary files, is missing.
pub fn merge(traces: &[Trace]) -> Result<Opened, OpenError> {
    let mut spool = Spool::new()?;
    let mut ids = Ids::default();
    let mut notes = Notes::default();
    let by_wall = !are_of_one_boot(traces);
    for anchor in anchors(traces, by_wall) {
        spool.writer.add(&anchor)?;
    }
    let windows: Option<Vec<SnapshotWindow>> = traces
        .iter()
        .map(|trace| {
            let window = trace.coverage().snapshot?;
            let mut time = Time::new(trace, by_wall);
            Some(SnapshotWindow {
                since: time.at(window.since),
                until: time.at(window.until),
            })
        })
        .collect();
    // A part of snapshots has no common window.
    let window = windows.and_then(|windows| {
        Some(SnapshotWindow {
            since: windows.iter().map(|window| window.since).min()?,
            until: windows.iter().map(|window| window.until).max()?,
        })
    });
    for trace in traces {
        let time = Time::new(trace, by_wall);
        add(trace, time, &mut ids, &mut spool, &mut notes)?;
    }
    if let Some(window) = window {
        spool.writer.add(&window)?;
    }
    Ok(Opened {
        trace: spool.finish()?,
        format: Format::Xtrace,
        notes: notes.into_list(),
    })
}

/// Counts of what is not as it was.
#[derive(Debug, Default)]
struct Notes {
    damaged: u64,
    unfinished: u64,
    timeless: u64,
}

// === impl Notes ===

impl Notes {
    fn into_list(self) -> Vec<(String, u64)> {
        let Self {
            damaged,
            unfinished,
            timeless,
        } = self;
        let all = [
            ("traces without an end mark, or cut", unfinished),
            ("blocks that end where they are damaged", damaged),
            (
                "traces without a clock: their place among the others is not known",
                timeless,
            ),
        ];
        let some = all.into_iter().filter(|(_, count)| *count > 0);
        some.map(|(what, count)| (what.to_owned(), count)).collect()
    }
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
    fn process(&mut self, ids: &mut Ids, id: ProcessId) -> io::Result<ProcessId> {
        place(&mut self.processes, id, &mut ids.processes, ProcessId)
    }

    fn module(&mut self, ids: &mut Ids, id: ModuleId) -> io::Result<ModuleId> {
        place(&mut self.modules, id, &mut ids.modules, ModuleId)
    }

    fn thread(&mut self, ids: &mut Ids, id: ThreadId) -> io::Result<ThreadId> {
        match id {
            NO_THREAD => Ok(id),
            id => place(&mut self.threads, id, &mut ids.threads, ThreadId),
        }
    }

    /// The id of a function of the table. The second value is true if no trace has had it so far.
    fn function(
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

    /// The id of a function in an event. The table may lack it.
    fn function_of_event(&mut self, ids: &mut Ids, id: FunctionId) -> io::Result<FunctionId> {
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

// === impl Time ===

impl<'a> Time<'a> {
    fn new(trace: &'a Trace, by_wall: bool) -> Self {
        Self {
            clock: ClockReader::new(trace.clock()),
            shift: match by_wall {
                true => booted(trace.clock()).unwrap_or(0),
                false => 0,
            },
        }
    }

    #[inline]
    fn at(&mut self, ticks: Ticks) -> Ticks {
        let ns = self.clock.monotonic_ns(ticks);
        Ticks(self.shifted(ns))
    }

    /// The ticks from `from` to `from + ticks`.
    fn length(&mut self, from: Ticks, ticks: u64) -> u64 {
        let until = self.at(Ticks(from.0.saturating_add(ticks)));
        until.0.saturating_sub(self.at(from).0)
    }

    #[inline]
    fn shifted(&self, ns: u64) -> u64 {
        if self.shift == 0 {
            return ns;
        }
        let at = i128::from(ns) + self.shift;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }
}

/// The wall time at which the monotonic clock was 0, in nanoseconds. `None` without a clock.
fn booted(clock: &Clock) -> Option<i128> {
    let anchor = clock.anchors().first()?;
    Some(i128::from(anchor.wall_ns) - i128::from(anchor.monotonic_ns))
}

/// True if all traces are of one boot of one machine, as far as they show it.
fn are_of_one_boot(traces: &[Trace]) -> bool {
    let mut processes = traces.iter().flat_map(Trace::processes);
    let host = processes.next().map(|process| &process.host);
    let has_one_host = processes.all(|process| Some(&process.host) == host);
    let mut booted = traces.iter().filter_map(|trace| booted(trace.clock()));
    let first = booted.next();
    has_one_host
        && booted.all(|at| first.is_none_or(|first| at.abs_diff(first) < u128::from(ONE_BOOT)))
}

/// The clock of the merged trace, whose ticks are nanoseconds.
fn anchors(traces: &[Trace], by_wall: bool) -> Vec<ClockAnchor> {
    let clocks = traces.iter().map(Trace::clock);
    let Some(booted) = clocks.clone().find_map(booted) else {
        return Vec::new();
    };
    let anchors = clocks.flat_map(|clock| clock.anchors().iter());
    let times = anchors.map(|anchor| match by_wall {
        true => anchor.wall_ns,
        false => anchor.monotonic_ns,
    });
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), at| {
        (first.min(at), last.max(at))
    });
    // Two of them, for the rate.
    [first, last.max(first.saturating_add(1))]
        .map(|ns| {
            let wall = match by_wall {
                true => ns,
                false => u64::try_from((i128::from(ns) + booted).max(0)).unwrap_or(u64::MAX),
            };
            ClockAnchor {
                ticks: Ticks(ns),
                monotonic_ns: ns,
                wall_ns: wall,
            }
        })
        .to_vec()
}

/// Adds a trace.
fn add(
    trace: &Trace,
    mut time: Time<'_>,
    ids: &mut Ids,
    spool: &mut Spool,
    notes: &mut Notes,
) -> Result<(), OpenError> {
    let mut places = Places::default();
    let coverage = trace.coverage();
    notes.unfinished += u64::from(coverage.completeness != Completeness::Complete);
    notes.timeless += u64::from(trace.clock().calibration() == Calibration::None);
    for process in trace.processes() {
        let id = places.process(ids, process.id)?;
        spool.writer.add(&Process {
            id,
            ..process.clone()
        })?;
        if let Some(origin) = trace.origin(process.id) {
            spool.writer.origin(id, *origin)?;
        }
    }
    for module in trace.modules() {
        let id = places.module(ids, module.id)?;
        let process = places.process(ids, module.process)?;
        spool.writer.add(&Module {
            id,
            process,
            ..module.clone()
        })?;
    }
    for function in trace.functions() {
        let module = trace.module(function.module);
        let (id, is_new) = places.function(ids, function, module)?;
        if is_new {
            let module = places.module(ids, function.module)?;
            spool.writer.add(&Function {
                id,
                module,
                ..function.clone()
            })?;
        }
    }
    for thread in trace.threads() {
        let id = places.thread(ids, thread.id)?;
        let process = places.process(ids, thread.process)?;
        spool.writer.add(&Thread {
            id,
            process,
            ..thread.clone()
        })?;
    }
    for event_type in trace.event_types() {
        let process = places.process(ids, event_type.process)?;
        spool.writer.add(&EventType {
            process,
            ..event_type.clone()
        })?;
    }
    add_coverage(trace, &mut time, (&mut places, ids), spool)?;
    for block in trace.blocks() {
        add_block(block, &mut time, (&mut places, ids), spool, notes)?;
    }
    for part in trace.runs_parts() {
        spool.writer.runs(&RunsPart {
            thread: places.thread(ids, part.thread)?,
            from_ns: time.shifted(part.from_ns),
            until_ns: time.shifted(part.until_ns),
            switches: part.switches.clone(),
        })?;
    }
    Ok(())
}

fn add_block(
    block: &Block,
    time: &mut Time<'_>,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
    notes: &mut Notes,
) -> Result<(), OpenError> {
    let thread = places.thread(ids, block.thread)?;
    let mut failed = None;
    let number = |id| match places.function_of_event(ids, id) {
        Ok(id) => id,
        Err(error) => {
            failed = Some(error);
            id
        }
    };
    let (moved, is_whole) = block.moved(thread, number, |ticks| time.at(ticks));
    if let Some(error) = failed {
        return Err(error.into());
    }
    notes.damaged += u64::from(!is_whole);
    if let Some(moved) = moved {
        spool.writer.block(&moved)?;
    }
    Ok(())
}

/// Adds what the events of a trace cover.
fn add_coverage(
    trace: &Trace,
    time: &mut Time<'_>,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
) -> Result<(), OpenError> {
    let coverage = trace.coverage();
    let writer = &mut spool.writer;
    for lifetime in &coverage.lifetimes {
        writer.add(&Lifetime {
            module: places.module(ids, lifetime.module)?,
            loaded: lifetime.loaded.map(|at| time.at(at)),
            unloaded: lifetime.unloaded.map(|at| time.at(at)),
        })?;
    }
    for suppression in &coverage.suppressions {
        writer.add(&Suppression {
            function: places.function_of_event(ids, suppression.function)?,
            process: places.process(ids, suppression.process)?,
            from: time.at(suppression.from),
            until: suppression.until.map(|until| time.at(until)),
            recorded: time.length(suppression.from, suppression.recorded),
            calls: suppression.calls,
        })?;
    }
    for window in &coverage.duty {
        writer.add(&DutyWindow {
            process: places.process(ids, window.process)?,
            from: time.at(window.from),
            until: time.at(window.until),
            stands_for: time.length(window.from, window.stands_for),
        })?;
    }
    for note in &coverage.filters {
        writer.add(&FilterNote {
            process: places.process(ids, note.process)?,
            since: note.since.map(|since| time.at(since)),
            filter: note.filter.clone(),
        })?;
    }
    for gap in &coverage.gaps {
        writer.add(&Gap {
            process: places.process(ids, gap.process)?,
            from: gap.from.map(|from| time.at(from)),
            until: time.at(gap.until),
            cause: gap.cause,
        })?;
    }
    for wait in &coverage.waits {
        writer.add(&ThreadWait {
            thread: places.thread(ids, wait.thread)?,
            from: time.at(wait.from),
            until: time.at(wait.until),
            waited: time.length(wait.from, wait.waited),
        })?;
    }
    for &(thread, events) in &coverage.losses {
        writer.lost(places.thread(ids, thread)?, events)?;
    }
    for overwritten in &coverage.overwritten {
        writer.add(&Overwritten {
            thread: places.thread(ids, overwritten.thread)?,
            events: overwritten.events,
            until: time.at(overwritten.until),
        })?;
    }
    for recording in &coverage.recordings {
        writer.add(&RecordingWindow {
            process: places.process(ids, recording.process)?,
            since: recording.since.map(|since| time.at(since)),
            until: recording.until.map(|until| time.at(until)),
            ..*recording
        })?;
    }
    Ok(())
}
