//! The relocations of ELF files, applied to the words of a section.
//!
//! A linked file has relocations if it can be loaded at any address (`.rela.dyn`, `.rel.dyn`). They
//! are applied for a load bias of zero. A relocatable file (`.o`) has a relocation for every word
//! that is an address. There an address counts from the begin of its section, and only section and
//! address together are a place.
//!
//! ```text
//!  RELA   offset word   info word   addend word
//!  REL    offset word   info word                 (the addend is in place)
//!         info: symbol in the high half, type in the low (64 bits); symbol << 8 | type (32 bits)
//! ```

use std::collections::HashMap;

use goblin::elf::section_header::{SHT_DYNSYM, SHT_REL, SHT_RELA, SHT_SYMTAB, SectionHeader};

use super::headers::Elf;
use super::symbols::SymbolTable;
use crate::instr_map::bytes::{Budget, WordFormat};
use crate::instr_map::machine::Relocation;
use crate::instr_map::section_addr::SectionAddr;
use crate::instr_map::words::{Section, Word, Words};
use crate::instr_map::{Machine, ObjectError, ObjectKind};

/// The relocations of a file.
pub(super) struct Relocations<'e, 'a> {
    elf: &'e Elf<'a>,
    format: WordFormat,
    symbols: Option<SymbolTable<'a>>,
    /// The relocation sections of a relocatable file, by the number of the section that they
    /// relocate.
    by_section: HashMap<u32, Vec<&'e SectionHeader>>,
    budget: Budget,
}

/// One relocation as encoded in the file.
struct Record {
    offset: u64,
    symbol: usize,
    number: u32,
    addend: Option<u64>,
}

// === impl Relocations ===

impl<'e, 'a> Relocations<'e, 'a> {
    pub(super) fn of(elf: &'e Elf<'a>) -> Self {
        let relocatable = elf.identity.kind == ObjectKind::Relocatable;
        let mut by_section: HashMap<u32, Vec<&SectionHeader>> = HashMap::new();
        for section in &elf.sections {
            if relocatable && matches!(section.sh_type, SHT_REL | SHT_RELA) {
                by_section.entry(section.sh_info).or_default().push(section);
            }
        }
        Self {
            elf,
            format: elf.word_format(),
            symbols: elf.symbol_table(if relocatable { SHT_SYMTAB } else { SHT_DYNSYM }),
            by_section,
            budget: Budget::of(elf.file),
        }
    }

    /// Applies the relocations of this section.
    pub(super) fn apply(&mut self, section: Section<'a>) -> Result<Words<'a>, ObjectError> {
        let relocatable = self.elf.identity.kind == ObjectKind::Relocatable;
        let mut words = Words {
            all_relocated: relocatable,
            ..Words::plain(section, self.format)
        };
        let tables: Vec<_> = if relocatable {
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
        self.budget.spend(section.data.len())?;
        for table in tables {
            // A table outside of the file relocates no words; the words then count as unrelocated.
            let data = self.elf.contents(table).unwrap_or_default();
            self.budget.spend(data.len())?;
            self.apply_table(table.sh_type, data, &mut words);
        }
        Ok(words)
    }

    fn apply_table(&self, kind: u32, data: &[u8], words: &mut Words<'_>) {
        let size = self.format.size() * if kind == SHT_RELA { 3 } else { 2 };
        // A linked file has the words of all sections in one table, by their addresses.
        let start = match self.elf.identity.kind {
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
                .identity
                .machine
                .relocation(self.format.wide, record.number)
                && let Some(word) = self.value_of(&record, meaning, offset, words)
            {
                words.relocated.insert(offset, Some(word));
            }
        }
    }

    fn record(&self, bytes: &[u8], kind: u32) -> Option<Record> {
        let size = self.format.size();
        let info = self.format.word(bytes, size)?;
        let (symbol, number) = if !self.format.wide {
            (info >> 8, info & 0xff)
        } else if self.elf.identity.machine == Machine::Mips && self.format.little_endian {
            // A 32-bit symbol, then four single bytes, the type last.
            (info & 0xffff_ffff, (info >> 32).swap_bytes() >> 32)
        } else {
            (info >> 32, info & 0xffff_ffff)
        };
        Some(Record {
            offset: self.format.word(bytes, 0)?,
            symbol: usize::try_from(symbol).ok()?,
            number: u32::try_from(number).ok()?,
            addend: match kind {
                SHT_RELA => Some(self.format.distance(bytes, 2 * size)?),
                _ => None,
            },
        })
    }

    /// The word's value after this relocation; `None` if this file does not define the symbol.
    fn value_of(
        &self,
        record: &Record,
        meaning: Relocation,
        offset: u64,
        words: &Words<'_>,
    ) -> Option<Word> {
        let at = usize::try_from(offset).ok()?;
        let before = words.word(at)?;
        let addend = record.addend.unwrap_or(match meaning {
            Relocation::Add | Relocation::Subtract => 0,
            _ => before.value,
        });
        let symbol = match (meaning, record.symbol) {
            (Relocation::Base, 0) => SectionAddr::default(),
            (_, symbol) => self.symbols.as_ref()?.place(symbol)?,
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
