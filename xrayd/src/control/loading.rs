//! Libraries that are loaded and unloaded while a process is traced.
//!
//! ```text
//!             a look finds it               a look finds it gone, or loaded anew
//!  (unknown) ───────────────► refused       ┌──────────────────────────────┐
//!      │                                    │                              ▼
//!      └─► surveyed ─► in reach ─► named ─► loaded                     unloaded
//!                                           ▲                              │
//!                                           └──────────────────────────────┘
//!                                      same build at the same place: same ids
//! ```
//!
//! The rules decide what is switched on in a new library. The watch decides when to look.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use sled_encoders::Capture;
use xray_trace::model::{FunctionId, Ticks};

use super::{
    controller::{Controller, maps_of},
    patterns::Patterns,
    rules::{RuleEffect, Rules},
    sites::{Staged, call_site_of, patch_sites, range_of, staged_sites, stubs_of},
    watch::Watch,
};
use crate::{
    inject::{Layout, Neighbourhood, PatchReport, extend},
    lock::lock,
    refusal::{Reason, Refusal, Result},
    store::Counts,
    sys::ticks_now,
    target::{
        Activity, Functions, Indexes, Load, Loaded, Maps, Module, Objects, RefusedModule, loads_of,
        modules_among, survey,
    },
    types::{Armed, LeaseId, PatchSite, Since, Switch, Wanted},
};

/// Limit on modules of a session, unloaded ones included.
const MOST_MODULES: u32 = 1 << 16;
/// Limit on looks at a library that cannot be traced. It may not be loaded completely at the first.
const LOOKS: u8 = 5;
/// Shortest interval of looks while the rules may name functions of new libraries and the kernel
/// reports no mappings, and the interval otherwise.
const PACE: Duration = Duration::from_millis(4);
const IDLE_PACE: Duration = Duration::from_secs(1);
/// Looks without a report take one part in [`SHARE`] of the time at most. Looks after a report take
/// one part in [`SHARE_IF_HEARD`].
const SHARE: u32 = 100;
const SHARE_IF_HEARD: u32 = 10;

/// The load time of a library.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: Instant,
    since: Since,
}

/// The control thread's state of what is loaded.
#[derive(Debug)]
pub(crate) struct Loading {
    objects: Arc<Objects>,
    pub(crate) functions: Arc<Functions>,
    pub(crate) rules: Rules,
    /// Addresses that trampolines in another neighbourhood need for their data.
    pub(crate) layout: Layout,
    /// All loads at the last look, traced or not.
    known: HashSet<Load>,
    /// The loads of `known` that are traced.
    traced: HashMap<Load, Traced>,
    /// The loads that could not be traced, with the number of looks at each.
    doubtful: HashMap<Load, u8>,
    /// Limit on functions that have an id.
    room: usize,
    /// Reports new mappings.
    pub(crate) watch: Watch,
    /// Reports since the last look at the maps: a mapping, a lost report, or sleds that may be
    /// gone.
    received: Activity,
    /// The begin of the last look, and the time that it took to see the changes. `None` if it
    /// failed.
    last: Instant,
    cost: Option<Duration>,
}

/// The interval until the next look at the maps.
#[derive(Debug, Clone, Copy)]
enum Pace {
    /// A mapping was reported.
    Activity,
    /// A library may come without a report.
    Poll,
    /// No library of interest is expected.
    Idle,
}

#[derive(Debug)]
struct Traced {
    loaded: Arc<Loaded>,
    /// From its first usable sled to the end of the last.
    range: Range<u64>,
    /// A sled that was staged. It stays staged while the module is loaded.
    staged: Option<PatchSite>,
    /// The load time, if the module was loaded after the attach.
    arrival: Option<Arrival>,
    /// Failed attempts to switch on what the rules name.
    failures: Option<u8>,
}

// === impl Loading ===

