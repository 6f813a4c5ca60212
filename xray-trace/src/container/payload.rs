//! The packed events of a block: in memory, or still in the file. In a file they are read when they
//! are needed, so a trace of any length takes little memory. It does not interpret the bytes;
//! `decode` and `in_log` do.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::decode::PackedEvents;
use super::decode_error::DecodeError;
#[cfg(feature = "import")]
use super::encode::BlockEncoder;
use super::events::{Events, Form};
#[cfg(feature = "import")]
use super::in_log;
#[cfg(feature = "import")]
use crate::model::ThreadId;
use crate::model::Ticks;

/// Frame and checksum of a section, in bytes.
pub(super) const FRAME_LEN: usize = 8;
pub(super) const CHECKSUM_LEN: usize = 4;

/// The bytes of a block's events. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Payload(Storage);

#[derive(Debug, Clone)]
enum Storage {
    Here(Arc<[u8]>),
    There {
        file: Arc<File>,
        /// The begin of the block's section in the file.
        section: u64,
        /// The begin of the events in the section.
        begin: u32,
        len: u32,
    },
    /// Records of a log.
    #[cfg(feature = "import")]
    InLog(in_log::Stretch),
}

// === impl Payload ===

impl Payload {
    /// Bytes that stay in `file`: the last `len` bytes of the section at `section`, `begin` bytes
    /// after its begin.
    pub(super) fn in_file(file: Arc<File>, section: u64, begin: u32, len: u32) -> Self {
        Self(Storage::There {
            file,
            section,
            begin,
            len,
        })
    }

    /// Events that stay in a log.
    #[cfg(feature = "import")]
    pub(crate) fn in_log(stretch: in_log::Stretch) -> Self {
        Self(Storage::InLog(stretch))
    }

    /// The events. `first` is the time of the first one.
    pub(super) fn events(&self, first: Ticks) -> Events {
        let form = match &self.0 {
            #[cfg(feature = "import")]
            Storage::InLog(stretch) => stretch.events().map(Form::InLog),
            _ => self
                .load()
                .map(|bytes| Form::Packed(PackedEvents::new(first, bytes))),
        };
        Events(form.unwrap_or_else(|why| Form::Failed(Some(why))))
    }

    /// The number of bytes; the length of the records for events in a log.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Here(bytes) => bytes.len(),
            Storage::There { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
            #[cfg(feature = "import")]
            Storage::InLog(stretch) => usize::try_from(stretch.place.len).unwrap_or(usize::MAX),
        }
    }

    /// Whether the bytes are still in the file.
    #[must_use]
    pub fn is_in_file(&self) -> bool {
        matches!(self.0, Storage::There { .. })
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes. They are read and checked if they are still in the file, and packed if they are
    /// still in a log.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or the section is damaged.
    pub fn load(&self) -> Result<Arc<[u8]>, DecodeError> {
        let (file, section, begin, len) = match &self.0 {
            Storage::Here(bytes) => return Ok(bytes.clone()),
            #[cfg(feature = "import")]
            Storage::InLog(stretch) => return packed(stretch),
            Storage::There {
                file,
                section,
                begin,
                len,
            } => (file, *section, *begin, *len),
        };
        let too_long = DecodeError::Unreadable(io::ErrorKind::OutOfMemory);
        let (begin, len) = usize::try_from(begin)
            .ok()
            .zip(usize::try_from(len).ok())
            .ok_or(too_long)?;
        let mut bytes = vec![0; begin + len + CHECKSUM_LEN];
        file.read_exact_at(&mut bytes, section)
            .map_err(|error| DecodeError::Unreadable(error.kind()))?;
        let (checked, found) = bytes.split_at(begin + len);
        if crc32fast::hash(checked).to_le_bytes() != found {
            return Err(DecodeError::Checksum { section });
        }
        Ok(Arc::from(&checked[begin..]))
    }
}

/// The events of a log, packed.
#[cfg(feature = "import")]
fn packed(stretch: &in_log::Stretch) -> Result<Arc<[u8]>, DecodeError> {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    let mut events = Events(Form::InLog(stretch.events()?));
    while let Some(event) = events.next().transpose()? {
        encoder.push(&event, &events, |function| function);
    }
    Ok(encoder.take().map(|block| block.bytes).unwrap_or_default())
}

impl<B: Into<Arc<[u8]>>> From<B> for Payload {
    fn from(bytes: B) -> Self {
        Self(Storage::Here(bytes.into()))
    }
}

/// Compares the bytes. Bytes that cannot be read are equal to no others.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        match (self.load(), other.load()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Payload {}
