//! Words of a section as the linker will leave them.
//!
//! A linked file has relocations where it can be loaded anywhere (`.rela.dyn`, `.rel.dyn`); they are read for a load bias of
//! zero. A relocatable file (`.o`) has them for every word that means an address: there an address counts from the
//! begin of its section, and only both together are a place.
//!
//! ```text
//!  RELA   offset word   info word   addend word        REL   offset word   info word   (the addend is in place)
//!         info: symbol in the high half, type in the low (64 bits); symbol << 8 | type (32 bits)
//! ```

use std::collections::HashMap;

use goblin::elf::section_header::{SHT_DYNSYM, SHT_REL, SHT_RELA, SHT_SYMTAB, SectionHeader};

use super::elf::{Elf, Place, Section, Symbols};
use super::machine::Relocation;
use super::{FileAddr, Machine, ObjectError, ObjectKind};

/// Where a file's relocations are.
pub(super) struct Relocations<'e, 'a> {
    elf: &'e Elf<'a>,
    symbols: Option<Symbols<'a>>,
    /// Of a relocatable file: the sections that relocate the section of this number.
    by_section: HashMap<u32, Vec<&'e SectionHeader>>,
    /// Bytes that may still be read. Sections do not overlap in a real file, so that all together are no longer than it;
    /// the one table of a linked file is read for the map and for the index.
    budget: u64,
}

/// The words of a section.
#[derive(Debug)]
pub(super) struct Words<'e, 'a> {
    elf: &'e Elf<'a>,
    section: Section<'a>,
    /// By their offset in the section.
    relocated: HashMap<u64, Word>,
}

/// A word after relocation, and the section that it counts from (zero in a linked file).
#[derive(Clone, Copy, Debug)]
struct Word {
    section: u32,
    value: u64,
}

/// One relocation as it stands in the file.
struct Record {
    offset: u64,
    symbol: usize,
    number: u32,
    addend: Option<u64>,
}

// === impl Relocations ===

impl<'e, 'a> Relocations<'e, 'a> {
    pub(super) fn of(elf: &'e Elf<'a>) -> Self {
        let relocatable = elf.kind == ObjectKind::Relocatable;
        let mut by_section: HashMap<u32, Vec<&SectionHeader>> = HashMap::new();
        for section in elf.sections() {
            if relocatable && matches!(section.sh_type, SHT_REL | SHT_RELA) {
                by_section.entry(section.sh_info).or_default().push(section);
            }
        }
        Self {
            elf,
            symbols: elf.symbols(if relocatable { SHT_SYMTAB } else { SHT_DYNSYM }),
            by_section,
            budget: elf.file_size().saturating_mul(2),
        }
    }

