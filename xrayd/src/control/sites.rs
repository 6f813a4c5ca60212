//! Results of a survey in the forms that the patcher, the drain and the table of functions need.

use std::ops::Range;

use sled_encoders::{
    SledKind,
    x86_64::{State, call_site},
};
use xray_trace::model::{CallKind, FunctionId};

use crate::{
    collect::{CallSite, SiteKind},
    target::Survey,
    types::{PatchSite, Switch},
};

/// A sled that an earlier attach staged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    pub(crate) site: PatchSite,
    /// The address that it calls.
    pub(crate) target: u64,
    pub(crate) state: Switch,
}

/// The usable sleds of a module. Each comes with the index of its function in the module.
pub(crate) fn patch_sites(
    survey: &Survey,
    module: u32,
) -> impl Iterator<Item = (u32, PatchSite)> + use<'_> {
    survey.sites.iter().map(move |site| {
        let patch = PatchSite {
            address: site.address,
            kind: site.kind,
            jump: site.jump,
            module,
        };
        (site.function, patch)
    })
}

/// The usable sleds that are staged.
pub(crate) fn staged_sites(survey: &Survey, module: u32) -> impl Iterator<Item = Staged> + use<'_> {
    let sites = survey.sites.iter().zip(patch_sites(survey, module));
    sites.filter_map(|(found, (_, site))| {
        let (target, state) = match found.state {
            State::Staged { target } => (target, Switch::Off),
            State::On { target } => (target, Switch::On),
            State::Compiled | State::Runtime | State::Breakpoint | State::Foreign => return None,
        };
        Some(Staged {
            site,
            target,
            state,
        })
    })
}

/// From the first of these sleds to the end of the last. Empty without any.
pub(crate) fn range_of(sites: impl IntoIterator<Item = PatchSite>) -> Range<u64> {
    sites
        .into_iter()
        .map(|site| site.address..site.end())
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
        .unwrap_or(0..0)
}

/// Number of sleds that need a stub.
pub(crate) fn stubs_of(sites: impl IntoIterator<Item = PatchSite>) -> u64 {
    sites.into_iter().filter(PatchSite::needs_stub).count() as u64
}

/// The meaning of events at a sled.
pub(crate) fn call_site_of(site: &PatchSite, function: FunctionId) -> CallSite {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rings carry the low 32 bits"
    )]
    let name = call_site(site.kind, site.address) as u32;
    let kind = match site.kind {
        SledKind::Entry | SledKind::EntryArgument => SiteKind::Call(CallKind::Enter),
        SledKind::Exit => SiteKind::Call(CallKind::Exit),
        SledKind::TailExit => SiteKind::Call(CallKind::TailExit),
        SledKind::CustomEvent | SledKind::CustomEventV0 => SiteKind::Custom,
        SledKind::TypedEvent => SiteKind::Typed,
    };
    CallSite {
        name,
        function,
        kind,
    }
}
