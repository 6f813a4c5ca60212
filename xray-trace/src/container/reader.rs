//! Reads a trace, section by section, from anything that can be read: a file, a socket, a pipe.

use std::io::{self, Read};

use super::end::End;
use super::payload::{CHECKSUM_LEN, FRAME_LEN, Payload};
use super::profile::{ProfilePart, part_fields};
use super::section::{FieldError, FieldReader, SectionKind};
use super::{Block, DecodeError, HEADER_LEN, MAGIC, MAX_SECTION_LEN, OpenCalls, VERSION, tables};
use crate::model::{
    ClockAnchor, DutyWindow, EventBody, EventType, FilterNote, Function, Lifetime, Module, Origin,
    Overwritten, Process, ProcessId, RecordingWindow, Rest, SnapshotWindow, Thread, ThreadId,
    Ticks,
};

/// One section of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A process.
    Process(Process),
    /// How a process came to be traced; a second time, what is known now.
    Origin {
        /// Which process.
        process: ProcessId,
        /// How.
        origin: Origin,
    },
    /// A module.
    Module(Module),
    /// A time for which a module was loaded.
    Lifetime(Lifetime),
    /// A time for which a function was off, to keep to a budget.
    Rest(Rest),
    /// A time in which everything was recorded, of a duty cycle.
    Duty(DutyWindow),
    /// A filter that was in force from a moment on.
    Filter(FilterNote),
    /// A function.
    Function(Function),
    /// A thread; under an id that was there before, its new name.
    Thread(Thread),
    /// A name of a type of typed events; of one that was there before, its new name.
    EventType(EventType),
    /// A clock anchor.
    Anchor(ClockAnchor),
    /// A block of events.
    Block(Block),
    /// Losses of a thread whose place among its events is not known.
    Lost {
        /// Whose events.
        thread: ThreadId,
        /// How many.
        events: u64,
    },
    /// Events that newer ones have taken the place of.
    Overwritten(Overwritten),
    /// The time that a snapshot shows.
    Snapshot(SnapshotWindow),
    /// The time of a recording of a process that others record as well.
    Recording(RecordingWindow),
    /// Calls that are open where blocks begin.
    OpenCalls(OpenCalls),
    /// Sums of calls of a thread.
    Profile(ProfilePart),
    /// The end of a finished trace, or what was that before something was added to it.
    End(End),
}

/// How a trace ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// With its end mark.
    Complete,
    /// After a whole section, but without the end mark: its writer was stopped.
    Unfinished {
        /// The length of the file, in bytes.
        at: u64,
    },
    /// Within a section. Every event before the cut was read.
    Cut {
        /// The length of the file, in bytes.
        at: u64,
    },
}

/// Why a trace cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes could not be fetched.
    #[error("cannot read the trace at byte {offset}")]
    Io {
        /// How far reading had come.
        offset: u64,
        /// What went wrong.
        source: io::Error,
    },
    /// Shorter than a file header.
    #[error("not a trace: {len} bytes are too few for the file header, which has {HEADER_LEN}")]
    TooShort {
        /// The length of the file.
        len: usize,
    },
    /// Another magic number.
    #[error("not a trace: the file begins with {}, not with {}", .found.escape_ascii(), MAGIC.escape_ascii())]
    NotATrace {
        /// What it begins with.
        found: [u8; 8],
    },
    /// A version that this reader does not know.
    #[error("the trace has format version {found}, and this program reads version {VERSION}")]
    Version {
        /// The file's version.
        found: u16,
    },
    /// The file header's checksum does not fit.
    #[error("the file header is damaged: checksum {found:#010x}, computed {computed:#010x}")]
    HeaderDamaged {
        /// As stored.
        found: u32,
        /// As it should be.
        computed: u32,
    },
    /// A section says it is longer than a section can be.
    #[error(
        "section {section} at byte {offset}: a length of {len}, and at most {MAX_SECTION_LEN} is allowed"
    )]
    TooLong {
        /// Its kind.
        section: SectionKind,
        /// Where it begins.
        offset: u64,
        /// The length it gives.
        len: u32,
    },
    /// A section's checksum does not fit.
    #[error(
        "section {section} at byte {offset} is damaged: checksum {found:#010x}, computed {computed:#010x}"
    )]
    Checksum {
        /// Its kind.
        section: SectionKind,
        /// Where it begins.
        offset: u64,
        /// As stored.
        found: u32,
        /// As it should be.
        computed: u32,
    },
    /// A section's payload breaks the rules of its kind.
    #[error("section {section}, byte {offset} of the file: {reason}")]
    Invalid {
        /// Its kind.
        section: SectionKind,
        /// Where in the file.
        offset: u64,
        /// In words.
        reason: String,
    },
}

