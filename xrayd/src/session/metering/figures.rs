//! The numbers of one session, at one moment.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use xray_trace::model::FunctionId;

use super::{Meter, Series, meter::Names};
use crate::session::{
    Mode, Output, Phase, control::Shared, functions::Functions, output::Counters,
};

/// What is told of a session.
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
    /// How full the fullest ring is.
    pub(crate) ring_use_permille: u32,
    pub(crate) functions: u32,
    pub(crate) functions_on: u32,
    pub(crate) copied_bytes: u64,
    /// Calls of which it is not known which function they are of; `None` if none of its functions are measured.
    pub(crate) unassigned: Option<u64>,
    /// Measured functions that were called.
    pub(crate) series: Vec<Series>,
}

/// Whoever tells a session's numbers. Asking is cheap, and waits for nobody.
pub(in crate::session) trait Numbers: std::fmt::Debug + Send + Sync {
    fn figures(&self) -> Figures;

    /// When the session goes, on whatever thread that is, and whatever that holds.
    fn last_figures(&self) -> Figures;
}

/// Where a session has them.
#[derive(Debug)]
pub(in crate::session) struct SessionNumbers {
    pub(in crate::session) output: Arc<Output>,
    pub(in crate::session) shared: Arc<Shared>,
    pub(in crate::session) functions: Arc<Functions>,
    pub(in crate::session) meter: Option<Arc<Meter>>,
}

// === impl SessionNumbers ===

impl Numbers for SessionNumbers {
    fn figures(&self) -> Figures {
        self.with(self.output.counters())
    }

    fn last_figures(&self) -> Figures {
        self.with(self.output.last_counters())
    }
}

impl SessionNumbers {
    fn with(&self, counters: Counters) -> Figures {
        let phase = self.shared.phase();
        let (series, unassigned) = match &self.meter {
            Some(meter) if meter.wants() => {
                let (series, unassigned) = meter.read();
                (series, Some(unassigned))
            }
            _ => (Vec::new(), None),
        };
        Figures {
            phase,
            mode: self.output.mode(),
            events: counters.events,
            lost: counters.lost,
            overwritten: counters.overwritten_events,
            retained_bytes: counters.retained_bytes,
            retained_events: counters.retained_events,
            threads: counters.threads,
            ring_use_permille: counters.ring_use_permille,
            functions: u32::try_from(self.functions.len()).unwrap_or(u32::MAX),
            functions_on: match phase {
                Phase::Tracing | Phase::Detaching => self.shared.states.functions_on(),
                Phase::Failed | Phase::Exited => 0,
            },
            copied_bytes: self.shared.copied.load(Relaxed),
            unassigned,
            series,
        }
    }
}

impl Names for Functions {
    fn name(&self, id: FunctionId) -> Option<(String, String)> {
        self.name(id)
    }
}
