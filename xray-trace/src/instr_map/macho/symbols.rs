//! The symbol table of a Mach-O file. The choice among symbols at one address is made in
//! `instr_map::symbols`.
//!
//! ```text
//!  name's offset u32   type u8   section u8, from 1   description u16   address u64
//! ```

use super::{CODE, FORMAT, MachO};
use crate::FileAddr;
use crate::instr_map::bytes::{RawName, range};
use crate::instr_map::file::{Binding, Rank, Symbol, Symbols};
use crate::instr_map::section_addr::SectionAddr;

const ENTRY: usize = 16;

/// Bits of the type: the symbol is for debuggers; its kind; other files can use it.
const N_STAB: u8 = 0xe0;
const N_TYPE: u8 = 0x0e;
const N_EXT: u8 = 0x01;
/// The kind of a symbol that is in a section.
const N_SECT: u8 = 0x0e;
/// The symbol is weak: another definition may replace it.
const N_WEAK_DEF: u16 = 0x80;

/// A symbol as encoded in the file.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a>(&'a [u8; ENTRY]);

/// All symbols of the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Entries<'a>(&'a [[u8; ENTRY]]);

// === impl MachO ===

impl<'a> MachO<'a> {
    pub(super) fn symbol_entries(&self) -> Option<Entries<'a>> {
        let [offset, count, ..] = self.symbol_table?;
        let size = u64::from(count) * ENTRY as u64;
        Some(Entries(
            range(self.bytes, offset.into(), size)?.as_chunks().0,
        ))
    }

    pub(super) fn function_symbols(&self) -> Option<Symbols<'_>> {
        let [_, _, strings, size] = self.symbol_table?;
        let strings = range(self.bytes, strings.into(), size.into()).unwrap_or_default();
        let entries = self.symbol_entries()?;
        let symbols = entries
            .0
            .iter()
            .map(Entry)
            .filter(|entry| entry.is_symbol());
        Some(Symbols {
            // A stripped library still has its exported symbols, and the file has no mark that it
            // is stripped.
            complete: false,
            symbols: Box::new(symbols.map(move |entry| self.symbol(entry, strings))),
        })
    }

    fn symbol(&self, entry: Entry<'a>, strings: &'a [u8]) -> Symbol<'a> {
        let name = RawName::at(strings, entry.name());
        // Names of C and C++ symbols begin with an underscore. Other symbols come from the
        // assembler; some of them are labels.
        let plain = name.strip_prefix(b"_");
        let section = usize::from(entry.section()).checked_sub(1);
        let section = section.and_then(|number| self.sections.get(number));
        let in_code = section.is_some_and(|section| section.flags & CODE != 0);
        Symbol {
            name: plain.unwrap_or(name),
            place: entry.address().map(|address| SectionAddr {
                section: 0,
                address,
            }),
            rank: in_code.then_some(Rank {
                function: plain.is_some(),
                binding: entry.binding(),
                sized: false,
            }),
            size: 0,
        }
    }
}

// === impl Entries ===

impl<'a> Entries<'a> {
    pub(super) fn get(self, number: usize) -> Option<Entry<'a>> {
        self.0.get(number).map(Entry)
    }
}

// === impl Entry ===

impl Entry<'_> {
    /// The symbol's address, if this file defines it.
    pub(super) fn address(self) -> Option<FileAddr> {
        let is_here = self.is_symbol() && self.0[4] & N_TYPE == N_SECT;
        let address = FORMAT.double_at(self.0, 8).map(FileAddr);
        address.filter(|_| is_here)
    }

    fn is_symbol(self) -> bool {
        self.0[4] & N_STAB == 0
    }

    fn name(self) -> usize {
        let offset = FORMAT.half_at(self.0, 0).unwrap_or_default();
        usize::try_from(offset).unwrap_or(usize::MAX)
    }

    fn section(self) -> u8 {
        self.0[5]
    }

    fn binding(self) -> Binding {
        let description = u16::from_le_bytes([self.0[6], self.0[7]]);
        match (self.0[4] & N_EXT, description & N_WEAK_DEF) {
            (0, _) => Binding::Local,
            (_, 0) => Binding::Global,
            _ => Binding::Weak,
        }
    }
}
