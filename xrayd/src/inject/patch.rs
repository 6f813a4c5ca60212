//! Stages sleds and switches them.
//!
//! The patcher reads the sleds of one page, checks them, writes, and reads them back. It writes
//! bytes of sleds and no others. Other tracers write breakpoints into the same text at any time. If
//! a byte between two sleds were read and written back, it could erase a breakpoint that has come
//! since, or restore one that has gone. The program would die of it.
//!
//! ```text
//!   read ─► check ─► bodies ─► read back ─► switching bytes ─► read back
//!                                  │                               │
//!                    not ours: stays off, `foreign`    not ours: off again, `foreign`
//! ```
//!
//! A library that can be unloaded is written to while the process stands still, after a look at the
//! maps. Otherwise something else could be mapped in its place between the look and the write.
//!
//! A sled is staged to call the code for the values that it records. If it was staged to call other
//! code before, it is staged anew while the process stands still, because a thread may stand in
//! front of that call. At the stop each thread stands between two instructions, and both are there
//! before and after.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
};

use sled_encoders::{
    Capture,
    x86_64::{DispatchMode, Enable, EventArguments, Staging, State, Stub, classify, stage},
};

use super::{
    halt::while_halted,
    page::{Change, PageWriter, failed_access},
    patch_report::PatchReport,
    private_pages::{PAGE, PrivatePages},
    region::Region,
};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Refusal, Result},
    sys::Memory,
    target::{Maps, Module, Stay, Target},
    types::{PatchSite, Switch, Wanted},
};

/// Runs that one stop of the process covers: a quarter of a MiB, which takes a millisecond where
/// the pages have to be copied.
const RUNS_AT_ONCE: usize = 4;
/// Longest run of neighbouring pages, in bytes.
pub(super) const RUN: u64 = 16 * PAGE;

/// The writes that bring a sled into the wanted state.
#[derive(Debug)]
enum Planned {
    /// No write.
    AsWanted,
    /// The sled is left alone.
    Foreign,
    /// Its switching byte.
    Switch,
    /// A body, then its switching byte.
    Stage(Staging),
    /// Another body, while the process stands still, then its switching byte.
    Restage(Staging),
}

/// The state of the process while its text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Its threads run.
    Running,
    /// We started it, and have not released it yet.
    Halted,
}

/// Writes the text of one target.
#[derive(Debug)]
pub(crate) struct Patcher {
    pub(super) pid: Pid,
    /// Loaded modules, by index.
    pub(super) modules: BTreeMap<u32, Module>,
    regions: Vec<Region>,
    /// The dispatch mode of the flavours of all regions.
    dispatch_mode: DispatchMode,
    /// Whether the flavours of all regions are enabled. Disabled flavours do nothing.
    enable: Enable,
    /// Stubs by sled address. Filled when a sled that needs one is staged.
    stubs: BTreeMap<u64, u64>,
    /// Index of the first stub of each region that was never used, by the region's address.
    next_stub: BTreeMap<u64, u64>,
    /// Stubs of sleds that were unloaded.
    free_stubs: BTreeSet<u64>,
    private: PrivatePages,
}

// === impl Patcher ===

impl Patcher {
    /// A patcher for sleds of `modules` that call trampolines in `regions`. `staged` lists the
    /// sleds that an earlier attach staged, each with the address that it calls.
    pub(crate) fn new(
        pid: Pid,
        memory: &Memory,
        maps: &Maps,
        modules: impl IntoIterator<Item = (u32, Module)>,
        regions: Vec<Region>,
        staged: impl IntoIterator<Item = (PatchSite, u64)>,
    ) -> Self {
        let next_stub = regions
            .iter()
            .map(|region| (region.address, region.next_stub(memory)))
            .collect();
        let mut patcher = Self {
            pid,
            modules: modules.into_iter().collect(),
            regions,
            dispatch_mode: DispatchMode::None,
            enable: Enable::On,
            stubs: BTreeMap::new(),
            next_stub,
            free_stubs: BTreeSet::new(),
            private: PrivatePages::new(maps),
        };
        for (site, target) in staged {
            patcher.take_over(&site, target);
        }
        patcher
    }

    /// Adds module `index`, which was loaded. `staged` as for `new`: a module can go and come back
    /// with its sleds still staged.
    pub(crate) fn add(
        &mut self,
        index: u32,
        module: Module,
        staged: impl IntoIterator<Item = (PatchSite, u64)>,
    ) {
        self.modules.insert(index, module);
        for (site, target) in staged {
            self.take_over(&site, target);
        }
    }

