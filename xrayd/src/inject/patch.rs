//! Staging sleds and switching them.
//!
//! Bytes are written in runs of neighbouring pages, each read, checked and written back with one call. Between reading and
//! writing a run nobody else may patch it; that others do is checked by every read, never assumed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use sled_encoders::{
    SledKind,
    x86_64::{ConditionalStub, SLED_BYTES, State, TailJump, classify, stage, switch},
};

use super::region::Region;
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    target::{Maps, Module, read_mapped},
};

const PAGE: u64 = 4096;
/// Longest run written at once: it bounds how long a foreign change could be overwritten unseen.
const RUN: u64 = 16 * PAGE;

/// A sled that can be switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// Its first byte.
    pub(crate) address: u64,
    /// What it marks.
    pub(crate) kind: SledKind,
    /// What follows it, for tail exits.
    pub(crate) jump: TailJump,
    /// Index of its module.
    pub(crate) module: u32,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Events are recorded.
    On,
    /// As compiled.
    Off,
}

/// What a patch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PatchReport {
    /// Sleds that now are as wanted.
    pub(crate) sleds: u64,
    /// Sleds left alone, because their bytes are not what they should be.
    pub(crate) foreign: u64,
}

/// The proof that a target is as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Sleds that were read back and are off.
    pub(crate) sleds_off: u64,
    /// Sleds that are not: on, or patched by somebody else.
    pub(crate) sleds_on: u64,
    /// Bytes of text outside sleds that were compared with the file.
    pub(crate) compared: u64,
    /// Those that differ.
    pub(crate) different: u64,
}

/// Writes the text of one target.
#[derive(Debug)]
pub(crate) struct Patcher {
    pid: Pid,
    modules: Vec<Module>,
    regions: Vec<Region>,
    /// Stubs by sled address. Filled when a sled that needs one is staged.
    stubs: BTreeMap<u64, u64>,
    /// The first free stub of each region, by its address.
    next_stub: BTreeMap<u64, u64>,
    /// Pages written by us, and so private to the target.
    copied: BTreeSet<u64>,
}

// === impl Patcher ===

impl Patcher {
    /// A patcher for sleds of `modules` that call trampolines in `regions`. `staged` tells which of them an earlier attach
    /// staged to call what.
    pub(crate) fn new(
        pid: Pid,
        modules: Vec<Module>,
        regions: Vec<Region>,
        staged: impl IntoIterator<Item = (Site, u64)>,
    ) -> Self {
        let mut patcher = Self {
            pid,
            modules,
            regions,
            stubs: BTreeMap::new(),
            next_stub: BTreeMap::new(),
            copied: BTreeSet::new(),
        };
        for (site, target) in staged {
            let stub = patcher
                .regions
                .iter()
                .find_map(|region| Some((region.address, region.stub_index(target)?)));
            if let (Some((region, index)), true) = (stub, site.jump != TailJump::Plain) {
                patcher.stubs.insert(site.address, target);
                let next = patcher.next_stub.entry(region).or_default();
                *next = (*next).max(index + 1);
            }
            patcher
                .copied
                .extend(pages(site.address, site.address + SLED_BYTES as u64));
        }
        patcher
    }

