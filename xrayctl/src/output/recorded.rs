//! `xrayctl record`: the result in one line, and the ways to open it.

use std::io;
use std::path::Path;

use serde::Serialize;
use xrayd_proto::v1::GroupStatus;

use super::excluded::Excluded;
use super::remedies::Remedies;
use super::trace_summary::waits_in_words;
use super::{Look, Tone, group_status, text, units};
use crate::trace_file::{KernelEvents, Tally};

/// A finished recording.
#[derive(Debug, Serialize)]
pub(crate) struct Recorded {
    pub(crate) file: String,
    pub(crate) pid: u32,
    pub(crate) outcome: Outcome,
    /// The exit status of the program that was started for the recording; absent without one.
    pub(crate) program: Option<String>,
    pub(crate) events: u64,
    pub(crate) calls: u64,
    pub(crate) threads: u64,
    /// Processes in the file.
    pub(crate) processes: u64,
    /// The gaps in the recording of the followed processes; absent if none were to be followed.
    pub(crate) group: Option<GroupStatus>,
    pub(crate) duration_ns: u64,
    pub(crate) lost: u64,
    /// What would have helped against the losses; absent without losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedies: Option<Remedies>,
    /// Events that are missing because other clients record the process as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) excluded: Option<Excluded>,
    /// Threads of which the file does not show when they had a processor; absent if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) threads_without_run_times: u32,
    /// Time for which threads waited for xrayd, of all threads together; absent if none waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ns: Option<u64>,
    /// The events of kernel tracepoints; absent if none were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel_events: Option<KernelEvents>,
    pub(crate) bytes: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(threads: &u32) -> bool {
    *threads == 0
}

/// The reason for the end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The time was up, or the user asked for the end. The process runs on.
    Stopped,
    /// As [`Self::Stopped`], but the process stays attached, because it was attached before.
    StillAttached,
    /// The process ended.
    ProcessEnded,
    /// Another client detached the process.
    DetachedElsewhere,
    /// The daemon went away.
    DaemonGone,
}

// === impl Recorded ===

impl Recorded {
    pub(crate) fn new(path: &Path, pid: u32, outcome: Outcome, tally: &Tally) -> Self {
        Self {
            file: path.display().to_string(),
            pid,
            outcome,
            program: None,
            events: tally.events,
            calls: tally.calls,
            threads: tally.threads,
            processes: tally.processes,
            group: None,
            duration_ns: tally.duration_ns,
            lost: tally.lost,
            remedies: None,
            excluded: tally.excluded,
            threads_without_run_times: 0,
            waited_ns: None,
            kernel_events: tally.kernel_events,
            bytes: tally.bytes,
        }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let lost = if self.lost == 0 {
            Tone::Good
        } else {
            Tone::Bad
        };
        let lost = look.paint(lost, &format!("{} lost", units::count(self.lost)));
        let kernel_events = self.kernel_events.map_or(0, |kernel| kernel.events);
        let each = units::bytes_per_event(self.bytes, self.events.saturating_add(kernel_events))
            .map(|each| format!(" ({each} bytes/event)"))
            .unwrap_or_default();
        let processes = match self.processes {
            0 | 1 => String::new(),
            several => format!(" of {} processes", units::count(several)),
        };
        writeln!(
            out,
            "{}, {}, {}{processes} in {}, {lost}, {}{each}",
            units::counted(self.events, "event"),
            units::counted(self.calls, "call"),
            units::counted(self.threads, "thread"),
            units::time(self.duration_ns),
            units::bytes(self.bytes),
        )?;
        if let Some(KernelEvents { events, most_lost }) = self.kernel_events {
            let line = units::counted(events, "kernel event");
            match most_lost {
                0 => writeln!(out, "{line}")?,
                lost => {
                    let lost = format!(
                        "up to {} missing: xrayd did not read the kernel's buffers in time",
                        units::count(lost)
                    );
                    writeln!(out, "{line}, {}", look.paint(Tone::Bad, &lost))?;
                }
            }
        }
        if let Some(remedies) = &self.remedies {
            remedies.render(out, look, (self.events, self.lost))?;
        }
        if let Some(waited) = self.waited_ns {
            let waited = waits_in_words("threads", waited);
            writeln!(out, "{}", look.paint(Tone::Warning, &waited))?;
        }
        if let Some(excluded) = self.excluded.and_then(Excluded::words) {
            writeln!(out, "{}", look.paint(Tone::Dim, &excluded))?;
        }
        if let Some(group) = &self.group {
            let not_whole = group_status::not_whole(group);
            for line in not_whole {
                writeln!(out, "{}", look.paint(Tone::Warning, &line))?;
            }
        }
        let program = self.program.as_deref();
        let why = self.outcome.words(self.pid, program, "the file");
        if let Some(why) = why {
            writeln!(out, "{}", look.paint(Tone::Warning, &why))?;
        }
        let file = text::quoted(&text::printable(&self.file));
        writeln!(out, "open it: xrayctl view {file}")?;
        writeln!(out, "     or: xrayctl report {file}")?;
        let stem = self.file.strip_suffix(".xtrace").unwrap_or(&self.file);
        let json = text::quoted(&text::printable(&format!("{stem}.json")));
        writeln!(
            out,
            "     or: xrayctl convert {file} -o {json}, and load that at ui.perfetto.dev"
        )
    }
}

