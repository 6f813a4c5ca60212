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
    sync::Arc,
    time::{Duration, Instant},
};

use xray_trace::model::Ticks;

use super::{
    patching::Patching,
    patterns::Patterns,
    rules::{RuleEffect, Rules},
    sites::{Staged, call_site_of, patch_sites, range_of, staged_sites, stubs_of},
    switcher::Switcher,
    traced::{Arrival, Traced, TracedModules},
    watch::Watch,
};
use crate::{
    inject::{Neighbourhood, PatchReport, extend},
    lock::lock,
    refusal::{Reason, Refusal, Result},
    store::Counts,
    sys::ticks_now,
    target::{
        Activity, Functions, Indexes, Load, Loaded, Maps, Module, Objects, RefusedModule, VmSize,
        has_type_names, loads_of, modules_among, survey,
    },
    types::{Armed, LeaseId, PatchSite, Since, Switch, ToggleTo, Wanted},
};

/// Limit on modules of a session, unloaded ones included.
const MOST_MODULES: u32 = 1 << 16;
/// Limit on looks at a library that cannot be traced. It may not be loaded completely at the first.
const LOOKS: u8 = 5;
/// Shortest interval of looks while the rules may name functions of new libraries and the kernel
/// reports no mappings, and the interval otherwise.
const PACE: Duration = Duration::from_millis(4);
const IDLE_PACE: Duration = Duration::from_secs(1);
/// Interval of looks at the size of the address space while no library is expected, and the longest
/// interval of looks at the maps if it stays the same.
const SIZE_PACE: Duration = Duration::from_secs(5);
const SAME_SIZE_PACE: Duration = Duration::from_secs(60);
/// The same interval while the kernel reports what is mapped.
const RECEIVING_SIZE_PACE: Duration = Duration::from_secs(20);
/// Looks without a report take one part in [`SHARE`] of the time at most. Looks after a report take
/// one part in [`SHARE_IF_HEARD`].
const SHARE: u32 = 100;
const SHARE_IF_HEARD: u32 = 10;

/// The controller's state of what is loaded.
#[derive(Debug)]
pub(crate) struct Loading {
    objects: Arc<Objects>,
    rules: Rules,
    /// All loads at the last look, traced or not.
    known: HashSet<Load>,
    /// The loads that could not be traced, with the number of looks at each.
    doubtful: HashMap<Load, u8>,
    /// Limit on functions that have an id.
    room: usize,
    /// Reports new mappings.
    watch: Watch,
    /// Reports since the last look at the maps: a mapping, or a lost report.
    received: Activity,
    /// The begin of the last look, and the time that it took to see the changes. `None` if it
    /// failed.
    last: Instant,
    cost: Option<Duration>,
    /// The size of the address space, and the size before that look.
    size: VmSize,
    pages: Option<u64>,
    /// The last time at which the size was the same.
    same: Instant,
    /// True if modules came or went since this was last taken.
    has_changed: bool,
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

// === impl Loading ===

impl Loading {
    /// `functions` is the number of functions in the modules of `maps`.
    pub(crate) fn new(
        objects: Arc<Objects>,
        functions: usize,
        (maps, size): (&Maps, VmSize),
        watch: Watch,
    ) -> Self {
        Self {
            objects,
            rules: Rules::default(),
            known: loads_of(maps),
            room: functions + Counts::MOST_LATER,
            doubtful: HashMap::new(),
            watch,
            received: Activity::Nothing,
            last: Instant::now(),
            cost: Some(Duration::ZERO),
            size,
            pages: None,
            same: Instant::now(),
            has_changed: false,
        }
    }

    /// The rules in force.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// True if modules came or went since the last call.
    pub(super) fn takes_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Time until the next look.
    pub(super) fn until_look(&self, traced: &TracedModules) -> Duration {
        let pace = self.pace(traced);
        let pause = match pace {
            Pace::Idle if self.cost.is_some() && self.watch.receives() => RECEIVING_SIZE_PACE,
            Pace::Idle if self.cost.is_some() => SIZE_PACE,
            _ => pace.pause(self.cost),
        };
        pause.saturating_sub(self.last.max(self.same).elapsed())
    }

