//! Reads records from bytes: buffers and their ends, both byte orders, events with their payloads.
//! The order of records is checked in `events`.

use std::io::Read;
use std::ops::Range;

use super::bounds::Bounds;
use super::record::{FUNCTION_LEN, METADATA_LEN};
use super::signs::{find_buffer, looks_like_buffer, looks_like_event};
use super::{BitOrder, FunctionKind, Kind, Layout, Record};
use crate::llvm::header::{Header, LogType};
use crate::llvm::window::Window;
use crate::llvm::{Error, Mode, SkippedList};

/// The longest event that is read. An event of the runtime has to fit into one of its buffers,
/// which have 16 KiB by default.
pub const MAX_EVENT_LEN: usize = 16 << 20;

/// The smallest possible buffer. A smaller size cannot hold the first records of a buffer, so it
/// means that the writer left the field unset.
const SMALLEST_BUFFER: u64 = 64;

/// A record with its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The offset of its first byte.
    pub offset: u64,
    /// The record.
    pub record: Record<&'a [u8]>,
}

/// Reads the records of a log.
#[derive(Debug)]
pub struct Reader<R> {
    window: Window<R>,
    header: Header,
    bits: BitOrder,
    mode: Mode,
    /// The current buffer.
    bounds: Bounds,
    /// Buffers whose last records the runtime has not written.
    cut: u64,
    skipped: SkippedList,
}

