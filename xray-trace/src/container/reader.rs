//! Reads a trace, section by section, from any reader: a file, a socket, a pipe. It keeps no
//! tables, and unpacks only the events of a block that was cut.

use std::io::{self, Read};

use super::end::End;
use super::kernel_events::{KernelPart, kernel_fields};
use super::payload::{CHECKSUM_LEN, FRAME_LEN, Payload};
use super::profile::{ProfilePart, part_fields};
use super::runs::{RunsPart, runs_fields};
use super::section::{FieldError, FieldReader, SectionKind};
use super::{Block, DecodeError, HEADER_LEN, MAGIC, MAX_SECTION_LEN, OpenCalls, VERSION, tables};
use crate::event_format::Tracepoint;
use crate::model::{
    ClockAnchor, DutyWindow, EventBody, EventType, FilterNote, Function, Gap, Lifetime, Module,
    Origin, Overwritten, Process, ProcessId, RecordingWindow, SnapshotWindow, Suppression, Thread,
    ThreadId, ThreadWait, Ticks,
};

/// One section of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A process.
    Process(Process),
    /// The origin of a process. A later one for the same process replaces it.
    Origin {
        /// The process.
        process: ProcessId,
        /// The origin.
        origin: Origin,
    },
    /// A module.
    Module(Module),
    /// A time for which a module was loaded.
    Lifetime(Lifetime),
    /// A time for which a function was suppressed to keep to a budget.
    Suppression(Suppression),
    /// A time of a duty cycle in which all functions recorded.
    Duty(DutyWindow),
    /// A filter that was in force from a moment on.
    Filter(FilterNote),
    /// A time in which an unknown number of events was lost.
    Gap(Gap),
    /// A function.
    Function(Function),
    /// A thread. A later one with the same id renames it.
    Thread(Thread),
    /// The name of a type of typed events. A later one for the same type renames it.
    EventType(EventType),
    /// A clock anchor.
    Anchor(ClockAnchor),
    /// A block of events.
    Block(Block),
    /// A time in which a thread waited for the tracer.
    Wait(ThreadWait),
    /// Losses of a thread whose place among its events is unknown.
    Lost {
        /// The thread.
        thread: ThreadId,
        /// The number of lost events.
        events: u64,
    },
    /// Events that newer ones have overwritten.
    Overwritten(Overwritten),
    /// The window of a snapshot.
    Snapshot(SnapshotWindow),
    /// The time of a recording of a process with other recordings.
    Recording(RecordingWindow),
    /// The calls that are open at the begins of blocks.
    OpenCalls(OpenCalls),
    /// When a thread had a processor.
    Runs(RunsPart),
    /// A kernel tracepoint. A later one with the same number replaces it.
    Tracepoint {
        /// The number of the tracepoint in the trace.
        number: u16,
        /// The tracepoint.
        tracepoint: Tracepoint,
    },
    /// Events of kernel tracepoints.
    Kernel(KernelPart),
    /// Sums of calls of a thread.
    Profile(ProfilePart),
    /// The end mark of a finished trace. Sections may have been appended to it later.
    End(End),
}

/// The completeness of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// The trace has its end mark.
    Complete,
    /// The trace ends after a whole section, without an end mark: its writer was stopped.
    Unfinished {
        /// The length of the file, in bytes.
        at: u64,
    },
    /// The trace ends within a section. Every event before the cut was read.
    Cut {
        /// The length of the file, in bytes.
        at: u64,
    },
}