    /// True if it is time for a look.
    pub(super) fn is_due(&mut self, traced: &TracedModules) -> bool {
        if !self.until_look(traced).is_zero() {
            return false;
        }
        if matches!(self.pace(traced), Pace::Idle)
            && self.cost.is_some()
            && self.pages.is_some()
            && self.last.elapsed() < SAME_SIZE_PACE
            && self.size.pages() == self.pages
        {
            self.same = Instant::now();
            return false;
        }
        true
    }

    fn pace(&self, traced: &TracedModules) -> Pace {
        let receives = self.watch.receives() && !self.is_unsettled(traced);
        match self.received {
            _ if traced.is_suspect => Pace::Activity,
            Activity::Something => Pace::Activity,
            Activity::Nothing if self.rules.is_empty() || receives => Pace::Idle,
            Activity::Nothing | Activity::Lost => Pace::Poll,
        }
    }

    /// True if a module is to be tried again.
    fn is_unsettled(&self, traced: &TracedModules) -> bool {
        let mut failures = traced.modules.values().filter_map(|traced| traced.failures);
        self.doubtful.values().any(|&looks| looks < LOOKS)
            || failures.any(|failures| failures < LOOKS)
    }

    /// Collects reports of new mappings.
    pub(super) fn receive(&mut self) {
        self.received = self.received.max(self.watch.receive());
    }

    /// Adds a rule, and starts the detection of new libraries if the rules may switch one on.
    pub(super) fn add_rule(&mut self, patterns: &Arc<Patterns>, to: ToggleTo) {
        self.rules.add(patterns, to);
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

    /// Looks for modules that were loaded or unloaded, and applies the rules to new ones.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn look(&mut self, switcher: &mut Switcher<'_>) -> Result<()> {
        let before = std::mem::replace(&mut self.last, Instant::now());
        self.cost = None;
        // A change from now on shows at the next look.
        self.pages = self.size.pages();
        let maps = switcher.patching.target.maps()?;
        // A report from now on may be of a mapping after the maps were read.
        self.received = self.watch.catch_up();
        switcher.patching.traced.is_suspect = false;
        let loads = loads_of(&maps);
        self.cost = Some(self.last.elapsed());
        self.take_leave(switcher, &loads);
        self.arm_again(switcher);
        let Loading {
            objects,
            known,
            doubtful,
            ..
        } = self;
        doubtful.retain(|load, _| loads.contains(load));
        let is_new = |load: &Load| {
            !known.contains(load) || doubtful.get(load).is_some_and(|&looks| looks < LOOKS)
        };
        let new: HashSet<Load> = loads.iter().filter(|load| is_new(load)).copied().collect();
        *known = loads;
        if !new.is_empty() {
            let pid = switcher.patching.target.pid();
            let found = modules_among(pid, &maps, objects, |load| new.contains(load));
            for module in found.modules {
                let (path, load) = (module.path.clone(), module.load);
                match self.admit(switcher, module, &maps, before) {
                    Ok(()) => {
                        self.doubtful.remove(&load);
                    }
                    Err(refusal) => {
                        let refused = RefusedModule {
                            path,
                            load,
                            refusal,
                        };
                        self.refuse(switcher.patching, refused);
                    }
                }
            }
            for refused in found.refused {
                self.refuse(switcher.patching, refused);
            }
        }
        Ok(())
    }

