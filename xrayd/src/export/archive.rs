//! The archive of one session: its retained events in segments, each a trace of its own.
//!
//! A segment describes what its blocks need: the process, its modules, threads, functions and event
//! types, clock anchors, and what was not recorded on purpose. So the next daemon needs nothing
//! beside the segments, whichever of them it finds. After a kill the last section may be cut.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use xray_trace::{
    container::ClosedBlock,
    model::{ClockAnchor, EventType, Overwritten, Thread, ThreadId},
};

use super::{ProcessTables, trace_writer::TraceWriter};
use crate::{
    pid::Pid,
    segments::{Segment, SegmentName, SegmentStore},
    store::{Archive, ArchivedBlock, Source},
};

/// The process of a segment.
const PROCESS: Source = Source(0);
/// A segment that is this long and has no retained block any more gets no further ones.
const LONG: u64 = 256 << 10;
/// Shortest time between two looks for what was not recorded on purpose.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The archive of one session.
#[derive(Debug)]
pub(crate) struct SegmentArchive {
    store: Arc<SegmentStore>,
    tables: Arc<ProcessTables>,
    /// The number of the next segment.
    next: u32,
    /// The segments that have retained blocks, and the one that is written.
    segments: BTreeMap<u32, HeldSegment>,
    /// The segment that is written. `None` before the first block, and after a failure.
    current: Option<Current>,
    /// The first anchor and the latest one, for further segments.
    anchors: Option<(ClockAnchor, ClockAnchor)>,
    /// The names of event types, for further segments.
    event_types: Vec<EventType>,
    /// True while blocks cannot be written.
    fails: bool,
}

#[derive(Debug)]
struct HeldSegment {
    segment: Segment,
    /// Its retained blocks.
    blocks: u32,
}

/// The segment that is written.
#[derive(Debug)]
struct Current {
    number: u32,
    file: Arc<File>,
    writer: TraceWriter<SegmentFile>,
    /// The threads that it describes.
    threads: HashSet<ThreadId>,
    looked: Instant,
}

/// The end of a segment's file.
#[derive(Debug)]
struct SegmentFile(Arc<File>);

// === impl SegmentArchive ===

impl SegmentArchive {
    /// The archive of a process. `earlier` are segments of the daemon before, with the number of
    /// blocks of each that are retained.
    pub(crate) fn new(
        store: Arc<SegmentStore>,
        tables: Arc<ProcessTables>,
        earlier: Vec<(Segment, u32)>,
    ) -> Self {
        let earlier = earlier.into_iter();
        let segments: BTreeMap<_, _> = earlier
            .map(|(segment, blocks)| (segment.name.number, HeldSegment { segment, blocks }))
            .collect();
        Self {
            store,
            tables,
            next: segments
                .last_key_value()
                .map_or(0, |(number, _)| number.saturating_add(1)),
            segments,
            current: None,
            anchors: None,
            event_types: Vec::new(),
            fails: false,
        }
    }

    /// Begins a segment.
    fn begin(&mut self, overwritten: &[Overwritten]) -> io::Result<Current> {
        let process = &self.tables.process;
        let pid = Pid::try_from(process.pid).map_err(io::Error::other)?;
        let number = self.next;
        let segment = self.store.create(SegmentName {
            pid,
            start_time: process.start_time_ticks,
            number,
        })?;
        self.next = number.saturating_add(1);
        let file = Arc::clone(&segment.file);
        let mut writer = TraceWriter::of_one_process(SegmentFile(Arc::clone(&file)))?;
        writer.process(PROCESS, process, &*self.tables)?;
        if let Some((first, last)) = &self.anchors {
            writer.anchor(PROCESS, first)?;
            writer.anchor(PROCESS, last)?;
        }
        for event_type in &self.event_types {
            writer.event_type(PROCESS, event_type)?;
        }
        for overwritten in overwritten {
            writer.overwritten(PROCESS, overwritten)?;
        }
        // Their counts of overwritten events are in this segment as well.
        self.segments.retain(|_, held| held.blocks > 0);
        let held = HeldSegment { segment, blocks: 0 };
        self.segments.insert(number, held);
        Ok(Current {
            number,
            file,
            writer,
            threads: HashSet::new(),
            looked: Instant::now(),
        })
    }

