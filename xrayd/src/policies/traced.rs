//! What a policy has on in one process: a lease on the functions that it selects.
//!
//! A process has one mode, one filter and one budget. If a client has attached to it, the
//! client has set them. Otherwise the first policy that has functions on in it has. A policy that
//! wants another mode or another filter is refused (`mode`). Of the policies' limits on the
//! overhead, the smallest one holds.

use std::sync::Arc;

use super::{
    processes,
    spec::{Matching, TraceSpec},
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
    /// The user of the process, and the owner of its memory, when it was looked at.
    pub(super) user: u32,
    pub(super) owner: u32,
    /// True if no other policy has anything on in the process.
    pub(super) is_first: bool,
}

/// The part of a policy that is the same for all processes.
#[derive(Debug)]
pub(super) struct Tracing {
    pub(super) matching: Matching,
    pub(super) trace: TraceSpec,
    pub(super) patterns: Arc<Patterns>,
    pub(super) lease: LeaseId,
    /// True if an earlier daemon has had the same on under this lease. What is found on then stays
    /// as it is.
    pub(super) adopts: bool,
}

// === impl Tracing ===

impl Tracing {
    /// Attaches to a process unless it is attached already, and switches functions on.
    ///
    /// # Errors
    /// A refusal. The process is as it was.
    pub(super) fn switch_on(&self, registry: &Registry, wish: &Wish) -> Result<Arc<Session>> {
        let Settings { mode, budget, .. } = &self.trace.settings;
        let pid = wish.pid;
        let options = AttachOptions::default();
        let options = AttachOptions {
            ring_bytes: self.trace.ring_bytes.unwrap_or(options.ring_bytes),
            start_time: Some(wish.start_time),
            owner: Some(wish.owner),
            follow: self.trace.follow,
            mode: *mode,
            budget: budget.clone(),
            by_policy: true,
            ..options
        };
        let Attached { session, report } = registry.attach(pid, options)?;
        let switched = self.switch_on_in(registry, wish, &session, report.already);
        if switched.is_err()
            && !report.already
            && let Err(second) = registry.end(&session)
        {
            tracing::warn!(%pid, %second, "cannot detach from a process");
        }
        switched.map(|()| session)
    }

    fn switch_on_in(
        &self,
        registry: &Registry,
        wish: &Wish,
        session: &Arc<Session>,
        is_old: bool,
    ) -> Result<()> {
        let pid = wish.pid;
        // It may have executed another program, or have got another user, since it was looked at.
        let look = processes::look_at(vec![pid], self.matching.condition.needs_build_id())
            .ok()
            .and_then(|mut looks| looks.pop());
        let is_meant = look.is_some_and(|look| {
            (look.start_time, look.facts.user) == (wish.start_time, wish.user)
                && self.matching.condition.matches(&look.facts)
        });
        if !is_meant || session.start_time() != wish.start_time {
            let message = format!("process {pid} has changed while it was attached to");
            return Err(Refusal::new(Reason::Busy, message));
        }
        let followed = registry
            .group_of(session)
            .filter(|group| group.root() != pid);
        if followed.is_some_and(|group| group.policy_leases().contains(&self.lease)) {
            // The policy has it on by its parent.
            return Ok(());
        }
        let group = own_group(registry, session);
        if is_old {
            if self.adopts && leases_of(group.as_deref(), session).contains(&self.lease) {
                return Ok(());
            }
            // An earlier version of the policy may have other functions on.
            end_lease(registry, session, self.lease)?;
        }
        self.settle_settings(group.as_deref(), session, wish.is_first)?;
        let to = ToggleTo::leased(self.lease, self.trace.capture);
        match group {
            Some(group) => outcome_of(pid, group.toggle(&self.patterns, to, Run::Real)).map(drop),
            None => session.toggle(&self.patterns, to, Run::Real).map(drop),
        }
    }

    /// Gives the process the settings of the policy, unless a client or another policy has
    /// set its own. [`settle_budget`] merges budgets.
    fn settle_settings(
        &self,
        group: Option<&Group>,
        session: &Session,
        is_first: bool,
    ) -> Result<()> {
        let pid = session.pid();
        let (now, wanted) = (session.settings(), &self.trace.settings);
        let is_own = session.is_by_policy() && session.kinship().is_none();
        if is_own && is_first {
            return update(group, session, SettingsUpdate::from(wanted.clone()));
        }
        let has_same = (now.mode, &now.filter) == (wanted.mode, &wanted.filter);
        if has_same && merged(&now.budget, &wanted.budget).is_some() {
            return Ok(());
        }
        let by = match is_own {
            true => "another policy",
            false => "a client",
        };
        let message = format!(
            "process {pid} has the mode, the filter and the kind of budget of {by}, and this \
             policy wants others"
        );
        Err(Refusal::new(Reason::Mode, message))
    }
}

/// Sets the budget of a process to one that satisfies the budgets of all policies that have
/// functions on in it. The budget of a client stays.
pub(super) fn settle_budget<'a>(
    registry: &Registry,
    session: &Arc<Session>,
    budgets: impl IntoIterator<Item = &'a Budget>,
) {
    let all = budgets.into_iter().cloned();
    let all = all.reduce(|one, other| merged(&one, &other).unwrap_or(one));
    let is_own = session.is_by_policy() && session.kinship().is_none();
    let Some(budget) = all.filter(|_| is_own && session.is_living()) else {
        return;
    };
    let group = own_group(registry, session);
    if let Err(refusal) = update(group.as_deref(), session, budget.into())
        && !refusal.reason.leaves_nothing()
    {
        tracing::warn!(pid = %session.pid(), %refusal, "cannot change the budget of a process");
    }
}

