//! `/proc/<pid>/maps`, read as bytes: the name of a mapped file need not be UTF-8, and its owner
//! chose it.

use std::{io, ops::Range};

use procfs::process::{LimitValue, Process};

use super::proc_file;
use crate::pid::{Pid, Tid};

const PAGE: u64 = 4096;
const LOWEST: u64 = 0x1_0000;
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Room that the kernel itself keeps free for a stack whatever its limit is (`MIN_GAP`, mm/util.c),
/// since a limit can be raised.
const MIN_STACK_ROOM: u64 = 128 << 20;
/// A higher limit is not taken literally: it keeps no more room free.
const MAX_STACK_ROOM: u64 = 1 << 30;
/// Distance that the kernel keeps between a growing stack and its neighbour (`stack_guard_gap`).
const STACK_GUARD: u64 = 1 << 20;
const HEAP_ROOM: u64 = 1 << 30;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapEntry {
    /// Addresses.
    pub(crate) range: Range<u64>,
    /// Permissions, as in `rwxp`.
    pub(crate) permissions: [u8; 4],
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Device and inode; inode 0 for no file.
    pub(crate) device: (u32, u32),
    /// See `device`.
    pub(crate) inode: u64,
    /// Path or name. Bytes that are not UTF-8 are replaced, and ` (deleted)` is cut off.
    pub(crate) name: String,
    /// True if the file has no name any more.
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

    /// True if this is memory without a file and without a purpose of the kernel.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.inode == 0 && (self.name.is_empty() || self.name.starts_with("[anon:"))
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
        let lines = proc_file::read(format!("/proc/{pid}/task/{tid}/maps"))?;
        Ok(Self::parse(&lines))
    }

    /// Parses the lines, and skips a line that the kernel would not write.
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

    /// The free range of `bytes` bytes nearest below or above `near`. Both its ends lie within
    /// `reach` of all of `near`. The range keeps a page's distance to its neighbours. It avoids the
    /// lowest 64 KiB, and the room of a stack that grows to `stack_limit`. It avoids the room of
    /// the heap as well, if that is possible.
    pub(crate) fn gap_near(
        &self,
        near: &Range<u64>,
        reach: u64,
        bytes: u64,
        stack_limit: u64,
    ) -> Option<u64> {
        // A heap that cannot grow further continues elsewhere. A stack that cannot grow ends the
        // program.
        [HEAP_ROOM, 0].into_iter().find_map(|heap_room| {
            let taken = self.taken(stack_limit, heap_room);
            gap_between(&taken, near, reach, bytes)
        })
    }

    /// Ranges that are mapped, or kept free for growth; ordered.
    fn taken(&self, stack_limit: u64, heap_room: u64) -> Vec<(u64, u64)> {
        let stack_room = stack_limit.clamp(MIN_STACK_ROOM, MAX_STACK_ROOM);
        let mut taken: Vec<(u64, u64)> = self
            .entries
            .iter()
            .map(|entry| {
                let Range { start, end } = entry.range;
                match entry.name.as_str() {
                    "[stack]" => {
                        let lowest = start.min(end.saturating_sub(stack_room));
                        (lowest.saturating_sub(STACK_GUARD), end)
                    }
                    "[heap]" => (start, end.saturating_add(heap_room)),
                    _ => (start, end),
                }
            })
            .collect();
        taken.sort_unstable();
        taken
    }
}

/// Largest size of the stack of a process's first thread, in bytes; `u64::MAX` if there is no
/// limit, or if it is unknown.
pub(crate) fn stack_limit(pid: Pid) -> u64 {
    let limits = Process::new(pid.as_raw()).and_then(|process| process.limits());
    match limits.map(|limits| limits.max_stack_size.soft_limit) {
        Ok(LimitValue::Value(bytes)) => bytes,
        Ok(LimitValue::Unlimited) | Err(_) => u64::MAX,
    }
}

