//! The coverage of a trace, moved into the merged one.

use super::ids::{Ids, Places};
use super::time::Moments;
use crate::model::{
    DutyWindow, FilterNote, Gap, Lifetime, Overwritten, RecordingWindow, Suppression, ThreadWait,
    Trace,
};
use crate::source::OpenError;
use crate::source::spool::Spool;

/// Adds what the events of a trace cover.
pub(super) fn add_coverage(
    trace: &Trace,
    time: &mut impl Moments,
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
