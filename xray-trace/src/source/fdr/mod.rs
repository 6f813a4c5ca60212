//! Opens logs of the flight data recorder. Events stay in the file. Opening goes through the log
//! once, to find damage, threads, functions and times. Its records are read again when events are
//! needed.

mod parts;
mod survey;

use std::fs::File;
use std::sync::Arc;

use self::survey::{Found, Survey};
use super::importer::Importer;
use super::{OpenError, Options};
use crate::container::in_log::{Log, Stretch};
use crate::container::{Block, Payload};
use crate::llvm::fdr::Buffer;
use crate::model::{ThreadId, Ticks, Trace};

pub(super) fn open(
    file: File,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let survey = parts::survey(&file, options.mode)?;
    trace_of(file, survey, options)
}

/// The trace of a surveyed log, and counts of data that could not be kept.
fn trace_of(
    file: File,
    survey: Survey,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let Survey {
        header,
        layout,
        first,
        found,
        functions,
        notes,
        skipped,
        ..
    } = survey;
    let mut importer = Importer::new(options, header.cycle_frequency, clock(&first))?;
    let threads: Vec<_> = found
        .iter()
        .map(|found| importer.thread(found.owner))
        .collect::<Result<_, _>>()?;
    for function in functions {
        importer.function(function.cast_signed(), None)?;
    }
    importer.note(notes);
    let log = Arc::new(Log {
        file: Arc::new(file),
        layout,
        functions: importer.take_functions(),
    });
    let (mut trace, notes) = importer.finish(&skipped)?;
    let blocks = found.into_iter().zip(threads);
    trace.add_blocks(blocks.map(|(found, thread)| block(&found, thread, &log)));
    Ok((trace, notes))
}

/// A moment on the counter and in nanoseconds since 1970, if the buffer has both.
fn clock(buffer: &Buffer) -> Option<(u64, u64)> {
    let (first, (seconds, micros)) = buffer.first.zip(buffer.wall)?;
    let ns = seconds.saturating_mul(1_000_000_000);
    Some((first, ns.saturating_add(u64::from(micros) * 1000)))
}

fn block(found: &Found, thread: ThreadId, log: &Arc<Log>) -> Block {
    Block {
        thread,
        first: Ticks(found.first),
        last: Ticks(found.last),
        calls: found.calls,
        lost: 0,
        payload: Payload::in_log(Stretch {
            log: log.clone(),
            place: found.place,
        }),
    }
}