fn gap_between(taken: &[(u64, u64)], near: &Range<u64>, reach: u64, bytes: u64) -> Option<u64> {
    let lowest = near
        .end
        .saturating_sub(reach)
        .max(LOWEST)
        .next_multiple_of(PAGE);
    let highest = near.start.saturating_add(reach).min(HIGHEST);
    let mut below = None;
    let mut above = None;
    let mut previous_end = 0u64;
    for (start, end) in taken.iter().copied().chain([(HIGHEST, HIGHEST)]) {
        let first = previous_end.saturating_add(PAGE).max(lowest);
        let last = start.saturating_sub(PAGE).min(highest);
        previous_end = previous_end.max(end);
        if last.checked_sub(first).is_none_or(|room| room < bytes) {
            continue;
        }
        // Below the module as high as possible, above it as far up as the reach allows.
        let place = (last - bytes) & !(PAGE - 1);
        if place + bytes <= near.start {
            below = Some(place);
        } else if place >= near.end {
            above = above.or(Some(place));
        }
    }
    below.or(above)
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
        let module = 0x400000..0x402000;
        let place = maps.gap_near(&module, 1 << 30, 0x4000, 0).unwrap();
        assert!(
            place >= 0x1_0000 && place + 0x4000 <= 0x3f_f000,
            "{place:#x}"
        );
        let full = Maps::parse(b"10000-400000 r-xp 0 0:0 0\n400000-402000 r-xp 0 0:0 0\n");
        let place = full.gap_near(&module, 1 << 30, 0x4000, 0).unwrap();
        assert!(
            place > 0x402000 && place + 0x4000 <= 0x400000 + (1 << 30),
            "{place:#x}"
        );
        let none = Maps::parse(b"10000-7ffffffff000 r-xp 0 0:0 0\n");
        assert_eq!(none.gap_near(&module, 1 << 30, 0x4000, 0), None);
    }

    /// A library near the top of the address space, nothing free below it, and the stack above.
    #[test]
    fn a_gap_keeps_clear_of_where_the_stack_may_grow_to() {
        let module = 0x7fff_0000_0000..0x7fff_0010_0000;
        let maps = |library_at_top: &str| {
            Maps::parse(
                format!(
                    "10000-7fff00100000 r-xp 0 0:0 0 /lib\n{library_at_top}\
                     7fff40000000-7fff40021000 rw-p 0 0:0 0 [stack]\n\
                     7fff40021000-7ffffffff000 r--p 0 0:0 0 /full\n"
                )
                .as_bytes(),
            )
        };
        for (limit, room) in [
            (8 << 20, 128 << 20),
            (256 << 20, 256 << 20),
            (1 << 29, 1 << 29),
        ] {
            let place = maps("")
                .gap_near(&module, (1 << 31) - (1 << 20), 0x2000, limit)
                .unwrap();
            let end = place + 0x2000;
            assert!(end <= 0x7fff_4002_1000 - room - (1 << 20), "{place:#x}");
            assert!(end > 0x7fff_4002_1000 - room - (2 << 20), "{place:#x}");
        }
        // No limit: there is no room left.
        assert_eq!(
            maps("").gap_near(&module, (1 << 31) - (1 << 20), 0x2000, u64::MAX),
            None
        );
        // There is also no room between the stack and a mapping in the range that the stack may
        // grow into.
        let place = maps("7fff3f000000-7fff3f001000 r--p 0 0:0 0 /close\n")
            .gap_near(&module, (1 << 31) - (1 << 20), 0x2000, 8 << 20)
            .unwrap();
        assert!(place < 0x7fff_3800_0000, "{place:#x}");
    }

    #[test]
    fn a_gap_keeps_clear_of_the_heap_where_it_can() {
        let module = 0x400000..0x402000;
        let maps = |next: &str| {
            Maps::parse(
                format!(
                    "10000-402000 r-xp 0 0:0 0 /bin/a\n\
                     402000-502000 rw-p 0 0:0 0 [heap]\n{next}"
                )
                .as_bytes(),
            )
        };
        let place = maps("10000000-10001000 r--p 0 0:0 0 /close\n")
            .gap_near(&module, (1 << 31) - (1 << 20), 0x2000, 0)
            .unwrap();
        assert!(place >= 0x502000 + HEAP_ROOM, "{place:#x}");
        // A place that is in the heap's way is better than none.
        let place = maps("10000000-7ffffffff000 r--p 0 0:0 0 /full\n")
            .gap_near(&module, (1 << 31) - (1 << 20), 0x2000, 0)
            .unwrap();
        assert!((0x503000..0x1000_0000).contains(&place), "{place:#x}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let maps = Maps::parse(&bytes);
            let _ = maps.at(0);
            let _ = maps.gap_near(&(0..1), u64::MAX, u64::MAX / 2, 0);
        }
    }
}
