//! The trace writer: the items of one or several processes in, the bytes of one `.xtrace` file out.
//! It has no clock and never waits.
//!
//! What was written so far is a readable file at any time. A function is described before the first
//! block that has an event of it, and otherwise never. So a program with 100,000 functions of which
//! three are on costs three descriptions.
//!
//! Each process numbers its modules, functions and threads for itself, from 0 on. In a trace,
//! numbers are unique:
//!
//! ```text
//!  process, module    in ascending order
//!  thread             in runs of 64, each given out with the first thread of the run
//!  function           a run for each load of a file, shared by the processes with the same file
//! ```
//!
//! So the calls of a function count for one function in all processes of a group, and the events of
//! a process and its forks need no new numbers. A block whose functions have other numbers in the
//! trace is encoded anew. A trace of one process has the numbers of that process.

mod budget;
mod descriptions;
mod numbers;
mod sums;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use xray_trace::{
    analysis::SPACING,
    container::{Block, ClosedBlock, KernelPart, OpenCalls, RunsPart, StreamIndex, Writer},
    event_format::Tracepoint,
    model::{
        ClockAnchor, EventType, FunctionId, Lifetime, Origin, Overwritten, Process,
        RecordingWindow, SnapshotWindow, Thread, ThreadId, ThreadWait, Ticks,
    },
};

use self::{
    descriptions::{Descriptions, READER, RUN},
    numbers::Report,
};
use crate::store::{Source, Tables};

/// Shortest time between anchors of different processes, in nanoseconds. All processes have the
/// same clock.
const ANCHORS_APART: u64 = 500_000_000;

/// A writer of one trace.
#[derive(Debug)]
pub struct TraceWriter<W> {
    writer: Writer<W>,
    /// The processes, modules and functions that were described, and numbers in the trace.
    descriptions: Descriptions,
    /// The process of the last anchor, and the time of the anchor.
    anchored: Option<(Source, u64)>,
    /// True if sums of calls were added.
    sums: bool,
    /// The open calls at the begins of blocks, as far as they are not written.
    index: StreamIndex,
    /// Entries of calls in all blocks.
    entries: u64,
    /// Events that the reader lost in the whole stream.
    reader_lost: u64,
    /// Ticks for which threads waited in their full rings.
    waited: u64,
}

/// A block in a trace.
#[derive(Debug)]
pub(super) struct PlacedBlock {
    /// The block as it is in the trace.
    pub(super) block: Block,
    /// The begin of its section.
    pub(super) section: u64,
}

/// Totals of a trace, as far as it is written.
#[derive(Debug, Clone, Copy)]
pub struct TraceTotals {
    /// Events.
    pub events: u64,
    /// Events that were lost before they came to the reader.
    pub lost: u64,
    /// Events that the reader lost.
    pub reader_lost: u64,
    /// Ticks for which threads waited in their full rings.
    pub waited: u64,
    /// Entries of calls.
    pub entries: u64,
    /// True if the trace has its whole index of open calls once it is ended.
    pub indexed: bool,
}

// === impl TraceWriter ===

impl<W: Write> TraceWriter<W> {
    /// The thread in the file for losses of the reader.
    pub const READER: ThreadId = READER;

