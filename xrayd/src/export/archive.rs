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

use super::{
    ProcessTables,
    process_tables::SourcelessTables,
    trace_writer::{PlacedBlock, TraceWriter},
};
use crate::{
    pid::Pid,
    segments::{Segment, SegmentName, SegmentStore},
    store::{Archive, ArchivedBlock, NotArchived, Source},
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
    /// The session of the segments, see [`SegmentName::session`].
    session: u64,
    /// The number of the next segment.
    next: u32,
    /// The segments that have retained blocks, and the one that is written.
    segments: BTreeMap<u32, HeldSegment>,
    /// The segment that is written. `None` before the first block, and after a failure.
    current: Option<Current>,
    /// The first anchor and the latest one.
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
    /// Its length without a part of a write that failed.
    whole: u64,
    /// True if it has the latest anchor.
    is_anchored: bool,
}

/// The end of a segment's file.
#[derive(Debug)]
struct SegmentFile(Arc<File>);

// === impl SegmentArchive ===

impl SegmentArchive {
    /// The archive of a session, with its number and the number of its next segment. `earlier` are
    /// its segments of the daemon before, with the number of blocks of each that are retained.
    pub(crate) fn new(
        store: Arc<SegmentStore>,
        tables: Arc<ProcessTables>,
        (session, next): (u64, u32),
        earlier: Vec<(Segment, u32)>,
    ) -> Self {
        let earlier = earlier.into_iter();
        let segments: BTreeMap<_, _> = earlier
            .map(|(segment, blocks)| (segment.name.number, HeldSegment { segment, blocks }))
            .collect();
        Self {
            store,
            tables,
            session,
            next,
            segments,
            current: None,
            anchors: None,
            event_types: Vec::new(),
            fails: false,
        }
    }

    /// Begins a segment, and ends the current one. The new one has the present counts, so segments
    /// without blocks are removed.
    fn begin(&mut self, overwritten: &[Overwritten]) -> io::Result<()> {
        let is_done = |held: &HeldSegment| held.blocks == 0;
        let next = match self.open(overwritten) {
            // The next daemon lacks the latest counts for as long as this fails.
            Err(_) if self.segments.values().any(is_done) => {
                self.segments.retain(|_, held| !is_done(held));
                self.open(overwritten)
            }
            opened => opened,
        };
        let (next, held) = next?;
        self.complete();
        self.segments.retain(|_, held| !is_done(held));
        self.segments.insert(next.number, held);
        self.current = Some(next);
        Ok(())
    }

    /// Makes a segment, and describes the process in it.
    fn open(&mut self, overwritten: &[Overwritten]) -> io::Result<(Current, HeldSegment)> {
        let process = &self.tables.process;
        let pid = Pid::try_from(process.pid).map_err(io::Error::other)?;
        let (start_time, session) = (process.start_time_ticks, self.session);
        let number = self.next;
        // A file that could not be read may have this number: then the next trial has another one.
        self.next = number.saturating_add(1);
        let segment = self.store.create(SegmentName {
            pid,
            start_time,
            session,
            number,
        })?;
        let file = Arc::clone(&segment.file);
        let mut writer = TraceWriter::of_one_process(SegmentFile(Arc::clone(&file)))?;
        writer.process(PROCESS, process, &SourcelessTables(&self.tables))?;
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
        let whole = writer.written();
        let held = HeldSegment { segment, blocks: 0 };
        let current = Current {
            number,
            file,
            writer,
            threads: HashSet::new(),
            looked: Instant::now(),
            whole,
            is_anchored: true,
        };
        Ok((current, held))
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
            self.begin(&overwritten())?;
        }
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
        let number = current.number;
        let anchor = self.anchors.as_ref().map(|(_, latest)| latest);
        let written = current.write(closed, thread, anchor, &SourcelessTables(&self.tables));
        let placed = written?;
        current.whole = current.writer.written();
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
        let tables = SourcelessTables(&self.tables);
        if let Err(error) = current.writer.so_far(PROCESS, &tables) {
            tracing::debug!(%error, "cannot complete a segment");
        }
        if let Some(held) = self.segments.get(&current.number) {
            held.segment.complete();
        }
    }

    /// Ends the current segment, to which nothing can be written. It is cut behind what was written
    /// as a whole, so that this stays readable, and no block is in two segments.
    fn give_up(&mut self, error: &io::Error) {
        if let Some(current) = self.current.take() {
            if let Err(error) = current.file.set_len(current.whole) {
                tracing::warn!(%error, "cannot cut a file of retained events");
            }
            if let Some(held) = self.segments.get(&current.number) {
                held.segment.complete();
            }
        }
        self.note(Some(error));
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
    fn leave(self: Box<Self>) {
        for held in self.segments.into_values() {
            held.segment.leave();
        }
    }

    fn keep(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        segment_bytes: u64,
        overwritten: &dyn Fn() -> Vec<Overwritten>,
    ) -> Result<ArchivedBlock, NotArchived> {
        match self.write(closed, thread, segment_bytes, overwritten) {
            Ok(kept) => {
                self.note(None);
                kept.ok_or(NotArchived::Ever)
            }
            Err(error) => {
                self.give_up(&error);
                Err(NotArchived::Now)
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
        let all = overwritten();
        let is_long = |current: &Current| current.writer.written() >= LONG;
        // Before the segment goes, so that a kill in between leaves no event without its count.
        let noted = match &mut self.current {
            Some(current) if current.number != segment || !is_long(current) => {
                let mut rows = all.iter();
                let written = rows.try_for_each(|row| current.writer.overwritten(PROCESS, row));
                written.map(|()| current.whole = current.writer.written())
            }
            _ => self.begin(&all),
        };
        let current = self.current.as_ref().map(|current| current.number);
        match noted {
            Ok(()) if current == Some(segment) => {}
            Ok(()) => {
                self.segments.remove(&segment);
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn add_anchor(&mut self, anchor: ClockAnchor) {
        let first = self.anchors.map_or(anchor, |(first, _)| first);
        self.anchors = Some((first, anchor));
        if let Some(current) = &mut self.current {
            current.is_anchored = false;
        }
    }

    fn add_event_type(&mut self, event_type: &EventType) {
        let is_other = |other: &EventType| other.number != event_type.number;
        self.event_types.retain(is_other);
        self.event_types.push(event_type.clone());
        let Some(current) = &mut self.current else {
            return;
        };
        match current.writer.event_type(PROCESS, event_type) {
            Ok(()) => current.whole = current.writer.written(),
            Err(error) => self.give_up(&error),
        }
    }
}

// === impl Current ===

impl Current {
    /// Writes a block, and what it needs.
    fn write(
        &mut self,
        closed: &ClosedBlock,
        thread: &Thread,
        anchor: Option<&ClockAnchor>,
        tables: &SourcelessTables<'_>,
    ) -> io::Result<Option<PlacedBlock>> {
        if self.threads.insert(thread.id) {
            self.writer.thread(PROCESS, thread)?;
        }
        if let Some(anchor) = anchor
            && !std::mem::replace(&mut self.is_anchored, true)
        {
            self.writer.anchor(PROCESS, anchor)?;
        }
        let placed = self.writer.place_block(PROCESS, closed, tables)?;
        if self.looked.elapsed() >= LOOK_EVERY {
            self.writer.so_far(PROCESS, tables)?;
            self.looked = Instant::now();
        }
        Ok(placed)
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
