//! The controller's part of the governor: it puts a limit into force, does its next step when
//! that is due, and ends it.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use xray_trace::model::FunctionId;

use super::{
    duty_cycle::DutyCycle,
    history::History,
    kept::KeptFunctions,
    overhead::OverheadLimit,
    refused::Refused,
    switching::{self, PAUSE},
};
use crate::{
    control::patching::Patching,
    refusal::{Refusal, Result},
    sys::ticks_now,
    types::Budget,
};

/// The controller's state of a limit on the cost of tracing.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    limit: Limit,
}

#[derive(Debug, Default)]
enum Limit {
    #[default]
    None,
    Overhead(Box<OverheadLimit>),
    Duty(DutyCycle),
    /// A duty cycle was refused, and its sleds could not be switched on again yet. The limit
    /// before it is among the settings, and not yet in force.
    Undoing(Box<Refused>),
}

// === impl Governor ===

impl Governor {
    /// Time until the next step.
    pub(crate) fn until_due(&self) -> Duration {
        let due = match &self.limit {
            Limit::None => return Duration::MAX,
            Limit::Overhead(limit) => limit.due,
            Limit::Duty(cycle) => cycle.due,
            Limit::Undoing(refused) => refused.due,
        };
        due.saturating_duration_since(Instant::now())
    }

    /// Puts a limit on the cost of tracing into force, and the functions that it never suppresses.
    /// `replaced` gets those before.
    ///
    /// # Errors
    /// Sleds cannot be written. If the limit before is still in force, `replaced` is unchanged.
    /// Otherwise it gets into force again, as soon as the sleds can be written.
    pub(crate) fn set_budget(
        &mut self,
        patching: &mut Patching,
        (budget, kept): (Budget, KeptFunctions),
        replaced: &mut Option<(Budget, KeptFunctions)>,
    ) -> Result<()> {
        let before = (patching.shared.history.budget(), self.end_budget(patching)?);
        self.limit = match &budget {
            Budget::None => Limit::None,
            Budget::Overhead(overhead) => {
                Limit::Overhead(Box::new(OverheadLimit::new(overhead, kept)))
            }
            Budget::Duty(duty) => {
                let closed = switching::close(patching);
                let closed = closed.and_then(|_| switching::switch_all_off(patching));
                if let Err(refusal) = closed {
                    let refused = Refused::new(patching, before);
                    *replaced = self.undo(patching, refused);
                    return Err(refusal);
                }
                Limit::Duty(DutyCycle::new(*duty))
            }
        };
        begin(patching, budget);
        *replaced = Some(before);
        Ok(())
    }

    /// Ends a duty cycle that was refused. Returns the limit before it, or `None` if
    /// [`Self::tend`] has to repeat this, which then puts that limit into force.
    fn undo(
        &mut self,
        patching: &mut Patching,
        mut refused: Refused,
    ) -> Option<(Budget, KeptFunctions)> {
        self.limit = Limit::None;
        let Err(refusal) = refused.resume(patching) else {
            begin(patching, Budget::None);
            return Some(refused.before);
        };
        warn(patching, &refusal);
        begin(patching, refused.before.0.clone());
        self.limit = Limit::Undoing(Box::new(refused));
        None
    }

    /// Ends the limit in force. Returns the functions that it never suppressed. After an error the
    /// limit is still in force, and the call can be repeated.
    fn end_budget(&mut self, patching: &mut Patching) -> Result<KeptFunctions> {
        match &mut self.limit {
            Limit::None => {}
            Limit::Overhead(limit) => limit.end(patching)?,
            Limit::Duty(cycle) => cycle.end(patching)?,
            Limit::Undoing(refused) => refused.resume(patching)?,
        }
        patching.shared.history.resume_all(ticks_now());
        Ok(match std::mem::take(&mut self.limit) {
            Limit::Overhead(limit) => limit.kept,
            Limit::Undoing(refused) => refused.before.1,
            Limit::None | Limit::Duty(_) => KeptFunctions::default(),
        })
    }

    /// Ends the limit of a process that is being detached from, or is gone. Sleds are not touched.
    pub(crate) fn forget(&mut self, history: &History) {
        *self = Self::default();
        history.resume_all(ticks_now());
    }

    /// Ends the suppression of functions that are being switched. The switch decides their state.
    pub(crate) fn end_suppression_of(&mut self, history: &History, ids: &[FunctionId]) {
        if let Limit::Overhead(limit) = &mut self.limit {
            limit.end_suppression_of(history, ids);
        }
    }

    /// Drops the comparison with a trial that is under way. Called when functions leave, because
    /// their calls are missing in the trial.
    pub(crate) fn drop_comparison(&mut self) {
        if let Limit::Overhead(limit) = &mut self.limit {
            limit.drop_comparison();
        }
    }

    /// Begins to measure anew, and drops the windows that are under way. Called when the mode
    /// changes, because rings are read in another way from then on, or calls are added up.
    pub(crate) fn measure_anew(&mut self) {
        if let Limit::Overhead(limit) = &mut self.limit {
            limit.measure_anew();
        }
    }

    /// Does the next step if it is due.
    pub(crate) fn tend(&mut self, patching: &mut Patching) {
        if !self.until_due().is_zero() {
            return;
        }
        let done = match &mut self.limit {
            Limit::None => Ok(()),
            Limit::Overhead(limit) => {
                let done = limit.step(patching);
                if done.is_err() {
                    limit.due = Instant::now() + PAUSE;
                }
                done
            }
            Limit::Duty(cycle) => cycle.step(patching),
            Limit::Undoing(_) => self.try_again(patching),
        };
        if let Err(refusal) = done {
            warn(patching, &refusal);
        }
    }

    /// Undoes a refused duty cycle once more. Puts the limit before it into force if that succeeds.
    fn try_again(&mut self, patching: &mut Patching) -> Result<()> {
        let Limit::Undoing(refused) = std::mem::take(&mut self.limit) else {
            return Ok(());
        };
        match self.undo(patching, *refused) {
            Some(before) => self.set_budget(patching, before, &mut None),
            None => Ok(()),
        }
    }
}

/// Notes that a limit is in force from now on.
fn begin(patching: &Patching, budget: Budget) {
    let limits = matches!(budget, Budget::Overhead(_));
    patching.output.limits_overhead.store(limits, Relaxed);
    patching.shared.history.begin(budget);
}

/// Logs the reason why a limit cannot be kept.
fn warn(patching: &Patching, refusal: &Refusal) {
    tracing::warn!(
        pid = patching.target.pid().as_raw(),
        %refusal,
        "cannot keep the overhead budget or the duty cycle"
    );
}
