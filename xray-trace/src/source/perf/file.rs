//! The structure of a `perf.data`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use crate::source::OpenError;

const HEADER_BYTES: usize = 104;
/// The most bytes of attributes, and of the descriptions of events.
const MOST_TABLE: u64 = 64 << 20;
/// The feature with the names of events.
const EVENT_DESC: u32 = 12;

/// The place of `sample_type` in an attribute, and of its flags.
const SAMPLE_TYPE_AT: usize = 24;
/// Bytes of an attribute that are needed.
const ATTRIBUTE_BYTES: u64 = 48;
/// Bytes of the place of an attribute's numbers, behind it.
const IDS_BYTES: u64 = 16;

/// The parts of a sample, in their order up to the processor. (`enum perf_event_sample_format`)
mod part {
    pub(super) const IP: u64 = 1;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// The longest name of a thread.
const NAME_BYTES: usize = 15;
/// In the head of a record: a filter has left the samples out.
const MISC_LOST_SAMPLES_BPF: u16 = 1 << 15;

/// Kinds of records. (`enum perf_event_type`, `enum perf_user_event_type`)
mod kind {
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const LOST_SAMPLES: u32 = 13;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED_2: u32 = 83;
}

/// A file whose tables were read.
#[derive(Debug)]
pub(super) struct PerfFile {
    data: BufReader<io::Take<File>>,
    /// The offset of the next record.
    offset: u64,
    /// The names of events, by the places of their attributes.
    names: Vec<String>,
    /// The parts of a sample of each event.
    parts: Vec<u64>,
    /// The place of the attribute for each number.
    places: HashMap<u64, usize>,
    /// Bytes of the current record.
    record: Vec<u8>,
    /// True if no further record can be found.
    has_ended: bool,
}

/// A record of use.
#[derive(Debug)]
pub(super) enum Record {
    Sample(Sample),
    /// The name of a thread.
    Comm {
        pid: u32,
        tid: u32,
        name: String,
    },
    /// So many records are missing since the last such record, of all events.
    Lost(u64),
    /// So many samples of an event are missing in all. The kernel counts them in the other kind,
    /// too.
    LostSamples(u64),
    /// Records that are compressed.
    Compressed,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// The place of its event among the names.
    pub(super) event: usize,
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// In nanoseconds.
    pub(super) time: u64,
    pub(super) cpu: Option<u32>,
}

/// A part of the file.
#[derive(Debug, Clone, Copy)]
struct Section {
    offset: u64,
    size: u64,
}

/// Reads little-endian numbers of bytes.
struct Words<'a>(&'a [u8]);

// === impl Words ===

impl<'a> Words<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*taken))
    }

    fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*taken))
    }

    fn section(&mut self) -> Option<Section> {
        let (offset, size) = (self.u64()?, self.u64()?);
        Some(Section { offset, size })
    }
}

// === impl PerfFile ===

