//! Reads the segments that an earlier daemon has left of a process.
//!
//! They are files that another program may have changed. A segment is used only if it is a whole
//! trace of this very process, and a block only if its checksum is right.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Seek as _, SeekFrom},
    sync::Arc,
};

use xray_trace::{
    container::ReadError,
    model::{
        FilterNote, FunctionId, Gap, GapCause, ModuleId, Overwritten, Process, Suppression, Thread,
        ThreadId, Ticks, Trace,
    },
};

use super::EarlierChoices;
use crate::{
    segments::Segment,
    store::{ArchivedBlock, EarlierEvents, FunctionNumbers},
    target::{Functions, Loaded},
};

/// The longest segment that is read, in bytes. The longest block can make one longer than the
/// archive wants.
const LONGEST: u64 = 64 << 20;

/// What the segments of a process have.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    pub(crate) events: EarlierEvents,
    /// The segments, with the number of their blocks in `events`.
    pub(crate) segments: Vec<(Segment, u32)>,
    pub(crate) choices: EarlierChoices,
    pub(crate) gaps: Vec<Gap>,
}

/// The reason why a segment is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it is longer than any segment")]
    TooLong,
    #[error("it is of another process")]
    OtherProcess,
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    #[error("it is damaged")]
    Damaged(#[from] ReadError),
}

/// Reads the segments of a process, in order. `now` is the time at which what the earlier daemon
/// did has ended.
pub(crate) fn read_segments(
    process: &Process,
    functions: &Functions,
    segments: Vec<Segment>,
    now: Ticks,
) -> Earlier {
    let mut earlier = Earlier::default();
    let mut is_damaged = false;
    let mut traces = Vec::new();
    for segment in segments {
        match read(&segment, process) {
            Ok(trace) => traces.push((segment, trace)),
            Err(why) => {
                is_damaged = true;
                tracing::warn!(
                    name = %segment.name, %why,
                    "refused a file of retained events of an earlier daemon"
                );
            }
        }
    }
    // Each segment has the totals of its time.
    let mut overwritten = BTreeMap::<ThreadId, Overwritten>::new();
    for one in traces
        .iter()
        .flat_map(|(_, trace)| &trace.coverage().overwritten)
    {
        let latest = overwritten.entry(one.thread).or_insert(*one);
        if latest.events < one.events {
            *latest = *one;
        }
    }
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
        let (mut blocks, mut damaged) = (0, 0_u32);
        for block in trace.blocks() {
            let dropped = overwritten.get(&block.thread);
            // These count as overwritten.
            if dropped.is_some_and(|dropped| block.last <= dropped.until) {
                continue;
            }
            if block.payload.load().is_err() {
                damaged += 1;
                continue;
            }
            blocks += 1;
            let archived = ArchivedBlock {
                block: block.clone(),
                segment: segment.name.number,
            };
            earlier.events.blocks.push((archived, Arc::clone(&numbers)));
        }
        if damaged > 0 {
            is_damaged = true;
            tracing::warn!(
                name = %segment.name,
                blocks = damaged,
                "left out damaged blocks of retained events of an earlier daemon"
            );
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
        earlier.gaps.push(Gap {
            process: process.id,
            from: None,
            until: now,
            cause: GapCause::DamagedEvents,
        });
    }
    earlier.gaps.sort_by_key(|gap| gap.until);
    earlier.gaps.dedup();
    earlier
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
    if file.metadata()?.len() > LONGEST {
        return Err(Unusable::TooLong);
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(Trace::open(file)?)
}

fn read(segment: &Segment, process: &Process) -> Result<Trace, Unusable> {
    let trace = open(segment)?;
    let is_same = |other: &Process| {
        (other.pid, other.start_time_ticks) == (process.pid, process.start_time_ticks)
    };
    match trace.processes() {
        [other] if is_same(other) => Ok(trace),
        _ => Err(Unusable::OtherProcess),
    }
}

/// The ids of this daemon for the functions of a segment, as far as they are loaded.
fn numbers_of(trace: &Trace, modules: &[Arc<Loaded>]) -> FunctionNumbers {
    let mut loaded = HashMap::<ModuleId, &Arc<Loaded>>::new();
    for module in trace.modules() {
        let is_same = |other: &&Arc<Loaded>| {
            let other = other.describe(module.process);
            (&other.path, &other.build_id, other.load_bias)
                == (&module.path, &module.build_id, module.load_bias)
        };
        if let Some(found) = modules.iter().find(is_same) {
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
    FunctionNumbers::new(numbers)
}
