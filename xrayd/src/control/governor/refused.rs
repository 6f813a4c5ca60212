//! A duty cycle that was refused: the trampolines and the sleds that it switched off are switched
//! on again, however often that takes. The limit before it is in force again after that.

use std::time::{Duration, Instant};

use xray_trace::model::FunctionId;

use super::{kept::KeptFunctions, switching};
use crate::{control::patching::Patching, refusal::Result, types::Budget};

/// The pause after the first attempt, and the longest. Each is twice the one before, because an
/// attempt may stop the target's threads.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A duty cycle that was refused.
#[derive(Debug)]
pub(super) struct Refused {
    /// True once the trampolines are enabled again.
    is_enabled: bool,
    /// Functions with sleds that may be off.
    off: Vec<FunctionId>,
    /// Time of the next attempt, and the pause after that.
    pub(super) due: Instant,
    pause: Duration,
    /// The limit before it, and the functions that this limit never suppresses.
    pub(super) before: (Budget, KeptFunctions),
}

// === impl Refused ===

impl Refused {
    pub(super) fn new(patching: &Patching, before: (Budget, KeptFunctions)) -> Self {
        Self {
            is_enabled: false,
            off: patching.all_on(),
            due: Instant::now(),
            pause: FIRST_PAUSE,
            before,
        }
    }

    /// Switches on what is still off.
    ///
    /// # Errors
    /// Something could not be switched on. The call can be repeated after the pause.
    pub(super) fn resume(&mut self, patching: &mut Patching) -> Result<()> {
        let resumed = self.attempt(patching);
        if resumed.is_err() {
            self.due = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        resumed
    }

    fn attempt(&mut self, patching: &mut Patching) -> Result<()> {
        if self.is_enabled {
            patching.mark(&self.off);
        } else {
            // First, so that functions whose sleds are on are recorded as soon as possible.
            switching::open(patching)?;
            self.is_enabled = true;
        }
        let (off, patched) = patching.patch_what_can_be(&self.off);
        self.off = off;
        patched
    }
}
