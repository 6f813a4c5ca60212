//! Which symbol stands at a function's address.
//!
//! Only symbols at the exact address count: what lies between the known symbols of a stripped library is not the last
//! of them.

use std::collections::BTreeMap;

use goblin::elf::section_header::{SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, Sym};

use super::elf::{Elf, Place, Symbols};
use super::{FileAddr, ObjectKind, XrayRuntime};

/// Symbols that only LLVM's own runtime defines.
const RUNTIME: [&[u8]; 3] = [b"__xray_init", b"__xray_patch", b"__xray_patch_function"];

/// A symbol at a function's address.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) size: u64,
}

/// What the symbol tables say about some addresses.
#[derive(Debug)]
pub(super) struct SymbolLookup {
    pub(super) found: BTreeMap<Place, Found>,
    /// Addresses whose names did not fit into the budget.
    pub(super) left_out: usize,
    pub(super) runtime: XrayRuntime,
}

/// The best symbol so far at an address.
struct Best {
    rank: (u8, u8, u64),
    name: usize,
    size: u64,
}

// === impl SymbolLookup ===

impl SymbolLookup {
    /// Looks the addresses up in `.symtab`, or in `.dynsym` where that is stripped. `budget` bounds the bytes of all
    /// names together: many symbols can share one long name in the file, but not in memory.
    pub(super) fn new(elf: &Elf<'_>, wanted: impl Iterator<Item = Place>, budget: usize) -> Self {
        let mut best: BTreeMap<Place, Option<Best>> = wanted.map(|at| (at, None)).collect();
        let mut lookup = Self {
            found: BTreeMap::new(),
            left_out: 0,
            runtime: XrayRuntime::Unknown,
        };
        // What a stripped file exports may name the runtime, but its silence proves nothing.
        let (symbols, silence) = match elf.symbols(SHT_SYMTAB) {
            Some(symbols) => (Some(symbols), XrayRuntime::Absent),
            None => (elf.symbols(SHT_DYNSYM), XrayRuntime::Unknown),
        };
        if let Some(symbols) = symbols {
            lookup.runtime = scan(&symbols, elf.kind, &mut best).unwrap_or(silence);
            lookup.take_names(&symbols, best, budget);
        }
        lookup
    }

    fn take_names(
        &mut self,
        symbols: &Symbols<'_>,
        best: BTreeMap<Place, Option<Best>>,
        mut budget: usize,
    ) {
        for (place, Best { name, size, .. }) in best
            .into_iter()
            .filter_map(|(place, best)| Some((place, best?)))
        {
            let name = symbols.name(name);
            let Some(left) = budget.checked_sub(name.len()) else {
                self.left_out += 1;
                continue;
            };
            budget = left;
            let name = String::from_utf8_lossy(name).into_owned();
            self.found.insert(place, Found { name, size });
        }
    }
}

fn scan(
    symbols: &Symbols<'_>,
    kind: ObjectKind,
    best: &mut BTreeMap<Place, Option<Best>>,
) -> Option<XrayRuntime> {
    let mut runtime = None;
    let numbered = symbols.table.iter().enumerate();
    for (number, symbol) in numbered.filter(|(_, symbol)| symbol.st_name != 0) {
        if RUNTIME
            .iter()
            .any(|name| symbols.is_named(symbol.st_name, name))
        {
            let defined = symbol.st_shndx != SHN_UNDEF as usize;
            runtime = runtime.max(Some(if defined {
                XrayRuntime::Defined
            } else {
                XrayRuntime::Imported
            }));
        }
        let Some(rank) = rank(&symbol, symbols) else {
            continue;
        };
        let Some(section) = symbols.section_of(kind, number, symbol.st_shndx) else {
            continue;
        };
        let address = FileAddr(symbol.st_value);
        if let Some(best) = best.get_mut(&Place { section, address })
            && best.as_ref().is_none_or(|best| best.rank < rank)
        {
            *best = Some(Best {
                rank,
                name: symbol.st_name,
                size: symbol.st_size,
            });
        }
    }
    runtime
}

/// Of a symbol that may name a function: functions before labels, global before weak before local, sized before sizeless.
fn rank(symbol: &Sym, symbols: &Symbols<'_>) -> Option<(u8, u8, u64)> {
    let kind = match symbol.st_type() {
        STT_FUNC | STT_GNU_IFUNC => 1,
        // Assemblers mark code and data by such symbols, and leave local labels over.
        STT_NOTYPE if symbols.name_starts(symbol.st_name, &[b"$", b".L"]) => return None,
        STT_NOTYPE => 0,
        _ => return None,
    };
    let binding = match symbol.st_bind() {
        STB_GLOBAL => 2,
        STB_WEAK => 1,
        _ => 0,
    };
    Some((kind, binding, symbol.st_size.min(1)))
}
