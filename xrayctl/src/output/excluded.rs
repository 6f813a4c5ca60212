//! What a recording of a process that others record as well does not have.

use serde::Serialize;
use xray_trace::model::{RecordingWindow, Trace};

use super::units;

/// The time of a recording in a process, by `CLOCK_MONOTONIC`, and what it leaves out.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedTime {
    pid: Option<u32>,
    /// Absent if the recording has the process from its beginning.
    since_ns: Option<u64>,
    /// Absent if the process ended or was detached before.
    until_ns: Option<u64>,
    #[serde(flatten)]
    excluded: Excluded,
}

/// Events of a recording's functions that are not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Excluded {
    /// Exits of calls that began before it.
    pub(crate) earlier_exits: u64,
    /// Entries and exits after its end, while its functions were switched back.
    pub(crate) later_events: u64,
    /// Losses after its end.
    pub(crate) later_lost: u64,
}

// === impl RecordedTime ===

impl RecordedTime {
    /// Of each process; nothing if the trace is no such recording.
    pub(crate) fn of(trace: &Trace) -> Vec<Self> {
        let windows = trace.recordings().iter().map(|window| {
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

    /// What is left out of all of them together.
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
    /// In words; nothing if there are none. What is after the end is of no interest to people.
    pub(crate) fn words(self) -> Option<String> {
        let exits = units::counted(self.earlier_exits, "exit");
        (self.earlier_exits > 0)
            .then(|| format!("{exits} excluded: of calls that began before the recording"))
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
