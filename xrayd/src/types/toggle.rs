//! A request to enable or disable functions, and its result.

use std::time::Duration;

use sled_encoders::Capture;

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Switch {
    /// Events are recorded.
    On,
    /// As compiled.
    Off,
}

/// The wanted state of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Events are recorded, with these values.
    On(Capture),
    /// As compiled.
    Off,
}

/// Real run or dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// The change is made.
    Real,
    /// The change is only reported.
    Dry,
}

/// The result of a toggle, or of its dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToggleReport {
    /// Functions that the selection matched.
    pub matched: u32,
    /// Functions whose state changed.
    pub changed: u32,
    /// Sleds switched.
    pub sleds: u64,
    /// Sleds left alone because their bytes are not what they should be.
    pub foreign: u64,
    /// Memory that became private to the target, in bytes.
    pub copied_bytes: u64,
    /// How long the patching took.
    pub elapsed: Duration,
    /// Sleds that were staged to record other values, or would be.
    pub restaged: u64,
    /// The longest time for which all threads were stopped, because a library that can be unloaded
    /// was written to, or because sleds were staged anew. Zero if none was stopped.
    pub stopped: Duration,
    /// Some of the functions matched.
    pub sample: Vec<String>,
    /// In a dry run: `copied_bytes` by the path of the module, without modules that have none.
    pub copied_by_module: Vec<(String, u64)>,
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
