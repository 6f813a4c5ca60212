//! The chained fixups of a linked Mach-O file: pointers that the loader finds by following chains.
//!
//! Since macOS 12 the pointers of each page form a chain. The upper bits of a pointer are the
//! distance to the next one, the lower bits its target. In files for older systems pointers need no
//! decoding. Only maps of LLVM up to 10 contain pointers, because their entries are addresses.
//!
//! ```text
//!  fixups       version u32   starts u32   …
//!  starts       segments u32  for each segment: offset u32 from here of
//!               bytes u32   page size u16   format u16   segment's offset u64
//!               greatest u32   pages u16
//!               for each page: its first pointer u16, from the page's begin
//!  pointer      target 36 bits | upper byte 8 | zero 7 | next 12, in 4 bytes | imported 1
//! ```

use super::{FORMAT, MachO};
use crate::FileAddr;
use crate::instr_map::bytes::range;
use crate::instr_map::words::{Word, Words};

/// The pointer formats whose target is an address, and whose target is the distance from the file's
/// begin in memory (`DYLD_CHAINED_PTR_64`, `_64_OFFSET`).
const ADDRESSES: u16 = 2;
const OFFSETS: u16 = 6;

/// The chains through the pages of a segment.
struct Chains<'f> {
    page_size: u64,
    /// The address of the segment, and the address that targets count from.
    address: FileAddr,
    base: u64,
    /// The segment's bytes.
    data: &'f [u8],
    /// The offset of the first pointer of each page, as little-endian `u16`.
    starts: &'f [u8],
}

// === impl MachO ===

impl MachO<'_> {
    /// Follows the chains through the pages of a section, and sets its words to the targets of
    /// their pointers.
    pub(super) fn fix_up(&self, words: &mut Words<'_>) {
        if let Some(chains) = self.chains(words.section.address) {
            chains.follow(words);
        }
    }

    fn chains(&self, address: FileAddr) -> Option<Chains<'_>> {
        let fixups = self.fixups?;
        let segments = &self.identity.segments;
        let number = segments.iter().position(|it| it.contains(address))?;
        let starts = fixups.get(usize_at(fixups, 4)?..)?;
        if number >= usize_at(starts, 0)? {
            return None;
        }
        let segment = starts.get(usize_at(starts, 4 + 4 * number)?..)?;
        let short = |at: usize| Some(u16::from_le_bytes(*segment.get(at..)?.first_chunk()?));
        let base = match short(6)? {
            ADDRESSES => 0,
            // The file's header is at the begin of its first segment that has bytes in the file.
            OFFSETS => segments.iter().find(|it| it.file_size > 0)?.address.0,
            _ => return None,
        };
        let pages = usize::from(short(20)?);
        Some(Chains {
            page_size: u64::from(short(4)?),
            address: segments[number].address,
            base,
            data: range(
                self.bytes,
                segments[number].file_offset,
                segments[number].file_size,
            )?,
            starts: segment.get(22..)?.get(..2 * pages)?,
        })
    }
}

// === impl Chains ===

impl Chains<'_> {
    fn follow(&self, words: &mut Words<'_>) {
        /// A page without pointers.
        const NONE: u16 = 0xffff;
        let from = words.section.address;
        let end = from.0.saturating_add(words.section.data.len() as u64);
        for (page, start) in (0_u64..).zip(self.starts.as_chunks().0) {
            let start = u16::from_le_bytes(*start);
            let page_at = self.address.0.saturating_add(page * self.page_size);
            let page_end = page_at.saturating_add(self.page_size);
            if start == NONE || page_end <= from.0 || page_at >= end {
                continue;
            }
            let mut at = page_at.saturating_add(start.into());
            while at < page_end.min(end)
                && let Ok(inside) = usize::try_from(at - self.address.0)
                && let Some(pointer) = FORMAT.double_at(self.data, inside)
            {
                if let Some(offset) = at.checked_sub(from.0) {
                    words.relocated.insert(offset, self.target(pointer));
                }
                let next = (pointer >> 51 & 0xfff) * 4;
                if next == 0 {
                    break;
                }
                at = at.saturating_add(next);
            }
        }
    }

    /// The target of a pointer, if it is in this file.
    fn target(&self, pointer: u64) -> Option<Word> {
        let is_imported = pointer >> 63 == 1;
        let target = (pointer & 0xf_ffff_ffff).wrapping_add(self.base);
        let value = target | (pointer >> 36 & 0xff) << 56;
        (!is_imported).then_some(Word { section: 0, value })
    }
}

fn usize_at(bytes: &[u8], offset: usize) -> Option<usize> {
    usize::try_from(FORMAT.half_at(bytes, offset)?).ok()
}
