//! A duty cycle: windows in which everything is recorded, and pauses in which nothing is.
//!
//! ```text
//!  off: sleds off, disabled ──► sleds on ──► enabled: record ──► disabled ──► sleds off
//! ```
//!
//! A window begins and ends for all functions and threads at once, however long it takes to switch
//! sleds. Enabling and disabling the trampolines does that.

use std::time::Instant;

use xray_trace::model::Ticks;

use super::{
    switching::{self, PAUSE},
    tick_rate::TickRate,
};
use crate::{control::patching::Patching, refusal::Result, sys::ticks_now, types::Duty};

/// A duty cycle that is in force.
#[derive(Debug)]
pub(super) struct DutyCycle {
    duty: Duty,
    /// Time of the next step.
    pub(super) due: Instant,
    stage: Stage,
    tick_rate: TickRate,
}

#[derive(Debug)]
enum Stage {
    /// Nothing is recorded until the next window.
    Off,
    /// Everything is recorded.
    Open { since: Ticks, next: Instant },
}

// === impl DutyCycle ===

impl DutyCycle {
    /// A cycle whose first window is due. Nothing is recorded yet.
    pub(super) fn new(duty: Duty) -> Self {
        Self {
            duty,
            due: Instant::now(),
            stage: Stage::Off,
            tick_rate: TickRate::begin(),
        }
    }

    /// Records everything from now on. After an error the cycle is still in force, and the call can
    /// be repeated.
    pub(super) fn end(&mut self, patching: &mut Patching) -> Result<()> {
        patching.patch_as_wanted(&patching.all_on())?;
        let since = ticks_now();
        switching::open(patching)?;
        // A window that is open has no end: everything is recorded from its begin on.
        patching.shared.history.end_cycle(match self.stage {
            Stage::Open { since, .. } => since,
            Stage::Off => since,
        });
        Ok(())
    }

    /// Begins or ends a window.
    ///
    /// # Errors
    /// Sleds or trampolines cannot be written. If the trampolines could be disabled, the window is
    /// over, and sleds stay on until the end of the next one. Any other step is repeated.
    pub(super) fn step(&mut self, patching: &mut Patching) -> Result<()> {
        // After an error.
        self.due = Instant::now() + PAUSE;
        match self.stage {
            Stage::Off => self.begin_window(patching),
            Stage::Open { since, next } => self.end_window(patching, since, next),
        }
    }

    /// Begins a window, in which everything is recorded.
    fn begin_window(&mut self, patching: &mut Patching) -> Result<()> {
        let begun = Instant::now();
        let on = patching.all_on();
        patching.patch_as_wanted(&on)?;
        // Flavours open one after the other, within microseconds.
        let since = ticks_now();
        switching::open(patching)?;
        self.stage = Stage::Open {
            since,
            next: begun + self.duty.every,
        };
        self.due = Instant::now() + self.duty.on;
        Ok(())
    }

    /// Ends a window. Nothing is recorded until the next one.
    fn end_window(&mut self, patching: &mut Patching, since: Ticks, next: Instant) -> Result<()> {
        let until = switching::close(patching)?;
        let every = self.duty.every.as_secs_f64() * 1e9 / self.tick_rate.tick_ns();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an hour's ticks"
        )]
        patching.shared.history.window(since, until, every as u64);
        self.stage = Stage::Off;
        self.due = next;
        switching::switch_all_off(patching)
    }
}
