//! Logs of the flight data recorder. Their events stay in the file: a log is looked through once, for damage, threads, functions and
//! times, and its records are then read wherever somebody wants events.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::importer::{Importer, Notes, Owner};
use super::{OpenError, Options};
use crate::container::in_log::{Log, Place, Stretch};
use crate::container::{Block, MAX_DATA_LEN, Payload};
use crate::llvm::fdr::{Body, Buffer, Event, Events, FunctionKind};
use crate::model::{ThreadId, Ticks, Trace};

/// Records that make a block, in bytes; more only where they come at once.
const BLOCK_LEN: u64 = 64 << 10;

/// Looks through a log.
struct Scan<'a> {
    options: &'a Options,
    frequency: u64,
    importer: Option<Importer<'a>>,
    /// The block under way.
    current: Option<Found>,
    found: Vec<Found>,
    notes: Notes,
}

/// A block that was found.
#[derive(Debug)]
struct Found {
    thread: ThreadId,
    owner: Owner,
    /// Where its buffer begins.
    buffer: u64,
    place: Place,
    first: u64,
    last: u64,
    calls: u32,
    /// The next argument is the first of a call.
    entered: bool,
}

pub(super) fn open(
    file: File,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let file = Arc::new(file);
    let mut events = Events::new(&*file, options.mode)?;
    let mut scan = Scan {
        options,
        frequency: events.header().cycle_frequency,
        importer: None,
        current: None,
        found: Vec::new(),
        notes: Notes::default(),
    };
    let mut left_out = 0;
    while let Some(event) = events.next()? {
        let event = event.map(<[u8]>::len);
        let (_, cpu) = events.place();
        let gap = events.skipped().places() != left_out;
        left_out = events.skipped().places();
        scan.event(&event, events.buffer(), cpu, gap, events.offset())?;
        scan.calls(&mut events)?;
    }
    let buffer = *events.buffer();
    scan.end_block();
    scan.importer(&buffer)?;
    let Scan {
        importer,
        found,
        notes,
        ..
    } = scan;
    let mut importer = importer.ok_or_else(|| io::Error::other("no trace was begun"))?;
    importer.note(notes);
    let log = Arc::new(Log {
        file: file.clone(),
        layout: events.layout(),
        functions: importer.take_functions(),
    });
    let (mut trace, notes) = importer.finish(events.skipped())?;
    trace.add_blocks(found.into_iter().map(|found| found.block(&log)));
    Ok((trace, notes))
}

// === impl Scan ===

impl<'a> Scan<'a> {
    /// What keeps processes, threads and functions, begun with what the first buffer tells.
    fn importer(&mut self, buffer: &Buffer) -> Result<&mut Importer<'a>, OpenError> {
        match &mut self.importer {
            Some(importer) => Ok(importer),
            none => {
                let wall = buffer.first.zip(buffer.wall).map(|(first, (s, us))| {
                    let ns = s.saturating_mul(1_000_000_000);
                    (first, ns.saturating_add(u64::from(us) * 1000))
                });
                Ok(none.insert(Importer::new(self.options, self.frequency, wall)?))
            }
        }
    }

    /// Takes an event in, of which the data's length is known, and that ends at `end`. With a `gap`, something in front of it was left
    /// out.
    fn event(
        &mut self,
        event: &Event<usize>,
        buffer: &Buffer,
        cpu: u16,
        gap: bool,
        end: u64,
    ) -> Result<(), OpenError> {
        let owner = Owner {
            pid: event.pid.unwrap_or(0).cast_unsigned(),
            tid: event.tid.cast_unsigned(),
        };
        let argument = matches!(event.body, Body::Argument(_));
        let before = self.current.as_ref();
        let before = before.filter(|found| found.buffer == buffer.offset && found.owner == owner);
        let floor = before.map_or(0, |found| found.last);
        let goes_on = before.is_some_and(|found| {
            !gap && (argument || event.offset - found.place.offset < BLOCK_LEN)
        });
        if !goes_on {
            self.end_block();
            let thread = self.importer(buffer)?.thread(owner)?;
            self.current = Some(Found {
                thread,
                owner,
                buffer: buffer.offset,
                place: Place {
                    offset: event.offset,
                    len: 0,
                    base: event.base,
                    cpu,
                    floor,
                },
                first: floor.max(event.tsc),
                last: floor,
                calls: 0,
                entered: false,
            });
        }
        if let Body::Call { function, .. } = event.body {
            let importer = self.importer(buffer)?;
            importer.function(function.cast_signed(), None)?;
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.reach(end)?;
        if let Body::Argument(_) = event.body {
            self.notes.more_arguments += u64::from(!current.entered);
            current.entered = false;
            return Ok(());
        }
        self.notes.backwards += u64::from(event.tsc < current.last);
        current.last = current.last.max(event.tsc);
        current.entered = false;
        match event.body {
            Body::Call { kind, .. } => {
                current.calls = current.calls.saturating_add(1);
                current.entered = enters(kind);
            }
            Body::Custom(len) | Body::Typed { data: len, .. } => {
                self.notes.cut_bytes += len.saturating_sub(MAX_DATA_LEN) as u64;
            }
            Body::Argument(_) => {}
        }
        Ok(())
    }

    /// Takes the calls in that follow on an event directly, which nearly all do.
    fn calls(&mut self, events: &mut Events<&File>) -> Result<(), OpenError> {
        let (Some(importer), Some(current)) = (&mut self.importer, &mut self.current) else {
            return Ok(());
        };
        let (mut last, mut backwards, mut last_kind) = (current.last, 0, None);
        let mut failed = None;
        let calls = events.calls(|tsc, kind, function| {
            backwards += u64::from(tsc < last);
            last = last.max(tsc);
            last_kind = Some(kind);
            if let Err(error) = importer.function(function.cast_signed(), None) {
                failed = Some(error);
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if let Some(kind) = last_kind {
            current.last = last;
            current.entered = enters(kind);
            current.calls = current
                .calls
                .saturating_add(u32::try_from(calls).unwrap_or(u32::MAX));
            self.notes.backwards += backwards;
            current.reach(events.offset())?;
        }
        Ok(())
    }

    fn end_block(&mut self) {
        self.found.extend(self.current.take());
    }
}

// === impl Found ===

impl Found {
    /// Its last record ends here.
    fn reach(&mut self, end: u64) -> io::Result<()> {
        let len = u32::try_from(end - self.place.offset);
        self.place.len = len.map_err(|_| io::Error::other("a block of 4 GiB"))?;
        Ok(())
    }

    fn block(self, log: &Arc<Log>) -> Block {
        Block {
            thread: self.thread,
            first: Ticks(self.first),
            last: Ticks(self.last),
            calls: self.calls,
            lost: 0,
            payload: Payload::in_log(Stretch {
                log: log.clone(),
                place: self.place,
            }),
        }
    }
}

fn enters(kind: FunctionKind) -> bool {
    matches!(kind, FunctionKind::Enter | FunctionKind::EnterArg)
}
