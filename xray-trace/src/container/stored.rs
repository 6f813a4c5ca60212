//! Reads a trace from a file, and leaves the long parts there: the events of blocks, the open
//! calls, the switches of threads, and kernel events.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::kernel_events::kernel_fields;
use super::payload::{CHECKSUM_LEN, FRAME_LEN, Payload};
use super::reader::{Item, ReadError, Reader, block_fields, le_u32, open_calls_fields};
use super::runs::runs_fields;
use super::{MAX_SECTION_LEN, SectionKind};

/// An upper bound of the length of a section's fields before the part that stays in the file.
const FIELDS_LEN: usize = 64;

/// A section whose long part stays in its file.
struct Section {
    kind: SectionKind,
    /// The length of the whole section, in bytes.
    len: u64,
    item: Item,
}

// === impl Reader ===

impl Reader<BufReader<File>> {
    /// The same as [`Self::next_item`], but leaves events, open calls and switches in `file`,
    /// which is the file that is read and has `len` bytes. They are read and checked when they are
    /// needed.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::next_item`].
    pub fn next_item_of_file(
        &mut self,
        file: &Arc<File>,
        len: u64,
    ) -> Result<Option<Item>, ReadError> {
        match self.section_in_file(file, len) {
            Some(Section { kind, len, item }) => {
                self.skip(kind, len)?;
                Ok(Some(item))
            }
            None => self.next_item(),
        }
    }

    /// The next section, if its kind stays in the file, if it is whole, and if its fields are
    /// valid.
    fn section_in_file(&self, file: &Arc<File>, file_len: u64) -> Option<Section> {
        let stays = |kind: &[u8]| {
            [
                SectionKind::BLOCK,
                SectionKind::OPEN,
                SectionKind::RUNS,
                SectionKind::KERNEL,
            ]
            .iter()
            .any(|stays| kind == stays.0)
        };
        // For nearly all other sections the bytes that were read already show the kind.
        if self
            .inner
            .buffer()
            .get(..4)
            .is_some_and(|kind| !stays(kind))
        {
            return None;
        }
        let mut start = [0; FRAME_LEN + FIELDS_LEN];
        let left = file_len.checked_sub(self.offset)?;
        let there = usize::try_from(left).unwrap_or(usize::MAX).min(start.len());
        let start = &mut start[..there];
        file.read_exact_at(start, self.offset).ok()?;
        let (frame, fields) = start.split_at_checked(FRAME_LEN)?;
        let kind = SectionKind(*frame.first_chunk()?);
        let len = usize::try_from(le_u32(&frame[4..])).ok()?;
        let section_len = (FRAME_LEN + len + CHECKSUM_LEN) as u64;
        if len > MAX_SECTION_LEN || section_len > left {
            return None;
        }
        let fields = &fields[..fields.len().min(len)];
        let rest = |begin: usize| {
            let len = u32::try_from(len - begin).ok()?;
            let begin = u32::try_from(FRAME_LEN + begin).ok()?;
            Some(Payload::in_file(file.clone(), self.offset, begin, len))
        };
        let item = match kind {
            SectionKind::BLOCK => {
                let (mut block, begin) = block_fields(fields).ok()?;
                block.payload = rest(begin)?;
                Item::Block(block)
            }
            SectionKind::OPEN => {
                let (mut open, begin) = open_calls_fields(fields).ok()?;
                open.entries = rest(begin)?;
                Item::OpenCalls(open)
            }
            SectionKind::RUNS => {
                let (mut part, begin) = runs_fields(fields).ok()?;
                part.switches = rest(begin)?;
                Item::Runs(part)
            }
            SectionKind::KERNEL => {
                let (mut part, begin) = kernel_fields(fields).ok()?;
                part.events = rest(begin)?;
                Item::Kernel(part)
            }
            _ => return None,
        };
        Some(Section {
            kind,
            len: section_len,
            item,
        })
    }

    fn skip(&mut self, kind: SectionKind, len: u64) -> Result<(), ReadError> {
        self.section = self.offset;
        self.latest = Some(kind);
        let skipped = i64::try_from(len)
            .map_err(io::Error::other)
            .and_then(|len| self.inner.seek_relative(len));
        skipped.map_err(|source| ReadError::Io {
            offset: self.offset,
            source,
        })?;
        self.offset += len;
        Ok(())
    }
}
