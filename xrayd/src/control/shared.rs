//! The state that the controller publishes. Its session reads it.

use std::{
    collections::VecDeque,
    process::ExitStatus,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Instant,
};

use xray_trace::model::{FunctionId, Gap, Ticks};

use super::{
    filter::Filtering,
    governor::History,
    leases::{Lease, Leases},
    states::States,
};
use crate::{
    collect::{DrainCaller, DrainHandle},
    inject::TrampolineFilter,
    lock::lock,
    pid::Pid,
    refusal::Result,
    target::{Ending, Functions, Load, RefusedModule},
    types::{DetachReport, Detection, Filter, Mode, Phase, Settings},
};

/// Gaps that are kept. The oldest two are merged into one when there are more.
const MOST_GAPS: usize = 64;

/// The state that the controller publishes.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    /// Set when an `exec` has replaced the traced program: the time at which it was last seen.
    /// Written by the controller.
    pub(crate) executed: OnceLock<Instant>,
    pub(crate) copied: AtomicU64,
    pub(crate) states: States,
    /// The functions that are leased. Written by the controller.
    pub(crate) leases: Mutex<Leases>,
    /// The limit on the cost of tracing, and its effect. Written by the controller.
    pub(crate) history: History,
    /// Filters that were set, as options, with the time from which each was in force. The latest is
    /// last. Written by the controller.
    pub(super) filter_notes: Mutex<VecDeque<(Ticks, String)>>,
    /// Times in which an unknown number of events was lost, the latest last. Written by the attach
    /// and the controller.
    gaps: Mutex<VecDeque<Gap>>,
    /// The filter in force. Written by the controller.
    pub(super) filtering: Mutex<Filtering>,
    /// Loaded modules with sleds that cannot be traced. Written by the controller.
    pub(super) refused: Mutex<Vec<RefusedModule>>,
    /// The detection method for libraries. Written by the controller.
    detection: Mutex<Detection>,
    /// `None` before the drain has started, and once the rings are finished.
    pub(crate) drain: Mutex<Option<DrainHandle>>,
    /// The time at which the target ended or the session failed, and the report for a detach.
    /// Written by the controller, taken by the detach.
    pub(super) final_report: Mutex<Option<(Instant, Result<DetachReport>)>>,
    /// How the process ended. Written by the controller.
    pub(crate) ending: OnceLock<Ending>,
    /// The exit status of a process that xrayd started, once it has ended.
    pub(crate) exit_status: Mutex<Option<ExitStatus>>,
    /// True if the process had ended before this daemon came.
    pub(crate) ended_before: bool,
}

// === impl Shared ===

