//! A known process of the tree, and the decision whether to trace it. The search is in `search`.

use std::{sync::Arc, time::Instant};

use xray_trace::model::Birth;

use super::{
    pace::{PACE, SELDOM},
    policy::Follow,
};
use crate::{
    pid::Pid,
    process::session::Session,
    refusal::Reason,
    target::{Incarnation, Program},
};

/// Failed attempts to attach after which a failure is reported. Further attempts come at growing
/// intervals.
const REPORTED_AFTER: u32 = 5;

/// A known process of the tree.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) parent: Pid,
    pub(super) start_time: u64,
    /// The program that it runs, and how it came to run it.
    pub(super) program: Program,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) by: Birth,
    /// A time at which it did not run this program yet. `None` if it was there before the first
    /// look.
    pub(super) before: Option<Instant>,
    /// The time at which it was last seen to run this program.
    pub(super) seen: Instant,
    /// True if it was seen to have sleds.
    pub(super) sleds: bool,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// Not traced, but to be traced once it has sleds or can be attached to. `next` is the time of
    /// the next attempt, or `None` if no attempt can succeed before the next `exec`. `tries` counts
    /// failed attempts.
    Watched {
        next: Option<Instant>,
        tries: u32,
    },
    Traced(Arc<Session>),
    /// Released: neither it nor its children are looked at any more.
    Left,
}

// === impl Known ===

impl Known {
    /// Notes a new program after an `exec`, which may be the same file. At `before` the process did
    /// not run it yet.
    pub(super) fn becomes(&mut self, pid: Pid, program: Program, before: Option<Instant>) {
        self.program = program;
        self.incarnation = Incarnation::of(pid);
        self.by = Birth::Exec;
        self.before = before;
        self.sleds = false;
        self.state = State::watched();
    }

    /// True if the policy traces the process, by the way it came to its program. If not, it becomes
    /// [`State::Left`].
    pub(super) fn is_meant(&mut self, follow: Follow) -> bool {
        let meant = match self.by {
            Birth::Fork => follow.forks(),
            Birth::Exec => follow.execs(),
        };
        if !meant {
            self.state = State::Left;
        }
        meant
    }
}

/// True if nothing distinguishes two runs of a program.
pub(super) fn may_be_same(one: Option<Incarnation>, other: Option<Incarnation>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

// === impl State ===

impl State {
    /// A state with an attempt that is due now.
    pub(super) fn watched() -> Self {
        Self::Watched {
            next: Some(Instant::now()),
            tries: 0,
        }
    }

    /// True if an attempt is due.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Watched { next: Some(next), .. } if *next <= Instant::now())
    }

    /// Notes a failed attempt. True if the failure is to be reported now.
    pub(super) fn failed(&mut self, why: Option<Reason>) -> bool {
        let Self::Watched { next, tries } = self else {
            return false;
        };
        *tries = tries.saturating_add(1);
        if why.is_some_and(Reason::is_lasting) {
            *next = None;
            return true;
        }
        let pause = PACE.saturating_mul(1 << (*tries).min(10)).min(SELDOM);
        *next = Some(Instant::now() + pause);
        why.is_some() && *tries == REPORTED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_process_is_retried_with_backoff_and_reported_once() {
        let mut state = State::watched();
        let reported: Vec<u32> = (1..=50)
            .filter(|_| state.failed(Some(Reason::Busy)))
            .collect();
        assert_eq!(reported, [REPORTED_AFTER]);
        let State::Watched {
            next: Some(next), ..
        } = state
        else {
            panic!("{state:?}");
        };
        assert!(next <= Instant::now() + SELDOM);
        // A process without sleds is not reported.
        let mut plain = State::watched();
        assert!(plain.is_due());
        assert!(!(1..=50).any(|_| plain.failed(None)));
        assert!(!plain.is_due());
        let mut lasting = State::watched();
        assert!(lasting.failed(Some(Reason::Permission)) && !lasting.is_due());
        assert!(matches!(lasting, State::Watched { next: None, .. }));
    }
}