    /// Begins a trace: writes the header.
    ///
    /// # Errors
    /// The error of the inner writer, here and in the other methods.
    pub fn new(out: W) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::new(out)?,
            descriptions: Descriptions::default(),
            anchored: None,
            sums: false,
            index: StreamIndex::new(SPACING),
            entries: 0,
            reader_lost: 0,
            waited: 0,
        })
    }

    /// Begins a trace of one process, without an index of open calls. All numbers in it are those
    /// of the process.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub(crate) fn of_one_process(out: W) -> io::Result<Self> {
        let mut writer = Self::new(out)?;
        writer.index.give_up();
        writer.descriptions.keep_threads();
        Ok(writer)
    }

    /// Adds a process. Items from `source` are its.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn process(
        &mut self,
        source: Source,
        process: &Process,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.descriptions
            .add_process(&mut self.writer, source, process, tables)
    }

    /// Adds the origin of a process.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn origin(&mut self, source: Source, origin: Origin) -> io::Result<()> {
        match self.descriptions.process_id(source) {
            Some(process) => self.writer.origin(process, origin),
            None => Ok(()),
        }
    }

    /// Sets the earliest time of items from `source`. Suppressions, windows and filters before it
    /// are not in the trace.
    pub fn begins(&mut self, source: Source, at: Ticks) {
        if let Some(numbers) = self.descriptions.sources.get_mut(&source) {
            numbers.first = Some(numbers.first.map_or(at, |first| first.min(at)));
        }
    }

    /// Ends a process. Adds the load times of its described modules, and its suppressions, windows
    /// and filters.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn ended(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
        let first = self
            .descriptions
            .sources
            .get(&source)
            .and_then(|numbers| numbers.first);
        // Sums have no times, so everything counts.
        self.budget(source, first.unwrap_or(Ticks(0)), tables, Report::Final)?;
        let Some(numbers) = self.descriptions.sources.remove(&source) else {
            return Ok(());
        };
        let mut runs: Vec<u32> = numbers.threads.values().copied().collect();
        runs.sort_unstable();
        for thread in runs.into_iter().flat_map(|first| first..first + RUN) {
            let sections = self.index.end_thread(ThreadId(thread));
            self.open_calls(&sections)?;
        }
        for lifetime in tables.lifetimes() {
            if let Some(module) = numbers.modules.get(lifetime.module.0 as usize) {
                self.writer.add(&Lifetime {
                    module: module.row,
                    ..lifetime
                })?;
            }
        }
        Ok(())
    }

    /// Adds a thread, or its new name.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn thread(&mut self, source: Source, thread: &Thread) -> io::Result<()> {
        let id = self.descriptions.thread_number(source, thread.id);
        let process = self.descriptions.process_id(source);
        self.writer.add(&Thread {
            id,
            process: process.unwrap_or(thread.process),
            ..thread.clone()
        })
    }

    /// Adds the name of a type of typed events, or its new name.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn event_type(&mut self, source: Source, event_type: &EventType) -> io::Result<()> {
        let process = self.descriptions.process_id(source);
        self.writer.add(&EventType {
            process: process.unwrap_or(event_type.process),
            ..event_type.clone()
        })
    }

    /// Adds a clock anchor, unless another process has just added one.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn anchor(&mut self, source: Source, anchor: &ClockAnchor) -> io::Result<()> {
        if self.anchored.is_some_and(|(other, last)| {
            other != source && anchor.monotonic_ns < last.saturating_add(ANCHORS_APART)
        }) {
            return Ok(());
        }
        self.anchored = Some((source, anchor.monotonic_ns));
        self.writer.add(anchor)
    }

    /// Adds a function, unless it was added before.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn function(
        &mut self,
        source: Source,
        id: FunctionId,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.descriptions
            .add_function(&mut self.writer, source, id, tables)
            .map(drop)
    }

    /// Adds a block of which nothing is known: its events are unpacked to find its functions. The
    /// trace then has no index of open calls.
    ///
    /// # Errors
    /// As [`Self::closed_block`].
    pub fn block(&mut self, source: Source, block: &Block, tables: &dyn Tables) -> io::Result<()> {
        self.closed_block(source, &ClosedBlock::unpacked(block.clone()), tables)
    }

    /// Adds a block, after the functions and modules of the block that were not described yet.
    /// `tables` are those of its process. The block is unpacked only if its functions have other
    /// numbers in the trace.
    ///
    /// # Errors
    /// A block that is longer than the format allows, or the error of the inner writer.
    pub fn closed_block(
        &mut self,
        source: Source,
        closed: &ClosedBlock,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.place_block(source, closed, tables).map(drop)
    }

    /// Adds a block as [`Self::closed_block`], and returns where it is. `None`: no event of it can
    /// be unpacked.
    ///
    /// # Errors
    /// As [`Self::closed_block`].
    pub(super) fn place_block(
        &mut self,
        source: Source,
        closed: &ClosedBlock,
        tables: &dyn Tables,
    ) -> io::Result<Option<PlacedBlock>> {
        let ClosedBlock {
            block,
            functions,
            entries,
            stack,
        } = closed;
        let thread = self.descriptions.thread_number(source, block.thread);
        if let Some(numbers) = self.descriptions.sources.get_mut(&source) {
            let first = numbers.first.unwrap_or(block.first);
            numbers.first = Some(first.min(block.first));
        }
        let mut same = true;
        for id in functions.iter() {
            let number = self
                .descriptions
                .add_function(&mut self.writer, source, id, tables)?;
            same &= number == id;
        }
        let number = |id| self.descriptions.function_number(source, id);
        let written = match same {
            true => Some(Block {
                thread,
                ..block.clone()
            }),
            false => block.renumbered(thread, number),
        };
        let Some(written) = written else {
            return Ok(None);
        };
        let section = self.writer.written();
        self.writer.block(&written)?;
        self.entries = self.entries.saturating_add(u64::from(*entries));
        let len = written.encoded_len() as u64;
        let sections = self.index.block(thread, len, stack.as_ref(), number);
        self.open_calls(&sections)?;
        Ok(Some(PlacedBlock {
            block: written,
            section,
        }))
    }

    fn open_calls(&mut self, sections: &[OpenCalls]) -> io::Result<()> {
        let mut sections = sections.iter();
        sections.try_for_each(|section| self.writer.open_calls(section))
    }

    /// Adds losses of a thread whose place among its events is unknown.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn lost(&mut self, source: Source, thread: ThreadId, events: u64) -> io::Result<()> {
        let thread = self.descriptions.thread_number(source, thread);
        self.writer.lost(thread, events)
    }

    /// Adds a time in which a thread waited in its full ring.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn wait(&mut self, source: Source, wait: &ThreadWait) -> io::Result<()> {
        let thread = self.descriptions.thread_number(source, wait.thread);
        self.waited = self.waited.saturating_add(wait.waited);
        self.writer.add(&ThreadWait { thread, ..*wait })
    }

    /// Adds a part of the run times of a thread.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub(crate) fn runs(&mut self, source: Source, part: &RunsPart) -> io::Result<()> {
        let thread = self.descriptions.thread_number(source, part.thread);
        self.writer.runs(&RunsPart {
            thread,
            ..part.clone()
        })
    }

    /// Adds a kernel tracepoint, whose events have this number.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub(crate) fn tracepoint(&mut self, number: u16, tracepoint: &Tracepoint) -> io::Result<()> {
        self.writer.tracepoint(number, tracepoint)
    }

    /// Adds kernel events of a thread.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub(crate) fn kernel_events(&mut self, source: Source, part: &KernelPart) -> io::Result<()> {
        let thread = self.descriptions.thread_number(source, part.thread);
        self.writer.kernel_events(&KernelPart {
            thread,
            ..part.clone()
        })
    }

    /// Marks the trace as a snapshot of a time.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn snapshot(&mut self, window: &SnapshotWindow) -> io::Result<()> {
        self.writer.add(window)
    }

    /// Adds the time that the trace covers of a process, and what it leaves out.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn recording(&mut self, source: Source, window: &RecordingWindow) -> io::Result<()> {
        match self.descriptions.process_id(source) {
            Some(process) => self.writer.add(&RecordingWindow { process, ..*window }),
            None => Ok(()),
        }
    }

    /// Adds the number of events of a thread that newer ones have overwritten. They are not losses.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn overwritten(&mut self, source: Source, overwritten: &Overwritten) -> io::Result<()> {
        let thread = self.descriptions.thread_number(source, overwritten.thread);
        self.writer.add(&Overwritten {
            thread,
            ..*overwritten
        })
    }

    /// Adds events that this trace lost because its reader was too slow.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn reader_lost(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.reader_lost = self.reader_lost.saturating_add(events);
        // Nothing tells which calls have begun and ended in the missing blocks.
        self.index.give_up();
        self.writer.lost(Self::READER, events)
    }

    /// Adds the rest of the index, and marks the trace as finished. Nothing may follow.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn end(&mut self) -> io::Result<()> {
        let sections = self.index.finish();
        self.open_calls(&sections)?;
        self.writer.end(&self.writer.totals())
    }

    /// The number of bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.writer.written()
    }

    /// The inner writer.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    /// Totals of the trace so far.
    #[must_use]
    pub fn totals(&self) -> TraceTotals {
        let written = self.writer.totals();
        TraceTotals {
            events: written.calls,
            lost: written.lost.saturating_sub(self.reader_lost),
            reader_lost: self.reader_lost,
            waited: self.waited,
            entries: self.entries,
            indexed: self.index.is_complete(),
        }
    }
}
