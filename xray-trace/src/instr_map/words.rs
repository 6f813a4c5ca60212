//! Words of a section as the linker, or the loader for a load bias of zero, will leave them.

use std::collections::HashMap;

use super::FileAddr;
use super::bytes::WordFormat;
use super::section_addr::SectionAddr;

/// Where a section lies in memory, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    /// In an ELF file that is still to be linked, its number; else 0.
    pub(super) number: u32,
    pub(super) address: FileAddr,
    pub(super) data: &'a [u8],
}

/// The words of a section.
#[derive(Debug)]
pub(super) struct Words<'a> {
    pub(super) section: Section<'a>,
    pub(super) format: WordFormat,
    /// By their offset in the section; `None` for one whose value the file does not say.
    pub(super) relocated: HashMap<u64, Option<Word>>,
    /// A word that is not in `relocated` has no meaning yet, rather than that of its bytes.
    pub(super) all_relocated: bool,
}

/// A word after relocation, and the section that it counts from (zero where addresses are those of the whole file).
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) section: u32,
    pub(super) value: u64,
}

// === impl Words ===

impl<'a> Words<'a> {
    /// The section's words as they stand in the file.
    pub(super) fn plain(section: Section<'a>, format: WordFormat) -> Self {
        Self {
            section,
            format,
            relocated: HashMap::new(),
            all_relocated: false,
        }
    }

    /// The word at `offset` as it stands in the file.
    pub(super) fn raw(&self, offset: usize) -> Option<u64> {
        self.format.word(self.section.data, offset)
    }

    /// Whether the file says what the word will be.
    pub(super) fn is_known(&self, offset: usize) -> bool {
        match self.relocated.get(&(offset as u64)) {
            Some(word) => word.is_some(),
            None => !self.all_relocated,
        }
    }

    /// Whether something relocates the word, or nothing but that can give it a meaning.
    pub(super) fn is_relocated(&self, offset: usize) -> bool {
        self.all_relocated || self.relocated.contains_key(&(offset as u64))
    }

    /// What the word means, if it is an address.
    pub(super) fn absolute(&self, offset: usize) -> Option<SectionAddr> {
        let word = self.word(offset)?;
        Some(self.place(word.section, word.value))
    }

    /// What the word means, if it is the distance from itself.
    pub(super) fn relative(&self, offset: usize) -> Option<SectionAddr> {
        let word = self.word(offset)?;
        let own = self.section.address.checked_add(offset as u64)?;
        Some(self.place(word.section, own.displaced(word.value).0))
    }

    /// The word so far: its bytes, or what relocations have made of them.
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
