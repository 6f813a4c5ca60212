//! Processes that were forked from a traced process, and that nothing follows. They have their
//! parent's sleds, on as they were at the fork. Their table is wiped, so they record nothing. Each
//! call of such a function takes a few nanoseconds, for as long as the process lives.
//!
//! Their sleds are switched off by their bytes. Nothing is mapped for it, and no thread stops.

use std::{collections::BTreeSet, sync::Arc};

use super::{attach::claim, attach_options::AttachOptions};
use crate::{
    control::{patch_sites, staged_sites},
    inject::{Patcher, RunState, left_code},
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    target::{
        Children, Credentials, Launch, Objects, Sleds, Target, Yama, let_threads_run, preflight,
    },
    types::{DetachReport, PatchSite, Switch, Wanted},
};

/// Limit on descendants that are looked at.
const MOST_DESCENDANTS: usize = 4096;

/// The processes that descend from these ones, without those that `is_known`.
pub(super) fn descendants(of: &[Pid], is_known: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let children = Children::now();
    let mut seen: BTreeSet<Pid> = of.iter().copied().collect();
    let mut parents = of.to_vec();
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        for pid in children.of(parent) {
            if pid == Pid::this() || !seen.insert(pid) {
                continue;
            }
            if seen.len() > MOST_DESCENDANTS {
                tracing::warn!("looked at the first {MOST_DESCENDANTS} descendants only");
                return found;
            }
            parents.push(pid);
            if !is_known(pid) {
                found.push(pid);
            }
        }
    }
    found
}

/// Switches the sleds of such a process off. Returns how many were on, and the proof. `None` if it
/// is no such process, or has ended.
///
/// # Errors
/// The process may not be traced, another xrayd traces it, or it cannot be written.
pub(super) fn switch_off(
    pid: Pid,
    objects: &Objects,
    options: &AttachOptions,
) -> Result<Option<(u64, DetachReport)>> {
    let mut switched = switch_off_living(pid, objects, options);
    if matches!(&switched, Err(refusal) if refusal.reason != Reason::Busy) {
        // The memory of a process that ends meanwhile reads as empty, which each step takes for
        // another failure. The next look finds that the process has ended or runs another program,
        // or fails in the same way.
        switched = switch_off_living(pid, objects, options);
    }
    match switched {
        Err(refusal) if refusal.reason.leaves_nothing() => Ok(None),
        switched => switched,
    }
}

fn switch_off_living(
    pid: Pid,
    objects: &Objects,
    options: &AttachOptions,
) -> Result<Option<(u64, DetachReport)>> {
    let target = Target::open(pid)?;
    if options
        .start_time
        .is_some_and(|start_time| start_time != target.start_time())
    {
        return Ok(None);
    }
    let target = target.require(options.owner, options.caller);
    let tid = target.live_thread()?;
    // Most descendants run another program. A vforked one runs in its parent's memory, and the code
    // there is refused.
    let looked = Memory::open_to_read(pid, tid).ok().zip(target.maps().ok());
    let looked = looked.and_then(|(memory, maps)| left_code(&target, &memory, &maps).ok());
    if looked.is_none_or(|code| !code.is_inherited) {
        return Ok(None);
    }
    let flight = preflight(&target, objects, Launch::ByOthers, Sleds::Needed)?;
    flight.verdict()?;
    let memory =
        Memory::open(pid, tid).map_err(|error| Refusal::from_io(pid, "open its memory", &error))?;
    let memory = Arc::new(memory);
    target.check_owner()?;
    if let Some(caller) = options.caller {
        let credentials = Credentials::of(pid).ok_or_else(|| target.exited())?;
        let rule = caller.may_trace(&credentials, Yama::Off, || false);
        rule.map_err(|denial| denial.refusal(pid))?;
    }
    let _claim = claim(pid, tid)?;
    let code = left_code(&target, &memory, &target.maps()?)?;
    if !code.is_inherited {
        return Ok(None);
    }
    let _table_claims = code.claim(&memory, pid)?;
    let surveyed = || (0u32..).zip(&flight.surveyed);
    let modules = surveyed().map(|(index, (module, _))| (index, module.clone()));
    let staged = surveyed().flat_map(|(index, (_, survey))| staged_sites(survey, index));
    let staged: Vec<_> = staged.collect();
    let sites = surveyed().flat_map(|(index, (_, survey))| patch_sites(survey, index));
    let mut sites: Vec<PatchSite> = sites.map(|(_, site)| site).collect();
    sites.sort_unstable_by_key(|site| site.address);
    let on = staged.iter().filter(|staged| staged.state == Switch::On);
    let on: Vec<PatchSite> = on.map(|staged| staged.site).collect();
    let mut patcher = Patcher::new(
        pid,
        &memory,
        &flight.maps,
        modules,
        (code.regions, code.others),
        staged.iter().map(|staged| (staged.site, staged.target)),
    );
    patcher.switch(&memory, &target, RunState::Running, &on, Wanted::Off)?;
    let_threads_run(pid);
    let proof = patcher.prove(&memory, &target.maps()?, &sites)?;
    let report = DetachReport {
        sleds_off: proof.sleds_off,
        sleds_on: proof.sleds_on,
        text_bytes_compared: proof.compared,
        text_bytes_different: proof.different,
        ..DetachReport::default()
    };
    Ok(Some((on.len() as u64, report)))
}
