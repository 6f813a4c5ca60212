//! The ends of leases of policies, and detaches from processes that nothing needs any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::state::{Engine, Left};
use crate::{
    policies::{
        policy::Policy,
        traced::{detach_if_left, end_lease, leases_in},
    },
    process::Session,
    refusal::Result,
    types::LeaseId,
};

/// The pause before a process that did not answer is let go.
const TRY_AGAIN: Duration = Duration::from_secs(1);

// === impl Engine ===

impl Engine {
    pub(super) fn leave(&mut self, session: Arc<Session>, lease: LeaseId) {
        let next = Instant::now();
        self.left.push(Left {
            session,
            lease,
            next,
        });
    }

    /// Ends leases that are to end, and detaches from processes that nothing needs any more. What
    /// does not answer is tried again.
    pub(super) fn let_go(&mut self) {
        let now = Instant::now();
        for mut left in std::mem::take(&mut self.left) {
            if left.next > now {
                self.left.push(left);
                continue;
            }
            if let Err(refusal) = self.let_go_of(&left) {
                tracing::debug!(pid = %left.session.pid(), %refusal, "cannot let a process go");
                left.next = Instant::now() + TRY_AGAIN;
                self.left.push(left);
            }
        }
    }

    pub(super) fn let_go_of(&self, left: &Left) -> Result<()> {
        let Left { session, lease, .. } = left;
        let pid = session.pid();
        if !session.is_living() {
            return Ok(());
        }
        // The policy may be for the process again.
        let mut policies = self.policies.iter();
        let is_wanted = |policy: &Policy| policy.tracing.lease == *lease && policy.has_on(pid);
        if !policies.any(is_wanted) {
            end_lease(&self.registry, session, *lease)?;
        }
        match self.policies.iter().any(|policy| policy.has_on(pid)) {
            true => {
                self.settle_budget(session);
                Ok(())
            }
            false => detach_if_left(&self.registry, session),
        }
    }

    /// Lets go of what earlier daemons have on for policies that are not in force any more, once.
    pub(super) fn leave_earlier(&mut self) {
        if self.is_over() || !std::mem::take(&mut self.has_earlier) {
            return;
        }
        for session in self.registry.sessions() {
            let pid = session.pid();
            let leases = leases_in(&self.registry, &session);
            let is_in_force = |lease: &LeaseId| {
                let mut policies = self.policies.iter();
                policies.any(|policy| policy.tracing.lease == *lease && policy.has(pid))
            };
            let others: Vec<LeaseId> = leases
                .iter()
                .filter(|lease| !is_in_force(lease))
                .copied()
                .collect();
            for lease in others {
                self.leave(Arc::clone(&session), lease);
            }
            let is_left = leases.is_empty() && session.is_living() && session.is_left_by_policies();
            let is_for = |policy: &Policy| policy.has(pid);
            // A daemon ended before it could detach.
            if is_left
                && !self.policies.iter().any(is_for)
                && let Err(refusal) = detach_if_left(&self.registry, &session)
            {
                tracing::warn!(%pid, %refusal, "cannot detach from a process");
            }
        }
    }
}
