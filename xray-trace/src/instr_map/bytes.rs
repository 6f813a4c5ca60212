//! Checked access to the bytes of an object file, in its word size and byte order. Tables and their
//! meaning are read elsewhere.

use std::ffi::CStr;

use super::ObjectError;

/// The longest part of a name that is read, in bytes. A longer name is cut.
const LONGEST_NAME: usize = 64 * 1024;

/// The word size and byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordFormat {
    /// True if words have eight bytes, false for four.
    pub(super) wide: bool,
    pub(super) little_endian: bool,
}

/// A name in a string table. It is read on demand: many symbols can share one very long name.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawName<'a> {
    /// The table from the first byte of the name to the end of the table.
    rest: &'a [u8],
}

/// An object file in memory. Parts of it may be missing and read as zero: holes of a sparse file,
/// and parts that are not needed. Memory bounds count the bytes that are present. The length does
/// not count, because a hole costs the file's owner nothing.
#[derive(Clone, Copy, Debug)]
pub struct ObjectBytes<'a> {
    all: &'a [u8],
    present: usize,
}

/// The number of bytes that may still be read. Sections of a real file do not overlap, so that
/// together they are no longer than the file.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
}

// === impl WordFormat ===

impl WordFormat {
    pub(super) fn size(self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    pub(super) fn half(self, bytes: [u8; 4]) -> u32 {
        if self.little_endian {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        }
    }

    /// The four bytes at `offset`, independent of the word size.
    pub(super) fn half_at(self, data: &[u8], offset: usize) -> Option<u32> {
        Some(self.half(*data.get(offset..)?.first_chunk()?))
    }

    /// The eight bytes at `offset`, independent of the word size.
    pub(super) fn double_at(self, data: &[u8], offset: usize) -> Option<u64> {
        let bytes = data.get(offset..)?.first_chunk()?;
        Some(if self.little_endian {
            u64::from_le_bytes(*bytes)
        } else {
            u64::from_be_bytes(*bytes)
        })
    }

    /// The word at `offset`.
    pub(super) fn word(self, data: &[u8], offset: usize) -> Option<u64> {
        if self.wide {
            self.double_at(data, offset)
        } else {
            Some(self.half_at(data, offset)?.into())
        }
    }

    /// The word at `offset` as a distance: a four-byte word is sign-extended.
    pub(super) fn distance(self, data: &[u8], offset: usize) -> Option<u64> {
        if self.wide {
            return self.double_at(data, offset);
        }
        let signed = self.half_at(data, offset)?.cast_signed();
        Some(i64::from(signed).cast_unsigned())
    }
}

// === impl RawName ===

impl<'a> RawName<'a> {
    /// The name at this offset of a string table; empty if the offset is outside.
    pub(super) fn at(strings: &'a [u8], offset: usize) -> Self {
        Self {
            rest: strings.get(offset..).unwrap_or_default(),
        }
    }

    /// The name without this prefix, or `None` if it does not begin with it.
    pub(super) fn strip_prefix(self, prefix: &[u8]) -> Option<Self> {
        let rest = self.rest.strip_prefix(prefix)?;
        Some(Self { rest })
    }

    pub(super) fn is_empty(self) -> bool {
        self.rest.first().is_none_or(|&byte| byte == 0)
    }

    pub(super) fn is(self, name: &[u8]) -> bool {
        self.strip_prefix(name).is_some_and(Self::is_empty)
    }

    /// The bytes up to the next zero byte, at most [`LONGEST_NAME`].
    pub(super) fn read(self) -> &'a [u8] {
        let rest = &self.rest[..self.rest.len().min(LONGEST_NAME)];
        CStr::from_bytes_until_nul(rest).map_or(rest, CStr::to_bytes)
    }
}

// === impl ObjectBytes ===

impl<'a> ObjectBytes<'a> {
    /// A file of which `present` bytes were read, each to its own offset. The rest is zero.
    #[must_use]
    pub fn with_holes(all: &'a [u8], present: usize) -> Self {
        Self {
            all,
            present: present.min(all.len()),
        }
    }

    /// The bytes of the file, with zeros in place of missing parts.
    pub(super) fn all(self) -> &'a [u8] {
        self.all
    }

    /// The number of bytes that were read.
    #[must_use]
    pub fn present(self) -> usize {
        self.present
    }

    /// The memory that data made from the file may take, in bytes: `factor` for each byte that is
    /// present, and 1 MiB.
    pub(super) fn allowance(self, factor: usize) -> usize {
        self.present.saturating_mul(factor).saturating_add(1 << 20)
    }
}

/// A whole file.
impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for ObjectBytes<'a> {
    fn from(all: &'a T) -> Self {
        let all = all.as_ref();
        Self {
            all,
            present: all.len(),
        }
    }
}

// === impl Budget ===

impl Budget {
    /// The budget for a file: twice the bytes that are present. A linked file has one table of
    /// relocations, which is read for the map and again for the index.
    pub(super) fn of(file: ObjectBytes<'_>) -> Self {
        Self {
            left: (file.present() as u64).saturating_mul(2),
        }
    }

    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), ObjectError> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.ok_or(ObjectError::Overlap)?;
        Ok(())
    }
}

/// This part of the file, or `None` if it is not inside.
pub(super) fn range(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end)
}

/// The error for a part that [`range`] does not find.
pub(super) fn outside(bytes: &[u8], what: &'static str, offset: u64) -> ObjectError {
    ObjectError::OutsideFile {
        what,
        offset,
        file_size: bytes.len() as u64,
    }
}
