//! The numbers of one session, at one moment. How they are written is in the crate's `metrics`.

use xray_trace::model::FunctionId;

use super::meter::{Names, Series};
use crate::{
    target::Functions,
    types::{Mode, Phase},
};

/// The reported numbers of a session.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) phase: Phase,
    pub(crate) mode: Mode,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// Events that were retained and dropped.
    pub(crate) overwritten: u64,
    pub(crate) retained_bytes: u64,
    pub(crate) retained_events: u64,
    pub(crate) threads: u32,
    /// Fill level of the fullest ring.
    pub(crate) ring_use_permille: u32,
    pub(crate) functions: u32,
    pub(crate) functions_on: u32,
    pub(crate) copied_bytes: u64,
    /// Calls that were not assigned to a function; `None` if none of its functions is measured.
    pub(crate) unassigned: Option<u64>,
    /// Measured functions that were called.
    pub(crate) series: Vec<Series>,
}

/// Reads the figures of a session. Takes little time, and never waits.
pub(crate) trait Numbers: std::fmt::Debug + Send + Sync {
    fn figures(&self) -> Figures;

    /// The last figures, read when the session goes, on any thread and under any lock of that
    /// thread.
    fn last_figures(&self) -> Figures;
}

impl Names for Functions {
    fn name(&self, id: FunctionId) -> Option<(String, String)> {
        self.name(id)
    }
}
