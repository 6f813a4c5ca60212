//! The meaning of the site names in a ring. A name is the low 32 bits of a return address, and
//! means a function and a kind of event.
//!
//! The table has three levels over the 32-bit space. A page of 4 KiB of text has a leaf of 512
//! entries, one for each 8 bytes. The return addresses of two sleds are at least 9 bytes apart, so
//! an entry has one site at most at a time. 4 MiB of text have a branch of 1024 leaves. A process
//! has few of them, so its table is about as big as its sleds are many.
//!
//! Libraries come and go, and one may come where another one was. So the meaning of a name is a
//! function of time. A meaning holds from a moment on. The moment lies after the last event of the
//! meaning before, since the older library was unmapped by then. It lies before the first event of
//! its own, since no sled of the newer library was on yet. The controller chooses the moment.

use xray_trace::model::{CallKind, FunctionId, Ticks};

const LEAF_BITS: u32 = 9;
const LEAF: usize = 1 << LEAF_BITS;
const GRAIN_BITS: u32 = 3;
const BRANCH_BITS: u32 = 10;
const BRANCH: usize = 1 << BRANCH_BITS;
const ROOT: usize = 1 << (32 - BRANCH_BITS - LEAF_BITS - GRAIN_BITS);
/// The most meanings of one entry that are kept. An event that is older than all of them has no
/// name and counts as lost. It would have been in its ring while as many libraries came and went.
const MEANINGS: usize = 8;

/// The meaning of the events at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// Low 32 bits of the return address.
    pub(crate) name: u32,
    /// The function.
    pub(crate) function: FunctionId,
    /// The kind of its events.
    pub(crate) kind: SiteKind,
}

/// The kind of the events at a site.
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
#[derive(Debug, Clone)]
pub(crate) struct SiteTable {
    /// Present and past meanings of names. The first one belongs to no site, and ends every chain.
    meanings: Vec<Meaning>,
    /// Index into `branches`, by the upper bits of a name.
    root: Vec<u32>,
    /// Index into `leaves`, by the next bits. The first branch stays empty.
    branches: Vec<[u32; BRANCH]>,
    /// Index into `meanings` of the latest meaning; 0 for none. The first leaf stays empty.
    leaves: Vec<[u32; LEAF]>,
    /// True if a site of a user event was added.
    events: bool,
}

#[derive(Debug, Clone, Copy)]
struct Meaning {
    site: CallSite,
    /// The moment from which on it holds.
    since: Ticks,
    /// Index of the meaning before; 0 for none.
    earlier: u32,
}

/// The meaning of no site, from the first moment on.
const NO_MEANING: Meaning = Meaning {
    site: CallSite {
        name: 0,
        function: FunctionId(0),
        kind: SiteKind::Custom,
    },
    since: Ticks(0),
    earlier: 0,
};

// === impl SiteTable ===

impl SiteTable {
    /// A table without sites.
    pub(crate) fn new() -> Self {
        Self {
            meanings: vec![NO_MEANING],
            root: vec![0; ROOT],
            branches: vec![[0; BRANCH]],
            leaves: vec![[0; LEAF]],
            events: false,
        }
    }

    /// Adds a site whose events are not older than `since`. False if another site of the same or a
    /// later time has its place: then the events of both could not be told apart.
    pub(crate) fn insert(&mut self, site: CallSite, since: Ticks) -> bool {
        let (root, branch, entry) = split(site.name);
        if self.root[root] == 0 {
            self.root[root] = u32::try_from(self.branches.len()).unwrap_or(0);
            self.branches.push([0; BRANCH]);
        }
        let leaf = &mut self.branches[self.root[root] as usize][branch];
        if *leaf == 0 {
            *leaf = u32::try_from(self.leaves.len()).unwrap_or(0);
            self.leaves.push([0; LEAF]);
        }
        let leaf = *leaf as usize;
        let latest = self.leaves[leaf][entry];
        match self.meaning(latest) {
            Some(before) if before.since >= since => return false,
            // The same library is back, and nothing else has been there meanwhile.
            Some(before) if before.site == site => return true,
            Some(_) | None => {}
        }
        self.events |= !matches!(site.kind, SiteKind::Call(_));
        let meaning = Meaning {
            site,
            since,
            earlier: latest,
        };
        let index = match self.take_oldest(latest) {
            Some(index) => {
                self.meanings[index as usize] = meaning;
                index
            }
            None => {
                self.meanings.push(meaning);
                u32::try_from(self.meanings.len() - 1).unwrap_or(0)
            }
        };
        self.leaves[leaf][entry] = index;
        index != 0
    }

