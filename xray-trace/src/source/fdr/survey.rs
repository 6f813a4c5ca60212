//! Goes through a log, or a part of it, once, and finds its blocks and functions. It keeps no
//! events.

use std::io::{self, Read};

use super::super::OpenError;
use super::super::importer::Owner;
use super::super::notes::Notes;
use crate::container::MAX_DATA_LEN;
use crate::container::in_log::LogPosition;
use crate::function_map::FunctionMap;
use crate::llvm::fdr::{Body, Buffer, Calls, Event, Events, FunctionKind, Layout};
use crate::llvm::{Header, SkippedList};
use crate::model::FunctionId;

/// The length of a block's records, in bytes. A block is longer only if calls are taken many at
/// once.
const BLOCK_LEN: u64 = 64 << 10;

/// The findings.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) header: Header,
    pub(super) layout: Layout,
    /// The buffer of the first event; the last buffer if there is no event.
    pub(super) first: Buffer,
    pub(super) found: Vec<Found>,
    /// Functions, in the order of their first use.
    pub(super) functions: Vec<u32>,
    met: FunctionMap<bool>,
    pub(super) notes: Notes,
    pub(super) skipped: SkippedList,
}

/// A block that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) place: LogPosition,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) calls: u32,
}

/// The findings so far.
#[derive(Debug, Default)]
struct Scan {
    first: Option<Buffer>,
    current: Option<Current>,
    found: Vec<Found>,
    functions: Vec<u32>,
    met: FunctionMap<bool>,
    notes: Notes,
}

/// The current block.
#[derive(Debug)]
struct Current {
    found: Found,
    /// The begin of the buffer of its latest event.
    buffer: u64,
    /// True if the next argument is the first one of a call.
    entered: bool,
}

// === impl Survey ===

impl Survey {
    /// Reads all events.
    ///
    /// # Errors
    ///
    /// The errors of [`Events::next`].
    pub(super) fn of<R: Read>(mut events: Events<R>) -> Result<Self, OpenError> {
        let mut scan = Scan::default();
        let mut left_out = 0;
        while let Some(event) = events.next()? {
            let event = event.map(<[u8]>::len);
            let (_, cpu) = events.place();
            let gap = events.skipped().places() != left_out;
            left_out = events.skipped().places();
            scan.event(&event, events.buffer(), cpu, gap, events.offset())?;
            scan.calls(&mut events)?;
        }
        scan.end_block();
        let Scan {
            first,
            found,
            functions,
            met,
            notes,
            ..
        } = scan;
        Ok(Self {
            header: *events.header(),
            layout: events.layout(),
            first: first.unwrap_or(*events.buffer()),
            found,
            functions,
            met,
            notes,
            skipped: events.into_skipped(),
        })
    }

    /// Adds the findings of the next part of the log. No part of it was skipped.
    pub(super) fn add(&mut self, next: Self) {
        let Self {
            first,
            found,
            functions,
            notes,
            ..
        } = next;
        if self.found.is_empty() {
            self.first = first;
        }
        self.found.extend(found);
        for function in functions {
            meet(&mut self.met, &mut self.functions, function);
        }
        self.notes.add(notes);
    }
}

// === impl Scan ===

impl Scan {
    /// Adds an event with the length of its data. The event ends at `end`. With a `gap`, the reader
    /// has skipped bytes before it.
    fn event(
        &mut self,
        event: &Event<usize>,
        buffer: &Buffer,
        cpu: u16,
        gap: bool,
        end: u64,
    ) -> io::Result<()> {
        self.first.get_or_insert(*buffer);
        let owner = Owner {
            pid: event.pid.unwrap_or(0).cast_unsigned(),
            tid: event.tid.cast_unsigned(),
        };
        let argument = matches!(event.body, Body::Argument(_));
        let before = self.current.as_ref().filter(|current| {
            current.found.owner == owner
                && (current.buffer == buffer.offset || current.goes_on_in(buffer, event.tsc))
        });
        let floor = before.map_or(0, |current| current.found.last);
        let goes_on = before.is_some_and(|current| {
            !gap && (argument || event.offset - current.found.place.offset < BLOCK_LEN)
        });
        if !goes_on {
            self.end_block();
            self.current = Some(Current {
                found: Found {
                    owner,
                    place: LogPosition {
                        offset: event.offset,
                        len: 0,
                        base: event.base,
                        cpu,
                        floor,
                    },
                    first: floor.max(event.tsc),
                    last: floor,
                    calls: 0,
                },
                buffer: buffer.offset,
                entered: false,
            });
        }
        if let Body::Call { function, .. } = event.body {
            meet(&mut self.met, &mut self.functions, function);
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.buffer = buffer.offset;
        current.reach(end)?;
        if let Body::Argument(_) = event.body {
            self.notes.more_arguments += u64::from(!current.entered);
            current.entered = false;
            return Ok(());
        }
        let found = &mut current.found;
        self.notes.backwards += u64::from(event.tsc < found.last);
        found.last = found.last.max(event.tsc);
        current.entered = false;
        match event.body {
            Body::Call { kind, .. } => {
                found.calls = found.calls.saturating_add(1);
                current.entered = enters(kind);
            }
            Body::Custom(len) | Body::Typed { data: len, .. } => {
                self.notes.cut_bytes += len.saturating_sub(MAX_DATA_LEN) as u64;
            }
            Body::Argument(_) => {}
        }
        Ok(())
    }

    /// Takes the calls that follow an event directly, which is the case for nearly all calls.
    fn calls<R: Read>(&mut self, events: &mut Events<R>) -> Result<(), OpenError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let (met, functions) = (&mut self.met, &mut self.functions);
        let calls = events.calls(current.found.last, |id| meet(met, functions, id))?;
        if let Some(Calls { count, last }) = calls {
            let found = &mut current.found;
            (found.last, _) = events.place();
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            found.calls = found.calls.saturating_add(count);
            current.entered = enters(last);
            current.reach(events.offset())?;
        }
        Ok(())
    }

    fn end_block(&mut self) {
        self.found
            .extend(self.current.take().map(|current| current.found));
    }
}

// === impl Current ===

impl Current {
    /// Whether the block continues in this buffer, with an event at `tsc`: the buffer must begin at
    /// the end of the block's last record. This reduces the number of blocks for a thread that
    /// fills several buffers in a row.
    fn goes_on_in(&self, buffer: &Buffer, tsc: u64) -> bool {
        let Found { place, last, .. } = &self.found;
        buffer.offset == place.offset + u64::from(place.len) && tsc >= *last
    }

    /// Extends the block to the end of its last record.
    fn reach(&mut self, end: u64) -> io::Result<()> {
        let place = &mut self.found.place;
        let len = u32::try_from(end - place.offset);
        place.len = len.map_err(|_| io::Error::other("a block of 4 GiB"))?;
        Ok(())
    }
}

#[inline]
fn meet(met: &mut FunctionMap<bool>, functions: &mut Vec<u32>, function: u32) {
    if !met.get(FunctionId(function)) {
        meet_first(met, functions, function);
    }
}

#[cold]
#[inline(never)]
fn meet_first(met: &mut FunctionMap<bool>, functions: &mut Vec<u32>, function: u32) {
    *met.entry(FunctionId(function)) = true;
    functions.push(function);
}

fn enters(kind: FunctionKind) -> bool {
    matches!(kind, FunctionKind::Enter | FunctionKind::EnterArg)
}
