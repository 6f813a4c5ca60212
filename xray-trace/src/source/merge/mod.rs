//! Makes one trace of several: of hosts, of runs, or of parts of a run. Each keeps its processes
//! and threads. A function of the same file is one function. `profiles` adds profiles up.
//!
//! The times of the traces get one clock, whose ticks are nanoseconds. For traces of one boot of a
//! machine that is its monotonic clock, which all of them have. Otherwise it is the wall clock, so
//! the traces are as far apart as the machines' clocks say. Either all traces have the rate of
//! their counters, or none has it. Without it, ticks count as nanoseconds, and the merged clock has
//! no rate.
//!
//! ```text
//!  trace 0 ─┐  ids of processes, modules, functions, threads: given out anew
//!  trace 1 ─┼─► spool: memory, or a file ─► trace
//!  trace 2 ─┘  ticks: monotonic time, or wall time
//! ```

mod coverage;
mod ids;
mod index;
mod profiles;
mod tables;
mod time;
mod times_sum;
mod unit;

use std::collections::HashMap;

use self::coverage::{Written, add_coverage};
use self::ids::{Ids, Places};
use self::index::{ThreadBlocks, add_index};
pub use self::profiles::ProfileSum;
use self::tables::add_tables;
use self::time::{Moments as _, Time, anchors, are_of_one_boot};
pub use self::unit::CommonUnit;
use super::spool::Spool;
use super::{OpenError, Opened};
use crate::container::{Block, Completeness, KernelPart, RunsPart};
use crate::llvm::Format;
use crate::model::{Calibration, Process, SnapshotWindow, Thread, ThreadId, Trace};

/// Merges traces into one, in the order given. Damaged blocks are cut at the damage, and counted in
/// the notes.
///
/// # Errors
///
/// * [`OpenError::OtherUnit`]: a trace with events has the rate of its counter, and another one
///   lacks it.
/// * The merged trace cannot be written or read: memory, or space for temporary files, is missing.
pub fn merge(traces: &[Trace]) -> Result<Opened, OpenError> {
    let mut unit = CommonUnit::default();
    traces.iter().try_for_each(|trace| unit.add_trace(trace))?;
    let mut spool = Spool::new()?;
    let mut ids = Ids::default();
    let mut notes = Notes::default();
    let by_wall = !are_of_one_boot(traces);
    for anchor in anchors(traces, by_wall, unit) {
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
    faulty: u64,
}

// === impl Notes ===

impl Notes {
    fn into_list(self) -> Vec<(String, u64)> {
        let Self {
            damaged,
            unfinished,
            timeless,
            faulty,
        } = self;
        let all = [
            ("traces without an end mark, or cut", unfinished),
            ("blocks that end where they are damaged", damaged),
            (
                "traces without a clock: their place among the others is not known",
                timeless,
            ),
            (
                "traces with wrong times: the processor's counter did not keep time, or the \
                 machine was suspended",
                faulty,
            ),
        ];
        let some = all.into_iter().filter(|(_, count)| *count > 0);
        some.map(|(what, count)| (what.to_owned(), count)).collect()
    }
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
    notes.faulty += u64::from(!trace.clock().faults().is_empty());
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
    add_tables(trace, (&mut places, ids), spool)?;
    for thread in trace.threads() {
        let id = places.thread(ids, thread.id)?;
        let process = places.process(ids, thread.process)?;
        spool.writer.add(&Thread {
            id,
            process,
            ..thread.clone()
        })?;
    }
    let mut written = Written::default();
    add_coverage(trace, &mut time, (&mut places, ids), spool, &mut written)?;
    let mut threads = HashMap::<ThreadId, ThreadBlocks>::new();
    for block in trace.blocks() {
        let is_as_before = add_block(block, &mut time, (&mut places, ids), spool, notes)?;
        let blocks = threads.entry(block.thread).or_default();
        blocks.add(block, is_as_before);
    }
    add_index(trace, &mut time, (&mut places, ids), spool, &threads)?;
    for part in trace.runs_parts() {
        spool.writer.runs(&RunsPart {
            thread: places.thread(ids, part.thread)?,
            from_ns: time.shifted(part.from_ns),
            until_ns: time.shifted(part.until_ns),
            switches: part.switches.clone(),
        })?;
    }
    // A part that cannot be read would become a time without events.
    let readable = |part: &&KernelPart| part.events.load().is_ok();
    for part in trace.all_kernel_parts().filter(readable) {
        let renumbered = part.renumbered(|number| places.tracepoint(number));
        spool.writer.kernel_events(&KernelPart {
            thread: places.thread(ids, part.thread)?,
            from_ns: time.shifted(part.from_ns),
            until_ns: time.shifted(part.until_ns),
            ..renumbered
        })?;
    }
    Ok(())
}

/// Adds a block up to the first event that cannot be unpacked. Returns false if there is one, or if
/// the block has no events and is left out.
fn add_block(
    block: &Block,
    time: &mut Time<'_>,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
    notes: &mut Notes,
) -> Result<bool, OpenError> {
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
    let is_as_before = is_whole && moved.is_some();
    if let Some(moved) = moved {
        spool.writer.block(&moved)?;
    }
    Ok(is_as_before)
}
