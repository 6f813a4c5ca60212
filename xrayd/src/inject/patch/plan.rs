//! The plan for one sled: its bytes as they are, compared with what they may be, and the writes
//! that bring it into the wanted state.

use sled_encoders::{
    Capture,
    x86_64::{EventArguments, Staging, State, Stub, classify, stage},
};

use super::Patcher;
use crate::{
    inject::region::Region,
    pid::TargetAddr,
    refusal::Result,
    sys::Memory,
    types::{PatchSite, Wanted},
};

/// The writes that bring a sled into the wanted state.
#[derive(Debug)]
pub(super) enum Planned {
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

// === impl Patcher ===

impl Patcher {
    /// Decides the writes for a sled that stands there as `bytes`.
    pub(super) fn plan(
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
            (state @ (State::Staged { target } | State::On { target }), to)
                if !self.is_ours(site, target) =>
            {
                match (state, to) {
                    _ if !self.is_of_other_version(target) => Planned::Foreign,
                    (State::On { .. }, Wanted::Off) => Planned::Switch,
                    (_, Wanted::Off) => Planned::AsWanted,
                    (_, Wanted::On(capture)) => {
                        let staging = self.stage(memory, site, capture, bytes)?;
                        staging.map_or(Planned::Foreign, Planned::Restage)
                    }
                }
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
            let serving = self.regions.iter().filter(|region| region.serves(&range));
            let Some((place, region)) = self.stubs.find_free(serving) else {
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
            self.stubs.assign(site.address, place, region);
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
    pub(super) fn restaging(
        &self,
        site: &PatchSite,
        target: u64,
        capture: Capture,
    ) -> Option<Staging> {
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

    fn is_of_other_version(&self, target: u64) -> bool {
        self.others
            .iter()
            .any(|other| other.range.contains(&target))
    }

    fn is_ours(&self, site: &PatchSite, target: u64) -> bool {
        if site.needs_stub() {
            return self.stubs.of(site.address) == Some(target);
        }
        self.regions
            .iter()
            .any(|region| region.trampolines.is_target(site.kind, target))
    }
}