    /// Takes over a sled that an earlier attach staged to call `target`.
    fn take_over(&mut self, site: &PatchSite, target: u64) {
        let stub = self
            .regions
            .iter()
            .find_map(|region| Some((region.address, region.stub_index(target)?)));
        if let (Some((region, index)), true) = (stub, site.needs_stub()) {
            self.stubs.insert(site.address, target);
            self.free_stubs.remove(&target);
            let next = self.next_stub.entry(region).or_default();
            *next = (*next).max(index + 1);
        }
        self.private.note_copies(site.address..site.end());
    }

    /// Removes module `index`, which was unloaded and whose sleds lay in `range`. Its private pages
    /// are gone, and its stubs are free.
    pub(crate) fn remove(&mut self, index: u32, range: Range<u64>) {
        self.modules.remove(&index);
        if range.is_empty() {
            return;
        }
        self.private.forget(&range);
        let sleds: Vec<u64> = self.stubs.range(range).map(|(&sled, _)| sled).collect();
        for sled in sleds {
            self.free_stubs.extend(self.stubs.remove(&sled));
        }
    }

    /// True if trampolines are in reach of every sled in `range`, with room for `stubs` more stubs.
    pub(crate) fn serves(&self, range: &Range<u64>, stubs: u64) -> bool {
        let room = |region: &Region| {
            let free = self.free_stubs.range(region.range()).count() as u64;
            let used = self.next_stub.get(&region.address).copied().unwrap_or(0);
            free + region.stubs().saturating_sub(used)
        };
        let serving = self.regions.iter().filter(|region| region.serves(range));
        let rooms: Vec<u64> = serving.map(room).collect();
        !rooms.is_empty() && rooms.iter().sum::<u64>() >= stubs
    }

    /// Adds the trampolines of another neighbourhood.
    ///
    /// # Errors
    /// The memory cannot be written. Then these trampolines are not used.
    pub(crate) fn add_region(&mut self, memory: &Memory, region: Region) -> Result<()> {
        if (self.dispatch_mode, self.enable) != (DispatchMode::None, Enable::On) {
            region
                .set_dispatch_mode(memory, self.dispatch_mode, self.enable)
                .map_err(|error| Refusal::from_io(self.pid, "write its trampolines", &error))?;
        }
        self.regions.push(region);
        Ok(())
    }

    /// The dispatch mode of all flavours.
    pub(crate) fn dispatch_mode(&self) -> DispatchMode {
        self.dispatch_mode
    }

    /// Sets the dispatch mode of all flavours.
    ///
    /// # Errors
    /// The memory cannot be written. Some flavours may have the new mode already.
    pub(crate) fn set_dispatch_mode(
        &mut self,
        memory: &Memory,
        dispatch_mode: DispatchMode,
    ) -> Result<()> {
        self.dispatch_mode = dispatch_mode;
        for region in &self.regions {
            region
                .set_dispatch_mode(memory, dispatch_mode, self.enable)
                .map_err(|error| Refusal::from_io(self.pid, "write its trampolines", &error))?;
        }
        Ok(())
    }

    /// Disables all flavours, so that no sled has an effect, or enables them again.
    ///
    /// # Errors
    /// As [`Self::set_front`].
    pub(crate) fn set_enable(&mut self, memory: &Memory, enable: Enable) -> Result<()> {
        self.enable = enable;
        for region in &self.regions {
            region
                .set_enable(memory, self.dispatch_mode, enable)
                .map_err(|error| Refusal::from_io(self.pid, "write its trampolines", &error))?;
        }
        Ok(())
    }

    /// True if a sled that should be staged stands there as compiled: its module was unloaded and
    /// loaded again at the same place.
    pub(crate) fn was_renewed(&self, memory: &Memory, site: &PatchSite) -> bool {
        let mut bytes = vec![0; site.length()];
        memory.read(TargetAddr(site.address), &mut bytes).is_ok()
            && classify(site.kind, site.address, &bytes) == State::Compiled
    }

    /// The pages of text that are private to the target.
    pub(crate) fn private_pages(&self) -> &PrivatePages {
        &self.private
    }

