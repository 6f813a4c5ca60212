//! Looks at processes: which are due, and what policies make of them.

use std::{collections::HashSet, io, sync::Arc};

use nix::sys::eventfd::EventFd;

use super::state::Engine;
use crate::{
    pid::Pid,
    policies::{policy::Policy, processes},
    target::Subscription,
};

// === impl Engine ===

impl Engine {
    /// Begins to listen to forks and executed programs.
    pub(super) fn listen(&mut self) {
        if self.subscription.is_some() || self.is_deaf {
            return;
        }
        match self
            .registry
            .watch_processes(Arc::<EventFd>::clone(&self.signal.eventfd))
        {
            Ok(subscription) => {
                subscription.to_all();
                self.subscription = Some(subscription);
                self.sweeps.next = self.last;
            }
            Err(why) => {
                self.is_deaf = true;
                tracing::info!(
                    %why,
                    "policies look for processes in /proc, because there are no perf events"
                );
            }
        }
    }

    /// The processes that are to be looked at now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn looks_due(&mut self) -> io::Result<HashSet<Pid>> {
        let turned = self.subscription.as_ref().map(Subscription::take_turned);
        if matches!(turned, Some(None)) {
            // Some are not known.
            self.sweeps.bring_forward();
        }
        if self.sweeps.next > self.last {
            let turned = turned.flatten().unwrap_or_default().into_iter();
            let turned = turned.filter_map(|pid| Pid::try_from(pid).ok());
            let turned = turned.filter(|pid| *pid != Pid::this());
            return Ok(turned.chain(self.processes.due(self.last)).collect());
        }
        let all = processes::all()?;
        let mut gone: HashSet<Pid> = self.policies.iter().flat_map(Policy::pids).collect();
        gone.retain(|pid| !all.contains(pid));
        for pid in gone {
            self.note_gone(pid);
        }
        self.processes.retain(&all);
        self.left_alone.retain(|pid, _| all.contains(pid));
        Ok(all)
    }

    /// Looks at processes, and takes note of what policies are for them.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn consider(&mut self, pids: HashSet<Pid>) -> io::Result<()> {
        let is_sweep = self.sweeps.next <= self.last;
        let mut policies = self.policies.iter();
        let with_build_ids =
            policies.any(|policy| policy.tracing.matching.condition.needs_build_id());
        let mut missing = pids;
        for look in processes::look_at(missing.iter().copied().collect(), with_build_ids)? {
            let pid = look.pid;
            missing.remove(&pid);
            let seen = self.processes.note(look);
            if seen.is_new {
                self.left_alone.remove(&pid);
            }
            for at in 0..self.policies.len() {
                let policy = &mut self.policies[at];
                let lease = policy.tracing.lease;
                if let Some(session) = policy.consider(pid, Some(&seen)) {
                    self.leave(session, lease);
                }
            }
        }
        for pid in missing {
            if self.processes.note_missing(pid) {
                self.note_gone(pid);
            }
        }
        if is_sweep {
            self.sweeps.note(self.last, self.subscription.is_some());
        }
        Ok(())
    }

    pub(super) fn note_gone(&mut self, pid: Pid) {
        self.left_alone.remove(&pid);
        for at in 0..self.policies.len() {
            let policy = &mut self.policies[at];
            let lease = policy.tracing.lease;
            if let Some(session) = policy.consider(pid, None) {
                self.leave(session, lease);
            }
        }
    }
}
