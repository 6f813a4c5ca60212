//! The result of a recording or a snapshot that went to standard output, in lines for standard
//! error.

use xrayd_proto::v1::GroupStatus;

use super::recorded::Outcome;
use super::remedies::Remedies;
use super::trace_summary::waits_in_words;
use super::{group_status, units};
use crate::recording::Counts;

/// The name of the trace in sentences.
const TRACE: &str = "the trace";

/// A trace on standard output.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) pid: u32,
    pub(crate) outcome: Outcome,
    /// The exit status of the program that was started for the recording; absent without one.
    pub(crate) program: Option<String>,
    pub(crate) counts: Counts,
    /// What would have helped against losses; absent without losses.
    pub(crate) remedies: Option<Remedies>,
    /// The gaps in the recording of the followed processes; absent if none were to be followed.
    pub(crate) group: Option<GroupStatus>,
}

// === impl Streamed ===

impl Streamed {
    /// The summary, and a line for each remark.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Counts { events, lost, .. } = self.counts;
        let mut lines = vec![summary(&self.counts)];
        lines.extend(
            self.remedies
                .iter()
                .flat_map(|remedies| remedies.lines(events, lost)),
        );
        let waited = self.counts.waited_ns;
        lines.extend((waited > 0).then(|| waits_in_words("threads", waited)));
        lines.extend(self.group.iter().flat_map(group_status::not_whole));
        lines.extend(self.outcome.words(self.pid, self.program.as_deref(), TRACE));
        lines
    }
}

/// The contents of a trace, in a line.
pub(crate) fn summary(counts: &Counts) -> String {
    let &Counts {
        events,
        lost,
        bytes,
        ..
    } = counts;
    let each = units::bytes_per_event(bytes, events)
        .map(|each| format!(" ({each} bytes/event)"))
        .unwrap_or_default();
    format!(
        "{}, {} lost, {}{each}",
        units::counted(events, "event"),
        units::count(lost),
        units::bytes(bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_the_summary_and_the_remarks() {
        let streamed = Streamed {
            pid: 812,
            outcome: Outcome::Stopped,
            program: None,
            counts: Counts {
                events: 2_000_000,
                lost: 3,
                bytes: 4_620_000,
                ..Counts::default()
            },
            remedies: None,
            group: None,
        };
        let summary = "2,000,000 events, 3 lost, 4.41 MiB (2.31 bytes/event)";
        assert_eq!(streamed.lines(), [summary]);
        let ended = Streamed {
            outcome: Outcome::ProcessEnded,
            group: Some(group_status::tests::sample()),
            ..streamed
        };
        let lines = ended.lines();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[3],
            "process 812 ended while it was recorded; the trace holds all events up to its end"
        );
    }
}
