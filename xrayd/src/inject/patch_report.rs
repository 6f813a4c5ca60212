//! The result of a patch, in numbers.

use std::time::Duration;

/// The result of a patch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PatchReport {
    /// Sleds that are now in the wanted state.
    pub(crate) sleds: u64,
    /// Sleds among them that were staged to record something else before.
    pub(crate) restaged: u64,
    /// Sleds left alone, because their bytes are not the expected ones, or another tracer changed
    /// them at the same time.
    pub(crate) foreign: u64,
    /// Longest stop of the process; zero if it was not stopped.
    pub(crate) stopped: Duration,
}