    /// Writes a block to the current segment, or to a new one if that is long enough.
    fn write(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        segment_bytes: u64,
        overwritten: &dyn Fn() -> Vec<Overwritten>,
    ) -> io::Result<Option<ArchivedBlock>> {
        let len = closed.block.encoded_len() as u64;
        let has_room =
            |current: &Current| current.writer.written().saturating_add(len) <= segment_bytes;
        if !self.current.as_ref().is_some_and(has_room) {
            let next = self.begin(&overwritten())?;
            self.complete();
            self.current = Some(next);
        }
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
        if current.threads.insert(thread.id) {
            current.writer.thread(PROCESS, thread)?;
        }
        let placed = current
            .writer
            .place_block(PROCESS, closed, &*self.tables)?
            // Otherwise it has functions that the process does not know.
            .filter(|placed| placed.is_same);
        if current.looked.elapsed() >= LOOK_EVERY {
            current.writer.so_far(PROCESS, &*self.tables)?;
            current.looked = Instant::now();
        }
        let number = current.number;
        if let Some(held) = self.segments.get_mut(&number)
            && placed.is_some()
        {
            held.blocks += 1;
        }
        Ok(placed.map(|placed| ArchivedBlock {
            block: placed.block.left_in(&current.file, placed.section),
            segment: number,
        }))
    }

    /// Ends the current segment.
    fn complete(&mut self) {
        let Some(mut current) = self.current.take() else {
            return;
        };
        if let Err(error) = current.writer.so_far(PROCESS, &*self.tables) {
            tracing::debug!(%error, "cannot complete a segment");
        }
        if let Some(held) = self.segments.get(&current.number) {
            held.segment.complete();
        }
    }

    /// Logs the begin of failures, and their end.
    fn note(&mut self, error: Option<&io::Error>) {
        let pid = self.tables.process.pid;
        match (std::mem::replace(&mut self.fails, error.is_some()), error) {
            // The store has logged it, once for all sessions.
            (_, Some(error)) if error.kind() == io::ErrorKind::QuotaExceeded => {}
            (false, Some(error)) => tracing::error!(
                pid, %error,
                "cannot write retained events for the next daemon: they stay in this one"
            ),
            (true, None) => tracing::info!(pid, "retained events can be written again"),
            (true, Some(_)) | (false, None) => {}
        }
    }
}

impl Archive for SegmentArchive {
    fn keep(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        segment_bytes: u64,
        overwritten: &dyn Fn() -> Vec<Overwritten>,
    ) -> Option<ArchivedBlock> {
        match self.write(closed, thread, segment_bytes, overwritten) {
            Ok(kept) => {
                self.note(None);
                kept
            }
            Err(error) => {
                // What is in the segment stays readable.
                self.complete();
                self.note(Some(&error));
                None
            }
        }
    }

    fn drop_block(&mut self, segment: u32, overwritten: &dyn Fn() -> Vec<Overwritten>) {
        let Some(held) = self.segments.get_mut(&segment) else {
            return;
        };
        held.blocks = held.blocks.saturating_sub(1);
        if held.blocks > 0 {
            return;
        }
        let Some(current) = &mut self.current else {
            // The next segment will have its counts.
            return;
        };
        if current.number == segment {
            if current.writer.written() >= LONG {
                self.complete();
            }
            return;
        }
        // Before the segment goes, so that a kill in between leaves no event without its count.
        let mut all = overwritten().into_iter();
        match all.try_for_each(|one| current.writer.overwritten(PROCESS, &one)) {
            Ok(()) => {
                self.segments.remove(&segment);
            }
            Err(error) => {
                self.complete();
                self.note(Some(&error));
            }
        }
    }

    fn add_anchor(&mut self, anchor: ClockAnchor) {
        let first = self.anchors.map_or(anchor, |(first, _)| first);
        self.anchors = Some((first, anchor));
        if let Some(current) = &mut self.current
            && let Err(error) = current.writer.anchor(PROCESS, &anchor)
        {
            self.complete();
            self.note(Some(&error));
        }
    }

    fn add_event_type(&mut self, event_type: &EventType) {
        let is_same = |other: &EventType| other.number != event_type.number;
        self.event_types.retain(is_same);
        self.event_types.push(event_type.clone());
        if let Some(current) = &mut self.current
            && let Err(error) = current.writer.event_type(PROCESS, event_type)
        {
            self.complete();
            self.note(Some(&error));
        }
    }
}

// === impl SegmentFile ===

impl Write for SegmentFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
