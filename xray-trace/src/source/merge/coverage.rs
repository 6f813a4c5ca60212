//! The coverage of a trace, moved into the merged one.

use std::collections::HashMap;
use std::hash::Hash;

use super::ids::{Ids, Places};
use super::time::Moments;
use crate::model::{
    DutyWindow, FilterNote, FunctionId, Gap, Lifetime, Overwritten, ProcessId, RecordingWindow,
    Suppression, ThreadWait, Ticks, Trace,
};
use crate::source::OpenError;
use crate::source::spool::Spool;

/// The latest suppressions and duty windows that were written, by their keys in a trace. Profiles
/// of one process, made one after the other, have the same ones with different extents. In a trace,
/// a later section replaces an earlier one with the same key, so an older one is not written after
/// a newer one.
#[derive(Debug, Default)]
pub(super) struct Written {
    suppressions: HashMap<(FunctionId, ProcessId, Ticks), SuppressionExtent>,
    duty: HashMap<(ProcessId, Ticks), DutyExtent>,
}

/// The extent of a suppression, which grows until its end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SuppressionExtent {
    has_end: bool,
    calls: u64,
    recorded: u64,
    until: Option<Ticks>,
}

/// The extent of a duty window, which grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DutyExtent {
    until: Ticks,
    stands_for: u64,
}

/// Keeps the greater of the extent before and this one. Returns true if it is this one.
fn is_greatest<K: Eq + Hash, E: Ord>(extents: &mut HashMap<K, E>, key: K, extent: E) -> bool {
    match extents.get(&key) {
        Some(before) if *before >= extent => false,
        _ => {
            extents.insert(key, extent);
            true
        }
    }
}

/// Adds what the events of a trace cover.
pub(super) fn add_coverage(
    trace: &Trace,
    time: &mut impl Moments,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
    written: &mut Written,
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
        let moved = Suppression {
            function: places.function_of_event(ids, suppression.function)?,
            process: places.process(ids, suppression.process)?,
            from: time.at(suppression.from),
            until: suppression.until.map(|until| time.at(until)),
            recorded: time.length(suppression.from, suppression.recorded),
            calls: suppression.calls,
        };
        let key = (moved.function, moved.process, moved.from);
        let extent = SuppressionExtent {
            has_end: moved.until.is_some(),
            calls: moved.calls,
            recorded: moved.recorded,
            until: moved.until,
        };
        if is_greatest(&mut written.suppressions, key, extent) {
            writer.add(&moved)?;
        }
    }
    for window in &coverage.duty {
        let moved = DutyWindow {
            process: places.process(ids, window.process)?,
            from: time.at(window.from),
            until: time.at(window.until),
            stands_for: time.length(window.from, window.stands_for),
        };
        let extent = DutyExtent {
            until: moved.until,
            stands_for: moved.stands_for,
        };
        if is_greatest(&mut written.duty, (moved.process, moved.from), extent) {
            writer.add(&moved)?;
        }
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
