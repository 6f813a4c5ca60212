//! The relocations of a Mach-O file that is still to be linked.
//!
//! Addresses in the file are those of the whole file. A word has its value for the file as it is,
//! without the addresses of the symbols that its relocations name: these are still to be added or
//! subtracted.
//!
//! ```text
//!  address in the section i32   symbol 24 bits | relative 1 | length 2 | external 1 | type 4
//! ```

use super::{FORMAT, MachO, SectionHeader};
use crate::FileAddr;
use crate::instr_map::Machine;
use crate::instr_map::ObjectError;
use crate::instr_map::bytes::{Budget, range};
use crate::instr_map::words::{Word, Words};

const RELOCATION: u64 = 8;
/// `X86_64_RELOC_UNSIGNED`, `ARM64_RELOC_UNSIGNED`: the symbol's address is added.
const UNSIGNED: u32 = 0;
/// The length of a whole word, as a power of two.
const WORD: u32 = 3;

// === impl MachO ===

impl MachO<'_> {
    /// Applies the relocations of this section.
    pub(super) fn relocate(
        &self,
        header: &SectionHeader,
        words: &mut Words<'_>,
        budget: &mut Budget,
    ) -> Result<(), ObjectError> {
        // A table outside of the file relocates no words.
        let size = RELOCATION * u64::from(header.relocation_count);
        let table = range(self.bytes, header.relocations.into(), size).unwrap_or_default();
        budget.spend(table.len())?;
        let symbols = self.symbol_entries().unwrap_or_default();
        for record in table.chunks_exact(8) {
            let (Some(offset), Some(info)) = (FORMAT.half_at(record, 0), FORMAT.half_at(record, 4))
            else {
                continue;
            };
            let is_external = info >> 27 & 1 == 1;
            let is_whole = info >> 25 & 3 == WORD;
            let Some(at) = usize::try_from(offset).ok().filter(|_| is_whole) else {
                continue;
            };
            // A word whose value was found to be unknown stays unknown.
            let Some(before) = words.word(at).filter(|_| words.is_known(at)) else {
                continue;
            };
            // A word with a relocation that is not external already contains the address.
            let symbol = match is_external {
                false => Some(FileAddr(0)),
                true => usize::try_from(info & 0xff_ffff)
                    .ok()
                    .and_then(|number| symbols.get(number))
                    .and_then(|symbol| symbol.address()),
            };
            let value = symbol.and_then(|symbol| match info >> 28 {
                UNSIGNED => Some(before.value.wrapping_add(symbol.0)),
                other if other == self.subtractor() => Some(before.value.wrapping_sub(symbol.0)),
                _ => None,
            });
            let word = value.map(|value| Word { section: 0, value });
            words.relocated.insert(u64::from(offset), word);
        }
        Ok(())
    }

    /// The relocation that subtracts the symbol's address.
    fn subtractor(&self) -> u32 {
        match self.identity.machine {
            Machine::Aarch64 => 1,
            _ => 5,
        }
    }
}
