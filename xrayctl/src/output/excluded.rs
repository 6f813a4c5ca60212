//! Events that are missing in a recording because other clients record the process as well.

use serde::Serialize;
use xray_trace::model::{RecordingWindow, Trace};

use super::units;

/// The time of a recording in a process, by `CLOCK_MONOTONIC`, and the events that it leaves out.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedTime {
    pid: Option<u32>,
    /// Absent if the recording has the process from its begin.
    since_ns: Option<u64>,
    /// Absent if the process ended or was detached before the recording ended.
    until_ns: Option<u64>,
    #[serde(flatten)]
    excluded: Excluded,
}

/// Events of a recording's functions that are not in the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Excluded {
    /// Exits of calls that began before the recording.
    pub(crate) earlier_exits: u64,
    /// Entries and exits after the end of the recording, while its functions were being disabled.
    pub(crate) later_events: u64,
    /// Losses after the end of the recording.
    pub(crate) later_lost: u64,
}

// === impl RecordedTime ===

impl RecordedTime {
    /// The times of all processes; empty if the trace is no such recording.
    pub(crate) fn of(trace: &Trace) -> Vec<Self> {
        let windows = trace.coverage().recordings.iter().map(|window| {
            let ns = |ticks| trace.clock().monotonic_ns(ticks);
            Self {
                pid: trace.process(window.process).map(|process| process.pid),
                since_ns: window.since.map(ns),
                until_ns: window.until.map(ns),
                excluded: Excluded::from(window),
            }
        });
        windows.collect()
    }

    /// The events that all of them leave out, in sum.
    pub(crate) fn excluded(times: &[Self]) -> Excluded {
        times.iter().map(|time| time.excluded).fold(
            Excluded::default(),
            |sum,
             Excluded {
                 earlier_exits,
                 later_events,
                 later_lost,
             }| Excluded {
                earlier_exits: sum.earlier_exits.saturating_add(earlier_exits),
                later_events: sum.later_events.saturating_add(later_events),
                later_lost: sum.later_lost.saturating_add(later_lost),
            },
        )
    }
}

// === impl Excluded ===

impl Excluded {
    /// The number in words; `None` without earlier exits. Events after the end do not matter to
    /// users.
    pub(crate) fn words(self) -> Option<String> {
        let exits = units::counted(self.earlier_exits, "exit");
        (self.earlier_exits > 0)
            .then(|| format!("excluded: {exits} of calls that began before the recording"))
    }
}

impl From<&RecordingWindow> for Excluded {
    fn from(window: &RecordingWindow) -> Self {
        let RecordingWindow {
            process: _,
            since: _,
            until: _,
            earlier_exits,
            later_events,
            later_lost,
        } = *window;
        Self {
            earlier_exits,
            later_events,
            later_lost,
        }
    }
}
