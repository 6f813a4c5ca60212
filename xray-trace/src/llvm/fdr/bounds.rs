//! The bounds of the buffer that is being read.

use super::Kind;
use super::record::METADATA_LEN;
use crate::llvm::Error;

/// The begin and the end of a buffer.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// The offset of its first byte, including its BufferExtents.
    pub(super) begin: u64,
    /// The offset behind its last byte: 0 outside of a buffer, `u64::MAX` if unknown.
    pub(super) end: u64,
    /// Typed events in it whose 16 bytes the extents may have omitted.
    pub(super) typed: u64,
}

// === impl Bounds ===

impl Bounds {
    pub(super) fn new(begin: u64, end: u64) -> Self {
        Self {
            begin,
            end,
            typed: 0,
        }
    }

    /// The bytes of the buffer from this offset on.
    pub(super) fn left(&self, offset: u64) -> u64 {
        self.end.saturating_sub(offset)
    }

    /// Applies the extents at this offset: `size` bytes of the buffer follow them.
    pub(super) fn extents(&mut self, offset: u64, size: u64) -> Result<(), Error> {
        if offset != self.begin {
            if self.end != u64::MAX {
                let missing = self.left(offset);
                return Err(Error::BufferInBuffer { offset, missing });
            }
            self.begin = offset;
            self.typed = 0;
        }
        let end = offset.checked_add(METADATA_LEN as u64);
        let end = end.and_then(|end| end.checked_add(size));
        // The greatest number means "unknown" here.
        let Some(end) = end.filter(|end| *end != u64::MAX) else {
            return Err(Error::Extents { offset, size });
        };
        self.end = end;
        Ok(())
    }

    /// Checks that a record of this length ends in its buffer.
    pub(super) fn fits(&mut self, kind: Kind, offset: u64, len: u64) -> Result<(), Error> {
        let record_end = offset.saturating_add(len);
        if record_end > self.end && self.typed > 0 {
            self.extend();
        }
        if record_end > self.end {
            return Err(Error::BeyondBuffer {
                record: kind,
                offset,
                end: self.end,
                over: record_end - self.end,
            });
        }
        Ok(())
    }

    /// Extends the buffer by the records of its typed events.
    pub(super) fn extend(&mut self) {
        let more = std::mem::take(&mut self.typed) * METADATA_LEN as u64;
        self.end = self.end.saturating_add(more);
    }

    /// Checks that the buffer ends no later than the file, which ends here. Reports an error once.
    pub(super) fn end_of_file(&mut self, offset: u64) -> Result<(), Error> {
        if self.end == u64::MAX || offset >= self.end {
            return Ok(());
        }
        let missing = self.end - offset;
        self.end = 0;
        Err(Error::ShortBuffer {
            offset: self.begin,
            missing,
        })
    }
}