/// Reads a trace. Sections of unknown kinds are checked and skipped. Reads in small pieces, so a file wants a
/// `BufReader` around it.
#[derive(Debug)]
pub struct Reader<R> {
    /// Where the bytes come from.
    pub(super) inner: R,
    /// How many bytes were read.
    pub(super) offset: u64,
    /// Where the section that was read last begins.
    pub(super) section: u64,
    /// That section: frame, payload and checksum. Emptied by the next one.
    buffer: Vec<u8>,
    /// The kind of the last whole section.
    pub(super) latest: Option<SectionKind>,
    /// How the file ends, once that is known. Nothing is read after it is set.
    completeness: Option<Completeness>,
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Begins to read a trace: checks its file header.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, or are not a trace that this version reads.
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

    /// The next section of a known kind, or `None` at the end of the file; [`Self::completeness`] then says how it ends.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be read, or a section is damaged. What was read before stays valid. After an error in the
    /// frame of a section nothing more can be read; the error comes again then.
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

    /// How the trace ends; `None` until [`Self::next_item`] came to its end.
    #[must_use]
    pub fn completeness(&self) -> Option<Completeness> {
        self.completeness
    }

    /// Where the section that was read last begins in the file.
    #[must_use]
    pub fn section_offset(&self) -> u64 {
        self.section
    }

    /// How many bytes were read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends up to `len` bytes to the buffer; fewer only at the end of the file. Memory grows with the bytes that
    /// are there, not with the length that is asked for.
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
            SectionKind::REST => tables::rest(fields).map(Item::Rest),
            SectionKind::DUTY => tables::duty(fields).map(Item::Duty),
            SectionKind::FILTER => tables::filter(fields).map(Item::Filter),
            SectionKind::FUNCTION => tables::function(fields).map(Item::Function),
            SectionKind::THREAD => tables::thread(fields).map(Item::Thread),
            SectionKind::EVENT_TYPE => tables::event_type(fields).map(Item::EventType),
            SectionKind::ANCHOR => tables::anchor(fields).map(Item::Anchor),
            SectionKind::BLOCK => block(payload).map(Item::Block),
            SectionKind::LOST => {
                tables::lost(fields).map(|(thread, events)| Item::Lost { thread, events })
            }
            SectionKind::OVERWRITTEN => tables::overwritten(fields).map(Item::Overwritten),
            SectionKind::SNAPSHOT => tables::snapshot(fields).map(Item::Snapshot),
            SectionKind::RECORDING => tables::recording(fields).map(Item::Recording),
            SectionKind::OPEN => open_calls(payload).map(Item::OpenCalls),
            SectionKind::PROFILE => profile_part(payload).map(Item::Profile),
            SectionKind::END => tables::end(fields).map(Item::End),
            _ => return Ok(None),
        };
        item.map(Some)
            .map_err(|error| self.invalid(kind, error.at, error.reason))
    }

    /// What can be had of the last section of a file that was cut: of a block, the events that are whole.
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

/// A block as its section's payload gives it. The events are not looked at.
fn block(payload: &[u8]) -> Result<Block, FieldError> {
    let (mut block, begin) = block_fields(payload)?;
    block.payload = Payload::from(&payload[begin..]);
    Ok(block)
}

/// Which calls are open, as a section's payload says it. Only the first entry's block is looked at.
fn open_calls(payload: &[u8]) -> Result<OpenCalls, FieldError> {
    let (mut open, begin) = open_calls_fields(payload)?;
    open.entries = Payload::from(&payload[begin..]);
    Ok(open)
}

/// Sums of calls, as a section's payload gives them. The stacks are not looked at.
fn profile_part(payload: &[u8]) -> Result<ProfilePart, FieldError> {
    let (mut part, begin) = part_fields(payload)?;
    part.stacks = Payload::from(&payload[begin..]);
    Ok(part)
}

/// Which calls are open, without the entries, and where these begin.
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

/// A block without its events, and where these begin.
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

/// The block up to its last whole event, its totals counted anew. `None` if no event is whole.
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
            | EventBody::Astray => {}
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
