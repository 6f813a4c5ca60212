//! The stubs of one target: which sled has which stub, and which stubs are free.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{inject::region::Region, sys::Memory};

/// The stubs of one target, in all regions.
#[derive(Debug)]
pub(super) struct Stubs {
    /// Stubs by sled address. Filled when a sled that needs one is staged.
    by_sled: BTreeMap<u64, u64>,
    /// Index of the first stub of each region that was never used, by the region's address.
    next: BTreeMap<u64, u64>,
    /// Stubs of sleds that were unloaded.
    free: BTreeSet<u64>,
}

// === impl Stubs ===

impl Stubs {
    /// The stubs of these regions, none of which has a known sled.
    pub(super) fn new(memory: &Memory, regions: &[Region]) -> Self {
        let next = |region: &Region| (region.address, region.next_stub(memory));
        Self {
            by_sled: BTreeMap::new(),
            next: regions.iter().map(next).collect(),
            free: BTreeSet::new(),
        }
    }

    /// The stub of a sled.
    pub(super) fn of(&self, sled: u64) -> Option<u64> {
        self.by_sled.get(&sled).copied()
    }

    /// A free stub in the first of `regions` that has one, and its region.
    pub(super) fn find_free<'a>(
        &self,
        mut regions: impl Iterator<Item = &'a Region>,
    ) -> Option<(u64, &'a Region)> {
        regions.find_map(|region| {
            let free = self.free.range(region.range()).next().copied();
            let stub = free.or_else(|| region.stub(self.next(region)))?;
            Some((stub, region))
        })
    }

    /// The number of free stubs in a region.
    pub(super) fn count_free(&self, region: &Region) -> u64 {
        let free = self.free.range(region.range()).count() as u64;
        free + region.stubs().saturating_sub(self.next(region))
    }

    /// Gives a stub of `region` to a sled.
    pub(super) fn assign(&mut self, sled: u64, stub: u64, region: &Region) {
        self.by_sled.insert(sled, stub);
        if !self.free.remove(&stub)
            && let Some(index) = region.stub_index(stub)
        {
            let next = self.next.entry(region.address).or_default();
            *next = (*next).max(index + 1);
        }
    }

    /// Frees the stubs of the sleds in `range`, which were unloaded.
    pub(super) fn release(&mut self, range: Range<u64>) {
        let sleds: Vec<u64> = self.by_sled.range(range).map(|(&sled, _)| sled).collect();
        for sled in sleds {
            self.free.extend(self.by_sled.remove(&sled));
        }
    }

    fn next(&self, region: &Region) -> u64 {
        self.next.get(&region.address).copied().unwrap_or(0)
    }
}
