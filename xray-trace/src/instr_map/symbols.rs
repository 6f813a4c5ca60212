//! Finds the symbol at a function's address.
//!
//! Only a symbol at the exact address counts. In a stripped library an address between two known
//! symbols does not belong to the first of them.

use std::collections::HashMap;

use super::XrayRuntime;
use super::bytes::RawName;
use super::event_types::LlvmTable;
use super::file::{ObjectFile, Rank, Symbol, Symbols};
use super::section_addr::SectionAddr;

/// Symbols that only LLVM's own runtime defines.
const RUNTIME: [&[u8]; 3] = [b"__xray_init", b"__xray_patch", b"__xray_patch_function"];

/// The best symbol at a function's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    rank: Rank,
    pub(super) name: RawName<'a>,
    pub(super) size: u64,
}

/// The findings of the symbol tables about a set of addresses.
#[derive(Debug)]
pub(super) struct SymbolLookup<'a> {
    found: HashMap<SectionAddr, Option<Found<'a>>>,
    pub(super) runtime: XrayRuntime,
    pub(super) event_types: LlvmTable,
}

// === impl SymbolLookup ===

impl<'a> SymbolLookup<'a> {
    /// Looks the addresses up in the file's symbols.
    pub(super) fn new(file: &'a dyn ObjectFile, wanted: impl Iterator<Item = SectionAddr>) -> Self {
        let mut lookup = Self {
            found: wanted.map(|place| (place, None)).collect(),
            runtime: XrayRuntime::Unknown,
            event_types: LlvmTable::default(),
        };
        if let Some(Symbols { complete, symbols }) = file.symbols() {
            let silence = match complete {
                true => XrayRuntime::Absent,
                false => XrayRuntime::Unknown,
            };
            lookup.runtime = lookup.scan(symbols).unwrap_or(silence);
        }
        lookup
    }

    /// The symbol at an address.
    pub(super) fn get(&self, place: SectionAddr) -> Option<Found<'a>> {
        *self.found.get(&place)?
    }

    fn scan(&mut self, symbols: impl Iterator<Item = Symbol<'a>>) -> Option<XrayRuntime> {
        let mut runtime = None;
        for symbol in symbols {
            let Symbol {
                name,
                place,
                rank,
                size,
            } = symbol;
            if RUNTIME.iter().any(|known| name.is(known)) {
                runtime = runtime.max(Some(match place {
                    Some(_) => XrayRuntime::Defined,
                    None => XrayRuntime::Imported,
                }));
            }
            if let Some(place) = place {
                self.event_types.meet(name, place.address);
            }
            if let (Some(place), Some(rank)) = (place, rank)
                && let Some(found) = self.found.get_mut(&place)
                && found.is_none_or(|found| found.rank < rank)
            {
                *found = Some(Found { rank, name, size });
            }
        }
        runtime
    }
}
