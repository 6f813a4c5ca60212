//! From the name that a ring carries, the low 32 bits of a return address, to the function and the kind of event.
//!
//! A table of two levels over the 32-bit space: a page of 4 KiB of text has a leaf of 512 entries, one for each 8 bytes. Two calls of sleds
//! are at least 9 bytes apart, so an entry has one site at most.

use xray_trace::model::{CallKind, FunctionId};

const LEAF_BITS: u32 = 9;
const LEAF: usize = 1 << LEAF_BITS;
const GRAIN_BITS: u32 = 3;
const ROOT: usize = 1 << (32 - LEAF_BITS - GRAIN_BITS);

/// What an event at a site means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// Low 32 bits of the return address.
    pub(crate) name: u32,
    /// The function.
    pub(crate) function: FunctionId,
    /// What happens there.
    pub(crate) kind: SiteKind,
}

/// What happens at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SiteKind {
    /// A function begins or ends.
    Call(CallKind),
    /// A custom event.
    Custom,
    /// A typed event.
    Typed,
}

/// All sites of a target.
#[derive(Debug)]
pub(crate) struct SiteTable {
    sites: Vec<CallSite>,
    /// Index + 1 into `leaves`, by the upper bits of a name; 0 for none.
    root: Vec<u32>,
    /// Index + 1 into `sites`; 0 for none.
    leaves: Vec<[u32; LEAF]>,
    /// Some site is an event's.
    events: bool,
}

// === impl SiteTable ===

impl SiteTable {
    /// No sites.
    pub(crate) fn new() -> Self {
        Self {
            sites: Vec::new(),
            root: vec![0; ROOT],
            leaves: Vec::new(),
            events: false,
        }
    }

    /// Adds a site. False if its place is taken: then its events could not be told from another's.
    pub(crate) fn insert(&mut self, site: CallSite) -> bool {
        let (root, entry) = split(site.name);
        let Some(leaf) = self.root.get_mut(root) else {
            return false;
        };
        if *leaf == 0 {
            self.leaves.push([0; LEAF]);
            *leaf = u32::try_from(self.leaves.len()).unwrap_or(0);
        }
        let index = u32::try_from(self.sites.len() + 1).unwrap_or(0);
        let place = self
            .leaves
            .get_mut(*leaf as usize - 1)
            .and_then(|leaf| leaf.get_mut(entry));
        match place {
            Some(place @ 0) if index != 0 => {
                *place = index;
                self.events |= !matches!(site.kind, SiteKind::Call(_));
                self.sites.push(site);
                true
            }
            _ => false,
        }
    }

    /// True if events with a payload may come.
    pub(crate) fn has_events(&self) -> bool {
        self.events
    }

    /// The site of this name.
    #[inline]
    pub(crate) fn find(&self, name: u32) -> Option<&CallSite> {
        let (root, entry) = split(name);
        let leaf = self.root.get(root)?.checked_sub(1)?;
        let index = self.leaves.get(leaf as usize)?.get(entry)?.checked_sub(1)?;
        self.sites
            .get(index as usize)
            .filter(|site| site.name == name)
    }
}

const fn split(name: u32) -> (usize, usize) {
    let root = (name >> (LEAF_BITS + GRAIN_BITS)) as usize;
    let entry = (name >> GRAIN_BITS) as usize & (LEAF - 1);
    (root, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: u32, function: u32) -> CallSite {
        CallSite {
            name,
            function: FunctionId(function),
            kind: SiteKind::Call(CallKind::Enter),
        }
    }

    #[test]
    fn sites_are_found_by_their_whole_name_only() {
        let mut table = SiteTable::new();
        for (i, name) in [0x1007u32, 0x1011, 0xffff_ffff, 1].into_iter().enumerate() {
            assert!(table.insert(site(name, u32::try_from(i).unwrap())));
        }
        assert_eq!(
            table.find(0x1011).map(|site| site.function),
            Some(FunctionId(1))
        );
        assert_eq!(
            table.find(0xffff_ffff).map(|site| site.function),
            Some(FunctionId(2))
        );
        assert_eq!(table.find(0x1013), None);
        assert_eq!(table.find(0x2007), None);
        assert!(
            !table.insert(site(0x1005, 9)),
            "shares the eight bytes of 0x1007"
        );
    }
}
