//! The modules of a process that are loaded and traced, with their functions and sleds.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::Instant,
};

use xray_trace::model::FunctionId;

use super::sites::{call_site_of, range_of};
use crate::{
    pid::Pid,
    target::{Functions, Load, Loaded, Module},
    types::{PatchSite, Since},
};

/// The modules of one process that are traced.
#[derive(Debug)]
pub(crate) struct TracedModules {
    /// The functions of all modules, unloaded ones included.
    pub(super) functions: Arc<Functions>,
    /// The modules that are loaded. Written by `loading`.
    pub(super) modules: HashMap<Load, Traced>,
    /// True if sleds were found gone, perhaps with their library. Set by a switch, and cleared by
    /// the next look at the maps.
    pub(super) is_suspect: bool,
}

/// A module that is loaded and traced.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) loaded: Arc<Loaded>,
    /// From its first usable sled to the end of the last.
    pub(super) range: Range<u64>,
    /// A sled that was staged. It stays staged while the module is loaded.
    pub(super) staged: Option<PatchSite>,
    /// The load time, if the module was loaded after the attach.
    pub(super) arrival: Option<Arrival>,
    /// Failed attempts to switch on what the rules name.
    pub(super) failures: Option<u8>,
}

/// The load time of a library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) since: Since,
}

// === impl TracedModules ===

impl TracedModules {
    /// The modules of `functions`, which are loaded.
    pub(crate) fn new(functions: Arc<Functions>) -> Self {
        let modules = functions.modules();
        let traced = modules.into_iter().map(|loaded| {
            let range = range_of(loaded.sites().map(|(_, site)| *site));
            let traced = Traced {
                range,
                staged: None,
                arrival: None,
                failures: None,
                loaded,
            };
            (traced.loaded.module.load, traced)
        });
        Self {
            modules: traced.collect(),
            functions,
            is_suspect: false,
        }
    }

    /// Notes that these sleds are staged from now on.
    pub(crate) fn staged(&mut self, sites: &[PatchSite]) {
        for traced in self.modules.values_mut() {
            if traced.staged.is_none() {
                let from = sites.partition_point(|site| site.address < traced.range.start);
                let its = sites.get(from..).unwrap_or_default().iter();
                let plain = |site: &&PatchSite| !site.needs_stub();
                traced.staged = its
                    .take_while(|site| site.address < traced.range.end)
                    .find(plain)
                    .copied();
            }
        }
    }

    /// The traced modules that are loaded.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.values().map(|traced| &traced.loaded.module)
    }

    pub(super) fn has(&self, load: &Load) -> bool {
        self.modules.contains_key(load)
    }

    /// Every usable sled of loaded modules, ordered by address.
    pub(crate) fn sites(&self) -> Vec<PatchSite> {
        let loaded = self.modules.values().map(|traced| &traced.loaded);
        let sites = loaded.flat_map(|loaded| loaded.sites().map(|(_, site)| *site));
        let mut sites: Vec<PatchSite> = sites.collect();
        sites.sort_unstable_by_key(|site| site.address);
        sites
    }

    /// The result of `copy` for the sleds of each module, with the path of the module. Results of 0
    /// are left out. `sites` are ordered by address.
    pub(crate) fn by_module(
        &self,
        sites: &[PatchSite],
        copy: impl Fn(&[PatchSite]) -> u64,
    ) -> Vec<(String, u64)> {
        let modules = self.functions.modules();
        let parts = sites.chunk_by(|one, next| one.module == next.module);
        let bytes = parts.filter_map(|part| {
            let loaded = modules.get(part.first()?.module as usize)?;
            Some((loaded.module.path.clone(), copy(part)))
        });
        bytes.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Notes the bytes that patching made private, module by module.
    pub(crate) fn note_copies(&self, copied: impl Fn(Range<u64>) -> u64) {
        for Traced { loaded, range, .. } in self.modules.values() {
            loaded.note_copied(copied(range.clone()));
        }
    }

    /// Drops sleds whose events could not be told from those of a loaded library. The sleds are
    /// within `range`.
    pub(super) fn drop_ambiguous(
        &self,
        pid: Pid,
        sites: &mut Vec<(u32, PatchSite)>,
        range: &Range<u64>,
    ) {
        let traced = self.modules.values();
        for other in traced.filter(|other| share_names(range, &other.range)) {
            let taken = other.loaded.sites().map(|(_, site)| place_of(site));
            let taken: HashSet<u32> = taken.collect();
            let before = sites.len();
            sites.retain(|(_, site)| !taken.contains(&place_of(site)));
            if sites.len() < before {
                tracing::warn!(
                    pid = pid.as_raw(),
                    module = other.loaded.module.path,
                    sleds = before - sites.len(),
                    "left sleds alone: xrayd could not distinguish their events from this library's"
                );
            }
        }
    }
}

/// The place of the name of a sled's events in a table of sites.
fn place_of(site: &PatchSite) -> u32 {
    call_site_of(site, FunctionId(0)).name >> 3
}

/// True if addresses in both ranges can have the same low 32 bits.
fn share_names(one: &Range<u64>, other: &Range<u64>) -> bool {
    let within = |from: &Range<u64>, start: u64| {
        start.wrapping_sub(from.start) & 0xffff_ffff < from.end - from.start
    };
    !one.is_empty() && !other.is_empty() && (within(one, other.start) || within(other, one.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_share_names_where_their_low_halves_meet() {
        let rows = [
            (0x1_0000_1000..0x1_0000_2000, true),
            (0x7_0000_1fff..0x7_0000_2fff, true),
            (0x7_0000_2000..0x7_0000_3000, false),
            (0x6_ffff_f000..0x7_0000_1001, true),
            (0x6_ffff_f000..0x7_0000_1000, false),
            (0..0, false),
        ];
        for (other, expected) in rows {
            let one = 0x1000..0x2000;
            assert_eq!(share_names(&one, &other), expected, "{other:x?}");
            assert_eq!(share_names(&other, &one), expected, "{other:x?}");
        }
    }
}
