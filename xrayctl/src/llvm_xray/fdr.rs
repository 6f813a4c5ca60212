//! The records of an FDR log, in the way of LLVM's library: which bytes are records, which of them
//! belong to one thread, and what becomes of them.

use xray_trace::llvm::fdr::verify::{Invalid, InvalidEnd, Verifier};
use xray_trace::llvm::fdr::{FunctionKind, Kind as MetadataKind, Layout, Record as Stored};
use xray_trace::llvm::header::HEADER_LEN;
use xray_trace::llvm::yaml::Kind;

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::record::Record;
use super::sort;

/// Bytes of a metadata record.
const METADATA_LEN: usize = 16;

/// Finds the records in the bytes of a log.
#[derive(Debug)]
pub(super) struct Producer<'a> {
    bytes: &'a [u8],
    layout: Layout,
    offset: usize,
    /// The bytes that the current buffer still has, from version 3 on. LLVM keeps 32 bits of them.
    left: u64,
}

/// The records of a log by process and thread, in LLVM's order.
#[derive(Debug, Default)]
pub(super) struct Blocks<'a> {
    blocks: DenseMap<(u64, i32), Vec<Block<'a>>>,
    /// The block of the last record.
    current: Block<'a>,
}

/// The records of one buffer, without its extents.
#[derive(Debug, Default)]
pub(super) struct Block<'a> {
    pid: u64,
    tid: i32,
    wall: Option<(u64, u32)>,
    pub(super) records: Vec<Stored<&'a [u8]>>,
}

/// Makes records of calls and events from the stored records of a thread.
#[derive(Debug, Default)]
struct Expander {
    version: u16,
    pid: u32,
    tid: u32,
    cpu: u16,
    base: u64,
    /// A record is complete when the next one begins.
    current: Record,
    is_building: bool,
    is_ignoring: bool,
}

/// The records of calls and events, one thread after the other.
pub(super) fn records(bytes: &[u8], layout: Layout) -> Result<Vec<Record>, Failure> {
    let mut blocks = Blocks::default();
    let mut producer = Producer::new(bytes, layout);
    while let Some(record) = producer.next()? {
        blocks.add(record);
    }
    let blocks = blocks.end();
    blocks.iter().try_for_each(Block::verify)?;
    let mut records = Vec::new();
    for (_, blocks) in blocks.blocks.iter() {
        let mut blocks = blocks.iter().collect::<Vec<_>>();
        sort::sort(&mut blocks, |a, b| match (a.wall, b.wall) {
            (Some(a), Some(b)) => a.0 < b.0 && a.1 < b.1,
            _ => false,
        });
        let mut expander = Expander {
            version: layout.version(),
            ..Expander::default()
        };
        for record in blocks.iter().flat_map(|block| &block.records) {
            expander.take(record, &mut records);
        }
        expander.end(&mut records);
    }
    Ok(records)
}

// === impl Producer ===

impl<'a> Producer<'a> {
    /// Begins behind the header of the log.
    pub(super) fn new(bytes: &'a [u8], layout: Layout) -> Self {
        Self {
            bytes,
            layout,
            offset: HEADER_LEN,
            left: 0,
        }
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Stored<&'a [u8]>>, Failure> {
        if self.offset >= self.bytes.len() {
            return Ok(None);
        }
        let has_extents = self.layout.version() >= 3;
        if has_extents && self.left == 0 {
            return self.next_extents().map(Some);
        }
        let offset = self.offset;
        let (record, len) = self.record(offset)?;
        self.offset += len;
        if let Stored::BufferExtents { size } = record {
            self.left = size & u64::from(u32::MAX);
        } else if has_extents {
            let len = len as u64;
            if len > self.left {
                let (end, over) = (self.offset, len - self.left);
                let kind = type_name(record.kind());
                return Err(Failure::new(format!(
                    "Buffer over-read at offset {end} (over-read by {over} bytes); Record Type = {kind}."
                )));
            }
            self.left -= len;
        }
        Ok(Some(record))
    }

