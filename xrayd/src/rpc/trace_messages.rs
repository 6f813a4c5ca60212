//! The trace of StreamTrace, as messages: the bytes of an `.xtrace` file, or of several ones, one
//! after the other.

use std::{io, time::Duration};

use xray_trace::container::ClosedPart;
use xrayd_proto::v1;

use super::{
    fetch::CHUNK_BYTES,
    live::{Encode, Sessions},
    recorded::Recorded,
    rotation::Rotation,
    run_records::{RunRecords, ThreadPart, Unrecorded},
};
use crate::{
    export::TraceWriter,
    refusal::Refusal,
    store::{Position, PublishedBlock, ResumedStream, Source, StreamItem},
    sys::ns_of,
};

/// Encodes the bytes of a trace, for StreamTrace.
#[derive(Debug)]
pub(super) struct TraceMessages {
    sessions: Sessions,
    /// The part of a recording with a lease. `None`: everything.
    recorded: Option<Recorded>,
    /// When threads have a processor, and the events of kernel tracepoints. `None`: that is not
    /// wanted.
    runs: Option<RunRecords>,
    /// The files of the trace, if there are several.
    rotation: Option<Rotation>,
    /// Messages with the ends of files.
    ended: Vec<v1::TraceChunk>,
    /// True if the next message begins a file.
    begins_file: bool,
    /// The place behind the last block. `None`: the stream cannot be resumed.
    position: Option<Position>,
    /// True if nothing is missing before the stream.
    continues: bool,
    writer: TraceWriter<Vec<u8>>,
}

// === impl TraceMessages ===

impl TraceMessages {
    /// Encodes everything, or the part of a recording with a lease, and when threads have a
    /// processor, if that is wanted. `resumed` is the stream if it can be resumed.
    pub(super) fn new(
        recorded: Option<Recorded>,
        runs: Option<RunRecords>,
        rotation: Option<Rotation>,
        resumed: Option<&ResumedStream>,
    ) -> io::Result<Self> {
        let mut writer = TraceWriter::new(Vec::new())?;
        let tracepoints = runs.as_ref().map_or(&[][..], RunRecords::tracepoints);
        for (number, tracepoint) in (0..).zip(tracepoints) {
            writer.tracepoint(number, &tracepoint.described)?;
        }
        Ok(Self {
            sessions: Sessions::default(),
            recorded,
            runs,
            begins_file: rotation.is_some(),
            rotation,
            ended: Vec::new(),
            position: resumed.map(ResumedStream::begin),
            continues: resumed.is_some_and(ResumedStream::continues),
            writer,
        })
    }

    /// The written bytes, in messages of bounded size.
    fn chunks(&mut self) -> Vec<v1::TraceChunk> {
        let mut chunks = std::mem::take(&mut self.ended);
        chunks.extend(self.chunks_of_file());
        chunks
    }

    /// Ends the file, and begins the next one with what describes the processes.
    fn rotate(&mut self) -> io::Result<()> {
        for (source, session) in &self.sessions.here {
            self.writer.ended(*source, session.tables())?;
        }
        self.writer.end()?;
        let ended = self.chunks_of_file();
        self.ended.extend(ended);
        let mut writer = TraceWriter::new(Vec::new())?;
        if let Some(rotation) = &mut self.rotation {
            for (source, session) in &self.sessions.here {
                writer.process(*source, &session.process(), session.tables())?;
                for anchor in &session.anchors() {
                    writer.anchor(*source, anchor)?;
                }
                if let Some(origin) = rotation.origin(*source) {
                    writer.origin(*source, origin)?;
                }
                for thread in rotation.threads(*source) {
                    writer.thread(*source, thread)?;
                }
                for event_type in rotation.types(*source) {
                    writer.event_type(*source, event_type)?;
                }
            }
        }
        let header = writer.get_mut().len() as u64;
        if let Some(rotation) = &mut self.rotation {
            rotation.begin(header);
        }
        self.writer = writer;
        self.begins_file = true;
        Ok(())
    }

    fn chunks_of_file(&mut self) -> Vec<v1::TraceChunk> {
        let bytes = std::mem::take(self.writer.get_mut());
        if let Some(rotation) = &mut self.rotation {
            rotation.wrote(bytes.len() as u64);
        }
        let begins_file = std::mem::take(&mut self.begins_file);
        let totals = self.writer.totals();
        let runs = self.runs.as_ref().map(RunRecords::unrecorded);
        let Unrecorded { threads, reason } = runs.cloned().unwrap_or_default();
        let chunk = |data: Vec<u8>| v1::TraceChunk {
            data,
            events: totals.events,
            lost: totals.lost,
            reader_lost: totals.reader_lost,
            copied_within_ns: 0,
            entries: totals.entries,
            waited_ns: ns_of(totals.waited).unwrap_or(0),
            indexed: totals.indexed,
            threads_without_runs: threads,
            without_runs_because: reason.clone(),
            ended_early: false,
            begins_file: false,
            sums: Vec::new(),
            position: Vec::new(),
            continues: self.continues,
        };
        let mut chunks: Vec<_> = match bytes.len() {
            0 => Vec::new(),
            1..=CHUNK_BYTES => vec![chunk(bytes)],
            _ => bytes
                .chunks(CHUNK_BYTES)
                .map(|part| chunk(part.to_vec()))
                .collect(),
        };
        match chunks.first_mut() {
            Some(first) => first.begins_file = begins_file,
            None => self.begins_file = begins_file,
        }
        if let (Some(last), Some(position)) = (chunks.last_mut(), self.position) {
            last.position = position.to_bytes();
        }
        chunks
    }

