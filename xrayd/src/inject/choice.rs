//! Tells the filter in the trampolines which calls are recorded.

use std::io;

use shm_ring::layout::{INSIDE_NAMES, NAME_SHIFT, table};

use super::Layout;
use crate::{pid::TargetAddr, sys::Memory};

/// Which calls are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Those that take so many ticks at least; 0: all.
    pub(crate) shortest: u64,
    /// Those so deep at most; 0: all.
    pub(crate) max_depth: u32,
    /// The first of so many trees; 0 and 1: each.
    pub(crate) one_in: u32,
    /// Those inside calls of these sites; `None`: all.
    pub(crate) inside: Option<Vec<u32>>,
}

// === impl Choice ===

impl Choice {
    /// Sites for which there is room.
    pub(crate) const MOST_INSIDE: usize = (INSIDE_NAMES / 2) as usize;

    /// Writes it into the table. Threads that are in the filter meanwhile go by what was there before, or by this.
    pub(crate) fn write(&self, memory: &Memory, layout: &Layout) -> io::Result<()> {
        let at = |offset: u64| TargetAddr(layout.table + offset);
        let mut inside = [0; 4];
        memory.read(at(table::INSIDE), &mut inside)?;
        let list = match &self.inside {
            None => 0,
            Some(names) => {
                // The one that is not in use.
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

/// The list, as trampolines look it up: from a name's place on, up to the first that is empty.
fn names_as_bytes(names: &[u32]) -> Vec<[u8; 4]> {
    let places = usize::try_from(INSIDE_NAMES).unwrap_or(usize::MAX);
    let mut list = vec![[0; 4]; places];
    for name in names.iter().take(Choice::MOST_INSIDE) {
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