    /// Forgets the modules that are not loaded any more.
    fn take_leave(&mut self, switcher: &mut Switcher<'_>, loads: &HashSet<Load>) {
        let Switcher { patching, governor } = switcher;
        let gone: Vec<Load> = patching
            .traced
            .modules
            .iter()
            .filter(|(load, traced)| {
                let staged = traced.staged.as_ref();
                !loads.contains(load)
                    || staged
                        .is_some_and(|site| patching.patcher.was_renewed(&patching.memory, site))
            })
            .map(|(&load, _)| load)
            .collect();
        if !gone.is_empty() {
            governor.drop_comparison();
        }
        self.has_changed |= !gone.is_empty();
        for load in gone {
            self.known.remove(&load);
            if let Some(Traced { loaded, range, .. }) = patching.traced.modules.remove(&load) {
                tracing::info!(
                    pid = patching.target.pid().as_raw(),
                    module = loaded.module.path,
                    "library unloaded"
                );
                loaded.went(ticks_now());
                loaded.note_copied(0);
                loaded.note_armed(None);
                patching.shared.states.forget(loaded.functions());
                lock(&patching.shared.leases).end(loaded.functions());
                patching.patcher.remove(loaded.index, range);
            }
        }
        patching.shared.keep_refused(|load| loads.contains(load));
    }

    fn refuse(&mut self, patching: &Patching, refused: RefusedModule) {
        let looks = self.doubtful.entry(refused.load).or_default();
        if refused.refusal.reason != Reason::Busy {
            *looks = looks.saturating_add(1);
        }
        if *looks == LOOKS {
            let RefusedModule { path, refusal, .. } = &refused;
            tracing::warn!(pid = patching.target.pid().as_raw(), module = path, %refusal, "a library cannot be traced");
            patching.shared.refuse(refused);
        }
    }

