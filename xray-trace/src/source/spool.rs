//! The destination of a log that is being converted: memory, and a file without a name when it
//! grows.

use std::io::{self, BufWriter};

use tempfile::{SpooledData, SpooledTempFile};

use super::OpenError;
use crate::container::Writer;
use crate::model::Trace;

/// The most bytes in memory.
const IN_MEMORY: usize = 32 << 20;
const BUFFER: usize = 1 << 18;

/// A trace in progress.
#[derive(Debug)]
pub(super) struct Spool {
    pub(super) writer: Writer<BufWriter<SpooledTempFile>>,
}

// === impl Spool ===

impl Spool {
    pub(super) fn new() -> io::Result<Self> {
        let spool = BufWriter::with_capacity(BUFFER, SpooledTempFile::new(IN_MEMORY));
        Ok(Self {
            writer: Writer::new(spool)?,
        })
    }

    /// The trace that was written, with its blocks in order of time.
    pub(super) fn finish(self) -> Result<Trace, OpenError> {
        let spool = self.writer.finish(&[])?;
        let spool = spool.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut trace = match spool.into_inner() {
            SpooledData::InMemory(bytes) => Trace::read(bytes.into_inner().as_slice())?,
            SpooledData::OnDisk(mut file) => {
                io::Seek::rewind(&mut file)?;
                Trace::open(file)?
            }
        };
        // Sorts the blocks that were written.
        trace.add_blocks([]);
        Ok(trace)
    }
}
