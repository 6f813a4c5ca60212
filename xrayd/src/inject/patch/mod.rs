//! Stages sleds and switches them. `plan.rs` decides the writes for a sled, `stubs.rs` has its
//! stub, and `switch.rs` makes the writes, run by run.
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

mod plan;
mod stubs;
mod switch;

use std::{collections::BTreeMap, io, ops::Range};

use sled_encoders::x86_64::{DispatchMode, Enable, State, classify};

use self::stubs::Stubs;
use super::{
    page::failed_access,
    private_pages::{PAGE, PrivatePages},
    region::{OtherVersion, Region},
};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Refusal, Result},
    sys::Memory,
    target::{Maps, Module},
    types::PatchSite,
};

/// Longest run of neighbouring pages, in bytes.
pub(super) const RUN: u64 = 16 * PAGE;

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
    /// Code mappings of other versions of xrayd. Sleds that call into them can be switched off, and
    /// staged anew.
    others: Vec<OtherVersion>,
    /// The dispatch mode of the flavours of all regions.
    dispatch_mode: DispatchMode,
    /// Whether the flavours of all regions are enabled. Disabled flavours do nothing.
    enable: Enable,
    stubs: Stubs,
    private: PrivatePages,
}

// === impl Patcher ===

impl Patcher {
    /// A patcher for sleds of `modules` that call trampolines in `regions`. `others` are code
    /// mappings of other versions of xrayd. `staged` lists the sleds that an earlier attach staged,
    /// each with the address that it calls.
    pub(crate) fn new(
        pid: Pid,
        memory: &Memory,
        maps: &Maps,
        modules: impl IntoIterator<Item = (u32, Module)>,
        (regions, others): (Vec<Region>, Vec<OtherVersion>),
        staged: impl IntoIterator<Item = (PatchSite, u64)>,
    ) -> Self {
        let stubs = Stubs::new(memory, &regions);
        let mut patcher = Self {
            pid,
            modules: modules.into_iter().collect(),
            regions,
            others,
            dispatch_mode: DispatchMode::None,
            enable: Enable::On,
            stubs,
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
        let has_stub = |region: &&Region| region.stub_index(target).is_some();
        if site.needs_stub()
            && let Some(region) = self.regions.iter().find(has_stub)
        {
            self.stubs.assign(site.address, target, region);
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
        self.stubs.release(range);
    }

    /// True if trampolines are in reach of every sled in `range`, with room for `stubs` more stubs.
    pub(crate) fn serves(&self, range: &Range<u64>, stubs: u64) -> bool {
        let serving = self.regions.iter().filter(|region| region.serves(range));
        let free = serving.map(|region| self.stubs.count_free(region));
        free.reduce(|sum, more| sum + more)
            .is_some_and(|free| free >= stubs)
    }

    /// Adds the trampolines of another neighbourhood.
    ///
    /// # Errors
    /// The memory cannot be written. Then these trampolines are not used.
    pub(crate) fn add_region(&mut self, memory: &Memory, region: Region) -> Result<()> {
        if (self.dispatch_mode, self.enable) != (DispatchMode::None, Enable::On) {
            region
                .set_dispatch_mode(
                    memory,
                    (DispatchMode::None, self.dispatch_mode),
                    self.enable,
                )
                .map_err(|error| Refusal::from_io(self.pid, "write its trampolines", &error))?;
        }
        self.regions.push(region);
        Ok(())
    }

    /// The dispatch mode of all flavours.
    pub(crate) fn dispatch_mode(&self) -> DispatchMode {
        self.dispatch_mode
    }

    /// Takes over that all flavours add calls up, if they do. If they record events as well, they
    /// do no more. Returns true if they add calls up.
    ///
    /// # Errors
    /// The memory cannot be read, or not be written.
    pub(crate) fn adds_up(&mut self, memory: &Memory, layout: &super::Layout) -> Result<bool> {
        if !layout.geometry.has_profiles() || self.regions.is_empty() {
            return Ok(false);
        }
        for region in &self.regions {
            let adds_up = region.adds_up(memory);
            match adds_up
                .map_err(|error| Refusal::from_io(self.pid, "read its trampolines", &error))
            {
                Ok(true) => {}
                other => return other,
            }
        }
        self.dispatch_mode = DispatchMode::ProfileAndRecord;
        self.set_dispatch_mode(memory, DispatchMode::Profile)?;
        Ok(true)
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
        let before = std::mem::replace(&mut self.dispatch_mode, dispatch_mode);
        for region in &self.regions {
            region
                .set_dispatch_mode(memory, (before, dispatch_mode), self.enable)
                .map_err(|error| Refusal::from_io(self.pid, "write its trampolines", &error))?;
        }
        Ok(())
    }

    /// Disables all flavours, so that no sled has an effect, or enables them again.
    ///
    /// # Errors
    /// As [`Self::set_dispatch_mode`].
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

    fn module(&self, site: &PatchSite) -> Option<&Module> {
        self.modules.get(&site.module)
    }

    pub(super) fn failed(&self, what: &str, at: u64, error: &io::Error) -> Refusal {
        failed_access(self.pid, what, at, error)
    }
}
