//! Words of a section with the values that they have after linking, and after loading with a load
//! bias of zero. The formats apply the relocations.

use std::collections::HashMap;

use super::FileAddr;
use super::bytes::WordFormat;
use super::section_addr::SectionAddr;

/// The address of a section, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    /// Its number in an ELF file that is still to be linked; else 0.
    pub(super) number: u32,
    pub(super) address: FileAddr,
    pub(super) data: &'a [u8],
}

/// The words of a section.
#[derive(Debug)]
pub(super) struct Words<'a> {
    pub(super) section: Section<'a>,
    pub(super) format: WordFormat,
    /// Relocated words by their offset in the section; `None` for a word whose value the file does
    /// not give.
    pub(super) relocated: HashMap<u64, Option<Word>>,
    /// True if every word needs a relocation: a word that is not in `relocated` has no meaning yet,
    /// whatever its bytes are.
    pub(super) all_relocated: bool,
}

/// A word after relocation, and the section that it counts from (zero if addresses are those of the
/// whole file).
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) section: u32,
    pub(super) value: u64,
}

// === impl Words ===

impl<'a> Words<'a> {
    /// The section's words without relocations.
    pub(super) fn plain(section: Section<'a>, format: WordFormat) -> Self {
        Self {
            section,
            format,
            relocated: HashMap::new(),
            all_relocated: false,
        }
    }

    /// The word at `offset` as its bytes are in the file.
    pub(super) fn raw(&self, offset: usize) -> Option<u64> {
        self.format.word(self.section.data, offset)
    }

    /// Whether the file gives the value of the word.
    pub(super) fn is_known(&self, offset: usize) -> bool {
        match self.relocated.get(&(offset as u64)) {
            Some(word) => word.is_some(),
            None => !self.all_relocated,
        }
    }

    /// Whether a relocation changes the word, or has to before the word has a meaning.
    pub(super) fn is_relocated(&self, offset: usize) -> bool {
        self.all_relocated || self.relocated.contains_key(&(offset as u64))
    }

    /// The meaning of the word as an address.
    pub(super) fn absolute(&self, offset: usize) -> Option<SectionAddr> {
        let word = self.word(offset)?;
        Some(self.place(word.section, word.value))
    }

    /// The meaning of the word as a distance from itself.
    pub(super) fn relative(&self, offset: usize) -> Option<SectionAddr> {
        let word = self.word(offset)?;
        let own = self.section.address.checked_add(offset as u64)?;
        Some(self.place(word.section, own.displaced(word.value).0))
    }

    /// The current value of the word: its bytes, or the result of its relocations so far.
    pub(super) fn word(&self, offset: usize) -> Option<Word> {
        match self.relocated.get(&(offset as u64)) {
            Some(Some(word)) => Some(*word),
            _ => Some(Word {
                section: 0,
                value: self.format.distance(self.section.data, offset)?,
            }),
        }
    }

    fn place(&self, section: u32, address: u64) -> SectionAddr {
        let address = if self.format.wide {
            address
        } else {
            address & 0xffff_ffff
        };
        SectionAddr {
            section,
            address: FileAddr(address),
        }
    }
}