// === impl Outcome ===

impl Outcome {
    /// The outcome in a sentence; `None` for the usual one. `trace` is the subject for sentences
    /// about the trace.
    pub(super) fn words(self, pid: u32, program: Option<&str>, trace: &str) -> Option<String> {
        match self {
            Self::Stopped => None,
            Self::StillAttached => Some(format!(
                "process {pid} stays attached, as it was attached before"
            )),
            Self::ProcessEnded => Some(match program {
                Some(how) => format!("the program ended: {how}"),
                None => format!(
                    "process {pid} ended while it was recorded; {trace} holds all events up to its end"
                ),
            }),
            Self::DetachedElsewhere => Some(format!(
                "another client detached process {pid}; {trace} holds all events before that"
            )),
            Self::DaemonGone => Some(format!(
                "the daemon went away; {trace} holds the events that it had sent, and has no end mark"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{golden, remedies};
    use super::*;

    fn sample(outcome: Outcome) -> Recorded {
        Recorded {
            file: "xray-my server-812.xtrace".into(),
            pid: 812,
            outcome,
            program: None,
            events: 2_000_000,
            calls: 1_000_000,
            threads: 4,
            processes: 1,
            group: None,
            duration_ns: 5_000_123_456,
            lost: 0,
            remedies: None,
            excluded: None,
            threads_without_run_times: 0,
            waited_ns: None,
            kernel_events: None,
            bytes: 4_620_000,
        }
    }

    #[test]
    fn the_summary_looks_as_agreed() {
        golden::check("record.txt", |out| {
            sample(Outcome::Stopped).render(out, Look::PLAIN)
        });
        golden::check_json("record.json", &sample(Outcome::Stopped));
        golden::check("record-group.txt", |out| {
            Recorded {
                processes: 33,
                group: Some(group_status::tests::sample()),
                ..sample(Outcome::Stopped)
            }
            .render(out, Look::PLAIN)
        });
        golden::check("record-endings.txt", |out| {
            let program = Some("exit status: 3".to_owned());
            sample(Outcome::ProcessEnded).render(out, Look::PLAIN)?;
            Recorded {
                program,
                lost: 7,
                remedies: Some(remedies::tests::sample()),
                ..sample(Outcome::ProcessEnded)
            }
            .render(out, Look::PLAIN)?;
            let excluded = Excluded {
                earlier_exits: 2,
                later_events: 5,
                later_lost: 0,
            };
            Recorded {
                excluded: Some(excluded),
                ..sample(Outcome::StillAttached)
            }
            .render(out, Look::PLAIN)?;
            Recorded {
                kernel_events: Some(KernelEvents {
                    events: 1_234,
                    most_lost: 56,
                }),
                ..sample(Outcome::DetachedElsewhere)
            }
            .render(out, Look::PLAIN)?;
            Recorded {
                events: 0,
                ..sample(Outcome::DaemonGone)
            }
            .render(out, Look::PLAIN)
        });
    }
}
