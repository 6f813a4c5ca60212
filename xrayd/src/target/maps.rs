//! `/proc/<pid>/maps`, read as bytes: a mapped file's name need not be UTF-8, and its owner chose it.

use std::{fs, io, ops::Range};

use crate::pid::{Pid, Tid};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapEntry {
    /// Addresses.
    pub(crate) range: Range<u64>,
    /// As `rwxp`.
    pub(crate) permissions: [u8; 4],
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Device and inode; inode 0 for no file.
    pub(crate) device: (u32, u32),
    /// See `device`.
    pub(crate) inode: u64,
    /// Path or name, with what is not UTF-8 replaced; ` (deleted)` cut off.
    pub(crate) name: String,
    /// The file has no name any more.
    pub(crate) deleted: bool,
}

/// All lines, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Maps {
    entries: Vec<MapEntry>,
}

// === impl MapEntry ===

impl MapEntry {
    /// True if threads may execute here.
    pub(crate) fn executable(&self) -> bool {
        self.permissions[2] == b'x'
    }

    /// True if this maps a file.
    pub(crate) fn is_file(&self) -> bool {
        self.inode != 0 && self.name.starts_with('/')
    }
}

// === impl Maps ===

impl Maps {
    /// Reads the maps of `pid` through its thread `tid`.
    pub(crate) fn read(pid: Pid, tid: Tid) -> io::Result<Self> {
        Ok(Self::parse(&fs::read(format!(
            "/proc/{pid}/task/{tid}/maps"
        ))?))
    }

    /// Parses; a line that is not as the kernel writes them is passed over.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let entries = bytes
            .split(|&byte| byte == b'\n')
            .filter_map(parse_line)
            .collect();
        Self { entries }
    }

    /// The lines, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MapEntry> {
        self.entries.iter()
    }

    /// The line that holds `address`.
    pub(crate) fn at(&self, address: u64) -> Option<&MapEntry> {
        let after = self
            .entries
            .partition_point(|entry| entry.range.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        entry.range.contains(&address).then_some(entry)
    }

    /// The free range of `bytes` bytes nearest below or above `near` that lies, with its ends, within `reach` of all of
    /// `near`. Keeps a page's distance to neighbours and out of the lowest 64 KiB.
    pub(crate) fn gap_near(&self, near: Range<u64>, reach: u64, bytes: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        const LOWEST: u64 = 0x1_0000;
        const HIGHEST: u64 = 0x7fff_ffff_f000;
        let lowest = near
            .end
            .saturating_sub(reach)
            .max(LOWEST)
            .next_multiple_of(PAGE);
        let highest = near.start.saturating_add(reach).min(HIGHEST);
        let mut below = None;
        let mut above = None;
        let mut previous_end = 0u64;
        let ends = self
            .entries
            .iter()
            .map(|entry| (entry.range.start, entry.range.end));
        for (start, end) in ends.chain([(HIGHEST, HIGHEST)]) {
            let first = previous_end.saturating_add(PAGE).max(lowest);
            let last = start.saturating_sub(PAGE).min(highest);
            previous_end = previous_end.max(end);
            if last.checked_sub(first).is_none_or(|room| room < bytes) {
                continue;
            }
            // Below the module: as high as possible. Above it: as far up as reach allows, out of the heap's way.
            let place = (last - bytes) & !(PAGE - 1);
            if place + bytes <= near.start {
                below = Some(place);
            } else if place >= near.end {
                above = above.or(Some(place));
            }
        }
        below.or(above)
    }
}

fn parse_line(line: &[u8]) -> Option<MapEntry> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let range = fields.next()?;
    let permissions: [u8; 4] = fields.next()?.try_into().ok()?;
    let offset = number(fields.next()?, 16)?;
    let device = fields.next()?;
    let inode = number(fields.next()?, 10)?;
    let name = String::from_utf8_lossy(fields.next().unwrap_or_default().trim_ascii_start());
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (name, deleted) = match name.strip_suffix(" (deleted)") {
        Some(name) => (name.to_owned(), true),
        None => (name.into_owned(), false),
    };
    Some(MapEntry {
        range: number(&range[..dash], 16)?..number(&range[dash + 1..], 16)?,
        permissions,
        offset,
        device: (
            u32::try_from(number(&device[..colon], 16)?).ok()?,
            u32::try_from(number(&device[colon + 1..], 16)?).ok()?,
        ),
        inode,
        name,
        deleted,
    })
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
400000-401000 r-xp 00000000 fe:00 42                         /bin/a b\n\
401000-402000 rw-p 00001000 fe:00 42                         /bin/a b (deleted)\n\
garbage\n\
7f0000000000-7f0000001000 rw-s 00000000 00:01 7              /\xff\xfe\n\
7ffff7fc0000-7ffff7fc1000 r-xp 00000000 00:00 0              [vdso]\n";

    #[test]
    fn lines_are_read_and_garbage_is_passed_over() {
        let maps = Maps::parse(SAMPLE);
        let names: Vec<_> = maps
            .iter()
            .map(|entry| (entry.name.as_str(), entry.deleted))
            .collect();
        assert_eq!(
            names,
            [
                ("/bin/a b", false),
                ("/bin/a b", true),
                ("/\u{fffd}\u{fffd}", false),
                ("[vdso]", false)
            ]
        );
        assert_eq!(maps.at(0x400fff).map(|entry| entry.offset), Some(0));
        assert_eq!(maps.at(0x401000).map(|entry| entry.offset), Some(0x1000));
        assert_eq!(maps.at(0x402000), None);
        assert!(
            maps.at(0x400000)
                .is_some_and(|entry| entry.executable() && entry.is_file())
        );
    }

    #[test]
    fn a_gap_is_found_below_first_then_above_and_only_within_reach() {
        let maps = Maps::parse(SAMPLE);
        let place = maps.gap_near(0x400000..0x402000, 1 << 30, 0x4000).unwrap();
        assert!(
            place >= 0x1_0000 && place + 0x4000 <= 0x3f_f000,
            "{place:#x}"
        );
        let full = Maps::parse(b"10000-400000 r-xp 0 0:0 0\n400000-402000 r-xp 0 0:0 0\n");
        let place = full.gap_near(0x400000..0x402000, 1 << 30, 0x4000).unwrap();
        assert!(
            place > 0x402000 && place + 0x4000 <= 0x400000 + (1 << 30),
            "{place:#x}"
        );
        let none = Maps::parse(b"10000-7ffffffff000 r-xp 0 0:0 0\n");
        assert_eq!(none.gap_near(0x400000..0x402000, 1 << 30, 0x4000), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let maps = Maps::parse(&bytes);
            let _ = maps.at(0);
            let _ = maps.gap_near(0..1, u64::MAX, u64::MAX / 2);
        }
    }
}
