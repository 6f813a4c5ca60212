//! How a session notices that a library comes.
//!
//! | state | when | what has the maps looked at |
//! |---|---|---|
//! | idle | no rule can switch anything on | once a second |
//! | perf | one can, and the kernel gives notice of what is mapped | each notice; once a second, for what got lost |
//! | maps | one can, and it does not | every few milliseconds |

use std::{
    collections::VecDeque,
    ops::Range,
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use super::control::Shared;
use crate::{
    pid::Pid,
    sys::monotonic_now,
    target::{Notice, Notices},
};

/// Mappings remembered, so that it can be said how long a library had been mapped when it was armed.
const MARKS: usize = 256;
/// Programs that map without pause wake a session once in this time.
const COALESCE: Duration = Duration::from_millis(1);

/// How libraries that come are noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Noticing {
    /// They are looked for once a second: no rule names anything that comes.
    #[default]
    Idle,
    /// By the kernel's perf events.
    Perf,
    /// By looking at the maps every few milliseconds, and why.
    Maps(String),
}

/// What the control thread hears of what its target does.
#[derive(Debug)]
pub(super) struct Watch {
    pid: Pid,
    shared: Arc<Shared>,
    state: State,
    /// What was mapped lately, the oldest first.
    marks: VecDeque<Mark>,
    /// When the kernel was listened to last.
    heard: Instant,
}

#[derive(Debug)]
enum State {
    Idle,
    Perf(Notices),
    Maps,
}

#[derive(Debug)]
struct Mark {
    range: Range<u64>,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    when: u64,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(pid: Pid, shared: Arc<Shared>) -> Self {
        Self {
            pid,
            shared,
            state: State::Idle,
            marks: VecDeque::new(),
            heard: Instant::now(),
        }
    }

    /// Watches from now on, and says whether it did not yet: then what was mapped before this returns may have gone unnoticed.
    pub(super) fn begin(&mut self) -> bool {
        let begins = matches!(self.state, State::Idle);
        if begins {
            self.listen();
        }
        begins
    }

    /// Gives the watch up, and with it what it takes from the target.
    pub(super) fn end(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.enter(State::Idle, Noticing::Idle);
        }
    }

    /// True if the kernel gives notice.
    pub(super) fn hears(&self) -> bool {
        matches!(self.state, State::Perf(_))
    }

    /// What becomes readable when there is something to hear; nothing just after something was heard.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.state {
            State::Perf(notices) if self.heard.elapsed() >= COALESCE => {
                notices.descriptors().collect()
            }
            _ => Vec::new(),
        }
    }

    /// How long what is heard may wait.
    pub(super) fn patience(&self) -> Option<Duration> {
        let left = COALESCE.saturating_sub(self.heard.elapsed());
        (self.hears() && !left.is_zero()).then_some(left)
    }

    /// Hears what there is, and says whether the maps are to be looked at for it.
    pub(super) fn hear(&mut self) -> bool {
        self.heard.elapsed() >= COALESCE && self.catch_up()
    }

    /// The same, however little time has passed. What the maps show has been written down before they show it.
    pub(super) fn catch_up(&mut self) -> bool {
        let Self {
            pid, state, marks, ..
        } = self;
        let State::Perf(notices) = state else {
            return false;
        };
        let mut changed = false;
        let mut any = false;
        notices.take(|notice| {
            any = true;
            match notice {
                Notice::Mapped {
                    process,
                    range,
                    when,
                } if process == pid.as_u32() => {
                    changed = true;
                    if marks.len() == MARKS {
                        marks.pop_front();
                    }
                    marks.push_back(Mark { range, when });
                }
                // Another one's.
                Notice::Mapped { .. } => {}
                Notice::Lost => changed = true,
            }
        });
        if any {
            self.heard = Instant::now();
        }
        changed
    }

    /// When the text at `address` was mapped, if that was heard.
    pub(super) fn mapped_at(&self, address: u64) -> Option<Instant> {
        let marks = self.marks.iter().rev();
        let mark = marks
            .into_iter()
            .find(|mark| mark.range.contains(&address))?;
        let ago = monotonic_now().ok()?.saturating_sub(mark.when);
        Instant::now().checked_sub(Duration::from_nanos(ago))
    }

    fn listen(&mut self) {
        match Notices::new() {
            Ok(notices) => self.enter(State::Perf(notices), Noticing::Perf),
            Err(why) => {
                let why = Noticing::Maps(why.to_string());
                self.enter(State::Maps, why);
            }
        }
    }

    fn enter(&mut self, state: State, noticing: Noticing) {
        self.state = state;
        self.heard = Instant::now() - COALESCE;
        self.marks.clear();
        if self.shared.noticing() != noticing {
            tracing::info!(
                pid = self.pid.as_raw(),
                by = ?noticing,
                "how libraries that are loaded later are noticed"
            );
            self.shared.set_noticing(noticing);
        }
    }
}
