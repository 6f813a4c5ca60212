//! The result of an attach, for the user. The steps of the attach are in `attach`.

use std::time::Duration;

use shm_ring::Geometry;
use xray_trace::model::{Gap, GapCause, ProcessId, Ticks};

use super::attach_options::AttachOptions;
use crate::{inject::Installed, pid::Tid, refusal::Refusal, types::Mode};

/// The result of an attach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachReport {
    /// True if the process was attached already, and nothing was done.
    pub already: bool,
    /// True if the code and memory of an earlier attach are used.
    pub adopted: bool,
    /// The thread that was stopped, and for how long. `None` if no thread was.
    pub stopped: Option<(Tid, Duration)>,
    /// Sleds that cannot be used, by reason.
    pub skipped: Vec<SkippedSleds>,
    /// Modules with sleds that cannot be traced: path and reason.
    pub refused_modules: Vec<(String, Refusal)>,
    /// Sleds that an earlier daemon left on, and that are off now.
    pub left_on: u64,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Sleds that are left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedSleds {
    /// The reason.
    pub reason: String,
    /// Their number.
    pub sleds: u64,
}

// === impl AttachReport ===

impl AttachReport {
    /// The report of a second attach: the differences from what `options` ask for. The process
    /// keeps its rings as long as it lives.
    pub(super) fn already(options: &AttachOptions, there: Option<Geometry>, mode: Mode) -> Self {
        let wanted = Geometry::new(options.ring_bytes, options.max_threads).ok();
        let rings = wanted
            .zip(there)
            .and_then(|(wanted, there)| other_rings(wanted, there));
        let mode = (mode != options.mode).then(|| {
            format!(
                "the process stays in mode {mode}; `xrayctl mode {}` changes the mode",
                options.mode
            )
        });
        Self {
            already: true,
            notes: rings.into_iter().chain(mode).collect(),
            ..Self::default()
        }
    }
}

/// The times in which an earlier session lost an unknown number of events, each with a note for the
/// user. `now` is the time of the attach.
pub(super) fn gaps_before(installed: &Installed, now: Ticks) -> Vec<(Gap, String)> {
    let gap = |from, until, cause| Gap {
        process: ProcessId(0),
        from,
        until,
        cause,
    };
    let closed = installed.closed.clone().map(|closed| {
        let from = closed.start.min(closed.end);
        let gap = gap(Some(from), closed.end, GapCause::NoDaemon);
        let note = "no daemon was at work for some time, so recording had closed itself; an unknown \
                    number of events is missing";
        (gap, note.to_owned())
    });
    let unread = installed.has_unread.then(|| {
        let gap = gap(None, now, GapCause::UnreadRings);
        let note = "the rings of an earlier daemon could not be read; an unknown number of events \
                    is missing";
        (gap, note.to_owned())
    });
    unread.into_iter().chain(closed).collect()
}

/// The note for a user who asks for other rings than the process has. Its rings stay as long as the
/// process lives.
pub(super) fn other_rings(wanted: Geometry, there: Geometry) -> Option<String> {
    let note = || {
        format!(
            "the process keeps its rings of {} KiB for {} threads from an earlier attach",
            there.ring_bytes() >> 10,
            there.slots() / 2,
        )
    };
    (wanted != there).then(note)
}