impl Shared {
    /// The state of a session whose drain is still to start.
    pub(crate) fn new(functions: usize, refused: Vec<RefusedModule>) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Tracing as u8),
            executed: OnceLock::new(),
            copied: AtomicU64::new(0),
            states: States::new(functions),
            leases: Mutex::default(),
            history: History::default(),
            filter_notes: Mutex::default(),
            gaps: Mutex::default(),
            filtering: Mutex::default(),
            refused: Mutex::new(refused),
            detection: Mutex::default(),
            drain: Mutex::default(),
            final_report: Mutex::new(None),
            ending: OnceLock::new(),
            exit_status: Mutex::new(None),
            ended_before: false,
        }
    }

    /// The state of a session whose process had ended at `ended`, before this daemon came.
    pub(crate) fn of_ended(functions: usize, ended: Instant) -> Self {
        let report = DetachReport {
            exited: true,
            ..DetachReport::default()
        };
        Self {
            phase: AtomicU8::new(Phase::Exited as u8),
            final_report: Mutex::new(Some((ended, Ok(report)))),
            ending: OnceLock::from(Ending::Unknown),
            ended_before: true,
            ..Self::new(functions, Vec::new())
        }
    }

    /// Sets the drain, which has started.
    pub(crate) fn set_drain(&self, drain: DrainHandle) {
        *lock(&self.drain) = Some(drain);
    }

    /// Adds a module that cannot be traced.
    pub(crate) fn refuse(&self, module: RefusedModule) {
        lock(&self.refused).push(module);
    }

    /// Forgets the refused modules that are not loaded any more.
    pub(super) fn keep_refused(&self, loaded: impl Fn(&Load) -> bool) {
        lock(&self.refused).retain(|module| loaded(&module.load));
    }

    /// The way to ask the drain for something. `None` once the rings are finished. A thread that
    /// waits for the drain holds no lock.
    pub(crate) fn drain(&self) -> Option<DrainCaller> {
        lock(&self.drain).as_ref().map(DrainHandle::caller)
    }

    /// Applies the filter to modules that were loaded.
    ///
    /// # Errors
    /// The drain hangs.
    pub(super) fn refilter(&self, functions: &Functions) -> Result<()> {
        // The lock is released here, because `keep_events` takes it.
        let is_by_module = lock(&self.filtering).is_by_module();
        match is_by_module {
            true => self.keep_events(functions),
            false => Ok(()),
        }
    }

    /// Has the drain keep events by the filter in force.
    ///
    /// # Errors
    /// The drain hangs.
    pub(super) fn keep_events(&self, functions: &Functions) -> Result<()> {
        let Some(drain) = self.drain() else {
            return Ok(());
        };
        let (kept, threads) = {
            let filtering = lock(&self.filtering);
            (filtering.keep(functions), filtering.threads())
        };
        let asked = drain.keep(kept, threads)?;
        asked.wait().map(|_ended| ())
    }

    /// The filter in force.
    pub(super) fn filter(&self) -> Filter {
        lock(&self.filtering).filter().clone()
    }

    /// The settings in force. The event store has the mode.
    pub(super) fn settings(&self, mode: Mode) -> Settings {
        Settings {
            mode,
            filter: self.filter(),
            budget: self.history.budget(),
        }
    }

    /// The choice of calls to write after modules were loaded. `None` if it is unchanged.
    pub(super) fn rechoose(&self, pid: Pid, functions: &Functions) -> Option<TrampolineFilter> {
        let filtering = lock(&self.filtering);
        if !filtering.is_by_function() {
            return None;
        }
        filtering.choice(pid, functions).unwrap_or_else(|error| {
            tracing::warn!(
                pid = pid.as_raw(),
                %error,
                "cannot extend the filter to a new library: calls inside its functions are not \
                 recorded"
            );
            None
        })
    }

    /// The detection method for libraries.
    pub(crate) fn detection(&self) -> Detection {
        lock(&self.detection).clone()
    }

    pub(super) fn set_detection(&self, detection: Detection) {
        *lock(&self.detection) = detection;
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            value if value == Phase::Tracing as u8 => Phase::Tracing,
            value if value == Phase::Detaching as u8 => Phase::Detaching,
            value if value == Phase::Failed as u8 => Phase::Failed,
            _ => Phase::Exited,
        }
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    // --- for the session

    /// The last time at which the process ran the traced program, if it has called `exec` since.
    pub(crate) fn executed(&self) -> Option<Instant> {
        self.executed.get().copied()
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Functions that may record.
    pub(crate) fn functions_on(&self) -> u32 {
        match self.phase() {
            Phase::Tracing | Phase::Detaching => self.states.functions_on(),
            Phase::Failed | Phase::Exited => 0,
        }
    }

    /// The lease of the function, if it is leased.
    pub(crate) fn lease(&self, id: FunctionId) -> Option<Lease> {
        lock(&self.leases).get(id).cloned()
    }

    /// Functions whose arguments or results are recorded.
    pub(crate) fn functions_with_values(&self) -> u32 {
        match self.phase() {
            Phase::Tracing | Phase::Detaching => self.states.functions_with_values(),
            Phase::Failed | Phase::Exited => 0,
        }
    }

    /// Loaded modules with sleds that cannot be traced.
    pub(crate) fn refused(&self) -> Vec<RefusedModule> {
        lock(&self.refused).clone()
    }

    /// How the process ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        *lock(&self.exit_status)
    }

    /// The filters that were set, as options, with the time from which each was in force.
    pub(crate) fn filter_notes(&self) -> Vec<(Ticks, String)> {
        lock(&self.filter_notes).iter().cloned().collect()
    }

    /// Adds a time in which an unknown number of events was lost. The process of `gap` does not
    /// matter. Returns true for the first one of its cause.
    pub(crate) fn add_gap(&self, gap: Gap) -> bool {
        let mut gaps = lock(&self.gaps);
        let is_first = gaps.iter().all(|other| other.cause != gap.cause);
        // What was lost before the attach stays apart.
        let begun = gaps.iter().take_while(|gap| gap.from.is_none()).count();
        if gaps.len() == MOST_GAPS
            && let Some(oldest) = gaps.remove(begun)
            && let Some(next) = gaps.get_mut(begun)
        {
            next.from = oldest.from;
        }
        gaps.push_back(gap);
        is_first
    }

    /// The times in which an unknown number of events was lost.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        lock(&self.gaps).iter().copied().collect()
    }

    /// The time at which the target ended or the session failed, unless a detach came before.
    pub(crate) fn ended(&self) -> Option<Instant> {
        lock(&self.final_report).as_ref().map(|(when, _)| *when)
    }
}
