//! The figures of one session for metrics. Formats are in `metrics/`.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::shared::Shared;
use crate::{
    store::{Counters, EventStore, Figures, Meter, Numbers},
    target::Functions,
    types::Phase,
};

/// The sources of a session's figures.
#[derive(Debug)]
pub(crate) struct SessionNumbers {
    pub(crate) output: Arc<EventStore>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) functions: Arc<Functions>,
    pub(crate) meter: Option<Arc<Meter>>,
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
