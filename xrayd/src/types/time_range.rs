//! The part of a recording that a snapshot covers.

use std::time::Duration;

use xray_trace::model::Ticks;

/// How far a picture reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// As far back as there is anything, up to now.
    All,
    /// The last so long: up to now, or, if all of the processes have ended, up to the last event.
    Last(Duration),
    /// From one reading of the counter to another one, both included. What is still to come is not waited for.
    Between(Ticks, Ticks),
}
