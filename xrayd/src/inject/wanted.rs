//! What is wanted of functions: off, or on with what is recorded of their calls.

use sled_encoders::Capture;

use super::Switch;

/// What is wanted of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Events are recorded, with these values.
    On(Capture),
    /// As compiled.
    Off,
}

// === impl Wanted ===

impl Wanted {
    /// Which way they are switched.
    #[must_use]
    pub const fn switch(self) -> Switch {
        match self {
            Self::On(_) => Switch::On,
            Self::Off => Switch::Off,
        }
    }
}

impl From<Switch> for Wanted {
    /// On without values.
    fn from(switch: Switch) -> Self {
        match switch {
            Switch::On => Self::On(Capture::NONE),
            Switch::Off => Self::Off,
        }
    }
}
