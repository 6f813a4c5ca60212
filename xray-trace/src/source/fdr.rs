//! Logs of the flight data recorder.

use std::io::{BufRead, Read};

use super::importer::{Importer, Owner};
use super::{OpenError, Options};
use crate::llvm::fdr::{Body, Events};
use crate::model::{DataKind, Trace};

/// What an event was, when its payload has been copied out of the reader's buffer.
enum What {
    Call(crate::llvm::fdr::FunctionKind, u32),
    Argument(u64),
    Data(DataKind),
}

pub(super) fn import(
    input: impl BufRead,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut events = Events::new(input, options.mode)?;
    let mut importer: Option<Importer<'_>> = None;
    let mut data = Vec::new();
    // The buffer under way, and its thread.
    let mut current = None;
    while let Some(event) = events.next()? {
        let (tsc, tid, pid, cpu) = (event.tsc, event.tid, event.pid, event.cpu);
        let mut copy = |bytes: &[u8]| {
            data.clear();
            data.extend_from_slice(bytes);
        };
        let what = match event.body {
            Body::Call { kind, function } => What::Call(kind, function),
            Body::Argument(value) => What::Argument(value),
            Body::Custom(bytes) => {
                copy(bytes);
                What::Data(DataKind::Custom)
            }
            Body::Typed { event_type, data } => {
                copy(data);
                What::Data(DataKind::Typed(event_type))
            }
        };
        let importer = match &mut importer {
            Some(importer) => importer,
            none => none.insert(begin(&events, options)?),
        };
        let owner = Owner {
            pid: pid.unwrap_or(0).cast_unsigned(),
            tid: tid.cast_unsigned(),
        };
        let buffer = events.buffer().offset;
        let thread = match current {
            Some((known, of, thread)) if known == buffer && of == owner => thread,
            _ => {
                // A thread's buffers may stand in any order.
                importer.end_blocks()?;
                let thread = importer.thread(owner)?;
                current = Some((buffer, owner, thread));
                thread
            }
        };
        match what {
            What::Call(kind, function) => {
                let function = importer.function(function.cast_signed(), None)?;
                importer.call(thread, tsc, cpu, kind, function)?;
            }
            What::Argument(value) => importer.argument(thread, value),
            What::Data(kind) => importer.said(thread, tsc, cpu, kind, &data)?,
        }
    }
    let importer = match importer {
        Some(importer) => importer,
        None => begin(&events, options)?,
    };
    importer.finish(events.skipped())
}

fn begin<'a, R: Read>(events: &Events<R>, options: &'a Options) -> Result<Importer<'a>, OpenError> {
    let buffer = events.buffer();
    let wall = buffer.first.zip(buffer.wall).map(|(first, (s, us))| {
        let ns = s.saturating_mul(1_000_000_000);
        (first, ns.saturating_add(u64::from(us) * 1000))
    });
    Importer::new(options, events.header().cycle_frequency, wall)
}