    /// Looks for the extents of the next buffer, byte by byte.
    fn next_extents(&mut self) -> Result<Stored<&'a [u8]>, Failure> {
        const FIRST: u8 = 7 << 1 | 1;
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let Some(skipped) = rest.iter().position(|byte| *byte == FIRST) else {
            let end = self.bytes.len();
            self.offset = end;
            return Err(
                Failure::new("Failed to find the next BufferExtents record.")
                    .in_context(format!("Failed reading one byte from offset {end}.")),
            );
        };
        let offset = self.offset + skipped;
        let (record, len) = self.record(offset)?;
        self.offset = offset + len;
        if let Stored::BufferExtents { size } = record {
            self.left = size & u64::from(u32::MAX);
        }
        Ok(record)
    }

    fn record(&self, offset: usize) -> Result<(Stored<&'a [u8]>, usize), Failure> {
        let bytes = &self.bytes[offset..];
        let first = bytes.first().copied().unwrap_or_default();
        let (kind, is_metadata) = (first >> 1, first & 1 != 0);
        if is_metadata && kind > 9 {
            let unsupported =
                format!("Encountered an unsupported metadata record ({kind}) at offset {offset}.");
            return Err(Failure::new(unsupported)
                .in_context(format!("Invalid metadata record type: {kind}")));
        }
        if is_metadata && kind == 1 && self.layout.version() >= 2 {
            let unsupported =
                format!("Encountered an unsupported metadata record (1) at offset {offset}.");
            return Err(Failure::new(unsupported).in_context(
                "End of buffer records are no longer supported starting version 2 of the log.",
            ));
        }
        let Some((record, len)) = self.layout.record(bytes) else {
            return Err(self.unread(offset, is_metadata.then_some(kind)));
        };
        let record = record.map(|payload| &bytes[payload]);
        // The library takes an event without data for damage.
        if let Some((what, [])) = event(&record) {
            let at = offset + 5;
            return Err(Failure::new(format!(
                "Invalid size for {what} (size = 0) at offset {at}."
            )));
        }
        Ok((record, len))
    }

    /// The failure for bytes that are no whole record.
    fn unread(&self, offset: usize, metadata: Option<u8>) -> Failure {
        const RECORDS: [&str; 10] = [
            "a new buffer record",
            "an end-of-buffer record",
            "a new cpu id record",
            "a new TSC wrap record",
            "a wallclock record",
            "a custom event record",
            "a call argument record",
            "a buffer extent",
            "a typed event record",
            "a process ID record",
        ];
        let at = offset + 1;
        let Some(kind) = metadata else {
            let has = self.bytes.len() - offset;
            return Failure::new(if has < 8 {
                format!("Invalid offset for a function record ({at}).")
            } else {
                let kind = self.bytes[offset] >> 1 & 7;
                format!("Unknown function record type '{kind}' at offset {offset}.")
            });
        };
        let name = RECORDS[usize::from(kind)];
        let rest = self.bytes.len() - offset;
        if rest < METADATA_LEN {
            return Failure::new(format!("Invalid offset for {name} ({at})."));
        }
        let what = name.strip_suffix(" record").unwrap_or(name);
        let what = what.split_once(' ').map_or(what, |(_, what)| what);
        let size = self.bytes.get(at..at + 4).and_then(<[u8]>::first_chunk);
        let size = i32::from_le_bytes(size.copied().unwrap_or_default());
        Failure::new(if size <= 0 {
            let at = at + 4;
            format!("Invalid size for {what} (size = {size}) at offset {at}.")
        } else {
            let (at, has) = (offset + METADATA_LEN, rest - METADATA_LEN);
            format!(
                "Cannot read {size} bytes of {what} data from offset {at}, of which the log has {has}."
            )
        })
    }
}

/// The data of an event, and the library's words for it.
fn event<'a>(record: &Stored<&'a [u8]>) -> Option<(&'static str, &'a [u8])> {
    match record {
        Stored::CustomEvent { data, .. } | Stored::CustomEventDelta { data, .. } => {
            Some(("custom event", data))
        }
        Stored::TypedEvent { data, .. } => Some(("typed event", data)),
        _ => None,
    }
}

/// The name of a type of records in the library's messages.
fn type_name(kind: MetadataKind) -> String {
    match kind {
        MetadataKind::Function => "Function".to_owned(),
        MetadataKind::EndOfBuffer => "EndOfBuffer".to_owned(),
        kind => format!("Metadata:{kind}"),
    }
}

// === impl Blocks ===

impl<'a> Blocks<'a> {
    /// Takes the next record of the log.
    pub(super) fn add(&mut self, record: Stored<&'a [u8]>) {
        match record {
            Stored::BufferExtents { .. } => return,
            Stored::NewBuffer { tid } => {
                if !self.current.records.is_empty() {
                    self.flush();
                }
                self.current.tid = tid;
            }
            Stored::Pid { pid } => self.current.pid = i64::from(pid).cast_unsigned(),
            Stored::WallTime { seconds, micros } => self.current.wall = Some((seconds, micros)),
            _ => {}
        }
        self.current.records.push(record);
    }