    /// Applies what there is for this section.
    pub(super) fn apply(&mut self, section: Section<'a>) -> Result<Words<'e, 'a>, ObjectError> {
        let mut words = Words {
            elf: self.elf,
            section,
            relocated: HashMap::new(),
        };
        let tables: Vec<_> = if self.elf.kind == ObjectKind::Relocatable {
            self.by_section
                .get(&section.number)
                .cloned()
                .unwrap_or_default()
        } else {
            [(".rela.dyn", SHT_RELA), (".rel.dyn", SHT_REL)]
                .into_iter()
                .filter_map(|(name, kind)| {
                    self.elf
                        .find_section(name)
                        .filter(|section| section.sh_type == kind)
                })
                .collect()
        };
        self.spend(section.data.len())?;
        for table in tables {
            // A table that is not in the file relocates nothing; the words then say so.
            let data = self.elf.contents(table).unwrap_or_default();
            self.spend(data.len())?;
            self.apply_table(table.sh_type, data, &mut words);
        }
        Ok(words)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ObjectError> {
        let left = self.budget.checked_sub(bytes as u64);
        self.budget = left.ok_or(ObjectError::Overlap)?;
        Ok(())
    }

    fn apply_table(&self, kind: u32, data: &[u8], words: &mut Words<'_, '_>) {
        let size = self.elf.word_size() * if kind == SHT_RELA { 3 } else { 2 };
        // Of a linked file all words of all sections are in one table, by their addresses.
        let start = match self.elf.kind {
            ObjectKind::Relocatable => 0,
            _ => words.section.address.0,
        };
        for record in data.chunks_exact(size) {
            let Some(record) = self.record(record, kind) else {
                continue;
            };
            let offset = record.offset.checked_sub(start);
            let Some(offset) = offset.filter(|offset| *offset < words.section.data.len() as u64)
            else {
                continue;
            };
            if let Some(meaning) = self
                .elf
                .machine
                .relocation(self.elf.is_wide(), record.number)
                && let Some(word) = self.value_of(&record, meaning, offset, words)
            {
                words.relocated.insert(offset, word);
            }
        }
    }

    fn record(&self, bytes: &[u8], kind: u32) -> Option<Record> {
        let size = self.elf.word_size();
        let info = self.elf.word(bytes, size)?;
        let (symbol, number) = if !self.elf.is_wide() {
            (info >> 8, info & 0xff)
        } else if self.elf.machine == Machine::Mips && self.elf.is_little_endian() {
            // A 32-bit symbol, then four single bytes, the type last.
            (info & 0xffff_ffff, (info >> 32).swap_bytes() >> 32)
        } else {
            (info >> 32, info & 0xffff_ffff)
        };
        Some(Record {
            offset: self.elf.word(bytes, 0)?,
            symbol: usize::try_from(symbol).ok()?,
            number: u32::try_from(number).ok()?,
            addend: match kind {
                SHT_RELA => Some(self.elf.distance(bytes, 2 * size)?),
                _ => None,
            },
        })
    }

    /// The word's value after this relocation, if the symbol is known here.
    fn value_of(
        &self,
        record: &Record,
        meaning: Relocation,
        offset: u64,
        words: &Words<'_, '_>,
    ) -> Option<Word> {
        let at = usize::try_from(offset).ok()?;
        let before = words.relocated.get(&offset).copied();
        let before = match before {
            Some(word) => word,
            None => Word {
                section: 0,
                value: self.elf.distance(words.section.data, at)?,
            },
        };
        let addend = record.addend.unwrap_or(match meaning {
            Relocation::Add | Relocation::Subtract => 0,
            _ => before.value,
        });
        let symbol = match (meaning, record.symbol) {
            (Relocation::Base, 0) => Place::default(),
            (_, symbol) => self.symbols.as_ref()?.place(self.elf.kind, symbol)?,
        };
        let target = symbol.address.0.wrapping_add(addend);
        let place = words.section.address.0.wrapping_add(offset);
        let (section, value) = match meaning {
            Relocation::Absolute | Relocation::Base => (symbol.section, target),
            Relocation::Distance => (symbol.section, target.wrapping_sub(place)),
            Relocation::Add => (symbol.section, before.value.wrapping_add(target)),
            Relocation::Subtract => (before.section, before.value.wrapping_sub(target)),
        };
        Some(Word { section, value })
    }
}

// === impl Words ===

impl<'a> Words<'_, 'a> {
    pub(super) fn section(&self) -> Section<'a> {
        self.section
    }

    /// The word at `offset` as it stands in the file.
    pub(super) fn raw(&self, offset: usize) -> Option<u64> {
        self.elf.word(self.section.data, offset)
    }

    /// Whether a relocation gives the word its value.
    pub(super) fn is_relocated(&self, offset: usize) -> bool {
        self.relocated.contains_key(&(offset as u64))
    }

    /// What the word means, if it is an address.
    pub(super) fn absolute(&self, offset: usize) -> Option<Place> {
        let word = self.word(offset)?;
        Some(self.place(word.section, word.value))
    }

    /// What the word means, if it is the distance from itself.
    pub(super) fn relative(&self, offset: usize) -> Option<Place> {
        let word = self.word(offset)?;
        let own = self.section.address.checked_add(offset as u64)?;
        Some(self.place(word.section, own.displaced(word.value).0))
    }

    fn word(&self, offset: usize) -> Option<Word> {
        match self.relocated.get(&(offset as u64)) {
            Some(word) => Some(*word),
            None => Some(Word {
                section: 0,
                value: self.elf.distance(self.section.data, offset)?,
            }),
        }
    }

    fn place(&self, section: u32, address: u64) -> Place {
        let address = if self.elf.is_wide() {
            address
        } else {
            address & 0xffff_ffff
        };
        Place {
            section,
            address: FileAddr(address),
        }
    }
}