/// A record whose payload is in the window.
pub(super) type Raw = (u64, Record<Range<usize>>);

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Reads the header of a log.
    ///
    /// # Errors
    ///
    /// If the input does not begin with the header of an FDR log of a known version.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        let mut window = Window::new(input, 0);
        let header = Header::read(&mut window, LogType::Fdr)?;
        Self::on(window, header, mode)
    }

    /// Continues reading at this offset of the file, where a buffer begins.
    ///
    /// # Errors
    ///
    /// The errors of the input.
    pub fn resume(input: R, header: Header, offset: u64, mode: Mode) -> Result<Self, Error> {
        Self::on(Window::new(input, offset), header, mode)
    }

    fn on(mut window: Window<R>, header: Header, mode: Mode) -> Result<Self, Error> {
        let first = window.ahead(1)?.first().copied();
        Ok(Self {
            window,
            header,
            bits: BitOrder::detect(header.order, first),
            mode,
            bounds: Bounds::default(),
            cut: 0,
            skipped: SkippedList::default(),
        })
    }

    /// The header of the log.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The layout of its records.
    pub fn layout(&self) -> Layout {
        Layout::new(self.header.order, self.bits, self.header.version)
    }

    /// The offset at which reading continues.
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    /// The bytes that have been read already and belong to the current buffer, at least one
    /// function record if there is one: the bytes that [`Reader::take`] may take.
    pub(super) fn read_ahead(&mut self) -> Result<&[u8], Error> {
        let left = self.bounds.left(self.window.offset());
        let ahead = self.window.ahead(FUNCTION_LEN)?;
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        Ok(&ahead[..ahead.len().min(left)])
    }

    /// Skips this number of bytes.
    pub(super) fn take(&mut self, len: usize) {
        self.window.take(len);
    }

    /// The begin of the buffer of the last record.
    pub fn buffer(&self) -> u64 {
        self.bounds.begin
    }

    /// The number of buffers that end in the middle of a record. LLVM's runtime omits 16 bytes of
    /// each typed event when it computes the length of a buffer, so these bytes are missing at its
    /// end.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The parts that were skipped so far; always empty in [`Mode::Strict`].
    pub fn skipped(&self) -> &SkippedList {
        &self.skipped
    }

    /// All skipped parts.
    #[must_use]
    pub fn into_skipped(self) -> SkippedList {
        self.skipped
    }

    /// The next record; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// In [`Mode::Strict`] the first damage, after which the records have no meaning; and the
    /// errors of the input.
    #[expect(
        clippy::should_implement_trait,
        reason = "an item borrows from the reader, which Iterator cannot say"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, Error> {
        let Some((offset, record)) = self.step()? else {
            return Ok(None);
        };
        let record = record.map(|payload| self.window.taken(payload));
        Ok(Some(Item { offset, record }))
    }

    #[inline]
    pub(super) fn payload(&self, range: Range<usize>) -> &[u8] {
        self.window.taken(range)
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    pub(super) fn leave_out(&mut self, from: u64, to: u64, why: Error) {
        self.skipped.push(from, to, why);
    }

    #[inline]
    pub(super) fn step(&mut self) -> Result<Option<Raw>, Error> {
        loop {
            match self.attempt() {
                Err(error) if self.mode == Mode::Salvage && error.is_damage() => {
                    self.resynchronise(error)?;
                }
                result => return result,
            }
        }
    }

    #[inline]
    fn attempt(&mut self) -> Result<Option<Raw>, Error> {
        let offset = self.window.offset();
        let (order, bits, end) = (self.header.order, self.bits, self.bounds.end);
        if let Some(bytes) = self
            .window
            .ahead(METADATA_LEN)?
            .first_chunk::<FUNCTION_LEN>()
            && offset < end
            && end - offset >= FUNCTION_LEN as u64
            && bits.metadata(bytes[0]).is_none()
        {
            let (kind, function) = bits.function(order.u32(bytes, 0));
            let delta = order.u32(bytes, 4);
            let Some(kind) = FunctionKind::from_number(kind) else {
                return Err(Error::UnknownKind {
                    what: "function record kind",
                    number: kind,
                    offset,
                });
            };
            self.window.take(FUNCTION_LEN);
            let record = Record::Function {
                kind,
                function,
                delta,
            };
            return Ok(Some((offset, record)));
        }
        self.other(offset)
    }

    /// Reads anything other than a whole function record inside of a buffer.
    fn other(&mut self, offset: u64) -> Result<Option<Raw>, Error> {
        if offset >= self.bounds.end && !self.enter_buffer(offset)? {
            return Ok(None);
        }
        // Function records that fit have been taken, and no other record is so short.
        let left = self.bounds.left(offset);
        if left < METADATA_LEN as u64 && self.is_cut(left)? {
            self.cut += 1;
            self.window.skip(left)?;
            return self.attempt();
        }
        let (order, bits) = (self.header.order, self.bits);
        let ahead = self.window.ahead(METADATA_LEN)?;
        let Some(first) = ahead.first() else {
            return self.bounds.end_of_file(offset).map(|()| None);
        };
        let Some(number) = bits.metadata(*first) else {
            let has = ahead.len();
            return self.short_function(offset, has);
        };
        let unknown = Error::UnknownKind {
            what: "metadata record kind",
            number: number.into(),
            offset,
        };
        let kind = Kind::from_number(number).ok_or(unknown)?;
        let Some(bytes) = ahead.first_chunk::<METADATA_LEN>().copied() else {
            return Err(truncated(kind, offset, METADATA_LEN, ahead.len()));
        };
        let [_, fields @ ..] = &bytes;
        let Some(record) = Record::metadata(kind, fields, order, self.header.version) else {
            return Ok(None);
        };
        match record {
            Record::BufferExtents { size } => {
                self.bounds.extents(offset, size)?;
                self.window.take(METADATA_LEN);
                return Ok(Some((offset, Record::BufferExtents { size })));
            }
            Record::NewBuffer { .. } if self.bounds.end == u64::MAX => self.bounds.begin = offset,
            Record::EndOfBuffer => {
                self.end_of_buffer(offset)?;
                return Ok(Some((offset, Record::EndOfBuffer)));
            }
            _ => {}
        }
        let record = match record.payload() {
            Some(size) => match self.event(kind, offset, size)? {
                Some(data) => record.map(|_| data),
                None => return self.attempt(),
            },
            None => {
                self.bounds.fits(kind, offset, METADATA_LEN as u64)?;
                self.window.take(METADATA_LEN);
                record.map(|_| 0..0)
            }
        };
        Ok(Some((offset, record)))
    }

    /// Handles the end of a buffer, or the begin of the first one. Returns false at the end of the
    /// file.
    fn enter_buffer(&mut self, offset: u64) -> Result<bool, Error> {
        let first = self.window.ahead(1)?.first().copied();
        let Some(first) = first else {
            return Ok(false);
        };
        let kind = self.bits.metadata(first).and_then(Kind::from_number);
        if kind != Some(Kind::BufferExtents) && self.bounds.typed > 0 {
            // The buffer continues: the extents have omitted the records of its typed events.
            self.bounds.extend();
            return Ok(true);
        }
        if kind == Some(Kind::TypedEvent) && self.bounds.end != 0 {
            // The buffer continues here, too, with the first of them.
            return Ok(true);
        }
        let found = match (self.header.version, kind) {
            (2.., Some(Kind::BufferExtents)) => None,
            (1, Some(Kind::NewBuffer)) => {
                let size = self.header.buffer_size();
                let known = (size >= SMALLEST_BUFFER).then(|| offset.checked_add(size));
                Some(known.flatten().unwrap_or(u64::MAX))
            }
            (2, Some(Kind::NewBuffer)) => Some(u64::MAX),
            _ => {
                return Err(Error::NoBuffer {
                    offset,
                    found: first,
                });
            }
        };
        // The length of a buffer with extents comes from the extents. Until they are read, the
        // buffer consists of them.
        let end = found.unwrap_or(offset.saturating_add(METADATA_LEN as u64));
        self.bounds = Bounds::new(offset, end);
        Ok(true)
    }

    fn end_of_buffer(&mut self, offset: u64) -> Result<(), Error> {
        let version = self.header.version;
        if version >= 2 {
            return Err(Error::EndOfBuffer { offset, version });
        }
        self.bounds
            .fits(Kind::EndOfBuffer, offset, METADATA_LEN as u64)?;
        self.window.take(METADATA_LEN);
        if self.bounds.end != u64::MAX {
            let padding = self.bounds.left(self.window.offset());
            self.window.skip(padding)?;
        }
        self.bounds.end = 0;
        Ok(())
    }

    /// Takes an event with its payload; `None` if it is cut.
    fn event(&mut self, kind: Kind, offset: u64, size: i32) -> Result<Option<Range<usize>>, Error> {
        let negative = Error::NegativeSize {
            record: kind,
            offset,
            size,
        };
        let len = usize::try_from(size).map_err(|_| negative)?;
        if len > MAX_EVENT_LEN {
            return Err(Error::TooLong {
                what: kind.name(),
                offset,
                len: len as u64,
                limit: MAX_EVENT_LEN as u64,
            });
        }
        let total = METADATA_LEN + len;
        if kind == Kind::TypedEvent {
            self.bounds.typed += 1;
        }
        let left = self.bounds.left(offset);
        if left < total as u64 && self.is_cut(left)? {
            self.cut += 1;
            self.window.skip(left)?;
            return Ok(None);
        }
        let has = self.window.ahead(total)?.len();
        if has < total {
            return Err(truncated(kind, offset, total, has));
        }
        self.bounds.fits(kind, offset, total as u64)?;
        self.window.take(METADATA_LEN);
        Ok(Some(self.window.take(len)))
    }

    /// Whether the runtime has written only the bytes that the extents of this buffer count, which
    /// is too little with typed events. Then the next buffer or the end of the file follows the
    /// rest.
    fn is_cut(&mut self, left: u64) -> Result<bool, Error> {
        const BUFFER: usize = 3 * METADATA_LEN;
        let Some(left) = usize::try_from(left).ok().filter(|_| self.bounds.typed > 0) else {
            return Ok(false);
        };
        let ahead = self.window.ahead(left.saturating_add(BUFFER))?;
        Ok(ahead.get(left..).is_some_and(|behind| match behind {
            [] => true,
            behind => behind
                .get(..BUFFER)
                .is_some_and(|behind| looks_like_buffer(self.bits, self.header.version, behind)),
        }))
    }

    /// Reads a function record at the end of the file or of its buffer.
    fn short_function(&mut self, offset: u64, has: usize) -> Result<Option<Raw>, Error> {
        if has < FUNCTION_LEN {
            return Err(truncated(Kind::Function, offset, FUNCTION_LEN, has));
        }
        self.bounds
            .fits(Kind::Function, offset, FUNCTION_LEN as u64)?;
        // The buffer was extended, so that the record fits now.
        self.attempt()
    }

    /// Continues with the records behind extents that are too short, else with the next buffer.
    #[cold]
    fn resynchronise(&mut self, why: Error) -> Result<(), Error> {
        let from = self.window.offset();
        let goes_on = match &why {
            Error::BeyondBuffer { .. } => true,
            Error::NoBuffer { .. } => {
                let ahead = self.window.ahead(METADATA_LEN)?;
                looks_like_event(self.header.order, self.bits, ahead)
            }
            _ => false,
        };
        self.bounds.typed = 0;
        if goes_on {
            self.bounds.end = u64::MAX;
            self.skipped.push(from, from, why);
            return Ok(());
        }
        let end = self.bounds.end;
        let padded = self.header.version == 1 && end != u64::MAX && end > from;
        if padded {
            self.window.skip(end - from)?;
        } else if !matches!(why, Error::BufferInBuffer { .. }) {
            find_buffer(&mut self.window, self.bits, self.header.version)?;
        }
        self.bounds.end = 0;
        self.skipped.push(from, self.window.offset(), why);
        Ok(())
    }
}

fn truncated(kind: Kind, offset: u64, needs: usize, has: usize) -> Error {
    Error::Truncated {
        record: kind.name(),
        offset,
        needs: needs as u64,
        has: has as u64,
    }
}
