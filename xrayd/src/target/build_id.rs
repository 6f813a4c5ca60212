//! The build id of the program that a process runs: the note of the linker in its file. Only the
//! parts of the file that have it are read. The layout is that of ELF-64 in the System V ABI
//! (<https://gabi.xinuos.com/elf/07-pheader.html>).

use std::{fmt::Write as _, fs::File, os::unix::fs::FileExt as _};

use super::FoundFile;
use crate::pid::Pid;

/// The most program headers and bytes of notes that are read.
const MOST_HEADERS: u16 = 128;
const MOST_NOTES: u64 = 64 << 10;
/// The longest build id, in bytes.
const LONGEST_ID: usize = 64;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: u16 = 56;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id in hexadecimal digits. `None` if the program has none, or cannot be read. The file
/// may not answer.
pub(crate) fn build_id_of(pid: Pid) -> Option<String> {
    build_id_in(&FoundFile::program(pid).ok()?.open().ok()?)
}

fn build_id_in(file: &File) -> Option<String> {
    let header = read(file, 0, HEADER_BYTES)?;
    // 64 bits, the lower byte first.
    if !header.starts_with(b"\x7fELF\x02\x01") || u16_at(&header, 54)? != PROGRAM_HEADER_BYTES {
        return None;
    }
    let (first, count) = (u64_at(&header, 32)?, u16_at(&header, 56)?.min(MOST_HEADERS));
    let size = usize::from(PROGRAM_HEADER_BYTES);
    let headers = read(file, first, usize::from(count) * size)?;
    let notes = headers.chunks_exact(size).filter_map(|header| {
        let is_note = u32_at(header, 0)? == PT_NOTE;
        let (offset, bytes) = (u64_at(header, 8)?, u64_at(header, 32)?);
        let bytes = usize::try_from(bytes.min(MOST_NOTES)).ok()?;
        is_note.then(|| read(file, offset, bytes))?
    });
    notes.into_iter().find_map(|notes| build_id_among(&notes))
}

/// The build id among the notes of a segment.
fn build_id_among(mut notes: &[u8]) -> Option<String> {
    loop {
        let (name, id) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize);
        let kind = u32_at(notes, 8)?;
        let rest = notes.get(12..)?;
        let after = rest.get(name.checked_next_multiple_of(4)?..)?;
        if kind == NT_GNU_BUILD_ID && rest.get(..name)? == b"GNU\0" {
            let id = after.get(..id).filter(|id| id.len() <= LONGEST_ID)?;
            let mut text = String::new();
            for byte in id {
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
            }
            return Some(text);
        }
        notes = after.get(id.checked_next_multiple_of(4)?..)?;
    }
}

fn read(file: &File, offset: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut read = vec![0; bytes];
    file.read_exact_at(&mut read, offset).ok()?;
    Some(read)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let sizes = [name.len(), content.len()].map(|size| u32::try_from(size).unwrap());
        let mut note: Vec<u8> = [sizes[0], sizes[1], kind]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        for part in [name, content] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    /// A file with one segment of notes behind the headers.
    fn file(notes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 120];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&PT_NOTE.to_le_bytes());
        bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        bytes.extend(notes);
        bytes
    }

    fn read_from(bytes: &[u8]) -> Option<String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        build_id_in(&file)
    }

    #[test]
    fn the_build_id_is_found_and_garbage_has_none() {
        let other = note(b"stapsdt\0", 3, &[1; 7]);
        let id = note(b"GNU\0", NT_GNU_BUILD_ID, &[0xab, 0x01, 0xff]);
        let whole = file(&[other.clone(), id].concat());
        assert_eq!(read_from(&whole).as_deref(), Some("ab01ff"));
        assert_eq!(read_from(&file(&other)), None);
        // Cut anywhere, and with any byte changed, it ends.
        for end in 0..whole.len() {
            assert_eq!(read_from(&whole[..end]), None, "{end}");
            let mut changed = whole.clone();
            changed[end] ^= 0xff;
            read_from(&changed);
        }
        let long = note(b"GNU\0", NT_GNU_BUILD_ID, &[1; LONGEST_ID + 1]);
        assert_eq!(read_from(&file(&long)), None);
    }
}