    /// Takes the end of the log.
    pub(super) fn end(mut self) -> Self {
        self.flush();
        self
    }

    /// All blocks, one thread after the other.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block<'a>> {
        self.blocks.iter().flat_map(|(_, blocks)| blocks)
    }

    fn flush(&mut self) {
        let block = std::mem::take(&mut self.current);
        self.blocks.entry((block.pid, block.tid)).push(block);
    }
}

// === impl Block ===

impl Block<'_> {
    /// Checks the order of the records.
    fn verify(&self) -> Result<(), Failure> {
        let mut verifier = Verifier::default();
        for record in &self.records {
            verifier.step(record.kind()).map_err(|why| invalid(&why))?;
        }
        verifier.finish().map_err(|InvalidEnd { last }| {
            Failure::new(format!(
                "BlockVerifier: Invalid terminal condition {last}, malformed block."
            ))
        })
    }
}

/// The kind of a function record.
pub(super) fn kind(kind: FunctionKind) -> Kind {
    match kind {
        FunctionKind::Enter => Kind::Enter,
        FunctionKind::Exit => Kind::Exit,
        FunctionKind::TailExit => Kind::TailExit,
        FunctionKind::EnterArg => Kind::EnterArg,
    }
}

/// The failure for records that must not follow each other.
pub(super) fn invalid(Invalid { from, to }: &Invalid) -> Failure {
    Failure::new(format!(
        "BlockVerifier: Invalid transition from {from} to {to}."
    ))
}

// === impl Expander ===

impl Expander {
    fn take(&mut self, record: &Stored<&[u8]>, records: &mut Vec<Record>) {
        match *record {
            Stored::BufferExtents { .. } => self.end(records),
            Stored::WallTime { .. } => {}
            Stored::NewCpu { cpu, tsc } => {
                self.cpu = cpu;
                self.base = tsc;
            }
            Stored::TscWrap { tsc } => self.base = tsc,
            Stored::Pid { pid } => self.pid = pid.cast_unsigned(),
            Stored::NewBuffer { tid } => {
                self.is_ignoring = false;
                self.tid = tid.cast_unsigned();
                if self.version == 2 {
                    self.pid = self.tid;
                }
            }
            Stored::EndOfBuffer => {
                self.is_ignoring = true;
                self.end(records);
            }
            Stored::CallArgument { value } => {
                self.current.args.push(value);
                self.current.kind = Kind::EnterArg;
            }
            Stored::Function {
                kind,
                function,
                delta,
            } => {
                if self.begins(delta.into(), records) {
                    self.current.kind = self::kind(kind);
                    self.current.function = function.cast_signed();
                }
            }
            Stored::CustomEvent { tsc, cpu, data } => {
                if self.begins(0, records) {
                    self.current.tsc = tsc;
                    self.current.cpu = cpu;
                    self.current.kind = Kind::Custom;
                    self.current.data = data.to_vec();
                }
            }
            Stored::CustomEventDelta { delta, data } => {
                if self.begins(i64::from(delta).cast_unsigned(), records) {
                    self.current.kind = Kind::Custom;
                    self.current.data = data.to_vec();
                }
            }
            Stored::TypedEvent {
                delta,
                event_type,
                data,
            } => {
                if self.begins(i64::from(delta).cast_unsigned(), records) {
                    self.current.record_type = event_type;
                    self.current.kind = Kind::Typed;
                    self.current.data = data.to_vec();
                }
            }
        }
    }

    /// Ends the current record, and begins the next one this many ticks later. False behind the end
    /// of a buffer.
    fn begins(&mut self, ticks: u64, records: &mut Vec<Record>) -> bool {
        self.end(records);
        if self.is_ignoring {
            return false;
        }
        self.base = self.base.wrapping_add(ticks);
        self.current.tsc = self.base;
        self.current.cpu = self.cpu;
        self.current.pid = self.pid;
        self.current.tid = self.tid;
        self.is_building = true;
        true
    }

    /// Ends the current record.
    fn end(&mut self, records: &mut Vec<Record>) {
        if std::mem::take(&mut self.is_building) {
            records.push(self.current.clone());
        }
        self.current.args.clear();
        self.current.data.clear();
    }
}