/// Reasons why a trace cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The input failed.
    #[error("cannot read the trace at byte {offset}")]
    Io {
        /// The number of bytes that were read.
        offset: u64,
        /// The error of the input.
        source: io::Error,
    },
    /// The file is shorter than a file header.
    #[error("not a trace: the file has {len} bytes, but its header needs {HEADER_LEN} bytes")]
    TooShort {
        /// The length of the file.
        len: usize,
    },
    /// The file has another magic number.
    #[error("not a trace: the file begins with {}, not with {}", .found.escape_ascii(), MAGIC.escape_ascii())]
    NotATrace {
        /// The first bytes of the file.
        found: [u8; 8],
    },
    /// The version is unknown to this reader.
    #[error("the trace has format version {found}, and this program reads version {VERSION}")]
    Version {
        /// The file's version.
        found: u16,
    },
    /// The file header's checksum is wrong.
    #[error("the file header is damaged: checksum {found:#010x}, computed {computed:#010x}")]
    HeaderDamaged {
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// A section has an impossible length.
    #[error(
        "section {section} at byte {offset}: its length is {len} bytes, but the maximum is \
         {MAX_SECTION_LEN}"
    )]
    TooLong {
        /// The kind of the section.
        section: SectionKind,
        /// The offset of the section.
        offset: u64,
        /// The length in its frame.
        len: u32,
    },
    /// A section's checksum is wrong.
    #[error(
        "section {section} at byte {offset} is damaged: checksum {found:#010x}, computed {computed:#010x}"
    )]
    Checksum {
        /// The kind of the section.
        section: SectionKind,
        /// The offset of the section.
        offset: u64,
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// A section's payload violates the rules of its kind.
    #[error("section {section}, byte {offset} of the file: {reason}")]
    Invalid {
        /// The kind of the section.
        section: SectionKind,
        /// The offset in the file.
        offset: u64,
        /// The reason.
        reason: String,
    },
}

