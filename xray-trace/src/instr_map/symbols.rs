//! Finds the symbol at a function's address.
//!
//! Only a symbol at the exact address counts. In a stripped library an address between two known
//! symbols does not belong to the first of them.

use std::collections::BTreeMap;

use super::XrayRuntime;
use super::bytes::RawName;
use super::event_types::LlvmTable;
use super::file::{ObjectFile, Rank, Symbol, Symbols};
use super::section_addr::SectionAddr;

/// Symbols that only LLVM's own runtime defines.
const RUNTIME: [&[u8]; 3] = [b"__xray_init", b"__xray_patch", b"__xray_patch_function"];

/// A symbol at a function's address.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) size: u64,
}

/// The findings of the symbol tables about a set of addresses.
#[derive(Debug)]
pub(super) struct SymbolLookup {
    pub(super) found: BTreeMap<SectionAddr, Found>,
    /// The number of addresses whose names did not fit into the budget.
    pub(super) left_out: usize,
    pub(super) runtime: XrayRuntime,
    pub(super) event_types: LlvmTable,
}

/// The best symbol so far at an address.
struct Best<'a> {
    rank: Rank,
    name: RawName<'a>,
    size: u64,
}

// === impl SymbolLookup ===

impl SymbolLookup {
    /// Looks the addresses up in the file's symbols. `budget` bounds the bytes of all names
    /// together: many symbols can share one long name in the file, but not in memory.
    pub(super) fn new(
        file: &dyn ObjectFile,
        wanted: impl Iterator<Item = SectionAddr>,
        budget: usize,
    ) -> Self {
        let mut best: BTreeMap<SectionAddr, Option<Best<'_>>> =
            wanted.map(|at| (at, None)).collect();
        let mut lookup = Self {
            found: BTreeMap::new(),
            left_out: 0,
            runtime: XrayRuntime::Unknown,
            event_types: LlvmTable::default(),
        };
        if let Some(Symbols { complete, symbols }) = file.symbols() {
            let silence = match complete {
                true => XrayRuntime::Absent,
                false => XrayRuntime::Unknown,
            };
            let runtime = scan(symbols, &mut best, &mut lookup.event_types);
            lookup.runtime = runtime.unwrap_or(silence);
            lookup.take_names(best, budget);
        }
        lookup
    }

    fn take_names(&mut self, best: BTreeMap<SectionAddr, Option<Best<'_>>>, mut budget: usize) {
        for (place, Best { name, size, .. }) in best
            .into_iter()
            .filter_map(|(place, best)| Some((place, best?)))
        {
            // A name that does not fit also uses up budget, because reading it took the time.
            if budget == 0 {
                self.left_out += 1;
                continue;
            }
            // Bytes that are not UTF-8 become longer.
            let name = String::from_utf8_lossy(name.read());
            let fits = name.len() <= budget;
            budget = budget.saturating_sub(name.len());
            if !fits {
                self.left_out += 1;
                continue;
            }
            let name = name.into_owned();
            self.found.insert(place, Found { name, size });
        }
    }
}

fn scan<'a>(
    symbols: impl Iterator<Item = Symbol<'a>>,
    best: &mut BTreeMap<SectionAddr, Option<Best<'a>>>,
    event_types: &mut LlvmTable,
) -> Option<XrayRuntime> {
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
            event_types.meet(name, place.address);
        }
        if let (Some(place), Some(rank)) = (place, rank)
            && let Some(best) = best.get_mut(&place)
            && best.as_ref().is_none_or(|best| best.rank < rank)
        {
            *best = Some(Best { rank, name, size });
        }
    }
    runtime
}
