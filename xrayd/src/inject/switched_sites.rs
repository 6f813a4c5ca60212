//! The sites of functions that were switched while calls are added up in the program. The
//! trampolines look there whether an open call may have ended unseen.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
};

use shm_ring::layout::{NAME_SHIFT, profile, table};
use xray_trace::model::Ticks;

use super::Layout;
use crate::{pid::TargetAddr, sys::Memory};

/// The most sites in the list. If more are switched, all open calls count as ended.
const MOST_SITES: usize = (profile::SWITCHED_SITES / 2) as usize;

/// The list in the target, and what it holds.
#[derive(Debug, Default)]
pub(crate) struct SwitchedSites {
    /// The entries of the sites in it.
    entries: HashMap<u32, usize>,
    used: HashSet<usize>,
}

// === impl SwitchedSites ===

impl SwitchedSites {
    /// An empty list, as it stands in the target when adding up begins.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The list that an earlier daemon has written.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(crate) fn read(memory: &Memory, layout: &Layout) -> io::Result<Self> {
        let entry_bytes = usize::try_from(profile::SWITCHED_BYTES).unwrap_or(usize::MAX);
        let mut bytes = vec![0; entries() * entry_bytes];
        memory.read(entry_at(layout, 0), &mut bytes)?;
        let mut list = Self::default();
        for (entry, bytes) in bytes.chunks_exact(entry_bytes).enumerate() {
            let site = u32::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default());
            if site != 0 {
                list.entries.insert(site, entry);
                list.used.insert(entry);
            }
        }
        Ok(list)
    }

    /// Marks all functions as switched.
    ///
    /// # Errors
    /// As [`Self::mark`].
    pub(crate) fn mark_all(memory: &Memory, layout: &Layout, at: Ticks) -> io::Result<()> {
        write_word(memory, layout, table::ALL_SWITCHED, at)?;
        write_word(memory, layout, table::SWITCHED, at)
    }

    /// Marks the functions of these sites as switched at a moment that is not later than now.
    ///
    /// # Errors
    /// The memory cannot be written. Then calls that have ended unseen may count as open.
    pub(crate) fn mark(
        &mut self,
        memory: &Memory,
        layout: &Layout,
        sites: &[u32],
        at: Ticks,
    ) -> io::Result<()> {
        let is_new = |site: &&u32| !self.entries.contains_key(site);
        let new = sites.iter().filter(is_new).count();
        if self.entries.len() + new > MOST_SITES {
            return Self::mark_all(memory, layout, at);
        }
        let mut marked = BTreeMap::new();
        for &site in sites {
            let known = self.entries.get(&site).copied();
            let first = (site >> NAME_SHIFT) as usize;
            let mut looked = (0..entries()).map(|step| (first + step) % entries());
            let is_free = |entry: &usize| !self.used.contains(entry) && !marked.contains_key(entry);
            let entry = known.or_else(|| looked.find(is_free));
            let Some(entry) = entry else {
                continue;
            };
            marked.insert(entry, (site, known.is_some()));
        }
        // A trampoline must not find a new site without its time. So first only known sites have
        // their names.
        write_entries(memory, layout, &marked, at, |is_known| is_known)?;
        if new > 0 {
            write_entries(memory, layout, &marked, at, |_| true)?;
        }
        for (entry, (site, _)) in marked {
            self.entries.insert(site, entry);
            self.used.insert(entry);
        }
        // Last: trampolines look at the list only for calls that began before this.
        write_word(memory, layout, table::SWITCHED, at)
    }
}

/// Writes entries of the list, each run of neighbours at once. Each entry has its site, and whether
/// the list had it before. `named` tells which of them have their names from now on.
fn write_entries(
    memory: &Memory,
    layout: &Layout,
    marked: &BTreeMap<usize, (u32, bool)>,
    at: Ticks,
    named: impl Fn(bool) -> bool,
) -> io::Result<()> {
    let entries: Vec<(usize, (u32, bool))> = marked.iter().map(|(at, site)| (*at, *site)).collect();
    for run in entries.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
        let mut bytes = Vec::with_capacity(run.len() * 16);
        for &(_, (site, is_known)) in run {
            let name = if named(is_known) { site } else { 0 };
            const {
                assert!(
                    profile::SWITCHED_BYTES == 16
                        && profile::SWITCHED_NAME == 0
                        && profile::SWITCHED_AT == 8,
                    "an entry is a u64 and a u64"
                )
            };
            bytes.extend(u64::from(name).to_le_bytes());
            bytes.extend(at.0.to_le_bytes());
        }
        if let Some((first, _)) = run.first() {
            memory.write(entry_at(layout, *first), &bytes)?;
        }
    }
    Ok(())
}

fn write_word(memory: &Memory, layout: &Layout, field: u64, at: Ticks) -> io::Result<()> {
    memory.write(TargetAddr(layout.table + field), &at.0.to_le_bytes())
}

/// The number of entries.
fn entries() -> usize {
    usize::try_from(profile::SWITCHED_SITES).unwrap_or(usize::MAX)
}

fn entry_at(layout: &Layout, entry: usize) -> TargetAddr {
    let list = layout.geometry.profile_region().switched_offset();
    TargetAddr(layout.rings + list + entry as u64 * profile::SWITCHED_BYTES)
}
