//! Attaches to the processes of a policy. Each has a thread of its own, which sends its outcome to
//! the engine.

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    thread,
    time::Instant,
};

use super::state::{Attach, Engine, MOST_ATTACHES};
use crate::{
    panics::message_of,
    pid::Pid,
    policies::traced::{Wish, settle_budget},
    process::Session,
    refusal::{Reason, Refusal},
};

// === impl Engine ===

impl Engine {
    /// Begins what a policy wants in its processes. Returns when there is something to do next for
    /// it.
    pub(super) fn settle(&mut self, at: usize) -> Option<Instant> {
        let now = Instant::now();
        let round = self.policies[at].round(now, &self.left_alone);
        let lease = self.policies[at].tracing.lease;
        let next = round.next;
        let over: HashSet<Pid> = round.over.iter().map(|(pid, _)| *pid).collect();
        self.left_alone.extend(round.over);
        if !over.is_empty() && self.consider(over).is_err() {
            // The sweep looks again.
            self.sweeps.next = now;
        }
        for session in round.left {
            self.leave(session, lease);
        }
        for session in round.failed {
            if session.is_by_policy()
                && let Err(refusal) = self.registry.end(&session)
            {
                tracing::warn!(pid = %session.pid(), %refusal, "cannot end a failed session");
            }
        }
        for (wish, tries) in round.wishes {
            let pid = wish.pid;
            // Another policy decides on the settings first.
            let is_taken = self.policies.iter().any(|other| other.is_attaching(pid));
            if is_taken || self.attaches.running >= MOST_ATTACHES {
                // The end of an attach wakes the thread.
                continue;
            }
            let mut others = self.policies.iter().enumerate();
            let is_first = !others.any(|(other, policy)| other != at && policy.has_on(pid));
            let wish = Wish { is_first, ..wish };
            if self.policies[at].begin_attach(&wish) {
                self.attach(at, wish, tries);
            }
        }
        next
    }

    /// Begins to attach to a process, in a thread of its own.
    fn attach(&mut self, at: usize, wish: Wish, tries: u32) {
        let policy = &self.policies[at];
        let (registry, tracing) = (self.registry.clone(), Arc::clone(&policy.tracing));
        let (sender, signal) = (self.attaches.sender.clone(), Arc::clone(&self.signal));
        let (pid, process) = (wish.pid, (wish.pid, wish.start_time));
        let of = Arc::clone(&tracing);
        let ended = move |outcome| Attach {
            tracing: Arc::clone(&of),
            process,
            tries,
            outcome,
        };
        let (from_thread, over) = (sender.clone(), Arc::clone(&signal));
        let of_thread = ended.clone();
        let attach = move || {
            let attach = || match over.over.load(Ordering::Acquire) {
                true => Err(Refusal::new(
                    Reason::Busy,
                    "the daemon is about to end".to_owned(),
                )),
                false => tracing.switch_on(&registry, &wish),
            };
            // The panic hook has logged a panic, and the engine goes on.
            let outcome = catch_unwind(AssertUnwindSafe(attach)).unwrap_or_else(|payload| {
                let message = format!("a bug in xrayd: {}", message_of(&*payload));
                Err(Refusal::new(Reason::Io, message))
            });
            // There is room. The engine may have ended with the daemon.
            let _ = from_thread.send(of_thread(outcome));
            over.ring();
        };
        self.attaches.running += 1;
        let thread = thread::Builder::new().name(format!("policy-{pid}"));
        if let Err(error) = thread.spawn(attach) {
            let refusal = Refusal::from_io(pid, "start a thread", &error);
            let _ = sender.send(ended(Err(refusal)));
            signal.ring();
        }
    }

    /// Takes note of the attaches that have ended.
    pub(super) fn collect(&mut self) {
        while let Ok(ended) = self.attaches.results.try_recv() {
            self.attaches.running -= 1;
            let Attach {
                tracing,
                process,
                tries,
                outcome,
            } = ended;
            let lease = tracing.lease;
            let mut policies = self.policies.iter_mut();
            let policy = policies.find(|policy| policy.tracing.lease == lease);
            let is_wanted = policy.is_some_and(|policy| {
                let is_same = Arc::ptr_eq(&policy.tracing, &tracing);
                if !is_same {
                    // Another attach may be over that has switched on what is wanted now.
                    policy.redo(process.0);
                }
                policy.note(process, is_same.then_some(&outcome), tries)
            });
            match outcome {
                Ok(session) if is_wanted => self.settle_budget(&session),
                // The policy has ended meanwhile, or is not for the process any more.
                Ok(session) => self.leave(session, lease),
                Err(_) => {}
            }
        }
    }

    /// Waits for the attaches that are under way.
    pub(super) fn await_attaches(&mut self) {
        // The engine has a sender itself, so it is never disconnected.
        while self.attaches.running > 0 && self.attaches.results.recv().is_ok() {
            self.attaches.running -= 1;
        }
    }

    /// Gives a process a budget that satisfies the budgets of all policies.
    pub(super) fn settle_budget(&self, session: &Arc<Session>) {
        let pid = session.pid();
        let policies = self.policies.iter().filter(|policy| policy.has_on(pid));
        let budgets = policies.map(|policy| &policy.tracing.trace.settings.budget);
        settle_budget(&self.registry, session, budgets);
    }
}