    /// Adds a module that came after the look at `before`, and switches on the functions that the
    /// rules name in it.
    fn admit(
        &mut self,
        switcher: &mut Switcher<'_>,
        module: Module,
        maps: &Maps,
        before: Instant,
    ) -> Result<()> {
        let patching = &mut *switcher.patching;
        let pid = patching.target.pid();
        // It could not learn the module's sites.
        patching
            .shared
            .drain()
            .map_or(Ok(()), |drain| drain.check())?;
        let arrival = self.arrival_of(&module.load, before);
        let survey = survey(&patching.memory, maps, &module)
            .map_err(|error| Refusal::from_io(pid, &format!("read {}", module.path), &error))?;
        if survey.runtime > 0 {
            let message = format!(
                "process {pid}: LLVM's XRay runtime has patched {} sleds of {}",
                survey.runtime, module.path
            );
            return Err(Refusal::new(Reason::AlreadyPatched, message));
        }
        let functions = Arc::clone(&patching.traced.functions);
        let modules = functions.modules();
        let again = modules
            .iter()
            .rev()
            .find(|loaded| loaded.is_unloaded() && loaded.module.is_again(&module));
        let index = u32::try_from(modules.len()).unwrap_or(u32::MAX);
        let index = again.map_or(index, |loaded| loaded.index);
        let ids = functions.ids() + module.object.functions().len();
        if again.is_none() && (index >= MOST_MODULES || ids > self.room) {
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
        patching.traced.drop_ambiguous(pid, &mut sites, &range);
        if !range.is_empty() && !patching.patcher.serves(&range, stubs) {
            let neighbourhood = Neighbourhood {
                range: range.clone(),
                stubs,
            };
            let region = extend(
                &patching.target,
                &patching.memory,
                neighbourhood,
                patching.layout,
            )?;
            patching.patcher.add_region(&patching.memory, region)?;
        }
        let loaded = match again {
            Some(loaded) => Arc::clone(loaded),
            None => functions.add(module.clone(), sites),
        };
        patching.output.counts.grow(functions.ids());
        patching.output.profiles.came(&functions, &loaded);
        patching.shared.states.grow(functions.ids());
        let staged: Vec<Staged> = staged_sites(&survey, index).collect();
        let left_on = staged.iter().filter(|staged| staged.state == Switch::On);
        let left_on: Vec<PatchSite> = left_on.map(|staged| staged.site).collect();
        let staged = staged.iter().map(|staged| (staged.site, staged.target));
        // The module's sleds are still off, and an earlier module at this place is unmapped.
        let now = ticks_now();
        if let Err(refusal) = make_known(patching, &functions, &loaded, now) {
            // Nothing of it may be switched on, as long as the drain does not know its sites.
            loaded.never_came(now);
            patching.shared.states.forget(loaded.functions());
            return Err(refusal);
        }
        if has_type_names(&module) {
            patching.output.event_types.expect_table();
        }
        patching.patcher.add(index, module, staged);
        loaded.came(now);
        let load = loaded.module.load;
        patching.traced.modules.insert(
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
            && let Err(refusal) = patching.patch(&left_on, Wanted::Off)
        {
            tracing::error!(
                pid = pid.as_raw(),
                %refusal,
                "cannot switch off the sleds of a library"
            );
        }
        self.has_changed = true;
        self.arm(switcher, load);
        Ok(())
    }

    /// The load time of a module that the look at `before` did not find, or did not find complete.
    fn arrival_of(&self, load: &Load, before: Instant) -> Arrival {
        let mapped = self.watch.mapped_at(load.text());
        // An older report is of an earlier mapping at this address.
        let is_its = |at: &Instant| *at >= before || self.doubtful.contains_key(load);
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
    fn arm(&self, switcher: &mut Switcher<'_>, load: Load) {
        let patching = &mut *switcher.patching;
        let pid = patching.target.pid().as_raw();
        let TracedModules {
            functions, modules, ..
        } = &patching.traced;
        let traced = modules.get(&load);
        let Some((loaded, arrival)) =
            traced.map(|traced| (Arc::clone(&traced.loaded), traced.arrival))
        else {
            return;
        };
        let RuleEffect { on: wanted, leases } = self.rules.wishes_in(functions, &loaded);
        lock(&patching.shared.leases).extend(leases);
        let (mut on, mut patched) = (0, PatchReport::default());
        let result = wanted.into_iter().try_for_each(|(capture, ids)| {
            let to = Wanted::On(capture);
            let ids = switcher.patching.shared.states.changing(ids, to);
            let (report, _) = switcher.switch(&ids, to)?;
            on += ids.len();
            patched.sleds += report.sleds;
            patched.foreign += report.foreign;
            Ok::<_, Refusal>(())
        });
        let patching = &mut *switcher.patching;
        let Some(traced) = patching.traced.modules.get_mut(&load) else {
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
                    patching.shared.refuse(RefusedModule {
                        path,
                        load,
                        refusal,
                    });
                }
            }
        }
    }

    /// Tries failed modules again.
    fn arm_again(&self, switcher: &mut Switcher<'_>) {
        let traced = switcher.patching.traced.modules.iter();
        let again = |traced: &Traced| traced.failures.is_some_and(|failures| failures < LOOKS);
        let failed = traced.filter(|(_, traced)| again(traced));
        let failed: Vec<Load> = failed.map(|(&load, _)| load).collect();
        failed.into_iter().for_each(|load| self.arm(switcher, load));
    }

    /// Switches on the functions that the rules name in all modules but these.
    pub(super) fn arm_others(&self, switcher: &mut Switcher<'_>, known: &Indexes) {
        let traced = switcher.patching.traced.modules.iter();
        let others = traced.filter(|(_, traced)| !known.has(&traced.loaded));
        let others: Vec<Load> = others.map(|(&load, _)| load).collect();
        others.into_iter().for_each(|load| self.arm(switcher, load));
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

/// Makes a module known to the filter and to the drain.
fn make_known(
    patching: &Patching,
    functions: &Functions,
    loaded: &Loaded,
    now: Ticks,
) -> Result<()> {
    patching.shared.refilter(functions)?;
    if let Some(choice) = patching.shared.rechoose(patching.target.pid(), functions) {
        patching.write_choice(&choice)?;
    }
    patching.shared.drain().map_or(Ok(()), |drain| {
        let sites = loaded.sites().map(|(id, site)| call_site_of(site, id));
        drain.learn(sites.collect(), now)
    })
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
}