impl Loading {
    /// `functions` are those of the modules in `maps`.
    pub(crate) fn new(
        objects: Arc<Objects>,
        functions: Arc<Functions>,
        layout: Layout,
        maps: &Maps,
        watch: Watch,
    ) -> Self {
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
            traced: traced.collect(),
            objects,
            rules: Rules::default(),
            layout,
            known: loads_of(maps),
            room: functions.ids() + Counts::MOST_LATER,
            functions,
            doubtful: HashMap::new(),
            watch,
            received: Activity::Nothing,
            last: Instant::now(),
            cost: Some(Duration::ZERO),
        }
    }

    /// Time until the next look.
    pub(super) fn until_look(&self) -> Duration {
        let receives = self.watch.receives() && !self.is_unsettled();
        let pace = match self.received {
            Activity::Something => Pace::Activity,
            Activity::Nothing if self.rules.is_empty() || receives => Pace::Idle,
            Activity::Nothing | Activity::Lost => Pace::Poll,
        };
        pace.pause(self.cost).saturating_sub(self.last.elapsed())
    }

    /// True if a module is to be tried again.
    fn is_unsettled(&self) -> bool {
        let mut failures = self.traced.values().filter_map(|traced| traced.failures);
        self.doubtful.values().any(|&looks| looks < LOOKS)
            || failures.any(|failures| failures < LOOKS)
    }

    /// Collects reports of new mappings.
    pub(super) fn receive(&mut self) {
        self.received = self.received.max(self.watch.receive());
    }

    /// Requests a look because sleds were found gone, perhaps with their library.
    pub(crate) fn suspect(&mut self) {
        self.received = Activity::Something;
    }

    /// Adds a rule, and starts the detection of new libraries if the rules may switch one on.
    pub(super) fn add_rule(&mut self, patterns: &Arc<Patterns>, to: Wanted) {
        self.rules.add(patterns, to);
        self.note_rules();
    }

    /// Adds a rule of a lease.
    pub(super) fn acquire_rule(&mut self, patterns: &Arc<Patterns>, to: LeaseId, capture: Capture) {
        self.rules.acquire(patterns, to, capture);
        self.note_rules();
    }

    /// Ends the rules of a lease.
    pub(crate) fn release(&mut self, from: LeaseId) {
        self.rules.release(from);
        self.note_rules();
    }

    /// Replaces the rules.
    pub(super) fn take_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.note_rules();
    }

    fn note_rules(&mut self) {
        if self.rules.is_empty() {
            self.watch.end();
        } else if self.watch.begin() {
            // Libraries may have come before the watch began.
            self.received = Activity::Something;
        }
    }

    /// Notes that these sleds are staged from now on.
    pub(crate) fn staged(&mut self, sites: &[PatchSite]) {
        for traced in self.traced.values_mut() {
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
        self.traced.values().map(|traced| &traced.loaded.module)
    }

    pub(super) fn is_traced(&self, load: &Load) -> bool {
        self.traced.contains_key(load)
    }

    /// Every usable sled of loaded modules, ordered by address.
    pub(crate) fn sites(&self) -> Vec<PatchSite> {
        let loaded = self.traced.values().map(|traced| &traced.loaded);
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
        for Traced { loaded, range, .. } in self.traced.values() {
            loaded.note_copied(copied(range.clone()));
        }
    }
}

// === impl Pace ===

impl Pace {
    /// The pause between the begins of two looks if the last one took `cost`. It is one second at
    /// most, however long the look took, since the machine may have been busy.
    fn pause(self, cost: Option<Duration>) -> Duration {
        // Maps that could not be read just now will hardly be readable at once.
        let Some(cost) = cost else {
            return IDLE_PACE;
        };
        let pause = match self {
            Self::Activity => cost.saturating_mul(SHARE_IF_HEARD),
            Self::Poll => cost.saturating_mul(SHARE).max(PACE),
            Self::Idle => IDLE_PACE,
        };
        pause.min(IDLE_PACE)
    }
}

