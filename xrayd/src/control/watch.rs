//! The watch: how a session detects that a library is loaded.
//!
//! | state | when | the maps are looked at |
//! |---|---|---|
//! | idle | no rule can switch anything on | every five seconds, if the address space has another size |
//! | perf | a rule can, and the kernel reports mappings | at each report, and as when idle |
//! | maps | a rule can, and the kernel does not report | every few milliseconds |
//!
//! The watch becomes idle one second after the last such rule went. So a client that switches on
//! and off many times does not start it anew each time. The maps themselves are read in `loading`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::shared::Shared;
use crate::{
    pid::Pid,
    sys::instant_of,
    target::{Activity, PerfWatcher, Subscription},
    tasks::LateWaker,
    types::Detection,
};

/// Time for which an unneeded watch goes on.
const LINGER: Duration = Duration::from_secs(1);

/// The controller's watch on its target's mappings.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: Pid,
    shared: Arc<Shared>,
    perf_watcher: Arc<PerfWatcher>,
    /// Wakes the controller.
    waker: LateWaker,
    state: State,
    /// The time since when no rule needs the watch, while it goes on.
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
    /// An idle watch. `waker` wakes the task when a mapping is reported.
    pub(crate) fn new(
        pid: Pid,
        shared: Arc<Shared>,
        perf_watcher: Arc<PerfWatcher>,
        waker: LateWaker,
    ) -> Self {
        Self {
            pid,
            shared,
            perf_watcher,
            waker,
            state: State::Idle,
            unwanted: None,
        }
    }

    /// Begins to watch. True if the watch was idle: mappings before the return may be unreported
    /// then.
    pub(crate) fn begin(&mut self) -> bool {
        self.unwanted = None;
        let begins = matches!(self.state, State::Idle);
        if begins {
            self.listen();
        }
        begins
    }

    /// Ends the watch soon, and with it its cost for the target.
    pub(crate) fn end(&mut self) {
        if !matches!(self.state, State::Idle) {
            self.unwanted.get_or_insert_with(Instant::now);
        }
    }

    /// True if the kernel reports mappings.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.state, State::Perf(_))
    }

    /// The reports since the last call. Called repeatedly.
    pub(super) fn receive(&mut self) -> Activity {
        let unwanted = self.unwanted.take_if(|since| since.elapsed() >= LINGER);
        if unwanted.is_some() {
            self.enter(State::Idle, Detection::Idle);
        }
        match &self.state {
            State::Perf(subscription) => subscription.take(),
            State::Idle | State::Maps => Activity::Nothing,
        }
    }

    /// The reports so far, read at once. A mapping is recorded before the maps show it.
    pub(crate) fn catch_up(&self) -> Activity {
        match &self.state {
            State::Perf(subscription) => subscription.catch_up(),
            State::Idle | State::Maps => Activity::Nothing,
        }
    }

    /// The time at which the text at `address` was mapped, if that was reported.
    pub(crate) fn mapped_at(&self, address: u64) -> Option<Instant> {
        let State::Perf(subscription) = &self.state else {
            return None;
        };
        instant_of(subscription.mapped_at(address)?)
    }

    fn listen(&mut self) {
        match self.perf_watcher.listen(Arc::new(self.waker.clone())) {
            Ok(subscription) => {
                subscription.to(self.pid);
                self.enter(State::Perf(subscription), Detection::Perf);
            }
            Err(why) => {
                let why = Detection::Maps(why.to_string());
                self.enter(State::Maps, why);
            }
        }
    }

    fn enter(&mut self, state: State, detection: Detection) {
        self.state = state;
        if self.shared.detection() != detection {
            tracing::info!(
                pid = self.pid.as_raw(),
                by = ?detection,
                "detection method for libraries that are loaded later"
            );
            self.shared.set_detection(detection);
        }
    }
}
