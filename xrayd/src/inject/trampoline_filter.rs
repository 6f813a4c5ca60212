//! Writes the settings of the filter that runs in the trampolines.

use std::io;

use shm_ring::layout::{INSIDE_NAMES, NAME_SHIFT, table};

use super::Layout;
use crate::{pid::TargetAddr, sys::Memory};

/// The calls that trampolines record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrampolineFilter {
    /// Shortest duration of a recorded call, in ticks; 0: no limit.
    pub(crate) shortest: u64,
    /// Largest depth of a recorded call; 0: no limit.
    pub(crate) max_depth: u32,
    /// One call tree out of this many is recorded, the first; 0 and 1: every tree.
    pub(crate) one_in: u32,
    /// Only calls inside calls of these sites are recorded; `None`: all calls.
    pub(crate) inside: Option<Vec<u32>>,
}

// === impl TrampolineFilter ===

impl TrampolineFilter {
    /// Most sites in `inside`.
    pub(crate) const MOST_INSIDE: usize = (INSIDE_NAMES / 2) as usize;

    /// Writes the settings into the table. A thread that is in the filter meanwhile applies the old
    /// settings or the new ones.
    pub(crate) fn write(&self, memory: &Memory, layout: &Layout) -> io::Result<()> {
        let at = |offset: u64| TargetAddr(layout.table + offset);
        let mut inside = [0; 4];
        memory.read(at(table::INSIDE), &mut inside)?;
        let list = match &self.inside {
            None => 0,
            Some(names) => {
                // The list that is not in use.
                let list = if u32::from_le_bytes(inside) == 1 {
                    2
                } else {
                    1
                };
                let place = layout.geometry.inside_offset(u64::from(list) - 1);
                memory.write(at(place), names_as_bytes(names).as_flattened())?;
                list
            }
        };
        let depth = if self.max_depth == 0 {
            u32::MAX
        } else {
            self.max_depth
        };
        memory.write(at(table::MIN_TICKS), &self.shortest.to_le_bytes())?;
        memory.write(at(table::MAX_DEPTH), &depth.to_le_bytes())?;
        memory.write(at(table::ONE_IN), &self.one_in.to_le_bytes())?;
        memory.write(at(table::INSIDE), &u32::to_le_bytes(list))
    }
}

/// The hash table in which trampolines look a name up: from the place of the name on, up to the
/// first empty place.
fn names_as_bytes(names: &[u32]) -> Vec<[u8; 4]> {
    let places = usize::try_from(INSIDE_NAMES).unwrap_or(usize::MAX);
    let mut list = vec![[0; 4]; places];
    for name in names.iter().take(TrampolineFilter::MOST_INSIDE) {
        let first = (name >> NAME_SHIFT) as usize;
        let mut looked = (0..places).map(|step| (first + step) % places);
        if let Some(place) =
            looked.find(|place| list[*place] == [0; 4] || list[*place] == name.to_le_bytes())
        {
            list[place] = name.to_le_bytes();
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_from_their_places_on() {
        let names = [0x1007, 0x1009, 0x1017, 0xffff_fff7, 0x1007];
        let list = names_as_bytes(&names);
        let at = |place: usize| u32::from_le_bytes(list[place]);
        assert_eq!([at(0x100), at(0x101), at(0x102)], [0x1007, 0x1009, 0x1017]);
        assert_eq!(at(0x1fff), 0xffff_fff7);
        assert_eq!(list.iter().filter(|name| **name != [0; 4]).count(), 4);
    }
}