impl PerfFile {
    /// Reads the tables of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no names of events.
    pub(super) fn open(mut file: File) -> Result<Self, OpenError> {
        let mut header = [0; HEADER_BYTES];
        let wrong = |why: &str| OpenError::PerfData(why.to_owned());
        file.rewind()?;
        if file.read_exact(&mut header).is_err() {
            return Err(wrong("it ends within its header, or was written to a pipe"));
        }
        let mut words = Words(&header);
        let fields = (|| {
            let (_, size, entry) = (words.u64()?, words.u64()?, words.u64()?);
            let (attributes, data, _) = (words.section()?, words.section()?, words.section()?);
            Some((size, entry, attributes, data, words.u64()?))
        })();
        let Some((size, entry, attributes, data, features)) = fields else {
            return Err(wrong("its header is cut"));
        };
        if size != HEADER_BYTES as u64 {
            return Err(wrong("it was written to a pipe; let perf write a file"));
        }
        if data.size == 0 {
            return Err(wrong("perf has not finished it"));
        }
        let described = match features >> EVENT_DESC & 1 {
            0 => return Err(wrong("it has no names of events")),
            _ => {
                // The places of all features stand behind the data, in their order.
                let before = (features & ((1 << EVENT_DESC) - 1)).count_ones();
                let at = data.offset.checked_add(data.size);
                let at = at.and_then(|at| at.checked_add(u64::from(before) * 16));
                let at = at.ok_or_else(|| wrong("its sizes are wrong"))?;
                let place = read_at(
                    &mut file,
                    Section {
                        offset: at,
                        size: 16,
                    },
                )?;
                let place = Words(&place).section();
                read_at(
                    &mut file,
                    place.ok_or_else(|| wrong("its features are cut"))?,
                )?
            }
        };
        if entry < ATTRIBUTE_BYTES + IDS_BYTES {
            return Err(wrong("its attributes are too short"));
        }
        let attributes = read_at(&mut file, attributes)?;
        let entry = usize::try_from(entry).unwrap_or(usize::MAX);
        let parts = attributes.chunks_exact(entry).filter_map(|attribute| {
            let parts = attribute.get(SAMPLE_TYPE_AT..)?;
            Words(parts).u64()
        });
        let parts: Vec<u64> = parts.collect();
        let (names, places) =
            described_events(&described).ok_or_else(|| wrong("its names of events are cut"))?;
        if names.len() != parts.len() || parts.is_empty() {
            return Err(wrong("it has other events than names"));
        }
        let unlike = parts.iter().any(|its| *its != parts[0]);
        let number = part::IDENTIFIER | if unlike { 0 } else { part::ID };
        if parts.len() > 1 && parts.iter().any(|its| its & number == 0) {
            return Err(wrong("its events cannot be told apart"));
        }
        let needed = part::TID | part::TIME;
        if parts.iter().any(|its| its & needed != needed) {
            return Err(wrong("its samples have no threads, or no times"));
        }
        file.seek(SeekFrom::Start(data.offset))?;
        Ok(Self {
            data: BufReader::with_capacity(1 << 18, file.take(data.size)),
            offset: data.offset,
            names,
            parts,
            places,
            record: Vec::new(),
            has_ended: false,
        })
    }

    /// The names of events, by their places.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The next record of use; `None` at the end.
    ///
    /// # Errors
    ///
    /// The file cannot be read. Or a record is damaged, and the next call goes on behind it.
    pub(super) fn next(&mut self) -> Result<Option<Record>, OpenError> {
        while !self.has_ended {
            let mut header = [0; 8];
            match self.data.read(&mut header[..1])? {
                0 => return Ok(None),
                _ => self.exactly(&mut header, 1)?,
            }
            let mut words = Words(&header);
            let kind = words.u32().unwrap_or(0);
            let misc = u16::from_le_bytes([header[4], header[5]]);
            let size = u16::from_le_bytes([header[6], header[7]]);
            let Some(body) = usize::from(size).checked_sub(header.len()) else {
                self.has_ended = true;
                return Err(self.damaged("a record is shorter than its head"));
            };
            let mut record = std::mem::take(&mut self.record);
            record.resize(body, 0);
            self.exactly(&mut record, 0)?;
            let found = self.read(kind, misc, &record);
            let found = found.map_err(|why| self.damaged(why));
            if kind == kind::AUXTRACE {
                // Data follows behind the record.
                let size = Words(&record).u64().unwrap_or(0);
                let mut rest = (&mut self.data).take(size);
                self.offset = self
                    .offset
                    .saturating_add(io::copy(&mut rest, &mut io::sink())?);
            }
            self.record = record;
            self.offset += u64::from(size);
            if let Some(found) = found? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Fills the buffer from this place on.
    fn exactly(&mut self, buffer: &mut [u8], from: usize) -> Result<(), OpenError> {
        let rest = buffer.get_mut(from..).unwrap_or_default();
        match self.data.read_exact(rest) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.has_ended = true;
                Err(self.damaged("the file ends within a record"))
            }
            read => Ok(read?),
        }
    }

