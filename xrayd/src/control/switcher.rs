//! Switching functions: their sleds, their states, and the governor, which leaves a function alone
//! that is being switched.

use std::sync::{Arc, atomic::Ordering};

use xray_trace::model::FunctionId;

use super::{governor::Governor, patching::Patching};
use crate::{
    inject::PatchReport,
    refusal::Result,
    types::{ToggleReport, Wanted},
};

/// Switches functions of one target.
#[derive(Debug)]
pub(crate) struct Switcher<'a> {
    pub(super) patching: &'a mut Patching,
    pub(super) governor: &'a mut Governor,
}

// === impl Switcher ===

impl Switcher<'_> {
    /// Switches functions. Returns the result, and the bytes that became private to the target.
    ///
    /// # Errors
    /// As [`States::toggle`](super::states::States::toggle).
    pub(crate) fn switch(&mut self, ids: &[FunctionId], to: Wanted) -> Result<(PatchReport, u64)> {
        if ids.is_empty() {
            return Ok(Default::default());
        }
        self.governor
            .end_suppression_of(&self.patching.shared.history, ids);
        let patching = &mut *self.patching;
        let sites = patching.sites(ids, to);
        if to != Wanted::Off {
            patching.has_room_for(patching.patcher.private_pages().would_copy(&sites))?;
            patching.output.armed.store(true, Ordering::Relaxed);
            if let Some(drain) = patching.shared.drain() {
                drain.wake();
            }
        }
        let before = patching.patcher.private_pages().copied_bytes();
        let shared = Arc::clone(&patching.shared);
        if to != Wanted::Off {
            patching.mark(&shared.states.off(ids));
        }
        // The part is either all functions or fewer, so an equal number means the same functions.
        let patch = |part: &[FunctionId], to| {
            let patched = match part.len() == ids.len() {
                true => patching.patch(&sites, to),
                false => patching.patch(&patching.sites(part, to), to),
            };
            if to == Wanted::Off {
                patching.mark(part);
            }
            patched
        };
        let patched = shared
            .states
            .toggle(ids, to, patch, |report| report.foreign == 0);
        if shared.states.functions_on() == 0 {
            patching.output.armed.store(false, Ordering::Relaxed);
        }
        if patched.is_ok() && to != Wanted::Off {
            patching.traced.staged(&sites);
        }
        if patched.as_ref().is_ok_and(|report| report.foreign > 0) {
            patching.traced.is_suspect = true;
        }
        let after = patching.patcher.private_pages().copied_bytes();
        if after != before {
            patching.note_copies();
        }
        Ok((patched?, after.saturating_sub(before)))
    }
}

// === impl ToggleReport ===

impl ToggleReport {
    pub(crate) fn add(&mut self, patched: &PatchReport, copied_bytes: u64) {
        self.sleds += patched.sleds;
        self.foreign += patched.foreign;
        self.restaged += patched.restaged;
        self.stopped = self.stopped.max(patched.stopped);
        self.copied_bytes += copied_bytes;
    }
}
