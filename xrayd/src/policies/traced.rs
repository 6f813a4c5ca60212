//! What a policy has on in one process: a lease on the functions that it selects.
//!
//! A process has one mode, one filter and one budget. If a client has attached to it, those of the
//! client hold. If several policies have it on, those of the first one hold, with the smallest
//! limit on the overhead.

use std::sync::Arc;

use super::{
    matching::{Matching, ProcessFacts},
    spec::TraceSpec,
};
use crate::{
    control::Patterns,
    pid::Pid,
    process::{AttachOptions, Attached, Group, Registry, Session},
    refusal::{Reason, Refusal, Result},
    types::{Budget, LeaseId, Overhead, Run, Settings, SettingsUpdate, ToggleTo},
};

/// What a policy wants to have on in a process.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) pid: Pid,
    pub(super) start_time: u64,
    /// The user of the process when it was looked at.
    pub(super) user: u32,
    /// True if no other policy has anything on in the process.
    pub(super) is_first: bool,
}

/// The part of a policy that is the same for all processes.
#[derive(Debug)]
pub(super) struct Tracing {
    pub(super) trace: TraceSpec,
    pub(super) patterns: Arc<Patterns>,
    pub(super) lease: LeaseId,
}

// === impl Tracing ===

impl Tracing {
    /// Attaches to a process unless it is attached already, and switches functions on.
    ///
    /// # Errors
    /// A refusal. The process is as it was.
    pub(super) fn switch_on(
        &self,
        registry: &Registry,
        matching: &Matching,
        wish: &Wish,
    ) -> Result<Arc<Session>> {
        let Settings { mode, budget, .. } = &self.trace.settings;
        let pid = wish.pid;
        let options = AttachOptions::default();
        let options = AttachOptions {
            ring_bytes: self.trace.ring_bytes.unwrap_or(options.ring_bytes),
            start_time: Some(wish.start_time),
            owner: Some(wish.user),
            follow: self.trace.follow,
            mode: *mode,
            budget: budget.clone(),
            by_policy: true,
            ..options
        };
        let Attached { session, report } = registry.attach(pid, options)?;
        let switched = self.switch_on_in(registry, matching, wish, &session);
        if switched.is_err() && !report.already {
            let ended = registry.detach(pid);
            if let Err(second) = ended.map(drop) {
                tracing::warn!(%pid, %second, "cannot detach from a process");
            }
        }
        switched.map(|()| session)
    }

    fn switch_on_in(
        &self,
        registry: &Registry,
        matching: &Matching,
        wish: &Wish,
        session: &Arc<Session>,
    ) -> Result<()> {
        let pid = wish.pid;
        // It may have executed another program, or have got another user, since it was looked at.
        let facts = ProcessFacts::of(pid).filter(|facts| matching.matches(facts));
        if facts.is_none_or(|facts| facts.user != wish.user)
            || session.start_time() != wish.start_time
        {
            let message = format!("process {pid} has changed while it was attached to");
            return Err(Refusal::new(Reason::Busy, message));
        }
        let group = registry.group_of(session).ok_or_else(|| {
            let message = format!("process {pid} is in no group so far");
            Refusal::new(Reason::Busy, message)
        })?;
        self.settle_settings(&group, session, wish.is_first)?;
        let to = ToggleTo::leased(self.lease, self.trace.capture);
        let reports = group.toggle(&self.patterns, to, Run::Real);
        outcome_of(pid, reports)?;
        Ok(())
    }

    /// Gives the process the settings of the policy, as far as they are not those of another one.
    fn settle_settings(&self, group: &Group, session: &Session, is_first: bool) -> Result<()> {
        let pid = session.pid();
        let (now, wanted) = (session.settings(), &self.trace.settings);
        let is_own = session.is_by_policy();
        let update = match is_own && is_first {
            true => SettingsUpdate::from(wanted.clone()),
            false => {
                if (now.mode, &now.filter) != (wanted.mode, &wanted.filter) {
                    let by = match is_own {
                        true => "another policy",
                        false => "a client",
                    };
                    let message = format!(
                        "process {pid} has the mode and the filter of {by}, and this policy wants \
                         others"
                    );
                    return Err(Refusal::new(Reason::Mode, message));
                }
                let budget = stricter(&now.budget, &wanted.budget);
                SettingsUpdate {
                    budget: (is_own && budget != now.budget).then_some(budget),
                    ..SettingsUpdate::default()
                }
            }
        };
        if update.applied_to(&now) == now {
            return Ok(());
        }
        outcome_of(pid, group.update(update)).map(drop)
    }
}

/// Ends a lease of a policy in a process. Detaches if a policy has attached, and neither a policy
/// nor a client has anything on any more.
pub(super) fn release(registry: &Registry, session: &Arc<Session>, lease: LeaseId) {
    end_lease(registry, session, lease);
    let pid = session.pid();
    if session.is_living() && session.is_left_by_policies() {
        match registry.detach(pid) {
            Ok(_) => tracing::info!(%pid, "detached: no policy is for it any more"),
            Err(refusal) if refusal.reason.leaves_nothing() => {}
            Err(refusal) => tracing::warn!(%pid, %refusal, "cannot detach from a process"),
        }
    }
}

/// Ends a lease of a policy in a process.
pub(super) fn end_lease(registry: &Registry, session: &Arc<Session>, lease: LeaseId) {
    let pid = session.pid();
    if !session.is_living() {
        return;
    }
    let released: Result<()> = match registry.group_of(session) {
        Some(group) => group
            .release(lease)
            .into_iter()
            .try_for_each(|(_, report)| report.map(drop)),
        None => session.release(lease).map(drop),
    };
    if let Err(refusal) = released
        && !refusal.reason.leaves_nothing()
    {
        tracing::warn!(%pid, %refusal, "cannot switch off what a policy had on");
    }
}

/// The outcome of a call to a group, for its first process or the one that is named.
fn outcome_of<T: Default>(pid: Pid, mut reports: Vec<(Pid, Result<T>)>) -> Result<T> {
    let own = reports.iter().position(|(of, _)| *of == pid).unwrap_or(0);
    match own < reports.len() {
        true => reports.swap_remove(own).1,
        false => Ok(T::default()),
    }
}

/// The budget that keeps to both.
fn stricter(one: &Budget, other: &Budget) -> Budget {
    match (one, other) {
        (Budget::Overhead(one), Budget::Overhead(other)) => {
            let mut keep = one.keep.clone();
            keep.extend(
                other
                    .keep
                    .iter()
                    .filter(|kept| !one.keep.contains(kept))
                    .cloned(),
            );
            let ppm = one.ppm.min(other.ppm);
            Budget::Overhead(Overhead { ppm, keep })
        }
        (Budget::None, budget) => budget.clone(),
        (budget, _) => budget.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_budgets_become_the_smaller_one() {
        let overhead = |ppm, keep: &[&str]| {
            let keep = keep.iter().map(|kept| (*kept).to_owned()).collect();
            Budget::Overhead(Overhead { ppm, keep })
        };
        let (two, five) = (overhead(20_000, &["a"]), overhead(50_000, &["a", "b"]));
        assert_eq!(stricter(&two, &five), overhead(20_000, &["a", "b"]));
        assert_eq!(stricter(&five, &two), overhead(20_000, &["a", "b"]));
        assert_eq!(stricter(&Budget::None, &two), two);
        assert_eq!(stricter(&two, &Budget::None), two);
    }
}