    fn damaged(&self, why: &str) -> OpenError {
        OpenError::PerfRecord {
            offset: self.offset,
            why: why.to_owned(),
        }
    }

    /// The record, if it is of use.
    fn read(&self, kind: u32, misc: u16, record: &[u8]) -> Result<Option<Record>, &'static str> {
        let short = "a record is too short";
        let mut words = Words(record);
        Ok(match kind {
            kind::SAMPLE => {
                let (event, sample) = self.sample(words).ok_or(short)?;
                let event = event.ok_or("a sample of an event without a name")?;
                Some(Record::Sample(Sample { event, ..sample }))
            }
            kind::COMM => {
                let (pid, tid) = words.u32().zip(words.u32()).ok_or(short)?;
                let name = words.0.split(|&byte| byte == 0).next().unwrap_or_default();
                // The kernel has no longer names.
                let name = name.get(..NAME_BYTES).unwrap_or(name);
                let name = String::from_utf8_lossy(name).into_owned();
                Some(Record::Comm { pid, tid, name })
            }
            kind::LOST => {
                let (_, events) = words.u64().zip(words.u64()).ok_or(short)?;
                Some(Record::Lost(events))
            }
            // A filter has left these out.
            kind::LOST_SAMPLES if misc & MISC_LOST_SAMPLES_BPF != 0 => None,
            kind::LOST_SAMPLES => Some(Record::LostSamples(words.u64().ok_or(short)?)),
            kind::COMPRESSED | kind::COMPRESSED_2 => Some(Record::Compressed),
            _ => None,
        })
    }

    /// A sample, and its event if that is known. `None` for one that is too short.
    fn sample(&self, mut words: Words<'_>) -> Option<(Option<usize>, Sample)> {
        let common = *self.parts.first()?;
        let mut event = Some(0);
        let mut parts = common;
        if common & part::IDENTIFIER != 0 {
            // It stands first in the samples of all events.
            event = self.place(words.u64()?);
            parts = event
                .and_then(|event| self.parts.get(event).copied())
                .unwrap_or(common);
        }
        if parts & part::IP != 0 {
            words.u64()?;
        }
        // Every sample has both.
        let (pid, tid) = (words.u32()?, words.u32()?);
        let time = words.u64()?;
        if parts & part::ADDR != 0 {
            words.u64()?;
        }
        if parts & part::ID != 0 {
            event = self.place(words.u64()?);
        }
        if parts & part::STREAM_ID != 0 {
            words.u64()?;
        }
        let cpu = match parts & part::CPU {
            0 => None,
            _ => Some(words.u32()?),
        };
        let sample = Sample {
            event: 0,
            pid,
            tid,
            time,
            cpu,
        };
        Some((event, sample))
    }

    /// The place of the event with this number. Files with one event need no numbers.
    fn place(&self, id: u64) -> Option<usize> {
        match self.places.get(&id) {
            Some(place) => Some(*place),
            None if self.names.len() == 1 => Some(0),
            None => None,
        }
    }
}

/// The bytes of a part of the file that is small. Fewer, if the file ends within it.
fn read_at(file: &mut File, section: Section) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(section.offset))?;
    let mut bytes = Vec::new();
    file.take(section.size.min(MOST_TABLE))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The names of the events, and the place of the event of each number.
fn described_events(bytes: &[u8]) -> Option<(Vec<String>, HashMap<u64, usize>)> {
    let mut words = Words(bytes);
    let (events, attribute) = (words.u32()?, words.u32()?);
    let (mut names, mut places) = (Vec::new(), HashMap::new());
    for _ in 0..events {
        words.take(usize::try_from(attribute).ok()?)?;
        let (ids, length) = (words.u32()?, words.u32()?);
        let name = words.take(usize::try_from(length).ok()?)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        for _ in 0..ids {
            places.insert(words.u64()?, names.len());
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    Some((names, places))
}
