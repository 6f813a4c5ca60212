//! The parts of an ELF file that a reader needs, at their places in memory of the file's length.
//!
//! A target chooses what it maps: a file may be sparse, and as long as a file can be. Only the
//! wanted parts are read, by their offsets, and without the holes of the file. The rest reads as
//! zero and takes no memory. Two limits hold for one file. [`MAX_WANTED`] bytes of parts, holes
//! included, bound the time of a reader. [`MAX_READ`] bytes bound the memory. An image beyond
//! [`SMALL`] takes a turn. No image keeps another user's small one waiting.
//!
//! The file itself is not mapped: its owner could shorten it meanwhile, and reading beyond the end
//! would kill the daemon.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use memmap2::{Advice, MmapMut, MmapOptions};
use nix::{
    errno::Errno,
    unistd::{Whence, lseek64},
};
use xray_trace::instr_map::ObjectBytes;

use super::large_image::Turn;

/// Longer files are not read.
const MAX_LENGTH: u64 = 1 << 40;
/// Most bytes of parts of one file, holes included.
const MAX_WANTED: u64 = 1 << 30;
/// Most bytes of memory that one image takes. Symbols of the largest programs, with their names,
/// are some hundred MiB.
const MAX_READ: u64 = 1 << 29;
/// An image that takes more memory needs a turn.
const SMALL: u64 = 16 << 20;
const PAGE: u64 = 4096;
/// Longer notes and dynamic sections are cut: the reader uses no more of them.
const MAX_SMALL: u64 = 1 << 20;

/// Starts of the names of sections that a search for source lines reads.
const LINES: [&[u8]; 4] = [
    b".debug_line\0",
    b".debug_line_str\0",
    b".debug_str\0",
    b".zdebug_line\0",
];

const HEADER: u64 = 64;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;

/// Parts of a file that a reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Instrumentation map, symbols, build id.
    Map,
    /// Source lines.
    Lines,
}

/// The read parts of one file. See the head of this file.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: MmapMut,
    /// Bytes of parts so far, holes included; parts that overlap count each time.
    wanted: u64,
    /// Bytes read so far.
    read: u64,
    /// Bytes of memory that the read parts take.
    resident: u64,
    /// The user whose process mapped the file.
    user: u32,
    /// The turn of a large image.
    turn: Option<Turn>,
}

// === impl Image ===

