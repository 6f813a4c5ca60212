//! The thread that carries policies out. It is there while there are policies.
//!
//! ```text
//!  perf: a process was forked, or has executed a program ─┐
//!  a sweep of /proc: at the start, each minute, and each  ├─► look ─► match ─► attach, switch on
//!  half second to ten seconds where there is no perf ─────┘              (a thread for each, up
//!  files, requests, expiry ──────────────────────────────────────────────┘ to eight at a time)
//! ```
//!
//! Looks leave processes out that do not answer (`target/walk.rs`), and attaches have threads of
//! their own. So no process keeps the thread from the others. Looks after a perf event take a tenth
//! of the thread's time at most, and sweeps without perf events a hundredth.
//!
//! | file | what |
//! |---|---|
//! | `mod` | requests, rounds, and the wait between two rounds |
//! | `state` | the state of the engine |
//! | `texts` | the texts of policies, and their expiry |
//! | `looks` | looks at processes |
//! | `sweeps` | when `/proc` is swept, and which share of time looks may take |
//! | `attaches` | attaches to them |
//! | `ends` | the ends of leases, and detaches |

mod attaches;
mod ends;
mod looks;
mod state;
mod sweeps;
mod texts;

use std::{
    os::fd::AsFd as _,
    sync::{atomic::Ordering, mpsc::Receiver},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::sweeps::SHARE;
use super::{processes::Processes, status::PolicyStatus};
use crate::{lock::lock, policies::policy::Policy};

#[cfg(test)]
pub(crate) use state::MOST_ATTACHES;
pub(super) use state::{Command, Engine, Signal};

/// Bounds of the pause from the begin of one look to the begin of the next. A process that does not
/// answer makes a look long.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

// === impl Engine ===

impl Engine {
    /// Carries out requests and policies until the daemon ends, or until there is nothing to do.
    /// `may_end` is asked then.
    pub(super) fn run(mut self, commands: &Receiver<Command>, may_end: impl Fn() -> bool) {
        self.take_applied();
        loop {
            while let Ok(command) = commands.try_recv() {
                self.signal.waiting.fetch_sub(1, Ordering::AcqRel);
                self.carry_out(command);
            }
            if self.is_over() {
                return self.await_attaches();
            }
            let next = self.round();
            *lock(&self.signal.latest) = self.statuses();
            let is_idle = self.policies.is_empty()
                && self.broken.is_empty()
                && self.expired.is_empty()
                && self.left.is_empty()
                && self.attaches.running == 0;
            if is_idle && may_end() {
                return;
            }
            self.wait(next);
        }
    }

    fn carry_out(&mut self, command: Command) {
        // The requester may have stopped waiting.
        match command {
            Command::Load(answer) => {
                let loaded = self.load();
                self.let_go();
                let _ = answer.send(loaded);
            }
            Command::Apply(applied, answer) => {
                let (spec, text, expires) = *applied;
                let _ = answer.send(self.apply(spec, text, expires));
            }
            Command::Remove(name, answer) => {
                let removed = self.remove(&name);
                self.let_go();
                let _ = answer.send(removed);
            }
            Command::Status(answer) => {
                let _ = answer.send(self.statuses());
            }
        }
    }

    fn statuses(&self) -> Vec<PolicyStatus> {
        let policies = self.policies.iter().map(Policy::status);
        let others = self.expired.iter().chain(&self.broken).cloned();
        policies.chain(others).collect()
    }

    /// Looks at processes, and switches on and off what is due. Returns when there is something to
    /// do next.
    fn round(&mut self) -> Option<Instant> {
        self.last = Instant::now();
        self.expire();
        self.collect();
        if self.policies.iter().all(|policy| policy.has_expired) {
            self.subscription = None;
            self.processes = Processes::default();
            self.left_alone.clear();
            self.leave_earlier();
            self.let_go();
            return self.left.iter().map(|left| left.next).min();
        }
        self.listen();
        let has_looked = match self.looks_due() {
            Ok(due) => self.consider(due),
            Err(error) => Err(error),
        };
        if let Err(error) = &has_looked {
            tracing::warn!(%error, "policies cannot look at processes");
            self.sweeps.put_off(self.last);
        }
        self.took = self.last.elapsed();
        let mut next: Vec<Instant> = Vec::new();
        next.push(self.sweeps.next);
        if has_looked.is_ok() {
            next.extend(self.processes.next());
        }
        next.extend(self.next_expiry());
        for at in 0..self.policies.len() {
            next.extend(self.settle(at));
        }
        if has_looked.is_ok() && self.sweeps.was_at(self.last) {
            self.leave_earlier();
        }
        if self.let_go() {
            next.push(self.last);
        }
        next.extend(self.left.iter().map(|left| left.next));
        next.into_iter().min()
    }

    /// Waits until there is something to do, and not shorter than the pause after a look.
    fn wait(&self, next: Option<Instant>) {
        let (least, most) = PAUSE;
        let earliest = self.last + self.took.saturating_mul(SHARE).clamp(least, most);
        let mut is_rung = false;
        loop {
            let until = match is_rung {
                true => Some(earliest),
                false => next.map(|next| next.max(earliest)),
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) || self.is_over() {
                return;
            }
            // A request does not wait for the pause after a look.
            if self.signal.waiting.load(Ordering::Acquire) > 0 {
                return;
            }
            // Rounded up, because a wait that ends too early would be repeated at once.
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                let left = left.as_micros().div_ceil(1000);
                PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
            });
            let mut fds = [PollFd::new(self.signal.eventfd.as_fd(), PollFlags::POLLIN)];
            // An error such as an interruption is a wait that ends early.
            let _ = poll(&mut fds, timeout);
            is_rung |= self.signal.eventfd.read().is_ok();
        }
    }
}
