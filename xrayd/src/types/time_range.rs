//! The part of a recording that a snapshot covers.

use std::time::Duration;

use xray_trace::model::Ticks;

/// The time that a snapshot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All events that are in rings or retained.
    All,
    /// The last part of this length. It ends now, or with the last event if all processes have
    /// ended.
    Last(Duration),
    /// From one reading of the counter to another one, both included. A snapshot does not wait for
    /// the end of the range.
    Between(Ticks, Ticks),
}
