//! The unit of the times of several files. Only times of one unit add up.

use crate::model::{Calibration, Profile, Trace};
use crate::source::OpenError;

/// The unit of a file that has the rate of its counter.
const NANOSECONDS: &str = "nanoseconds";
/// The unit of a file without the rate of its counter.
const TICKS: &str = "ticks of a counter whose rate is unknown";

/// The common unit of the times of several files. The first file sets it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommonUnit(Option<&'static str>);

// === impl CommonUnit ===

impl CommonUnit {
    /// Adds a trace. A trace without events fits every unit, and sets none.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherUnit`]: the trace has another unit than the files before it. The common
    /// unit is as before.
    pub fn add_trace(&mut self, trace: &Trace) -> Result<(), OpenError> {
        match trace.blocks() {
            [] => Ok(()),
            [..] => self.add(trace),
        }
    }

    /// Adds a profile.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherUnit`]: the profile has another unit than the files before it. The common
    /// unit is as before.
    pub fn add_profile(&mut self, profile: &Profile) -> Result<(), OpenError> {
        self.add(profile.tables())
    }

    /// True if the times are nanoseconds.
    pub(super) fn is_nanoseconds(self) -> bool {
        self.0 == Some(NANOSECONDS)
    }

    /// True if the times are ticks.
    pub(super) fn is_ticks(self) -> bool {
        self.0 == Some(TICKS)
    }

    fn add(&mut self, tables: &Trace) -> Result<(), OpenError> {
        let unit = match tables.clock().calibration() {
            Calibration::Measured => NANOSECONDS,
            Calibration::None | Calibration::SingleAnchor => TICKS,
        };
        match *self.0.get_or_insert(unit) {
            others if others != unit => Err(OpenError::OtherUnit { unit, others }),
            _ => Ok(()),
        }
    }
}