    /// Memory that our writes made private to the target, in bytes.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied.len() as u64 * PAGE
    }

    /// What `copied_bytes` would grow by if `sites` were switched.
    pub(crate) fn would_copy(&self, sites: &[Site]) -> u64 {
        let touched: BTreeSet<u64> = sites
            .iter()
            .flat_map(|site| pages(site.address, site.address + SLED_BYTES as u64))
            .collect();
        touched.difference(&self.copied).count() as u64 * PAGE
    }

    /// Brings `sites`, ordered by address, to `to`.
    ///
    /// # Errors
    /// The memory cannot be written, or the process has ended. Switching on stops there; switching off goes through all the same.
    pub(crate) fn switch(
        &mut self,
        memory: &Memory,
        maps: &Maps,
        sites: &[Site],
        to: Switch,
    ) -> Result<PatchReport> {
        let mut report = PatchReport::default();
        let mut failed = None;
        for run in runs(sites) {
            match (self.switch_run(memory, maps, run, to, &mut report), to) {
                (Ok(()), _) => {}
                (Err(refusal), Switch::On) => return Err(refusal),
                (Err(refusal), Switch::Off) => failed = failed.or(Some(refusal)),
            }
        }
        failed.map_or(Ok(report), Err)
    }

    fn switch_run(
        &mut self,
        memory: &Memory,
        maps: &Maps,
        run: &[Site],
        to: Switch,
        report: &mut PatchReport,
    ) -> Result<()> {
        let mapped: Vec<Site> = run
            .iter()
            .copied()
            .filter(|site| self.is_mapped(maps, site))
            .collect();
        report.foreign += (run.len() - mapped.len()) as u64;
        let (Some(first), Some(last)) = (mapped.first(), mapped.last()) else {
            return Ok(());
        };
        let start = first.address;
        let length = usize::try_from(last.address - start).unwrap_or(0) + SLED_BYTES;
        let mut text = vec![0u8; length];
        memory
            .read(TargetAddr(start), &mut text)
            .map_err(|error| self.failed("read", start, &error))?;
        let mut staged = false;
        let mut switched: Vec<(usize, u8)> = Vec::new();
        for site in &mapped {
            let at = usize::try_from(site.address - start).unwrap_or(0);
            let Some(bytes) = text.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) else {
                continue;
            };
            let state = classify(site.kind, site.address, bytes);
            let target = match state {
                State::Compiled if to == Switch::Off => {
                    report.sleds += 1;
                    continue;
                }
                State::Compiled => match self.stage(memory, site, bytes)? {
                    Some(()) => {
                        staged = true;
                        None
                    }
                    None => {
                        report.foreign += 1;
                        continue;
                    }
                },
                State::Staged { target } | State::On { target } => Some(target),
                State::Runtime | State::Breakpoint | State::Foreign => {
                    report.foreign += 1;
                    continue;
                }
            };
            if target.is_some_and(|target| !self.is_ours(site, target)) {
                report.foreign += 1;
                continue;
            }
            let byte = switch(site.kind);
            let wanted = if to == Switch::On { byte.on } else { byte.off };
            switched.push((at + usize::from(byte.offset), wanted));
            report.sleds += 1;
        }
        // Bodies first, in a write of their own: a sled is never on with half a body.
        if staged {
            self.write(memory, start, &text)?;
        }
        let before = text.clone();
        for &(at, value) in &switched {
            if let Some(byte) = text.get_mut(at) {
                *byte = value;
            }
        }
        if before != text {
            self.write(memory, start, &text)?;
        }
        Ok(())
    }

    /// Stages a sled in `bytes`; `None` if no trampoline is in reach or there is no room for its stub.
    fn stage(
        &mut self,
        memory: &Memory,
        site: &Site,
        bytes: &mut [u8; SLED_BYTES],
    ) -> Result<Option<()>> {
        let range = site.address..site.address + SLED_BYTES as u64;
        let Some(region) = self.regions.iter().find(|region| region.serves(&range)) else {
            return Ok(None);
        };
        let staging = match site.jump {
            TailJump::Plain => stage(
                site.kind,
                site.address,
                region.trampolines.target(site.kind),
            ),
            jump => {
                let at = region.address;
                let next = self.next_stub.get(&at).copied().unwrap_or(0);
                let Some(place) = region.stub(next) else {
                    return Ok(None);
                };
                match ConditionalStub::assemble(
                    site.address,
                    jump,
                    place,
                    region.trampolines.stub_target(),
                ) {
                    Ok(stub) => {
                        memory
                            .write(TargetAddr(place), &stub.code)
                            .map_err(|error| self.failed("write", place, &error))?;
                        self.next_stub.insert(at, next + 1);
                        self.stubs.insert(site.address, place);
                        Ok(stub.staging)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        let Ok(staging) = staging else {
            return Ok(None);
        };
        let at = usize::from(staging.offset);
        let Some(body) = bytes.get_mut(at..at + staging.bytes().len()) else {
            return Ok(None);
        };
        body.copy_from_slice(staging.bytes());
        Ok(Some(()))
    }

    fn is_ours(&self, site: &Site, target: u64) -> bool {
        match site.jump {
            TailJump::Plain => self
                .regions
                .iter()
                .any(|region| region.trampolines.target(site.kind) == target),
            _ => self.stubs.get(&site.address) == Some(&target),
        }
    }

    fn is_mapped(&self, maps: &Maps, site: &Site) -> bool {
        let module = usize::try_from(site.module)
            .ok()
            .and_then(|index| self.modules.get(index));
        module.is_some_and(|module| {
            maps.at(site.address)
                .is_some_and(|entry| entry.executable() && module.is_mapped_by(entry))
        })
    }

    fn write(&mut self, memory: &Memory, start: u64, bytes: &[u8]) -> Result<()> {
        memory
            .write(TargetAddr(start), bytes)
            .map_err(|error| self.failed("write", start, &error))?;
        self.copied.extend(pages(start, start + bytes.len() as u64));
        Ok(())
    }

    /// Reads every sled back, and compares the rest of the text with the files.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(crate) fn prove(&self, memory: &Memory, maps: &Maps, sites: &[Site]) -> Result<Proof> {
        let mut proof = Proof::default();
        for (index, module) in (0u32..).zip(&self.modules) {
            let its: Vec<&Site> = sites.iter().filter(|site| site.module == index).collect();
            let file = match read_mapped(self.pid, &module.entry) {
                Ok(file) => file,
                Err(error) => {
                    tracing::warn!(module = %module.path, %error, "text not compared with the file");
                    Vec::new()
                }
            };
            for entry in maps
                .iter()
                .filter(|entry| entry.executable() && module.is_mapped_by(entry))
            {
                self.prove_mapping(memory, entry, &file, &its, &mut proof)?;
            }
        }
        Ok(proof)
    }

    fn prove_mapping(
        &self,
        memory: &Memory,
        entry: &crate::target::MapEntry,
        file: &[u8],
        sites: &[&Site],
        proof: &mut Proof,
    ) -> Result<()> {
        let first = sites.partition_point(|site| site.address < entry.range.start);
        let mut sites = sites.get(first..).unwrap_or_default().iter().peekable();
        let mut start = entry.range.start;
        while start < entry.range.end {
            // Pieces end where no sled stands.
            let mut end = entry.range.end.min(start + RUN);
            let mut here = Vec::new();
            while let Some(site) = sites.next_if(|site| site.address < end) {
                end = end
                    .max(site.address + SLED_BYTES as u64)
                    .min(entry.range.end);
                here.push(**site);
            }
            let mut text = vec![0u8; usize::try_from(end - start).unwrap_or(0)];
            memory
                .read(TargetAddr(start), &mut text)
                .map_err(|error| self.failed("read", start, &error))?;
            let mut in_sled = vec![false; text.len()];
            for site in here {
                let at = usize::try_from(site.address - start).unwrap_or(0);
                let Some(bytes) = text.get(at..).and_then(|rest| rest.first_chunk()) else {
                    continue;
                };
                match classify(site.kind, site.address, bytes) {
                    State::Compiled | State::Staged { .. } => proof.sleds_off += 1,
                    // On, or somebody else's: not proven to be off.
                    State::On { .. } | State::Runtime | State::Breakpoint | State::Foreign => {
                        proof.sleds_on += 1;
                    }
                }
                if let Some(marks) = in_sled.get_mut(at..at + SLED_BYTES) {
                    marks.fill(true);
                }
            }
            let offset =
                usize::try_from(entry.offset + (start - entry.range.start)).unwrap_or(usize::MAX);
            for (i, (&byte, &sled)) in text.iter().zip(&in_sled).enumerate() {
                let Some(&original) = offset.checked_add(i).and_then(|at| file.get(at)) else {
                    break;
                };
                if !sled {
                    proof.compared += 1;
                    proof.different += u64::from(byte != original);
                }
            }
            start = end;
        }
        Ok(())
    }

    fn failed(&self, what: &str, at: u64, error: &io::Error) -> Refusal {
        let reason = match (what, error.raw_os_error()) {
            (_, Some(nix::libc::ESRCH)) => Reason::TargetExited,
            ("write", _) => Reason::MemoryWrite,
            _ => Reason::Io,
        };
        Refusal::new(
            reason,
            format!(
                "process {}: cannot {what} its memory at {at:#x}: {error}",
                self.pid
            ),
        )
    }
}

/// Splits sites, ordered by address, where a page without any lies between, and where a run gets too long.
fn runs(mut sites: &[Site]) -> impl Iterator<Item = &[Site]> {
    std::iter::from_fn(move || {
        let first = sites.first()?;
        let start = first.address;
        let mut previous = first.address;
        let length = sites
            .iter()
            .position(|site| {
                let apart = site.address / PAGE > (previous + SLED_BYTES as u64) / PAGE + 1;
                previous = site.address;
                apart || site.address - start >= RUN
            })
            .unwrap_or(sites.len());
        let (run, rest) = sites.split_at(length);
        sites = rest;
        Some(run)
    })
}

fn pages(start: u64, end: u64) -> impl Iterator<Item = u64> {
    start / PAGE..=(end - 1) / PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_split_at_untouched_pages_and_at_their_longest() {
        let site = |address| Site {
            address,
            kind: SledKind::Entry,
            jump: TailJump::Plain,
            module: 0,
        };
        let sites: Vec<Site> = [
            0x1000, 0x1800, 0x2000, 0x5000, 0x5010, 0x1_5000, 0x1_5ff0, 0x1_6000,
        ]
        .into_iter()
        .map(site)
        .collect();
        let lengths: Vec<usize> = runs(&sites).map(<[Site]>::len).collect();
        assert_eq!(lengths, [3, 2, 3]);
        let dense: Vec<Site> = (0..100).map(|i| site(i * 0x1000)).collect();
        assert!(runs(&dense).all(|run| run.len() <= 16));
        assert_eq!(runs(&dense).map(<[Site]>::len).sum::<usize>(), 100);
    }
}
