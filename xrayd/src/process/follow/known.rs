//! A process of the tree, and whether it is to be traced.

use std::{sync::Arc, time::Instant};

use xray_trace::model::Birth;

use super::pace::{PACE, SELDOM};
use crate::{
    pid::Pid,
    process::{follow::Follow, session::Session},
    refusal::Reason,
    target::{Incarnation, Program},
};

/// Tries to attach, after which it is told that one failed; it is tried on, ever more seldom.
const TOLD_AFTER: u32 = 5;

/// A process of the tree.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) parent: Pid,
    pub(super) start_time: u64,
    /// What it runs, and how it came to.
    pub(super) program: Program,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) by: Birth,
    /// When it did not run it yet; `None` if it was there before anybody looked.
    pub(super) before: Option<Instant>,
    /// When it was last seen to run it.
    pub(super) seen: Instant,
    /// It was seen to have sleds.
    pub(super) sleds: bool,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// Not traced, but will be if it gets sleds or can be attached to: when to try again, if that is of any use before it becomes
    /// another program, and how often that failed.
    Watched {
        next: Option<Instant>,
        tries: u32,
    },
    Traced(Arc<Session>),
    /// Nobody's business any more.
    Left,
}

// === impl Known ===

impl Known {
    /// It runs another program, or the same from the beginning; at `before` it did not.
    pub(super) fn becomes(&mut self, pid: Pid, program: Program, before: Option<Instant>) {
        self.program = program;
        self.incarnation = Incarnation::of(pid);
        self.by = Birth::Exec;
        self.before = before;
        self.sleds = false;
        self.state = State::watched();
    }

    /// Whether it is to be traced, as it came to run what it runs; if not, it is left.
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

/// Whether nothing tells one run of a program from another.
pub(super) fn may_be_same(one: Option<Incarnation>, other: Option<Incarnation>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

// === impl State ===

impl State {
    /// To be looked at soon.
    pub(super) fn watched() -> Self {
        Self::Watched {
            next: Some(Instant::now()),
            tries: 0,
        }
    }

    /// True if it is time for a try.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Watched { next: Some(next), .. } if *next <= Instant::now())
    }

    /// A try failed. True if that is to be told now.
    pub(super) fn failed(&mut self, why: Option<Reason>) -> bool {
        let Self::Watched { next, tries } = self else {
            return false;
        };
        *tries = tries.saturating_add(1);
        if why.is_some_and(is_lasting) {
            *next = None;
            return true;
        }
        let pause = PACE.saturating_mul(1 << (*tries).min(10)).min(SELDOM);
        *next = Some(Instant::now() + pause);
        why.is_some() && *tries == TOLD_AFTER
    }
}

/// Whether a process that was refused for this will be refused for it again, for as long as it runs the same program.
fn is_lasting(reason: Reason) -> bool {
    match reason {
        Reason::Permission
        | Reason::Not64Bit
        | Reason::Tsc
        | Reason::SeccompStrict
        | Reason::SeccompFilter
        | Reason::AlreadyPatched
        | Reason::KernelThread
        | Reason::OtherVersion
        | Reason::MemoryWrite => true,
        Reason::NoSuchProcess
        | Reason::NoSleds
        | Reason::ForeignTracer
        | Reason::Zombie
        | Reason::Followed
        | Reason::PidReused
        | Reason::Busy
        | Reason::TooMany
        | Reason::Quota
        // Others end.
        | Reason::Limit
        | Reason::TargetExited
        | Reason::NotAttached
        | Reason::Mode
        | Reason::SessionFailed
        | Reason::Selection
        | Reason::NoMemory
        | Reason::ThreadId
        | Reason::StopTimeout
        | Reason::Io
        | Reason::Launch => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_tried_ever_more_seldom_and_told_of_once() {
        let mut state = State::watched();
        let told: Vec<u32> = (1..=50)
            .filter(|_| state.failed(Some(Reason::Busy)))
            .collect();
        assert_eq!(told, [TOLD_AFTER]);
        let State::Watched {
            next: Some(next), ..
        } = state
        else {
            panic!("{state:?}");
        };
        assert!(next <= Instant::now() + SELDOM);
        // Without sleds, nobody is told.
        let mut plain = State::watched();
        assert!(plain.is_due());
        assert!(!(1..=50).any(|_| plain.failed(None)));
        assert!(!plain.is_due());
        let mut lasting = State::watched();
        assert!(lasting.failed(Some(Reason::Permission)) && !lasting.is_due());
        assert!(matches!(lasting, State::Watched { next: None, .. }));
    }
}
