//! Logs of the flight data recorder. One thread reads the log while another writes it anew.

use std::io::BufRead;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use super::importer::{Importer, Owner};
use super::{OpenError, Options};
use crate::llvm;
use crate::llvm::fdr::{Body, Buffer, Events, FunctionKind};
use crate::model::{DataKind, ThreadId, Trace};

/// Events, and bytes that the program said, that are handed over at once at most, but for the last of them.
const MOST_EVENTS: usize = 4096;
const MOST_DATA: usize = 1 << 20;
/// Batches that wait to be written.
const WAITING: usize = 4;

/// Events of one thread that stand in one buffer.
#[derive(Debug)]
struct Batch {
    buffer: Buffer,
    owner: Owner,
    events: Vec<Happened>,
    /// What the program said in these events, one after the other.
    data: Vec<u8>,
}

#[derive(Debug)]
struct Happened {
    tsc: u64,
    cpu: u16,
    what: What,
}

#[derive(Debug)]
enum What {
    Call(FunctionKind, u32),
    Argument(u64),
    /// So many bytes.
    Said(DataKind, usize),
}

pub(super) fn import(
    input: impl BufRead + Send,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut events = Events::new(input, options.mode)?;
    let frequency = events.header().cycle_frequency;
    thread::scope(|scope| {
        let (sender, batches) = sync_channel(WAITING);
        let reader = scope.spawn(move || {
            let result = read(&mut events, &sender);
            (events, result)
        });
        let mut importer = None;
        let mut current = None;
        for batch in &batches {
            let importer = match &mut importer {
                Some(importer) => importer,
                none => none.insert(begin(frequency, &batch.buffer, options)?),
            };
            let place = (batch.buffer.offset, batch.owner);
            let thread = match current {
                Some((known, thread)) if known == place => thread,
                _ => {
                    // A thread's buffers may stand in any order.
                    importer.end_blocks()?;
                    importer.thread(batch.owner)?
                }
            };
            current = Some((place, thread));
            write(importer, thread, batch)?;
        }
        let (events, result) = match reader.join() {
            Ok(read) => read,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        result?;
        let importer = match importer {
            Some(importer) => importer,
            None => begin(frequency, events.buffer(), options)?,
        };
        importer.finish(events.skipped())
    })
}

/// Reads the log to its end, or until nobody wants it any more.
fn read(events: &mut Events<impl BufRead>, sender: &SyncSender<Batch>) -> Result<(), llvm::Error> {
    let mut said = Vec::new();
    let mut batch: Option<Batch> = None;
    while let Some(event) = events.next()? {
        let owner = Owner {
            pid: event.pid.unwrap_or(0).cast_unsigned(),
            tid: event.tid.cast_unsigned(),
        };
        let happened = Happened {
            tsc: event.tsc,
            cpu: event.cpu,
            what: match event.body {
                Body::Call { kind, function } => What::Call(kind, function),
                Body::Argument(value) => What::Argument(value),
                Body::Custom(data) => {
                    said.extend_from_slice(data);
                    What::Said(DataKind::Custom, data.len())
                }
                Body::Typed { event_type, data } => {
                    said.extend_from_slice(data);
                    What::Said(DataKind::Typed(event_type), data.len())
                }
            },
        };
        let buffer = events.buffer();
        if let Some(full) = batch.take_if(|batch| !batch.takes(buffer, owner))
            && sender.send(full).is_err()
        {
            return Ok(());
        }
        let batch = batch.get_or_insert_with(|| Batch {
            buffer: *buffer,
            owner,
            events: Vec::with_capacity(MOST_EVENTS),
            data: Vec::new(),
        });
        batch.events.push(happened);
        batch.data.append(&mut said);
    }
    if let Some(last) = batch {
        // Nobody takes it if writing failed, which is told there.
        let _ = sender.send(last);
    }
    Ok(())
}

fn write(importer: &mut Importer<'_>, thread: ThreadId, batch: Batch) -> Result<(), OpenError> {
    let mut data = batch.data.as_slice();
    for Happened { tsc, cpu, what } in batch.events {
        match what {
            What::Call(kind, function) => {
                let function = importer.function(function.cast_signed(), None)?;
                importer.call(thread, tsc, cpu, kind, function)?;
            }
            What::Argument(value) => importer.argument(thread, value),
            What::Said(kind, len) => {
                let (said, rest) = data.split_at_checked(len).unwrap_or((data, &[]));
                data = rest;
                importer.said(thread, tsc, cpu, kind, said)?;
            }
        }
    }
    Ok(())
}

fn begin<'a>(
    frequency: u64,
    buffer: &Buffer,
    options: &'a Options,
) -> Result<Importer<'a>, OpenError> {
    let wall = buffer.first.zip(buffer.wall).map(|(first, (s, us))| {
        let ns = s.saturating_mul(1_000_000_000);
        (first, ns.saturating_add(u64::from(us) * 1000))
    });
    Importer::new(options, frequency, wall)
}

// === impl Batch ===

impl Batch {
    /// Whether the next event of this buffer and this thread has room.
    #[inline]
    fn takes(&self, buffer: &Buffer, owner: Owner) -> bool {
        self.buffer.offset == buffer.offset
            && self.owner == owner
            && self.events.len() < MOST_EVENTS
            && self.data.len() < MOST_DATA
    }
}
