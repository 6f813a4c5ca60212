//! Switches sleds: in runs of neighbouring pages, with a look at the maps before each run, and
//! where needed while the process stands still.

use std::borrow::Cow;

use sled_encoders::{
    Capture,
    x86_64::{State, classify},
};

use super::{Patcher, RUN, RunState, plan::Planned};
use crate::{
    inject::{
        halt::while_halted,
        page::{Change, PageWriter},
        patch_report::PatchReport,
        private_pages::PAGE,
    },
    pid::TargetAddr,
    refusal::{Refusal, Result},
    sys::Memory,
    target::{Maps, Stay, Target},
    types::{PatchSite, Switch, Wanted},
};

/// Runs that one stop of the process covers: a quarter of a MiB, which takes a millisecond where
/// the pages have to be copied.
const RUNS_AT_ONCE: usize = 4;

// === impl Patcher ===

impl Patcher {
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
            go_on_after(done, to, &mut failed)?;
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
        let maps = target.maps()?;
        self.private.look(&maps);
        let mut failed = None;
        for run in runs {
            let mapped = self.mapped(&maps, run);
            report.foreign += (run.len() - mapped.len()) as u64;
            let done = self.switch_run(memory, &mapped, to, left.as_deref_mut(), report);
            go_on_after(done, to, &mut failed)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Switches one run, a page at a time. So little time passes between the look at a sled and the
    /// write to it, in which another tracer could change it.
    pub(in crate::inject) fn switch_run(
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
}

/// Switching on ends at the first failure. Switching off goes on, and `failed` keeps the first one.
fn go_on_after(done: Result<()>, to: Wanted, failed: &mut Option<Refusal>) -> Result<()> {
    match (done, to) {
        (Err(refusal), Wanted::Off) => {
            failed.get_or_insert(refusal);
            Ok(())
        }
        (done, _) => done,
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