fn update(group: Option<&Group>, session: &Session, update: SettingsUpdate) -> Result<()> {
    let now = session.settings();
    if update.applied_to(&now) == now {
        return Ok(());
    }
    match group {
        Some(group) => outcome_of(session.pid(), group.update(update)).map(drop),
        None => session.update(update).map(drop),
    }
}

/// Ends a lease of a policy in a process.
///
/// # Errors
/// The process does not answer, or its memory cannot be written.
pub(super) fn end_lease(registry: &Registry, session: &Arc<Session>, lease: LeaseId) -> Result<()> {
    if !session.is_living() {
        return Ok(());
    }
    // In a group that a policy has founded, later processes have the lease, too.
    let group = registry.group_of(session);
    let released = match group.filter(|group| group.policy_leases().contains(&lease)) {
        Some(group) => outcome_of(session.pid(), group.release(lease)).map(drop),
        None => session.release(lease).map(drop),
    };
    match released {
        Err(refusal) if !refusal.reason.leaves_nothing() => Err(refusal),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Detaches from a process if a policy has attached to it, and no client needs its session. No
/// policy has anything on in it. Returns false if a client still needs it.
///
/// # Errors
/// The process does not answer, or its memory cannot be written.
pub(super) fn detach_if_left(registry: &Registry, session: &Arc<Session>) -> Result<bool> {
    let is_left = |session: &Session| !session.is_living() || session.is_left_by_policies();
    if !session.is_living() || !session.is_by_policy() {
        return Ok(true);
    }
    if !is_left(session) {
        return Ok(false);
    }
    let detached = match own_group(registry, session) {
        Some(group) if !group.sessions().iter().all(|member| is_left(member)) => return Ok(false),
        Some(_) => registry.detach(session.pid()),
        None => registry.end(session),
    };
    match detached {
        Err(refusal) if !refusal.reason.leaves_nothing() => Err(refusal),
        Ok(_) | Err(_) => {
            tracing::info!(pid = %session.pid(), "detached: no policy is for it any more");
            Ok(true)
        }
    }
}

/// The processes that are followed from one to which a policy has attached, itself included.
pub(super) fn followed_from(registry: &Registry, session: &Arc<Session>) -> Vec<Pid> {
    match own_group(registry, session) {
        Some(group) => group.sessions().iter().map(|member| member.pid()).collect(),
        None => vec![session.pid()],
    }
}

/// The leases of policies in a process.
pub(super) fn leases_in(registry: &Registry, session: &Arc<Session>) -> Vec<LeaseId> {
    leases_of(own_group(registry, session).as_deref(), session)
}

fn leases_of(group: Option<&Group>, session: &Session) -> Vec<LeaseId> {
    let mut leases = session.policy_leases();
    let of_group = group.map(Group::policy_leases).unwrap_or_default();
    leases.extend(of_group);
    leases
}

/// The group of a process if a policy has founded it: the process, and those that are followed from
/// it.
fn own_group(registry: &Registry, session: &Arc<Session>) -> Option<Arc<Group>> {
    let group = registry.group_of(session)?;
    (session.is_by_policy() && group.root() == session.pid()).then_some(group)
}

/// The outcome for one process of a call to its group.
fn outcome_of<T>(pid: Pid, mut reports: Vec<(Pid, Result<T>)>) -> Result<T> {
    match reports.iter().position(|(of, _)| *of == pid) {
        Some(own) => reports.swap_remove(own).1,
        None => {
            let message = format!("process {pid} has ended");
            Err(Refusal::new(Reason::TargetExited, message))
        }
    }
}

/// The budget that keeps to both. `None` if no budget does.
fn merged(one: &Budget, other: &Budget) -> Option<Budget> {
    match (one, other) {
        (Budget::Overhead(one), Budget::Overhead(other)) => {
            let mut keep = one.keep.clone();
            let more = other.keep.iter().filter(|kept| !one.keep.contains(kept));
            keep.extend(more.cloned());
            let ppm = one.ppm.min(other.ppm);
            Some(Budget::Overhead(Overhead { ppm, keep }))
        }
        (Budget::None, budget) | (budget, Budget::None) => Some(budget.clone()),
        (one, other) => (one == other).then(|| one.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::Duty;

    #[test]
    fn two_budgets_become_the_smaller_one() {
        let overhead = |ppm, keep: &[&str]| {
            let keep = keep.iter().map(|kept| (*kept).to_owned()).collect();
            Budget::Overhead(Overhead { ppm, keep })
        };
        let (two, five) = (overhead(20_000, &["a"]), overhead(50_000, &["a", "b"]));
        let both = Some(overhead(20_000, &["a", "b"]));
        assert_eq!(merged(&two, &five), both);
        assert_eq!(merged(&five, &two), both);
        assert_eq!(merged(&Budget::None, &two), Some(two.clone()));
        assert_eq!(merged(&two, &Budget::None), Some(two.clone()));
        let duty = Budget::Duty(Duty {
            on: Duration::from_millis(1),
            every: Duration::from_secs(1),
        });
        assert_eq!(merged(&duty, &two), None);
        assert_eq!(merged(&duty, &duty), Some(duty));
    }
}