    fn take(&mut self, source: Source, item: StreamItem) -> io::Result<()> {
        let Self {
            sessions,
            recorded,
            runs,
            writer,
            ..
        } = self;
        match item {
            StreamItem::Process(session) => {
                writer.process(source, &session.process(), session.tables())?;
                let anchors = session.anchors();
                for anchor in &anchors {
                    writer.anchor(source, anchor)?;
                }
                if let Some(recorded) = recorded {
                    recorded.come(source, anchors.first());
                }
                if let Some(runs) = runs {
                    runs.begin_process(&*session);
                }
                sessions.insert(source, session);
                Ok(())
            }
            StreamItem::Block(PublishedBlock {
                closed,
                wait,
                position,
                ..
            }) => {
                if let Some(at) = &mut self.position {
                    *at = position.unwrap_or(*at);
                }
                let Some(session) = sessions.here.get(&source) else {
                    return Ok(());
                };
                let Some(recorded) = recorded else {
                    if let Some(wait) = wait {
                        writer.wait(source, &wait)?;
                    }
                    return writer.closed_block(source, &closed, session.tables());
                };
                let ClosedPart { closed: part, lost } = recorded.part(source, &**session, &closed);
                if let Some(part) = part {
                    // Where in the block its waits were is not known, if the part begins later.
                    if let Some(wait) = wait {
                        writer.wait(source, &wait)?;
                    }
                    writer.closed_block(source, &part, session.tables())?;
                }
                match lost {
                    0 => Ok(()),
                    lost => writer.lost(source, closed.block.thread, lost),
                }
            }
            // `run` has read them.
            StreamItem::Retained(_) => Ok(()),
            StreamItem::Begin(at) => {
                if let Some(recorded) = recorded {
                    recorded.begin(source, at);
                }
                Ok(())
            }
            StreamItem::Until(at) => {
                if let Some(recorded) = recorded {
                    recorded.end(source, at);
                }
                Ok(())
            }
            StreamItem::Anchor(anchor) => {
                writer.anchor(source, &anchor)?;
                // About once a second. So the trace of a reader that leaves early lacks only the
                // last of it.
                match sessions.here.get(&source) {
                    Some(session) => writer.so_far(source, session.tables()),
                    None => Ok(()),
                }
            }
            StreamItem::Thread(thread) => {
                if let (Some(runs), Some(session)) = (runs, sessions.here.get(&source)) {
                    let write = |source, part| write_part(writer, source, part);
                    runs.begin(source, &**session, &thread, write)?;
                }
                writer.thread(source, &thread)
            }
            StreamItem::Origin(origin) => writer.origin(source, origin),
            StreamItem::EventType(event_type) => writer.event_type(source, &event_type),
            StreamItem::Ended => {
                if let Some(runs) = runs {
                    runs.end(Some(source), |source, part| {
                        write_part(writer, source, part)
                    })?;
                }
                let window = recorded
                    .as_mut()
                    .and_then(|recorded| recorded.leave(source));
                if let Some(window) = window {
                    writer.recording(source, &window)?;
                }
                let ended = match sessions.here.get(&source) {
                    Some(session) => writer.ended(source, session.tables()),
                    None => Ok(()),
                };
                sessions.remove(source);
                ended
            }
            StreamItem::Lost { events, position } => {
                if let Some(at) = &mut self.position {
                    *at = position.unwrap_or(*at);
                }
                if let Some(recorded) = recorded {
                    recorded.miss_blocks();
                }
                writer.reader_lost(events)
            }
        }
    }
}

/// Writes what was recorded of a thread beside its events.
fn write_part(
    writer: &mut TraceWriter<Vec<u8>>,
    source: Source,
    part: ThreadPart,
) -> io::Result<()> {
    match part {
        ThreadPart::Runs(part) => writer.runs(source, &part),
        ThreadPart::Kernel(part) => writer.kernel_events(source, &part),
    }
}

impl Encode for TraceMessages {
    type Message = v1::TraceChunk;

    fn begin(&mut self) -> Vec<v1::TraceChunk> {
        self.chunks()
    }

    fn encode(&mut self, items: Vec<(Source, StreamItem)>) -> io::Result<Vec<v1::TraceChunk>> {
        for (source, item) in items {
            if let Some(rotation) = &mut self.rotation {
                rotation.note(source, &item);
            }
            self.take(source, item)?;
            let more = self.writer.get_mut().len() as u64;
            if let Some(rotation) = &self.rotation
                && rotation.is_due(more)
            {
                self.rotate()?;
            }
        }
        if let Some(runs) = &mut self.runs {
            runs.look(|source, part| write_part(&mut self.writer, source, part))?;
        }
        Ok(self.chunks())
    }

    fn pause(&self) -> Option<Duration> {
        self.runs.as_ref().map(RunRecords::pause)
    }

    fn failure(&mut self) -> Option<Refusal> {
        self.sessions.failure()
    }

    fn end(&mut self) -> io::Result<Vec<v1::TraceChunk>> {
        if let Some(runs) = &mut self.runs {
            runs.end(None, |source, part| {
                write_part(&mut self.writer, source, part)
            })?;
        }
        self.writer.end()?;
        Ok(self.chunks())
    }
}
