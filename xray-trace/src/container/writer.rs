//! Writes a trace, section by section. Bytes are never rewritten, so any `Write` is suitable: a
//! file, a socket, a pipe.

use std::io::{self, Write};

use super::end::End;
use super::kernel_events::{KernelPart, put_kernel};
use super::profile::{ProfilePart, put_part};
use super::runs::{RunsPart, put_runs};
use super::section::{Fields, SectionKind};
use super::tables::{self, TableEntry};
use super::{Block, MAGIC, MAX_SECTION_LEN, OpenCalls, Payload, VERSION};
use crate::event_format::Tracepoint;
use crate::model::{Origin, ProcessId, ThreadId};

/// Writes a trace. A section takes two or three writes, so put a `BufWriter` around a file.
#[derive(Debug)]
pub struct Writer<W> {
    /// The output.
    inner: W,
    /// The frame and the payload of the current section. The next section clears them.
    scratch: Vec<u8>,
    /// The number of bytes written so far.
    written: u64,
    /// The totals so far, for `end`.
    totals: End,
}

// === impl Writer ===

impl<W: Write> Writer<W> {
    /// Begins a trace: writes the file header.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer, as for all other methods.
    pub fn new(inner: W) -> io::Result<Self> {
        let mut writer = Self::going_on(inner, End::default());
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0_u16.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        writer.put(&header)?;
        Ok(writer)
    }

    /// Continues a trace of which parts with these totals have been written elsewhere.
    #[must_use]
    pub fn going_on(inner: W, totals: End) -> Self {
        Self {
            inner,
            scratch: Vec::new(),
            written: 0,
            totals,
        }
    }

    /// Adds an entry of a table. A process comes before its modules and threads, and a module
    /// before its functions and lifetimes. A later thread with the same id, or a later event type
    /// with the same number, renames the earlier one. A clock needs at least two anchors for a
    /// measured rate.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn add<E: TableEntry>(&mut self, entry: &E) -> io::Result<()> {
        entry.put(self.begin_section(E::KIND));
        self.finish_frame(&[])
    }

    /// Adds entries of a table, as [`Self::add`].
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn add_all<'a, E: TableEntry + 'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a E>,
    ) -> io::Result<()> {
        entries.into_iter().try_for_each(|entry| self.add(entry))
    }

    /// Adds the origin of a process that was added before.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn origin(&mut self, process: ProcessId, origin: Origin) -> io::Result<()> {
        tables::put_origin(self.begin_section(SectionKind::ORIGIN), process, origin);
        self.finish_frame(&[])
    }

    /// Adds a block. The blocks of one thread must be in order of time.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the block is longer than [`MAX_SECTION_LEN`] allows, `InvalidData` if it
    /// cannot be read from its file. In both cases no byte has been written. Otherwise the errors
    /// of the inner writer.
    pub fn block(&mut self, block: &Block) -> io::Result<()> {
        block.put_fields(&mut self.begin_section(SectionKind::BLOCK));
        self.finish_with(&block.payload)?;
        self.totals.calls = self.totals.calls.saturating_add(u64::from(block.calls));
        self.totals.lost = self.totals.lost.saturating_add(block.lost);
        self.totals.blocks = self.totals.blocks.saturating_add(1);
        Ok(())
    }

    /// Adds losses of a thread whose place among its events is unknown.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn lost(&mut self, thread: ThreadId, events: u64) -> io::Result<()> {
        self.totals.lost = self.totals.lost.saturating_add(events);
        tables::put_lost(self.begin_section(SectionKind::LOST), thread, events);
        self.finish_frame(&[])
    }

    /// Adds the calls that are open at the begins of blocks. The blocks were added before.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::block`].
    pub fn open_calls(&mut self, open: &OpenCalls) -> io::Result<()> {
        let OpenCalls {
            thread,
            first_block: _,
            entries,
        } = open;
        self.begin_section(SectionKind::OPEN).number(thread.0);
        self.finish_with(entries)
    }

    /// Adds a part of a thread's run times.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::block`].
    pub fn runs(&mut self, part: &RunsPart) -> io::Result<()> {
        put_runs(&mut self.begin_section(SectionKind::RUNS), part);
        self.finish_with(&part.switches)
    }

    /// Adds a kernel tracepoint, whose events have this number.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn tracepoint(&mut self, number: u16, tracepoint: &Tracepoint) -> io::Result<()> {
        let section = self.begin_section(SectionKind::TRACEPOINT);
        tables::put_tracepoint(section, number, tracepoint);
        self.finish_frame(&[])
    }

    /// Adds kernel events of a thread.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::block`].
    pub fn kernel_events(&mut self, part: &KernelPart) -> io::Result<()> {
        put_kernel(&mut self.begin_section(SectionKind::KERNEL), part);
        self.finish_with(&part.events)
    }

    /// Adds sums of calls of a thread.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::block`].
    pub fn profile(&mut self, part: &ProfilePart) -> io::Result<()> {
        put_part(&mut self.begin_section(SectionKind::PROFILE), part);
        self.finish_with(&part.stacks)
    }

    /// Marks the trace as finished. A file without this mark was cut.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn end(&mut self, end: &End) -> io::Result<()> {
        self.add(end)?;
        self.flush()
    }

    /// Adds an index, which may be empty, marks the trace as finished, and returns the inner
    /// writer.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::block`].
    pub fn finish(mut self, index: &[OpenCalls]) -> io::Result<W> {
        index.iter().try_for_each(|open| self.open_calls(open))?;
        self.end(&self.totals())?;
        Ok(self.inner)
    }

    /// The totals so far, for [`Self::end`].
    #[must_use]
    pub fn totals(&self) -> End {
        self.totals
    }

    /// The number of bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Flushes the inner writer.
    ///
    /// # Errors
    ///
    /// The errors of the inner writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    /// The inner writer.
    #[must_use]
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// The inner writer. Bytes that are written to it directly become part of the file.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Returns the inner writer.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.inner
    }

    fn begin_section(&mut self, kind: SectionKind) -> Fields<'_> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&kind.0);
        self.scratch.extend_from_slice(&[0; 4]);
        Fields(&mut self.scratch)
    }

    /// Finishes the current section with a payload that may still be in a file.
    fn finish_with(&mut self, rest: &Payload) -> io::Result<()> {
        let rest = rest
            .load()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.finish_frame(&rest)
    }

    /// Sets the length of the current section in `scratch`, and writes it, the `rest` of its
    /// payload, and the checksum.
    fn finish_frame(&mut self, rest: &[u8]) -> io::Result<()> {
        let len = self.scratch.len() - 8 + rest.len();
        let len = u32::try_from(len)
            .ok()
            .filter(|_| len <= MAX_SECTION_LEN)
            .ok_or_else(|| {
                let problem = format!(
                    "a section of {len} bytes is too long: the maximum is {MAX_SECTION_LEN}"
                );
                io::Error::new(io::ErrorKind::InvalidInput, problem)
            })?;
        self.scratch[4..8].copy_from_slice(&len.to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&self.scratch);
        checksum.update(rest);
        let checksum = checksum.finalize().to_le_bytes();
        if rest.is_empty() {
            self.scratch.extend_from_slice(&checksum);
        }
        let scratch = std::mem::take(&mut self.scratch);
        let mut result = self.put(&scratch);
        self.scratch = scratch;
        if !rest.is_empty() {
            result = result
                .and_then(|()| self.put(rest))
                .and_then(|()| self.put(&checksum));
        }
        result
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