/// Reads a trace. Sections of unknown kinds are checked and skipped. The reader reads in small
/// pieces, so put a `BufReader` around a file.
#[derive(Debug)]
pub struct Reader<R> {
    /// The input.
    pub(super) inner: R,
    /// The number of bytes that were read.
    pub(super) offset: u64,
    /// The offset of the section that was read last.
    pub(super) section: u64,
    /// The bytes of that section: frame, payload and checksum. The next section clears them.
    buffer: Vec<u8>,
    /// The kind of the last whole section.
    pub(super) latest: Option<SectionKind>,
    /// The completeness, once it is known. Reading ends after it is set.
    completeness: Option<Completeness>,
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Begins reading a trace: checks its file header.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, or are not a trace of this version.
    pub fn new(inner: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            inner,
            offset: 0,
            section: 0,
            buffer: Vec::new(),
            latest: None,
            completeness: None,
        };
        reader.fill(HEADER_LEN)?;
        reader.check_header()?;
        Ok(reader)
    }

    fn check_header(&self) -> Result<(), ReadError> {
        let header = self.buffer.as_slice();
        if let Some(found) = header.first_chunk::<8>().filter(|magic| **magic != MAGIC) {
            return Err(ReadError::NotATrace { found: *found });
        }
        let (Some(version), Some(found)) = (header.get(8..10), header.get(12..HEADER_LEN)) else {
            return Err(ReadError::TooShort { len: header.len() });
        };
        let found = le_u32(found);
        let computed = crc32fast::hash(&header[..12]);
        if found != computed {
            return Err(ReadError::HeaderDamaged { found, computed });
        }
        let version = u16::from_le_bytes([version[0], version[1]]);
        if version != VERSION {
            return Err(ReadError::Version { found: version });
        }
        Ok(())
    }

    /// The next section of a known kind. `None` at the end of the file; [`Self::completeness`] is
    /// known then.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, or a section is damaged. Sections that were read before stay
    /// valid. After an error in the frame of a section no more sections can be read, and the error
    /// repeats.
    pub fn next_item(&mut self) -> Result<Option<Item>, ReadError> {
        while self.completeness.is_none() {
            self.section = self.offset;
            self.buffer.clear();
            self.fill(FRAME_LEN)?;
            let Some((kind, len)) = self.frame() else {
                self.completeness = Some(match (self.buffer.is_empty(), self.latest) {
                    (true, Some(SectionKind::END)) => Completeness::Complete,
                    (true, _) => Completeness::Unfinished { at: self.offset },
                    (false, _) => Completeness::Cut { at: self.offset },
                });
                break;
            };
            if len > MAX_SECTION_LEN {
                let len = le_u32(&self.buffer[4..FRAME_LEN]);
                return Err(ReadError::TooLong {
                    section: kind,
                    offset: self.section,
                    len,
                });
            }
            self.fill(len + CHECKSUM_LEN)?;
            if self.buffer.len() < FRAME_LEN + len + CHECKSUM_LEN {
                self.completeness = Some(Completeness::Cut { at: self.offset });
                return self.cut_section(kind, len);
            }
            let (checked, found) = self.buffer.split_at(FRAME_LEN + len);
            let (found, computed) = (le_u32(found), crc32fast::hash(checked));
            if found != computed {
                let offset = self.section;
                return Err(ReadError::Checksum {
                    section: kind,
                    offset,
                    found,
                    computed,
                });
            }
            self.latest = Some(kind);
            if let Some(item) = self.item(kind, &self.buffer[FRAME_LEN..FRAME_LEN + len])? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// The completeness of the trace; `None` until [`Self::next_item`] has reached its end.
    #[must_use]
    pub fn completeness(&self) -> Option<Completeness> {
        self.completeness
    }

    /// The offset in the file of the section that was read last.
    #[must_use]
    pub fn section_offset(&self) -> u64 {
        self.section
    }

    /// The number of bytes that were read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends up to `len` bytes to the buffer; fewer only at the end of the file. Memory grows
    /// with the bytes that are present, not with `len`.
    fn fill(&mut self, len: usize) -> Result<(), ReadError> {
        let before = self.buffer.len();
        let result = self
            .inner
            .by_ref()
            .take(len as u64)
            .read_to_end(&mut self.buffer);
        self.offset += (self.buffer.len() - before) as u64;
        result.map_err(|source| ReadError::Io {
            offset: self.offset,
            source,
        })?;
        Ok(())
    }

    fn frame(&self) -> Option<(SectionKind, usize)> {
        let kind = self.buffer.first_chunk::<4>()?;
        let len = self.buffer.get(4..FRAME_LEN)?;
        Some((
            SectionKind(*kind),
            usize::try_from(le_u32(len)).unwrap_or(usize::MAX),
        ))
    }

    fn item(&self, kind: SectionKind, payload: &[u8]) -> Result<Option<Item>, ReadError> {
        let fields = FieldReader::new(payload);
        let item = match kind {
            SectionKind::PROCESS => tables::process(fields).map(Item::Process),
            SectionKind::ORIGIN => {
                tables::origin(fields).map(|(process, origin)| Item::Origin { process, origin })
            }
            SectionKind::MODULE => tables::module(fields).map(Item::Module),
            SectionKind::LIFETIME => tables::lifetime(fields).map(Item::Lifetime),
            SectionKind::SUPPRESSION => tables::suppression(fields).map(Item::Suppression),
            SectionKind::DUTY => tables::duty(fields).map(Item::Duty),
            SectionKind::FILTER => tables::filter(fields).map(Item::Filter),
            SectionKind::GAP => tables::gap(fields).map(Item::Gap),
            SectionKind::FUNCTION => tables::function(fields).map(Item::Function),
            SectionKind::THREAD => tables::thread(fields).map(Item::Thread),
            SectionKind::EVENT_TYPE => tables::event_type(fields).map(Item::EventType),
            SectionKind::ANCHOR => tables::anchor(fields).map(Item::Anchor),
            SectionKind::BLOCK => block(payload).map(Item::Block),
            SectionKind::WAIT => tables::wait(fields).map(Item::Wait),
            SectionKind::LOST => {
                tables::lost(fields).map(|(thread, events)| Item::Lost { thread, events })
            }
            SectionKind::OVERWRITTEN => tables::overwritten(fields).map(Item::Overwritten),
            SectionKind::SNAPSHOT => tables::snapshot(fields).map(Item::Snapshot),
            SectionKind::RECORDING => tables::recording(fields).map(Item::Recording),
            SectionKind::OPEN => open_calls(payload).map(Item::OpenCalls),
            SectionKind::RUNS => runs_part(payload).map(Item::Runs),
            SectionKind::TRACEPOINT => tables::tracepoint(fields)
                .map(|(number, tracepoint)| Item::Tracepoint { number, tracepoint }),
            SectionKind::KERNEL => kernel_part(payload).map(Item::Kernel),
            SectionKind::PROFILE => profile_part(payload).map(Item::Profile),
            SectionKind::END => tables::end(fields).map(Item::End),
            _ => return Ok(None),
        };
        item.map(Some)
            .map_err(|error| self.invalid(kind, error.at, error.reason))
    }

    /// The readable part of the last section of a file that was cut: the whole events of a block.
    fn cut_section(&self, kind: SectionKind, len: usize) -> Result<Option<Item>, ReadError> {
        let present = self.buffer.len().min(FRAME_LEN + len);
        if kind != SectionKind::BLOCK {
            return Ok(None);
        }
        let block = match block(&self.buffer[FRAME_LEN..present]) {
            Ok(block) => block,
            Err(error) if error.short => return Ok(None),
            Err(error) => return Err(self.invalid(kind, error.at, error.reason)),
        };
        let begin = present - FRAME_LEN - block.payload.len();
        whole_events(block)
            .map(|block| block.map(Item::Block))
            .map_err(|error| self.invalid(kind, begin, error.to_string()))
    }

    fn invalid(&self, section: SectionKind, at: usize, reason: String) -> ReadError {
        let offset = self.section + FRAME_LEN as u64 + at as u64;
        ReadError::Invalid {
            section,
            offset,
            reason,
        }
    }
}

/// A block from its section's payload. The events are not read.
fn block(payload: &[u8]) -> Result<Block, FieldError> {
    let (mut block, begin) = block_fields(payload)?;
    block.payload = Payload::from(&payload[begin..]);
    Ok(block)
}

/// The open calls from their section's payload. Only the first entry's block is read.
fn open_calls(payload: &[u8]) -> Result<OpenCalls, FieldError> {
    let (mut open, begin) = open_calls_fields(payload)?;
    open.entries = Payload::from(&payload[begin..]);
    Ok(open)
}

/// Run times from their section's payload. The switches are not read.
fn runs_part(payload: &[u8]) -> Result<RunsPart, FieldError> {
    let (mut part, begin) = runs_fields(payload)?;
    part.switches = Payload::from(&payload[begin..]);
    Ok(part)
}

/// Kernel events from their section's payload. The events are not read.
fn kernel_part(payload: &[u8]) -> Result<KernelPart, FieldError> {
    let (mut part, begin) = kernel_fields(payload)?;
    part.events = Payload::from(&payload[begin..]);
    Ok(part)
}

/// Sums of calls from their section's payload. The stacks are not read.
fn profile_part(payload: &[u8]) -> Result<ProfilePart, FieldError> {
    let (mut part, begin) = part_fields(payload)?;
    part.stacks = Payload::from(&payload[begin..]);
    Ok(part)
}

/// The open calls without the entries, and the begin of these.
pub(super) fn open_calls_fields(payload: &[u8]) -> Result<(OpenCalls, usize), FieldError> {
    let mut fields = FieldReader::new(payload);
    let thread = ThreadId(fields.number32("thread")?);
    let begin = fields.position();
    let open = OpenCalls {
        thread,
        first_block: fields.number("block")?,
        entries: Payload::from([]),
    };
    Ok((open, begin))
}

/// A block without its events, and the begin of these.
pub(super) fn block_fields(payload: &[u8]) -> Result<(Block, usize), FieldError> {
    let mut fields = FieldReader::new(payload);
    let block = Block {
        thread: ThreadId(fields.number32("thread")?),
        first: Ticks(fields.number("first tick")?),
        last: Ticks(fields.number("last tick")?),
        calls: fields.number32("calls")?,
        lost: fields.number("lost")?,
        payload: Payload::from([]),
    };
    Ok((block, fields.position()))
}

/// The block up to its last whole event, with recomputed totals. `None` if no event is whole.
fn whole_events(mut block: Block) -> Result<Option<Block>, DecodeError> {
    let (mut calls, mut lost, mut last, mut len) = (0_u32, 0_u64, block.first, 0);
    let mut events = block.events();
    while let Some(event) = events.next() {
        let event = match event {
            Ok(event) => event,
            Err(DecodeError::Cut { .. }) => break,
            Err(error) => return Err(error),
        };
        match event.body {
            EventBody::Call { .. } => calls = calls.saturating_add(1),
            EventBody::Lost { events } => lost = lost.saturating_add(events),
            EventBody::Data { .. }
            | EventBody::Cpu { .. }
            | EventBody::Unwound { .. }
            | EventBody::UnmatchedExit => {}
        }
        last = event.ticks;
        len = events.position();
    }
    block.calls = calls;
    block.lost = lost;
    block.last = last;
    block.payload = Payload::from(&block.payload.load()?[..len]);
    Ok((len > 0).then_some(block))
}

pub(super) fn le_u32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .rev()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}