    /// The meaning of a name at a moment.
    #[inline]
    pub(crate) fn find(&self, name: u32, at: Ticks) -> Option<&CallSite> {
        let (root, branch, entry) = split(name);
        let branches = self.branches.get(*self.root.get(root)? as usize)?;
        let leaf = branches[branch] as usize;
        let mut index = self.leaves.get(leaf)?[entry];
        loop {
            let meaning = self.meanings.get(index as usize)?;
            if meaning.since <= at {
                return (meaning.site.name == name && index != 0).then_some(&meaning.site);
            }
            index = meaning.earlier;
        }
    }

    /// True if events with a payload may come.
    pub(crate) fn has_events(&self) -> bool {
        self.events
    }

    /// The meaning with this index; `None` for that of no site.
    fn meaning(&self, index: u32) -> Option<&Meaning> {
        self.meanings.get(index as usize).filter(|_| index != 0)
    }

    /// Removes the oldest meaning from the chain that begins with `latest`, if the chain is full.
    fn take_oldest(&mut self, latest: u32) -> Option<u32> {
        let mut index = latest;
        for _ in 2..MEANINGS {
            index = self.meaning(index)?.earlier;
        }
        let oldest = self.meaning(index)?.earlier;
        self.meaning(oldest)?;
        self.meanings[index as usize].earlier = 0;
        Some(oldest)
    }
}

const fn split(name: u32) -> (usize, usize, usize) {
    let root = (name >> (BRANCH_BITS + LEAF_BITS + GRAIN_BITS)) as usize;
    let branch = (name >> (LEAF_BITS + GRAIN_BITS)) as usize & (BRANCH - 1);
    let entry = (name >> GRAIN_BITS) as usize & (LEAF - 1);
    (root, branch, entry)
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
            assert!(table.insert(site(name, u32::try_from(i).unwrap()), Ticks(0)));
        }
        assert_eq!(
            table.find(0x1011, Ticks(0)).map(|site| site.function),
            Some(FunctionId(1))
        );
        assert_eq!(
            table.find(0xffff_ffff, Ticks(9)).map(|site| site.function),
            Some(FunctionId(2))
        );
        assert_eq!(table.find(0x1013, Ticks(9)), None);
        assert_eq!(table.find(0x2007, Ticks(9)), None);
        assert!(
            !table.insert(site(0x1005, 9), Ticks(0)),
            "shares the eight bytes of 0x1007"
        );
    }

    /// Libraries that come where others were (P63).
    #[test]
    fn a_name_means_what_it_meant_at_the_time() {
        let mut table = SiteTable::new();
        let named =
            |table: &SiteTable, name, at| table.find(name, Ticks(at)).map(|site| site.function.0);
        assert!(table.insert(site(0x1007, 0), Ticks(0)));
        assert!(table.insert(site(0x1007, 1), Ticks(100)));
        // Another name in the same eight bytes.
        assert!(table.insert(site(0x1005, 2), Ticks(200)));
        let rows = [(0, 0), (99, 0), (100, 1), (199, 1)];
        for (at, function) in rows {
            assert_eq!(named(&table, 0x1007, at), Some(function), "{at}");
        }
        assert_eq!(named(&table, 0x1007, 200), None);
        assert_eq!(named(&table, 0x1005, 200), Some(2));
        assert!(table.insert(site(0x1005, 2), Ticks(300)), "back again");
        assert_eq!(named(&table, 0x1005, 250), Some(2));
    }

    #[test]
    fn a_place_where_libraries_come_and_go_takes_bounded_memory() {
        let mut table = SiteTable::new();
        for round in 0..1000u32 {
            let since = Ticks(u64::from(round) * 10);
            assert!(table.insert(site(0x1007, round), since));
        }
        assert_eq!(table.meanings.len(), 1 + MEANINGS);
        for round in 0..1000u32 {
            let found = table.find(0x1007, Ticks(u64::from(round) * 10 + 9));
            let kept = (1000 - round) as usize <= MEANINGS;
            let expected = kept.then_some(FunctionId(round));
            assert_eq!(found.map(|site| site.function), expected);
        }
    }
}