impl Image {
    /// Reads the parts of a file that a process of `user` has mapped.
    ///
    /// # Errors
    /// The error of the system. Or the file or its parts are too long, or no turn becomes free.
    pub(crate) fn read(file: &File, parts: Parts, user: u32) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let length = metadata.len();
        if length > MAX_LENGTH {
            return Err(too_much("file", length));
        }
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let bytes = MmapOptions::new()
            .len(length.max(1))
            .no_reserve_swap()
            .map_anon()?;
        // One byte would take a huge page. A kernel without huge pages does not accept this advice.
        if let Err(error) = bytes.advise(Advice::NoHugePage) {
            tracing::debug!(%error, "cannot disable huge pages for the copy of a file");
        }
        let mut image = Self {
            bytes,
            wanted: 0,
            read: 0,
            resident: 0,
            user,
            turn: None,
        };
        image.take(file, 0, HEADER)?;
        // 64 bits, little endian. For any other file, the header is enough to name its kind.
        if image.bytes.starts_with(b"\x7fELF\x02\x01") {
            image.take_segments(file)?;
            image.take_sections(file, parts)?;
        }
        Ok(image)
    }

    /// The file's bytes, as far as they were read.
    pub(crate) fn bytes(&self) -> ObjectBytes<'_> {
        let read = usize::try_from(self.read).unwrap_or(usize::MAX);
        ObjectBytes::with_holes(&self.bytes, read)
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
        let names_at = (
            self.word(names.saturating_add(24)),
            self.word(names.saturating_add(32)),
        );
        let (names, size) = names_at;
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
                Parts::Lines => LINES.iter().any(|section| name.starts_with(section)),
            };
            let (offset, size) = (
                self.word(at.saturating_add(24)),
                self.word(at.saturating_add(32)),
            );
            // The names have been read already. Sections may overlap, and each of them counts.
            if wanted && kind != SHT_NOBITS && (offset, size) != names_at {
                self.take(file, offset, size)?;
            }
        }
        Ok(())
    }

    /// Reads a part, as far as the file has it.
    fn take(&mut self, file: &File, offset: u64, size: u64) -> io::Result<()> {
        let end = offset.saturating_add(size).min(self.bytes.len() as u64);
        self.wanted = self.wanted.saturating_add(end.saturating_sub(offset));
        if self.wanted > MAX_WANTED {
            return Err(too_much("needed part of the file", self.wanted));
        }
        let mut at = offset;
        while let Some(data) = data_in(file, &(at..end))? {
            at = data.end;
            self.make_room(&data)?;
            self.fill(file, data)?;
        }
        Ok(())
    }

    /// Counts the memory that this part of the file takes.
    fn make_room(&mut self, data: &Range<u64>) -> io::Result<()> {
        let pages = data.end.div_ceil(PAGE) - data.start / PAGE;
        // A part that stands alone also takes a page of the page tables.
        self.resident = self.resident.saturating_add((pages + 1) * PAGE);
        if self.resident > MAX_READ {
            return Err(too_much("needed part of the file", self.resident));
        }
        if self.resident > SMALL && self.turn.is_none() {
            self.turn = Some(Turn::take(self.user)?);
        }
        Ok(())
    }

    fn fill(&mut self, file: &File, data: Range<u64>) -> io::Result<()> {
        let (start, end) = (index(data.start), index(data.end));
        let Some(mut rest) = self.bytes.get_mut(start..end) else {
            return Ok(());
        };
        let mut at = data.start;
        while !rest.is_empty() {
            match file.read_at(rest, at) {
                // The file has become shorter.
                Ok(0) => break,
                Ok(count) => {
                    at += count as u64;
                    self.read += count as u64;
                    rest = rest.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn from(&self, at: u64) -> &[u8] {
        self.bytes.get(index(at)..).unwrap_or_default()
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

/// The next part of this range that is not a hole. A file system without support for holes shows
/// none.
fn data_in(file: &File, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(|_| Errno::EOVERFLOW)?;
        lseek64(file, at, whence).map(i64::cast_unsigned)
    };
    let start = match seek(range.start, Whence::SeekData) {
        Ok(start) => start.max(range.start),
        // A hole up to the end of the file.
        Err(Errno::ENXIO) => return Ok(None),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some(range.clone())),
        Err(error) => return Err(error.into()),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = match seek(start, Whence::SeekHole) {
        // The file system may return any offset. Each answer advances by a page at least, or to the
        // end.
        Ok(end) => end.max(start.saturating_add(PAGE)).min(range.end),
        Err(Errno::ENXIO) => range.end,
        Err(error) => return Err(error.into()),
    };
    Ok(Some(start..end))
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn too_much(what: &str, bytes: u64) -> io::Error {
    io::Error::other(format!(
        "the {what} has {bytes} bytes, which is more than xrayd reads"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xray_trace::instr_map::{Object, ObjectError};

    const USER: u32 = 4711;

    fn read(file: &File) -> io::Result<Image> {
        Image::read(file, Parts::Map, USER)
    }

    /// Puts a word into a file under construction.
    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// A sparse file of 100 GiB that begins with the bytes of this test program.
    fn giant(change: impl FnOnce(&mut Vec<u8>)) -> File {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        change(&mut bytes);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(100 << 30).unwrap();
        file
    }

    /// Position of the header of a symbol table in this test program.
    fn symbol_table(bytes: &[u8]) -> usize {
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let start = index(word(40));
        let headers = (1..60).map(|number| start + number * 64);
        headers
            .into_iter()
            .find(|&at| matches!(bytes[at + 4], 2 | 11))
            .unwrap()
    }

    #[test]
    fn of_a_giant_file_little_is_read() {
        let file = giant(|_| {});
        let own = read(&file).unwrap();
        assert!(own.read < 512 << 20, "{} bytes read", own.read);
        assert!(matches!(
            Object::parse(own.bytes()),
            Err(ObjectError::NoMap)
        ));
    }

    #[test]
    fn a_giant_table_is_refused() {
        let file = giant(|bytes| {
            let header = symbol_table(bytes);
            put(bytes, header + 32, 50 << 30);
        });
        let error = read(&file).unwrap_err();
        assert!(
            error.to_string().contains("more than xrayd reads"),
            "{error}"
        );
    }

    /// A program with one section: `xray_instr_map`, of this size, at the end of the file.
    fn with_map(size: u64) -> File {
        const NAMES: &[u8] = b"\0xray_instr_map\0";
        let mut bytes = vec![0; 64 + 56 + 3 * 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        put(&mut bytes, 32, 64);
        put(&mut bytes, 40, 120);
        bytes[52..64].copy_from_slice(&[64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
        // Code as long as a file can be.
        bytes[64..72].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
        put(&mut bytes, 64 + 32, 1 << 40);
        put(&mut bytes, 64 + 40, 1 << 40);
        let end = bytes.len();
        let map = 1 << 20;
        for (number, name, kind, at, size) in [
            (1, 1, 1, map, size),
            (2, 0, 3, end as u64, NAMES.len() as u64),
        ] {
            let header = 120 + number * 64;
            bytes[header..header + 8].copy_from_slice(&[name, 0, 0, 0, kind, 0, 0, 0]);
            put(&mut bytes, header + 24, at);
            put(&mut bytes, header + 32, size);
        }
        bytes.extend(NAMES);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(map + size).unwrap();
        file
    }

    #[test]
    fn holes_are_not_read_and_take_no_memory() {
        let file = with_map(256 << 20);
        let image = read(&file).unwrap();
        assert!(image.read < 1 << 16, "{} bytes read", image.read);
        assert!(image.resident < 1 << 20, "{} bytes", image.resident);
        assert!(image.turn.is_none());
        let refused = Object::parse(image.bytes()).unwrap_err();
        assert_eq!(refused, ObjectError::Overlap);
        // Data between holes is found.
        file.write_all_at(&[1; 32], (1 << 20) + (128 << 20))
            .unwrap();
        let image = read(&file).unwrap();
        assert!(image.read < 1 << 16, "{} bytes read", image.read);
        assert_eq!(image.bytes[(1 << 20) + (128 << 20)..][..32], [1; 32]);
    }

    /// The section of names occurs twice: the second time as the map, and longer than memory.
    #[test]
    fn a_map_that_begins_as_the_names_do_is_counted() {
        let file = with_map(32);
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 120 + 2 * 64 + 24).unwrap();
        file.write_all_at(&word, 120 + 64 + 24).unwrap();
        file.write_all_at(&(1_u64 << 39).to_le_bytes(), 120 + 64 + 32)
            .unwrap();
        file.set_len(MAX_LENGTH).unwrap();
        let error = read(&file).unwrap_err();
        assert!(
            error.to_string().contains("more than xrayd reads"),
            "{error}"
        );
    }

    #[test]
    fn a_large_image_takes_a_turn_and_a_small_one_does_not_wait_for_it() {
        let large = with_map(SMALL + PAGE);
        large
            .write_all_at(&vec![1; index(SMALL + PAGE)], 1 << 20)
            .unwrap();
        let held = read(&large).unwrap();
        assert!(held.turn.is_some());
        let small = read(&with_map(PAGE)).unwrap();
        assert!(small.turn.is_none());
        // Another user's large one does not wait either.
        assert!(Image::read(&large, Parts::Map, USER + 1).is_ok());
        drop(held);
        assert!(read(&large).is_ok());
    }

    #[test]
    fn offsets_and_counts_may_be_anything() {
        for fill in [0xff, 0x7f, 0x80, 1, 0] {
            let mut bytes = vec![fill; 4096];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            for parts in [Parts::Map, Parts::Lines] {
                let _ = Image::read(&file, parts, USER);
            }
        }
        let empty = tempfile::tempfile().unwrap();
        assert!(read(&empty).is_ok());
    }
}
