//! The ends of leases of policies, and detaches from processes that nothing needs any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::state::{Engine, Left};
use crate::{
    pid::Pid,
    policies::{
        policy::Policy,
        traced::{detach_if_left, end_lease, followed_from, leases_in},
    },
    process::Session,
    refusal::Result,
    types::LeaseId,
};

/// The pause before a process that did not answer is let go.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The pauses before the daemon looks again whether a client still needs a session: the first one,
/// and the longest. A policy's trigger, and a recording of it, end a moment after the policy.
pub(super) const FIRST_LOOK_AGAIN: Duration = Duration::from_millis(250);
const LONGEST_LOOK_AGAIN: Duration = Duration::from_secs(10);

// === impl Engine ===

impl Engine {
    pub(super) fn leave(&mut self, session: Arc<Session>, lease: LeaseId) {
        self.left.push(Left {
            session,
            lease,
            next: Instant::now(),
            pause: FIRST_LOOK_AGAIN,
        });
    }

    /// Ends leases that are to end, and detaches from processes that nothing needs any more. What
    /// does not answer is tried again. Returns true if another policy waits for such a process.
    pub(super) fn let_go(&mut self) -> bool {
        let (now, mut is_awaited) = (Instant::now(), false);
        for mut left in std::mem::take(&mut self.left) {
            if left.next > now {
                self.left.push(left);
                continue;
            }
            let pid = left.session.pid();
            match self.let_go_of(&left) {
                Ok(is_over) => {
                    for policy in &mut self.policies {
                        is_awaited |= policy.try_again(pid);
                    }
                    if !is_over {
                        left.next = Instant::now() + left.pause;
                        left.pause = (2 * left.pause).min(LONGEST_LOOK_AGAIN);
                        self.left.push(left);
                    }
                }
                Err(refusal) => {
                    tracing::debug!(%pid, %refusal, "cannot let a process go");
                    left.next = Instant::now() + TRY_AGAIN;
                    self.left.push(left);
                }
            }
        }
        is_awaited
    }

    /// Ends a lease, and detaches if that was all. Returns false if something may still need the
    /// session, and is to be looked at again.
    fn let_go_of(&mut self, left: &Left) -> Result<bool> {
        let Left { session, lease, .. } = left;
        let pid = session.pid();
        if !session.is_living() {
            return Ok(true);
        }
        let followed = followed_from(&self.registry, session);
        let root = session.kinship().map(|kinship| kinship.root);
        // The policy may be for the process again, or have it on by its parent.
        let is_wanted = |policy: &Policy| {
            policy.tracing.lease == *lease
                && (policy.has_on(pid) || root.is_some_and(|root| policy.has_on(root)))
        };
        if !self.policies.iter().any(is_wanted) {
            end_lease(&self.registry, session, *lease)?;
            let mut policies = self.policies.iter_mut();
            if let Some(policy) = policies.find(|policy| policy.tracing.lease == *lease) {
                // When a lease ends in a process, it ends in its followed processes, too.
                followed.iter().for_each(|pid| policy.redo(*pid));
            }
        }
        if followed
            .iter()
            .copied()
            .chain(root)
            .any(|pid| self.has_on(pid))
        {
            // That policy lets the process go.
            self.settle_budget(session);
            return Ok(true);
        }
        let is_wanted = |policy: &Policy| followed.iter().any(|pid| policy.wants(*pid));
        match self.policies.iter().any(is_wanted) {
            // It may be refused, and then nothing holds the session.
            true => Ok(false),
            false => detach_if_left(&self.registry, session),
        }
    }

    fn has_on(&self, pid: Pid) -> bool {
        self.policies.iter().any(|policy| policy.has_on(pid))
    }

    /// Lets go of what earlier daemons have on for policies that are not in force any more. It is
    /// over once the processes of all sessions were looked at.
    pub(super) fn leave_earlier(&mut self) {
        if self.is_over() || !self.has_earlier {
            return;
        }
        self.has_earlier = false;
        for session in self.registry.sessions() {
            let pid = session.pid();
            if !session.is_living() {
                continue;
            }
            let root = session.kinship().map(|kinship| kinship.root);
            let has_looked = self.policies.iter().any(|policy| !policy.has_expired);
            if has_looked && !self.processes.knows(pid) {
                // It does not answer. The next sweep looks at it again.
                self.has_earlier = true;
                continue;
            }
            let wants =
                |policy: &Policy| policy.wants(pid) || root.is_some_and(|root| policy.wants(root));
            let leases = leases_in(&self.registry, &session);
            let is_in_force = |lease: &LeaseId| {
                let mut policies = self.policies.iter();
                policies.any(|policy| policy.tracing.lease == *lease && wants(policy))
            };
            let others = leases.iter().filter(|lease| !is_in_force(lease));
            let others: Vec<LeaseId> = others.copied().collect();
            for lease in others {
                self.leave(Arc::clone(&session), lease);
            }
            // A daemon ended before it could detach.
            if leases.is_empty()
                && session.is_left_by_policies()
                && !self.policies.iter().any(wants)
                && let Err(refusal) = detach_if_left(&self.registry, &session)
            {
                tracing::warn!(%pid, %refusal, "cannot detach from a process");
            }
        }
    }
}
