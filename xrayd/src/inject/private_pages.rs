//! The pages of text that are private to a target, because they were written. Each takes memory of
//! the target.

use std::{
    collections::BTreeSet,
    ops::{Range, RangeInclusive},
};

use crate::{target::Maps, types::PatchSite};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// The private pages of one target.
#[derive(Debug)]
pub(crate) struct PrivatePages {
    /// Pages that we wrote, and that are private to the target because of it.
    copied: BTreeSet<u64>,
    /// Executable memory without a file at the last look. It is private to the target anyway.
    own: Vec<Range<u64>>,
}

// === impl PrivatePages ===

impl PrivatePages {
    /// No page was written so far.
    pub(super) fn new(maps: &Maps) -> Self {
        Self {
            copied: BTreeSet::new(),
            own: own(maps),
        }
    }

    /// Looks for executable memory without a file anew.
    pub(super) fn look(&mut self, maps: &Maps) {
        self.own = own(maps);
    }

    /// Counts the pages in `range` as private from now on.
    pub(super) fn note_copies(&mut self, range: Range<u64>) {
        let own = &self.own;
        let copied = pages(range.start, range.end).filter(|&page| !is_own(own, page));
        self.copied.extend(copied);
    }

    /// Forgets the pages of `range`, which is not empty and was unmapped.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        let within = |page: &u64| pages(range.start, range.end).contains(page);
        self.copied.retain(|page| !within(page));
    }

    /// Memory in `range` that our writes made private to the target, in bytes.
    pub(crate) fn copied_in(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        self.copied.range(pages(range.start, range.end)).count() as u64 * PAGE
    }

    /// Memory that our writes made private to the target, in bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied.len() as u64 * PAGE
    }

    /// The growth of [`Self::copied_bytes`] if `sites`, ordered by address, were switched.
    pub(crate) fn would_copy(&self, sites: &[PatchSite]) -> u64 {
        let mut next = 0;
        let touched = sites
            .iter()
            .flat_map(|site| pages(site.address, site.end()))
            .filter(|&page| {
                let is_new = page >= next;
                next = next.max(page + 1);
                is_new
            });
        let new = touched.filter(|page| !self.copied.contains(page) && !is_own(&self.own, *page));
        new.count() as u64 * PAGE
    }
}

/// Executable memory without a file, by address.
fn own(maps: &Maps) -> Vec<Range<u64>> {
    let own = maps
        .iter()
        .filter(|entry| entry.executable() && entry.is_anonymous());
    own.map(|entry| entry.range.clone()).collect()
}

fn is_own(own: &[Range<u64>], page: u64) -> bool {
    let address = page * PAGE;
    let after = own.partition_point(|range| range.start <= address);
    let range = after.checked_sub(1).and_then(|at| own.get(at));
    range.is_some_and(|range| range.contains(&address))
}

fn pages(start: u64, end: u64) -> RangeInclusive<u64> {
    start / PAGE..=(end - 1) / PAGE
}

#[cfg(test)]
mod tests {
    use sled_encoders::{SledKind, x86_64::TailJump};

    use super::*;

    fn site(address: u64) -> PatchSite {
        PatchSite {
            address,
            kind: SledKind::Entry,
            jump: TailJump::Plain,
            module: 0,
        }
    }

    #[test]
    fn each_page_that_would_be_copied_counts_once() {
        let maps = Maps::parse(b"9000-a000 r-xp 0 0:0 0\n");
        let mut private = PrivatePages::new(&maps);
        // The first site reaches into the next page. The last one is in memory without a file.
        let sites = [0x1ffe, 0x2010, 0x2800, 0x5000, 0x9000].map(site);
        assert_eq!(private.would_copy(&sites), 3 * PAGE);
        private.note_copies(0x2010..0x2011);
        assert_eq!(private.would_copy(&sites), 2 * PAGE);
        assert_eq!(private.would_copy(&sites[1..3]), 0);
    }
}
