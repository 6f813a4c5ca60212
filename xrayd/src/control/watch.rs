//! How a session notices that a library comes.
//!
//! | state | when | what has the maps looked at |
//! |---|---|---|
//! | idle | no rule can switch anything on | once a second |
//! | perf | one can, and the kernel gives notice of what is mapped | each notice; once a second, for what got lost |
//! | maps | one can, and it does not | every few milliseconds |
//!
//! It becomes idle a second after the last rule that could went: whoever switches on and off many times does not begin anew each time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;

use super::handle::Shared;
use crate::{
    pid::Pid,
    sys::instant_of,
    target::{Heard, PerfWatcher, Subscription},
    types::Noticing,
};

/// How long a watch goes on that nobody wants any more.
const LINGER: Duration = Duration::from_secs(1);

/// What the control thread hears of what its target does.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: Pid,
    shared: Arc<Shared>,
    perf_watcher: Arc<PerfWatcher>,
    /// Wakes the control thread.
    bell: Arc<EventFd>,
    state: State,
    /// Since when nobody wants it, as long as it goes on all the same.
    unwanted: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Idle,
    Perf(Subscription),
    Maps,
}

// === impl Watch ===

impl Watch {
    /// `bell` is rung when there is something to hear.
    pub(crate) fn new(
        pid: Pid,
        shared: Arc<Shared>,
        perf_watcher: Arc<PerfWatcher>,
        bell: Arc<EventFd>,
    ) -> Self {
        Self {
            pid,
            shared,
            perf_watcher,
            bell,
            state: State::Idle,
            unwanted: None,
        }
    }

    /// Watches from now on, and says whether it did not yet: then what was mapped before this returns may have gone unnoticed.
    pub(crate) fn begin(&mut self) -> bool {
        self.unwanted = None;
        let begins = matches!(self.state, State::Idle);
        if begins {
            self.listen();
        }
        begins
    }

    /// Gives the watch up soon, and with it what it takes from the target.
    pub(crate) fn end(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.unwanted.get_or_insert_with(Instant::now);
        }
    }

    /// True if the kernel gives notice.
    pub(crate) fn hears(&self) -> bool {
        matches!(self.state, State::Perf(_))
    }

    /// Hears what there is for which the maps are to be looked at. Called again and again.
    pub(super) fn hear(&mut self) -> Heard {
        let unwanted = self.unwanted.take_if(|since| since.elapsed() >= LINGER);
        if unwanted.is_some() {
            self.enter(State::Idle, Noticing::Idle);
        }
        match &self.state {
            State::Perf(subscription) => subscription.take(),
            State::Idle | State::Maps => Heard::Nothing,
        }
    }

    /// The same, at once. What the maps show has been written down before they show it.
    pub(crate) fn catch_up(&self) -> Heard {
        match &self.state {
            State::Perf(subscription) => subscription.catch_up(),
            State::Idle | State::Maps => Heard::Nothing,
        }
    }

    /// When the text at `address` was mapped, if that was heard.
    pub(crate) fn mapped_at(&self, address: u64) -> Option<Instant> {
        let State::Perf(subscription) = &self.state else {
            return None;
        };
        instant_of(subscription.mapped_at(address)?)
    }

    fn listen(&mut self) {
        match self.perf_watcher.listen(Arc::clone(&self.bell)) {
            Ok(subscription) => {
                subscription.to(self.pid);
                self.enter(State::Perf(subscription), Noticing::Perf);
            }
            Err(why) => {
                let why = Noticing::Maps(why.to_string());
                self.enter(State::Maps, why);
            }
        }
    }

    fn enter(&mut self, state: State, noticing: Noticing) {
        self.state = state;
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