    /// The number of `sites`, ordered by address, that are staged to record something else than
    /// `capture`. Sites that cannot be read do not count.
    pub(crate) fn would_restage(
        &self,
        memory: &Memory,
        sites: &[PatchSite],
        capture: Capture,
    ) -> u64 {
        let (mut count, mut text) = (0, Vec::new());
        for run in runs(sites) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            text.resize(usize::try_from(last.end() - first.address).unwrap_or(0), 0);
            if memory.read(TargetAddr(first.address), &mut text).is_err() {
                continue;
            }
            for site in run {
                let at = usize::try_from(site.address - first.address).unwrap_or(0);
                let bytes = text.get(at..at + site.length()).unwrap_or_default();
                if let State::Staged { target } | State::On { target } =
                    classify(site.kind, site.address, bytes)
                {
                    count += u64::from(self.restaging(site, target, capture).is_some());
                }
            }
        }
        count
    }

    /// Switches `sites`, ordered by address, to `to`. The maps are read anew for each module. For a
    /// module that can be unloaded, the maps are read and the sleds are written while the process
    /// stands still. Sleds that were staged to record something else are also staged anew during a
    /// stop.
    ///
    /// # Errors
    /// The memory cannot be written, or the process cannot be stopped or has ended. Switching on
    /// ends there. Switching off goes on with the other sleds.
    pub(crate) fn switch(
        &mut self,
        memory: &Memory,
        target: &Target,
        run_state: RunState,
        sites: &[PatchSite],
        to: Wanted,
    ) -> Result<PatchReport> {
        let mut report = PatchReport::default();
        let mut failed = None;
        for module in sites.chunk_by(|one, next| one.module == next.module) {
            let stay = module.first().and_then(|site| self.module(site));
            let stay = stay.map_or(Stay::Lasting, |module| module.stay);
            let done = match (stay, run_state) {
                (Stay::Passing, RunState::Running) => {
                    self.switch_halted(memory, target, module, to, &mut report)
                }
                (Stay::Lasting, RunState::Running) => {
                    let runs: Vec<&[PatchSite]> = runs(module).collect();
                    let mut left = Vec::new();
                    self.switch_runs(memory, target, &runs, to, Some(&mut left), &mut report)
                        .and_then(|()| self.switch_halted(memory, target, &left, to, &mut report))
                }
                (_, RunState::Halted) => {
                    let runs: Vec<&[PatchSite]> = runs(module).collect();
                    self.switch_runs(memory, target, &runs, to, None, &mut report)
                }
            };
            match (done, to) {
                (Ok(()), _) => {}
                (Err(refusal), Wanted::On(_)) => return Err(refusal),
                (Err(refusal), Wanted::Off) => {
                    failed.get_or_insert(refusal);
                }
            }
        }
        failed.map_or(Ok(report), Err)
    }

    /// Switches sites of one module while the process stands still, [`RUNS_AT_ONCE`] at a stop.
    fn switch_halted(
        &mut self,
        memory: &Memory,
        target: &Target,
        sites: &[PatchSite],
        to: Wanted,
        report: &mut PatchReport,
    ) -> Result<()> {
        let runs: Vec<&[PatchSite]> = runs(sites).collect();
        runs.chunks(RUNS_AT_ONCE).try_for_each(|runs| {
            let written = while_halted(target, || {
                self.switch_runs(memory, target, runs, to, None, report)
            });
            let ((), stopped) = written?;
            report.stopped = report.stopped.max(stopped);
            Ok(())
        })
    }

    /// Switches runs of one module with one look at the maps. If `left` is given, sleds that must
    /// be staged anew are put there, and not written.
    fn switch_runs(
        &mut self,
        memory: &Memory,
        target: &Target,
        runs: &[&[PatchSite]],
        to: Wanted,
        mut left: Option<&mut Vec<PatchSite>>,
        report: &mut PatchReport,
    ) -> Result<()> {
        let pid = self.pid;
        let maps = Maps::read(pid, target.live_thread()?)
            .map_err(|error| Refusal::from_io(pid, "read its maps", &error))?;
        self.private.look(&maps);
        let mut failed = None;
        for run in runs {
            let mapped = self.mapped(&maps, run);
            report.foreign += (run.len() - mapped.len()) as u64;
            let done = self.switch_run(memory, &mapped, to, left.as_deref_mut(), report);
            match (done, to) {
                (Ok(()), _) => {}
                (Err(refusal), Wanted::On(_)) => return Err(refusal),
                (Err(refusal), Wanted::Off) => {
                    failed.get_or_insert(refusal);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Switches one run, a page at a time. So little time passes between the look at a sled and the
    /// write to it, in which another tracer could change it.
    pub(super) fn switch_run(
        &mut self,
        memory: &Memory,
        run: &[PatchSite],
        to: Wanted,
        mut left: Option<&mut Vec<PatchSite>>,
        report: &mut PatchReport,
    ) -> Result<()> {
        for sites in run.chunk_by(|one, next| one.address / PAGE == next.address / PAGE) {
            let start = sites.first().map_or(0, |site| site.address);
            let end = sites.last().map_or(start, PatchSite::end);
            let mut text = vec![0u8; usize::try_from(end - start).unwrap_or(0)];
            memory
                .read(TargetAddr(start), &mut text)
                .map_err(|error| self.failed("read", start, &error))?;
            let mut done = PatchReport::default();
            let mut changes = Vec::new();
            for site in sites {
                let at = usize::try_from(site.address - start).unwrap_or(0);
                let bytes = text.get(at..at + site.length()).unwrap_or_default();
                let (staging, restaged) = match self.plan(memory, site, bytes, to)? {
                    Planned::AsWanted => {
                        done.sleds += 1;
                        continue;
                    }
                    Planned::Foreign => {
                        done.foreign += 1;
                        continue;
                    }
                    Planned::Switch => (None, false),
                    Planned::Stage(staging) => (Some(staging), false),
                    Planned::Restage(staging) => match left.as_deref_mut() {
                        Some(left) => {
                            left.push(*site);
                            continue;
                        }
                        None => (Some(staging), true),
                    },
                };
                let switch = match to {
                    Wanted::On(_) => Switch::On,
                    Wanted::Off => Switch::Off,
                };
                let mut change = Change::new(site.kind, at, staging.as_ref(), switch, &mut text);
                change.restaged = restaged;
                changes.push(change);
            }
            let mut page = PageWriter {
                pid: self.pid,
                memory,
                private: &mut self.private,
            };
            page.write_changes(start, &mut text, changes, &mut done)?;
            report.sleds += done.sleds;
            report.foreign += done.foreign;
            report.restaged += done.restaged;
        }
        Ok(())
    }

    /// Decides the writes for a sled that stands there as `bytes`.
    fn plan(
        &mut self,
        memory: &Memory,
        site: &PatchSite,
        bytes: &[u8],
        to: Wanted,
    ) -> Result<Planned> {
        Ok(match (classify(site.kind, site.address, bytes), to) {
            (State::Runtime | State::Breakpoint | State::Foreign, _) => Planned::Foreign,
            (State::Compiled, Wanted::Off) => Planned::AsWanted,
            (State::Compiled, Wanted::On(capture)) => {
                let staging = self.stage(memory, site, capture, bytes)?;
                staging.map_or(Planned::Foreign, Planned::Stage)
            }
            (State::Staged { target } | State::On { target }, _) if !self.is_ours(site, target) => {
                Planned::Foreign
            }
            (State::Staged { target } | State::On { target }, Wanted::On(capture)) => {
                let staging = self.restaging(site, target, capture);
                staging.map_or(Planned::Switch, Planned::Restage)
            }
            (State::Staged { .. } | State::On { .. }, Wanted::Off) => Planned::Switch,
        })
    }

    /// The staging of a sled that stands there as `bytes`. `None` if it cannot be staged: no
    /// trampoline is in reach, no stub is free, or its event cannot be decoded.
    fn stage(
        &mut self,
        memory: &Memory,
        site: &PatchSite,
        capture: Capture,
        bytes: &[u8],
    ) -> Result<Option<Staging>> {
        let range = site.address..site.end();
        if site.needs_stub() {
            let Some((place, region)) = self.room_for_stub(&range) else {
                return Ok(None);
            };
            let stub = if site.kind.is_event() {
                let Some(arguments) = EventArguments::decode(site.kind, bytes) else {
                    return Ok(None);
                };
                let trampoline = region.trampolines.target(site.kind);
                Stub::for_event(site.kind, site.address, arguments, place, trampoline)
            } else {
                let trampoline = region.trampolines.stub_target();
                Stub::for_jump(site.address, site.jump, place, trampoline)
            };
            let Ok(stub) = stub else {
                return Ok(None);
            };
            memory
                .write(TargetAddr(place), &stub.code)
                .map_err(|error| self.failed("write", place, &error))?;
            self.take_stub(place);
            self.stubs.insert(site.address, place);
            Ok(Some(stub.staging))
        } else {
            let mut regions = self.regions.iter();
            let Some(region) = regions.find(|region| region.serves(&range)) else {
                return Ok(None);
            };
            let trampoline = region.trampolines.target_for(site.kind, capture);
            Ok(stage(site.kind, site.address, trampoline).ok())
        }
    }

    /// The staging that makes a sled record `capture` if it calls `target` now. `None` if it
    /// records that already.
    fn restaging(&self, site: &PatchSite, target: u64, capture: Capture) -> Option<Staging> {
        if site.needs_stub() {
            return None;
        }
        let is_here = |region: &&Region| region.trampolines.is_target(site.kind, target);
        let region = self.regions.iter().find(is_here)?;
        let wanted = region.trampolines.target_for(site.kind, capture);
        (wanted != target)
            .then(|| stage(site.kind, site.address, wanted).ok())
            .flatten()
    }

    /// A free stub in reach of `range`, and its region.
    fn room_for_stub(&self, range: &Range<u64>) -> Option<(u64, &Region)> {
        let mut serving = self.regions.iter().filter(|region| region.serves(range));
        serving.find_map(|region| {
            let free = self.free_stubs.range(region.range()).next().copied();
            let next = self.next_stub.get(&region.address).copied().unwrap_or(0);
            let place = free.or_else(|| region.stub(next))?;
            Some((place, region))
        })
    }

    fn take_stub(&mut self, place: u64) {
        if self.free_stubs.remove(&place) {
            return;
        }
        let region = self.regions.iter().find_map(|region| {
            let index = region.stub_index(place)?;
            Some((region.address, index))
        });
        if let Some((region, index)) = region {
            self.next_stub.insert(region, index + 1);
        }
    }

    fn is_ours(&self, site: &PatchSite, target: u64) -> bool {
        if site.needs_stub() {
            return self.stubs.get(&site.address) == Some(&target);
        }
        self.regions
            .iter()
            .any(|region| region.trampolines.is_target(site.kind, target))
    }

    /// The sleds of a run whose place is mapped as when they were found: by the same part of the
    /// same file. If one entry of the maps covers the whole run, only its ends are checked.
    fn mapped<'a>(&self, maps: &Maps, run: &'a [PatchSite]) -> Cow<'a, [PatchSite]> {
        let entry = |site: &PatchSite, address: u64| {
            let entry = maps.at(address)?;
            self.module(site)?.offset_of(entry, address)?;
            Some(entry)
        };
        let ends = |first: &PatchSite, last: &PatchSite| {
            Some([entry(first, first.address)?, entry(last, last.end() - 1)?])
        };
        if let [first, .., last] = run
            && let Some([start, end]) = ends(first, last)
            && start.range == end.range
        {
            return Cow::Borrowed(run);
        }
        let mapped = run.iter().filter(|site| ends(site, site).is_some());
        Cow::Owned(mapped.copied().collect())
    }

    fn module(&self, site: &PatchSite) -> Option<&Module> {
        self.modules.get(&site.module)
    }

    pub(super) fn failed(&self, what: &str, at: u64, error: &io::Error) -> Refusal {
        failed_access(self.pid, what, at, error)
    }
}

/// Splits sites, ordered by address, into runs: at each page without sites, and where a run gets
/// too long.
fn runs(mut sites: &[PatchSite]) -> impl Iterator<Item = &[PatchSite]> {
    std::iter::from_fn(move || {
        let first = sites.first()?;
        let start = first.address;
        let mut previous = first.end();
        let length = sites
            .iter()
            .position(|site| {
                let apart = site.address / PAGE > previous / PAGE + 1;
                previous = site.end();
                apart || site.address - start >= RUN
            })
            .unwrap_or(sites.len());
        let (run, rest) = sites.split_at(length);
        sites = rest;
        Some(run)
    })
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
    fn runs_split_at_untouched_pages_and_at_their_longest() {
        let sites: Vec<PatchSite> = [
            0x1000, 0x1800, 0x2000, 0x5000, 0x5010, 0x1_5000, 0x1_5ff0, 0x1_6000,
        ]
        .into_iter()
        .map(site)
        .collect();
        let lengths: Vec<usize> = runs(&sites).map(<[PatchSite]>::len).collect();
        assert_eq!(lengths, [3, 2, 3]);
        let dense: Vec<PatchSite> = (0..100).map(|i| site(i * 0x1000)).collect();
        assert!(runs(&dense).all(|run| run.len() <= 16));
        assert_eq!(runs(&dense).map(<[PatchSite]>::len).sum::<usize>(), 100);
    }
}
