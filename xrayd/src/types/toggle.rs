//! A request to enable or disable functions, and its result.

use std::time::Duration;

use sled_encoders::Capture;

use super::LeaseId;

/// The state of a sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Switch {
    /// The sled calls a trampoline.
    On,
    /// The sled is as compiled.
    Off,
}

/// The wanted state of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wanted {
    /// Sleds are as compiled.
    Off,
    /// Events are recorded, with these values.
    On(Capture),
}

/// The wanted state of functions, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToggleTo {
    /// The wanted state. Leased functions are on.
    pub wanted: Wanted,
    /// The lease at whose end the functions are as before. `None`: the state is permanent.
    pub lease: Option<LeaseId>,
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
    /// Sleds that were switched.
    pub sleds: u64,
    /// Sleds that were left alone, because another program has changed their bytes.
    pub foreign: u64,
    /// Memory that became private to the target, in bytes.
    pub copied_bytes: u64,
    /// The time that patching took.
    pub elapsed: Duration,
    /// Sleds that were staged to record other values, or would be.
    pub restaged: u64,
    /// The longest time for which all threads were stopped, because a library that can be unloaded
    /// was written to, or because sleds were staged anew. Zero if none was stopped.
    pub stopped: Duration,
    /// Names of five matched functions at most.
    pub sample: Vec<String>,
    /// In a dry run: `copied_bytes` by the path of the module, without modules that have none.
    pub copied_by_module: Vec<(String, u64)>,
}

// === impl Wanted ===

impl Wanted {
    /// The state of their sleds.
    #[must_use]
    pub const fn switch(self) -> Switch {
        match self {
            Self::On(_) => Switch::On,
            Self::Off => Switch::Off,
        }
    }
}

// === impl ToggleTo ===

impl ToggleTo {
    /// Functions are on until the lease ends, and record these values.
    #[must_use]
    pub const fn leased(lease: LeaseId, capture: Capture) -> Self {
        Self {
            wanted: Wanted::On(capture),
            lease: Some(lease),
        }
    }

    /// True if values of calls are recorded.
    pub fn captures(&self) -> bool {
        matches!(self.wanted, Wanted::On(capture) if capture != Capture::NONE)
    }
}

impl<T: Into<Wanted>> From<T> for ToggleTo {
    fn from(wanted: T) -> Self {
        Self {
            wanted: wanted.into(),
            lease: None,
        }
    }
}

impl From<Switch> for Wanted {
    /// No values are recorded.
    fn from(switch: Switch) -> Self {
        match switch {
            Switch::On => Self::On(Capture::NONE),
            Switch::Off => Self::Off,
        }
    }
}
