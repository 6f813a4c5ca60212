//! Symbol tables of ELF files. The choice among symbols at one address is made in
//! `instr_map::symbols`.

use goblin::elf::Symtab;
use goblin::elf::section_header::{self, SHT_DYNSYM, SHT_SYMTAB, SHT_SYMTAB_SHNDX};
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, Sym};

use super::headers::Elf;
use crate::FileAddr;
use crate::instr_map::ObjectKind;
use crate::instr_map::bytes::{RawName, WordFormat};
use crate::instr_map::file::{Binding, Rank, Symbol, Symbols};
use crate::instr_map::section_addr::SectionAddr;

/// A symbol table and its strings.
#[derive(Debug)]
pub(super) struct SymbolTable<'a> {
    table: Symtab<'a>,
    strings: &'a [u8],
    /// Section numbers that do not fit into the table, one `u32` for each symbol.
    sections: &'a [u8],
    format: WordFormat,
    kind: ObjectKind,
}

// === impl Elf ===

impl<'a> Elf<'a> {
    /// The first table of this section type (`SHT_SYMTAB`, `SHT_DYNSYM`), if it is readable.
    pub(super) fn symbol_table(&self, section_type: u32) -> Option<SymbolTable<'a>> {
        let section = self
            .sections
            .iter()
            .find(|section| section.sh_type == section_type)?;
        let data = self.contents(section).ok()?;
        let size = if self.word_format().wide { 24 } else { 16 };
        // A table in a hole has no symbols, and its length must not bound the time.
        let count = data.len().min(self.file.present()) / size;
        let table = Symtab::parse(data, 0, count, self.ctx).ok()?;
        let sections = self
            .sections
            .iter()
            .find(|section| section_type == SHT_SYMTAB && section.sh_type == SHT_SYMTAB_SHNDX);
        let sections = sections.and_then(|section| self.contents(section).ok());
        Some(SymbolTable {
            table,
            strings: self.linked_contents(section.sh_link),
            sections: sections.unwrap_or_default(),
            format: self.word_format(),
            kind: self.identity.kind,
        })
    }

    /// `.symtab`, or `.dynsym` if `.symtab` is stripped.
    pub(super) fn function_symbols(&self) -> Option<Symbols<'a>> {
        // Exported symbols of a stripped file may include the runtime's, but their absence proves
        // nothing.
        let (table, complete) = match self.symbol_table(SHT_SYMTAB) {
            Some(table) => (table, true),
            None => (self.symbol_table(SHT_DYNSYM)?, false),
        };
        Some(Symbols {
            complete,
            symbols: Box::new(table.into_symbols()),
        })
    }
}

// === impl SymbolTable ===

impl<'a> SymbolTable<'a> {
    /// The address of the symbol with this number, if this file defines the symbol.
    pub(super) fn place(&self, number: usize) -> Option<SectionAddr> {
        self.place_of(number, &self.table.get(number)?)
    }

    fn into_symbols(self) -> impl Iterator<Item = Symbol<'a>> + 'a {
        let mut number = 0;
        std::iter::from_fn(move || {
            let symbol = self.table.get(number)?;
            let name = RawName::at(self.strings, symbol.st_name);
            number += 1;
            Some((symbol.st_name != 0).then(|| Symbol {
                name,
                place: self.place_of(number - 1, &symbol),
                rank: rank(&symbol, name),
                size: symbol.st_size,
            }))
        })
        .flatten()
    }

    fn place_of(&self, number: usize, symbol: &Sym) -> Option<SectionAddr> {
        Some(SectionAddr {
            section: self.section_of(number, symbol.st_shndx)?,
            address: FileAddr(symbol.st_value),
        })
    }

    /// The section that the address of the symbol with this number counts from; `None` if the file
    /// does not define the symbol.
    fn section_of(&self, number: usize, index: usize) -> Option<u32> {
        const ABSOLUTE: u32 = section_header::SHN_ABS;
        const COMMON: u32 = section_header::SHN_COMMON;
        match u32::try_from(index).ok()? {
            section_header::SHN_UNDEF => None,
            _ if self.kind != ObjectKind::Relocatable => Some(0),
            ABSOLUTE => Some(0),
            COMMON => None,
            section_header::SHN_XINDEX => {
                self.format.half_at(self.sections, number.checked_mul(4)?)
            }
            direct => Some(direct),
        }
    }
}

/// The rank of a symbol that may name a function.
fn rank(symbol: &Sym, name: RawName<'_>) -> Option<Rank> {
    let function = match symbol.st_type() {
        STT_FUNC | STT_GNU_IFUNC => true,
        // Assemblers mark code and data by such symbols, and leave local labels in the table.
        STT_NOTYPE
            if [&b"$"[..], b".L"]
                .iter()
                .any(|start| name.strip_prefix(start).is_some()) =>
        {
            return None;
        }
        STT_NOTYPE => false,
        _ => return None,
    };
    let binding = match symbol.st_bind() {
        STB_GLOBAL => Binding::Global,
        STB_WEAK => Binding::Weak,
        _ => Binding::Local,
    };
    Some(Rank {
        function,
        binding,
        sized: symbol.st_size > 0,
    })
}
