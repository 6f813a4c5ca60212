//! The parts of an ELF file that somebody wants, at their places in memory of the file's length.
//!
//! A target chooses what it maps: a file may be sparse and as long as a file can be. Only the wanted parts are read, by their
//! offsets, up to [`MAX_READ`] together, and one file at a time; the rest of the image reads as zero and takes no memory. The file itself is not
//! mapped: its owner could shorten it meanwhile, and reading beyond the end would kill the daemon.

use std::{
    fs::File,
    io,
    ops::Deref,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use memmap2::{MmapMut, MmapOptions};

/// Longer files are not looked at.
const MAX_LENGTH: u64 = 1 << 40;
/// Bytes read of one file at most: symbols of the largest programs, with their names, are some hundred MiB.
const MAX_READ: u64 = 1 << 30;
/// Notes and dynamic sections longer than this are cut; the reader looks at no more of them.
const MAX_SMALL: u64 = 1 << 20;

const HEADER: u64 = 64;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;

static TURN: Mutex<()> = Mutex::new(());

/// What is wanted of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Instrumentation map, symbols, build id.
    Map,
    /// Source lines.
    Lines,
}

/// See the head of this file. Nobody else has one meanwhile.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: MmapMut,
    read: u64,
    _turn: MutexGuard<'static, ()>,
}

// === impl Image ===

impl Image {
    /// Reads them.
    ///
    /// # Errors
    /// What the system says, and files that are too long or whose parts are.
    pub(crate) fn read(file: &File, parts: Parts) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("no regular file"));
        }
        let length = metadata.len();
        if length > MAX_LENGTH {
            return Err(too_much("file", length));
        }
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut image = Self {
            bytes: MmapOptions::new()
                .len(length.max(1))
                .no_reserve_swap()
                .map_anon()?,
            read: 0,
            _turn: turn,
        };
        image.take(file, 0, HEADER)?;
        // 64 bits, little endian; the header of another one is enough to say what it is.
        if image.starts_with(b"\x7fELF\x02\x01") {
            image.take_segments(file)?;
            image.take_sections(file, parts)?;
        }
        Ok(image)
    }

    fn take_segments(&mut self, file: &File) -> io::Result<()> {
        let (start, count) = (self.word(32), u64::from(self.short(56)));
        self.take(file, start, count * 56)?;
        for header in (0..count).map(|index| start.saturating_add(index * 56)) {
            if matches!(self.half(header), PT_DYNAMIC | PT_NOTE) {
                let (offset, size) = (
                    self.word(header.saturating_add(8)),
                    self.word(header.saturating_add(32)),
                );
                self.take(file, offset, size.min(MAX_SMALL))?;
            }
        }
        Ok(())
    }

    fn take_sections(&mut self, file: &File, parts: Parts) -> io::Result<()> {
        let (start, count) = (self.word(40), u64::from(self.short(60)));
        self.take(file, start, count * 64)?;
        let header = |index: u64| start.saturating_add(index * 64);
        let names = match u64::from(self.short(62)) {
            0xffff => u64::from(self.half(start.saturating_add(40))),
            direct => direct,
        };
        let names = if names < count { header(names) } else { start };
        let (names, size) = (
            self.word(names.saturating_add(24)),
            self.word(names.saturating_add(32)),
        );
        self.take(file, names, size)?;
        for at in (0..count).map(header) {
            let kind = self.half(at.saturating_add(4));
            let name = self.from(names.saturating_add(u64::from(self.half(at))));
            let wanted = match parts {
                Parts::Map => {
                    matches!(kind, SHT_SYMTAB | SHT_STRTAB | SHT_DYNSYM)
                        || (kind == SHT_RELA && name.starts_with(b".rela.dyn\0"))
                        || name.starts_with(b"xray_")
                        || name.starts_with(b".note.gnu.build-id\0")
                }
                Parts::Lines => name.starts_with(b".debug_") || name.starts_with(b".zdebug_"),
            };
            let (offset, size) = (
                self.word(at.saturating_add(24)),
                self.word(at.saturating_add(32)),
            );
            // The names have been read; sections may overlap, and count each time.
            if wanted && kind != SHT_NOBITS && offset != names {
                self.take(file, offset, size)?;
            }
        }
        Ok(())
    }

    /// Reads a part, as far as the file has it.
    fn take(&mut self, file: &File, offset: u64, size: u64) -> io::Result<()> {
        let end = offset.saturating_add(size).min(self.bytes.len() as u64);
        let size = end.saturating_sub(offset);
        self.read = self.read.saturating_add(size);
        if self.read > MAX_READ {
            return Err(too_much("file's tables", self.read));
        }
        let (start, end) = (index(offset), index(end));
        let Some(mut rest) = self.bytes.get_mut(start..end) else {
            return Ok(());
        };
        let mut at = offset;
        while !rest.is_empty() {
            match file.read_at(rest, at) {
                // Shorter than it was.
                Ok(0) => break,
                Ok(count) => {
                    at += count as u64;
                    rest = rest.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn from(&self, at: u64) -> &[u8] {
        self.get(index(at)..).unwrap_or_default()
    }

    fn short(&self, at: u64) -> u16 {
        self.from(at)
            .first_chunk()
            .map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    fn half(&self, at: u64) -> u32 {
        self.from(at)
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn word(&self, at: u64) -> u64 {
        self.from(at)
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn too_much(what: &str, bytes: u64) -> io::Error {
    io::Error::other(format!("the {what} of {bytes} bytes is more than is read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xray_trace::instr_map::{Object, ObjectError};

    /// A file of 100 GiB, sparse, that begins as this test program does.
    fn giant(change: impl FnOnce(&mut Vec<u8>)) -> File {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        change(&mut bytes);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(100 << 30).unwrap();
        file
    }

    #[test]
    fn of_a_giant_file_little_is_read() {
        let file = giant(|_| {});
        let own = Image::read(&file, Parts::Map).unwrap();
        assert!(own.read < 512 << 20, "{} bytes read", own.read);
        assert!(matches!(Object::parse(&*own), Err(ObjectError::NoMap)));
    }

    #[test]
    fn a_giant_table_is_refused() {
        // The first section header that names a symbol table is given 50 GiB.
        let file = giant(|bytes| {
            let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
            let start = index(word(40));
            let kind = (1..60)
                .map(|number| start + number * 64)
                .find(|&at| matches!(bytes[at + 4], 2 | 11))
                .unwrap();
            bytes[kind + 32..kind + 40].copy_from_slice(&(50u64 << 30).to_le_bytes());
        });
        let error = Image::read(&file, Parts::Map).unwrap_err();
        assert!(error.to_string().contains("more than is read"), "{error}");
    }

    #[test]
    fn offsets_and_counts_may_be_anything() {
        for fill in [0xff, 0x7f, 0x80, 1, 0] {
            let mut bytes = vec![fill; 4096];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            for parts in [Parts::Map, Parts::Lines] {
                let _ = Image::read(&file, parts);
            }
        }
        let empty = tempfile::tempfile().unwrap();
        assert!(Image::read(&empty, Parts::Map).is_ok());
    }
}