impl Controller {
    /// Looks for modules that were loaded or unloaded, and applies the rules to new ones.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn look(&mut self) -> Result<()> {
        let before = std::mem::replace(&mut self.loading.last, Instant::now());
        self.loading.cost = None;
        let maps = maps_of(&self.target)?;
        // A report from now on may be of a mapping after the maps were read.
        self.loading.received = self.loading.watch.catch_up();
        let loads = loads_of(&maps);
        self.loading.cost = Some(self.loading.last.elapsed());
        self.take_leave(&loads);
        self.arm_again();
        let Loading {
            objects,
            known,
            doubtful,
            ..
        } = &mut self.loading;
        doubtful.retain(|load, _| loads.contains(load));
        let is_new = |load: &Load| {
            !known.contains(load) || doubtful.get(load).is_some_and(|&looks| looks < LOOKS)
        };
        let new: HashSet<Load> = loads.iter().filter(|load| is_new(load)).copied().collect();
        *known = loads;
        if !new.is_empty() {
            let pid = self.target.pid();
            let found = modules_among(pid, &maps, objects, |load| new.contains(load));
            for module in found.modules {
                let (path, load) = (module.path.clone(), module.load);
                match self.admit(module, &maps, before) {
                    Ok(()) => {
                        self.loading.doubtful.remove(&load);
                    }
                    Err(refusal) => self.refuse(
                        load,
                        RefusedModule {
                            path,
                            load,
                            refusal,
                        },
                    ),
                }
            }
            for refused in found.refused {
                self.refuse(refused.load, refused);
            }
        }
        Ok(())
    }

    /// Forgets the modules that are not loaded any more.
    fn take_leave(&mut self, loads: &HashSet<Load>) {
        let gone: Vec<Load> = self
            .loading
            .traced
            .iter()
            .filter(|(load, traced)| {
                let staged = traced.staged.as_ref();
                !loads.contains(load)
                    || staged.is_some_and(|site| self.patcher.was_renewed(&self.memory, site))
            })
            .map(|(&load, _)| load)
            .collect();
        for load in gone {
            self.loading.known.remove(&load);
            if let Some(Traced { loaded, range, .. }) = self.loading.traced.remove(&load) {
                tracing::info!(
                    pid = self.target.pid().as_raw(),
                    module = loaded.module.path,
                    "library unloaded"
                );
                loaded.went(ticks_now());
                loaded.note_copied(0);
                loaded.note_armed(None);
                self.shared.states.forget(loaded.functions());
                lock(&self.shared.leases).end(loaded.functions());
                self.patcher.remove(loaded.index, range);
            }
        }
        self.shared.keep_refused(|load| loads.contains(load));
    }

    fn refuse(&mut self, load: Load, refused: RefusedModule) {
        let looks = self.loading.doubtful.entry(load).or_default();
        if refused.refusal.reason != Reason::Busy {
            *looks = looks.saturating_add(1);
        }
        if *looks == LOOKS {
            let RefusedModule { path, refusal, .. } = &refused;
            tracing::warn!(pid = self.target.pid().as_raw(), module = path, %refusal, "a library cannot be traced");
            self.shared.refuse(refused);
        }
    }

    /// Adds a module that came after the look at `before`, and switches on the functions that the
    /// rules name in it.
    fn admit(&mut self, module: Module, maps: &Maps, before: Instant) -> Result<()> {
        let pid = self.target.pid();
        // It could not learn the module's sites.
        self.shared.drain().map_or(Ok(()), |drain| drain.check())?;
        let arrival = self.arrival_of(&module.load, before);
        let survey = survey(&self.memory, maps, &module)
            .map_err(|error| Refusal::from_io(pid, &format!("read {}", module.path), &error))?;
        if survey.runtime > 0 {
            let message = format!(
                "process {pid}: LLVM's XRay runtime has patched {} sleds of {}",
                survey.runtime, module.path
            );
            return Err(Refusal::new(Reason::AlreadyPatched, message));
        }
        let functions = Arc::clone(&self.loading.functions);
        let modules = functions.modules();
        let again = modules
            .iter()
            .rev()
            .find(|loaded| loaded.is_unloaded() && loaded.module.is_again(&module));
        let index = u32::try_from(modules.len()).unwrap_or(u32::MAX);
        let index = again.map_or(index, |loaded| loaded.index);
        let ids = functions.ids() + module.object.functions().len();
        if again.is_none() && (index >= MOST_MODULES || ids > self.loading.room) {
            let message = format!(
                "process {pid}: too many libraries were loaded since the attach, so the functions \
                 of {} get no ids; detach, then attach again",
                module.path
            );
            return Err(Refusal::new(Reason::Limit, message));
        }
        let mut sites: Vec<(u32, PatchSite)> = patch_sites(&survey, index).collect();
        let range = range_of(sites.iter().map(|(_, site)| *site));
        let stubs = stubs_of(sites.iter().map(|(_, site)| *site));
        self.drop_ambiguous(&mut sites, &range);
        if !range.is_empty() && !self.patcher.serves(&range, stubs) {
            let neighbourhood = Neighbourhood {
                range: range.clone(),
                stubs,
            };
            let region = extend(
                &self.target,
                &self.memory,
                neighbourhood,
                self.loading.layout,
            )?;
            self.patcher.add_region(&self.memory, region)?;
        }
        let loaded = match again {
            Some(loaded) => Arc::clone(loaded),
            None => functions.add(module.clone(), sites),
        };
        self.output.grow(functions.ids());
        self.output.profiles.came(&functions, &loaded);
        self.shared.states.grow(functions.ids());
        let staged: Vec<Staged> = staged_sites(&survey, index).collect();
        let left_on = staged.iter().filter(|staged| staged.state == Switch::On);
        let left_on: Vec<PatchSite> = left_on.map(|staged| staged.site).collect();
        let staged = staged.iter().map(|staged| (staged.site, staged.target));
        // The module's sleds are still off, and an earlier module at this place is unmapped.
        let now = ticks_now();
        if let Err(refusal) = self.make_known(&functions, &loaded, now) {
            // Nothing of it may be switched on, as long as the drain does not know its sites.
            loaded.never_came(now);
            self.shared.states.forget(loaded.functions());
            return Err(refusal);
        }
        self.patcher.add(index, module, staged);
        loaded.came(now);
        let load = loaded.module.load;
        self.loading.traced.insert(
            load,
            Traced {
                loaded,
                range,
                staged: None,
                arrival: Some(arrival),
                failures: None,
            },
        );
        if !left_on.is_empty()
            && let Err(refusal) = self.patch(&left_on, Wanted::Off)
        {
            tracing::error!(
                pid = pid.as_raw(),
                %refusal,
                "cannot switch off the sleds of a library"
            );
        }
        self.arm(load);
        Ok(())
    }

    /// Makes a module known to the filter and to the drain.
    fn make_known(&self, functions: &Functions, loaded: &Loaded, now: Ticks) -> Result<()> {
        self.shared.refilter(functions)?;
        if let Some(choice) = self.shared.rechoose(self.target.pid(), functions) {
            self.write_choice(&choice)?;
        }
        self.shared.drain().map_or(Ok(()), |drain| {
            let sites = loaded.sites().map(|(id, site)| call_site_of(site, id));
            drain.learn(sites.collect(), now)
        })
    }

    /// The load time of a module that the look at `before` did not find, or did not find complete.
    fn arrival_of(&self, load: &Load, before: Instant) -> Arrival {
        let mapped = self.loading.watch.mapped_at(load.text());
        // An older report is of an earlier mapping at this address.
        let is_its = |at: &Instant| *at >= before || self.loading.doubtful.contains_key(load);
        match mapped.filter(is_its) {
            Some(at) => Arrival {
                at,
                since: Since::Mapping,
            },
            None => Arrival {
                at: before,
                since: Since::Look,
            },
        }
    }

    /// Switches on the functions that the rules name in a module. After a failure the next looks
    /// try again.
    fn arm(&mut self, load: Load) {
        let pid = self.target.pid().as_raw();
        let Loading {
            functions,
            rules,
            traced,
            ..
        } = &self.loading;
        let traced = traced.get(&load);
        let Some((loaded, arrival)) =
            traced.map(|traced| (Arc::clone(&traced.loaded), traced.arrival))
        else {
            return;
        };
        let RuleEffect { on: wanted, leases } = rules.wishes_in(functions, &loaded);
        lock(&self.shared.leases).extend(leases);
        let (mut on, mut patched) = (0, PatchReport::default());
        let result = wanted.into_iter().try_for_each(|(capture, ids)| {
            let to = Wanted::On(capture);
            let ids = self.shared.states.changing(ids, to);
            let (report, _) = self.switch(&ids, to)?;
            on += ids.len();
            patched.sleds += report.sleds;
            patched.foreign += report.foreign;
            Ok::<_, Refusal>(())
        });
        let Some(traced) = self.loading.traced.get_mut(&load) else {
            return;
        };
        let path = &loaded.module.path;
        match result {
            Ok(()) => {
                traced.failures = None;
                let armed = arrival.filter(|_| on > 0).map(|arrival| Armed {
                    within: arrival.at.elapsed(),
                    since: arrival.since,
                });
                loaded.note_armed(armed);
                tracing::info!(
                    pid,
                    module = path,
                    functions = loaded.functions().count(),
                    on,
                    sleds = patched.sleds,
                    left_alone = patched.foreign,
                    within_us = armed.map(|armed| armed.within.as_micros()),
                    since = ?armed.map(|armed| armed.since),
                    "library loaded"
                );
            }
            Err(refusal) => {
                let failures = traced.failures.map_or(1, |failures| failures + 1);
                traced.failures = Some(failures);
                if failures == LOOKS {
                    tracing::warn!(
                        pid,
                        module = path,
                        %refusal,
                        "cannot switch on functions of a library"
                    );
                    let path = path.clone();
                    self.shared.refuse(RefusedModule {
                        path,
                        load,
                        refusal,
                    });
                }
            }
        }
    }

    /// Tries failed modules again.
    fn arm_again(&mut self) {
        let traced = self.loading.traced.iter();
        let again = |traced: &Traced| traced.failures.is_some_and(|failures| failures < LOOKS);
        let failed = traced.filter(|(_, traced)| again(traced));
        let failed: Vec<Load> = failed.map(|(&load, _)| load).collect();
        failed.into_iter().for_each(|load| self.arm(load));
    }

    /// Switches on the functions that the rules name in all modules but these.
    pub(super) fn arm_others(&mut self, known: &Indexes) {
        let traced = self.loading.traced.iter();
        let others = traced.filter(|(_, traced)| !known.has(&traced.loaded));
        let others: Vec<Load> = others.map(|(&load, _)| load).collect();
        others.into_iter().for_each(|load| self.arm(load));
    }

    /// Drops sleds whose events could not be told from those of a loaded library. The sleds are
    /// within `range`.
    fn drop_ambiguous(&self, sites: &mut Vec<(u32, PatchSite)>, range: &Range<u64>) {
        let traced = self.loading.traced.values();
        for other in traced.filter(|other| share_names(range, &other.range)) {
            let taken = other.loaded.sites().map(|(_, site)| place_of(site));
            let taken: HashSet<u32> = taken.collect();
            let before = sites.len();
            sites.retain(|(_, site)| !taken.contains(&place_of(site)));
            if sites.len() < before {
                tracing::warn!(
                    pid = self.target.pid().as_raw(),
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
    fn a_look_that_failed_is_not_tried_again_at_once() {
        for pace in [Pace::Activity, Pace::Poll, Pace::Idle] {
            assert_eq!(pace.pause(None), IDLE_PACE, "{pace:?}");
        }
    }

    #[test]
    fn a_look_that_took_long_does_not_make_blind() {
        let microseconds = |pace: Pace, cost| pace.pause(Some(Duration::from_micros(cost)));
        assert_eq!(microseconds(Pace::Activity, 0), Duration::ZERO);
        assert_eq!(microseconds(Pace::Activity, 100), Duration::from_millis(1));
        assert_eq!(microseconds(Pace::Poll, 1), PACE);
        assert_eq!(microseconds(Pace::Poll, 100), Duration::from_millis(10));
        assert_eq!(microseconds(Pace::Idle, 1), IDLE_PACE);
        for pace in [Pace::Activity, Pace::Poll, Pace::Idle] {
            assert_eq!(microseconds(pace, 60_000_000), IDLE_PACE, "{pace:?}");
            assert_eq!(microseconds(pace, u64::MAX), IDLE_PACE, "{pace:?}");
        }
    }

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
