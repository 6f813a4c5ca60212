//! A summary of a trace, and of its gaps.

use std::io;

use serde::Serialize;
use xray_trace::analysis::{Filter, Notes, Waits};
use xray_trace::container::Completeness;
use xray_trace::model::{Birth, Calibration, ClockFaultKind, Trace};

use super::excluded::RecordedTime;
use super::unrecorded::Unrecorded;
use super::{Look, Tone, text, units};

/// Processes that the headline names. With more processes it shows their number.
const MOST_NAMED: usize = 3;

/// A summary of a trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceSummary {
    file: String,
    processes: Vec<TracedProcess>,
    functions: usize,
    threads: usize,
    events: u64,
    duration_ns: u64,
    /// Time of the first event, in nanoseconds since the Unix epoch; absent without events.
    started_wall_ns: Option<u64>,
    lost: u64,
    /// Events before the time of a snapshot. They are no loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    overwritten: Option<OverwrittenEvents>,
    /// The times of a recording beside others, and the events that it leaves out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recordings: Vec<RecordedTime>,
    completeness: Ended,
    /// False if the rate of the counter is not known. Times are in ticks then.
    calibrated: bool,
    /// Times at which the counter was wrong, by `CLOCK_MONOTONIC`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    clock_faults: Vec<FaultyTime>,
    /// Calls of the whole trace that were left unrecorded on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrecorded: Option<Unrecorded>,
    /// The waits of threads for xrayd; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<WaitTime>,
    notes: NoteCounts,
}

/// The time that threads waited until xrayd had read events.
#[derive(Debug, Serialize)]
struct WaitTime {
    threads: u64,
    waited_ns: u64,
}

#[derive(Debug, Serialize)]
struct FaultyTime {
    from_ns: u64,
    to_ns: u64,
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct TracedProcess {
    pid: u32,
    command: String,
    executable: String,
    host: Option<String>,
    /// The origin of a followed process.
    origin: Option<ProcessOrigin>,
}

#[derive(Debug, Serialize)]
struct ProcessOrigin {
    parent: u32,
    by: &'static str,
    /// The longest time that it can have run before its events were recorded.
    unrecorded_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    Complete,
    Unfinished,
    Cut,
}

/// Events that newer ones had replaced when a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct OverwrittenEvents {
    /// The number of their threads.
    threads: u64,
    /// Their estimated number in the time of the snapshot; absent if it is not known.
    events: Option<u64>,
}

/// Numbers of everything that is not an ordinary call.
#[derive(Debug, Serialize)]
struct NoteCounts {
    exits_without_entry: u64,
    unwound: u64,
    closed_by_outer_exit: u64,
    deduced_siblings: u64,
    closed_by_loss: u64,
    closed_at_end: u64,
    damaged_blocks: u64,
}

/// The first and the last moment of a trace, or of the time that a snapshot shows, on
/// `CLOCK_MONOTONIC` in nanoseconds. `None` without events.
pub(crate) fn span(trace: &Trace) -> Option<(u64, u64)> {
    let first = trace.begin()?;
    let last = trace.blocks().iter().map(|block| block.last).max()?;
    let last = trace
        .coverage()
        .snapshot
        .map_or(last, |window| window.until.max(last));
    Some((
        trace.clock().monotonic_ns(first),
        trace.clock().monotonic_ns(last),
    ))
}

/// Lines on wrong durations: around faults of the counter, and around times in which the machine
/// was suspended, each with its begin on `CLOCK_MONOTONIC`.
pub(crate) fn clock_lines(faults: impl Iterator<Item = (u64, bool)>) -> Vec<String> {
    let (suspended, faults): (Vec<_>, Vec<_>) = faults.partition(|(_, suspended)| *suspended);
    let line = |times: &[(u64, bool)], what: &str, noun: &str| {
        let (first_ns, _) = times.first()?;
        let many = units::counted(times.len() as u64, noun);
        let first = units::time(*first_ns);
        Some(format!(
            "{what} ({many}): durations across such a moment are wrong; first at {first} of CLOCK_MONOTONIC"
        ))
    };
    let lines = [
        line(
            &faults,
            "the processor's counter did not keep time",
            "fault",
        ),
        line(&suspended, "the machine was suspended", "time"),
    ];
    lines.into_iter().flatten().collect()
}

// === impl OverwrittenEvents ===

impl OverwrittenEvents {
    /// `None` if there are none.
    pub(crate) fn of(trace: &Trace) -> Option<Self> {
        let all = &trace.coverage().overwritten;
        let mut events = all.iter().map(|its| its.events);
        let events = events.try_fold(0_u64, |sum, events| Some(sum.saturating_add(events?)));
        (!all.is_empty()).then_some(Self {
            threads: all.len() as u64,
            events,
        })
    }

    /// The numbers in words.
    pub(crate) fn words(self) -> String {
        let threads = units::counted(self.threads, "thread");
        match self.events {
            Some(events) => {
                let events = units::counted(units::rough(events), "older event");
                format!("about {events} of {threads} overwritten")
            }
            None => format!("older events of {threads} overwritten"),
        }
    }
}

/// The waits of threads for room in their rings, in a sentence. `threads` are its subject.
pub(super) fn waits_in_words(threads: &str, waited_ns: u64) -> String {
    format!(
        "{threads} waited {} in all until xrayd had read events: calls that were open meanwhile \
         took longer",
        units::time(waited_ns),
    )
}

// === impl TraceSummary ===

impl TraceSummary {
    /// The summary of a trace in that file. `notes` are the notes on the threads that were read.
    pub(crate) fn new(file: &str, trace: &Trace, notes: Notes) -> Self {
        let Notes {
            exits_without_entry,
            unwound,
            closed_by_outer_exit,
            deduced_siblings,
            closed_by_loss,
            closed_at_end,
            lost: _,
            damaged_blocks,
        } = notes;
        let processes = trace.processes().iter().map(|process| TracedProcess {
            pid: process.pid,
            command: process.command.clone(),
            executable: process.executable.clone(),
            host: process.host.clone(),
            origin: trace.origin(process.id).map(|origin| ProcessOrigin {
                parent: origin.parent,
                by: match origin.by {
                    Birth::Fork => "fork",
                    Birth::Exec => "exec",
                },
                unrecorded_ns: origin.unrecorded_ns,
            }),
        });
        let clock_faults = trace.clock().faults().iter().map(|fault| FaultyTime {
            from_ns: fault.from_ns,
            to_ns: fault.to_ns,
            kind: match fault.kind {
                ClockFaultKind::Backwards => "backwards",
                ClockFaultKind::Rate => "rate",
                ClockFaultKind::Suspended => "suspended",
            },
        });
        let first = trace.begin();
        let totals = trace.totals();
        Self {
            file: file.to_owned(),
            processes: processes.collect(),
            functions: trace.functions().len(),
            threads: trace.blocks_by_thread().len(),
            events: totals.calls,
            duration_ns: span(trace).map_or(0, |(first, last)| last.saturating_sub(first)),
            started_wall_ns: first.map(|first| trace.clock().wall_ns(first)),
            lost: totals.lost,
            overwritten: OverwrittenEvents::of(trace),
            recordings: RecordedTime::of(trace),
            completeness: match trace.coverage().completeness {
                Completeness::Complete => Ended::Complete,
                Completeness::Unfinished { .. } => Ended::Unfinished,
                Completeness::Cut { .. } => Ended::Cut,
            },
            calibrated: trace.clock().calibration() == Calibration::Measured,
            clock_faults: clock_faults.collect(),
            unrecorded: Unrecorded::new(trace, &Filter::default()),
            waits: Waits::new(trace, &Filter::default())
                .map(|Waits { threads, waited_ns }| WaitTime { threads, waited_ns }),
            notes: NoteCounts {
                exits_without_entry,
                unwound,
                closed_by_outer_exit,
                deduced_siblings,
                closed_by_loss,
                closed_at_end,
                damaged_blocks,
            },
        }
    }

    /// Calls that were left unrecorded on purpose.
    pub(crate) fn unrecorded(&self) -> Option<&Unrecorded> {
        self.unrecorded.as_ref()
    }

    /// The processes, up to three of them by name.
    pub(crate) fn programs(&self) -> String {
        let processes = self.processes.iter().map(|process| {
            let host = process.host.as_ref().map(|host| format!(" on {host}"));
            let program = process
                .executable
                .rsplit('/')
                .next()
                .filter(|name| !name.is_empty());
            let program = program.unwrap_or(&process.command);
            let host = host.unwrap_or_default();
            match program {
                "" => format!("process {}{host}", process.pid),
                program => format!("{program} ({}){host}", process.pid),
            }
        });
        let mut named: Vec<_> = processes.take(MOST_NAMED).collect();
        let more = self.processes.len() - named.len();
        if more > 0 {
            named.push(format!("{} more", units::count(more as u64)));
        }
        text::printable(&named.join(", "))
    }

    /// Writes the headline: process, number of events, time.
    pub(crate) fn render_head(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        writeln!(
            out,
            "{}: {} of {} in {}",
            look.paint(Tone::Heading, &self.programs()),
            units::counted(self.events, "event"),
            units::counted(self.threads as u64, "thread"),
            units::time(self.duration_ns),
        )
    }

    /// The gaps and oddities, a line each, for commands whose output has no place for them.
    pub(crate) fn notes(&self) -> Vec<String> {
        let lines = self.lines().into_iter();
        lines.map(|(_, line)| line).collect()
    }

    /// Writes the gaps and oddities, a line each; nothing for a complete trace.
    pub(crate) fn render_notes(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let lines = self.lines();
        let mut lines = lines.iter();
        lines.try_for_each(|(tone, line)| writeln!(out, "{}", look.paint(*tone, line)))
    }

    fn lines(&self) -> Vec<(Tone, String)> {
        let unrecorded = self.unrecorded.iter().flat_map(Unrecorded::lines);
        unrecorded.chain(self.toned_notes()).collect()
    }

    /// The gaps and oddities except for [`Self::unrecorded`], a line each, with their severity.
    pub(crate) fn toned_notes(&self) -> Vec<(Tone, String)> {
        let waits = self.waits.as_ref();
        let waits = waits
            .map(|waits| waits_in_words(&units::counted(waits.threads, "thread"), waits.waited_ns));
        let mut lines: Vec<_> = waits
            .map(|line| (Tone::Warning, line))
            .into_iter()
            .collect();
        let NoteCounts {
            exits_without_entry,
            unwound,
            closed_by_outer_exit,
            deduced_siblings,
            closed_by_loss,
            closed_at_end,
            damaged_blocks,
        } = self.notes;
        let counted = [
            (
                self.lost,
                "event",
                "lost: calls around the losses are not complete",
                Tone::Bad,
            ),
            (
                damaged_blocks,
                "block",
                "damaged, and read up to the damage",
                Tone::Bad,
            ),
            (
                closed_by_loss,
                "call",
                "without an exit, because events were lost",
                Tone::Warning,
            ),
            (
                unwound,
                "call",
                "without an exit, left by an exception, a jump or a switch of stacks",
                Tone::Warning,
            ),
            (
                closed_by_outer_exit,
                "call",
                "without an exit, left by an exception, a longjmp, or switched off meanwhile",
                Tone::Warning,
            ),
            (
                deduced_siblings,
                "call",
                "without an exit, taken to have ended with the caller",
                Tone::Warning,
            ),
            (
                closed_at_end,
                "call",
                "still under way at the end",
                Tone::Dim,
            ),
            (
                exits_without_entry,
                "exit",
                "of calls that began before the trace, or that had been left",
                Tone::Dim,
            ),
        ];
        let origins = self
            .processes
            .iter()
            .filter_map(|process| process.origin.as_ref());
        let followed = origins.clone().count() as u64;
        if let Some(longest) = origins.map(|origin| origin.unrecorded_ns).max() {
            let line = format!(
                "{} followed, at most {} after the start; earlier events are not in the trace",
                match followed {
                    1 => "1 process was".to_owned(),
                    several => format!("{} processes were", units::count(several)),
                },
                units::time(longest),
            );
            lines.push((Tone::Dim, line));
        }
        for (number, noun, what, tone) in counted.into_iter().filter(|note| note.0 > 0) {
            lines.push((tone, format!("{} {what}", units::counted(number, noun))));
        }
        lines.extend(self.overwritten.map(|overwritten| {
            let line = format!("{}: the recorder keeps the newest", overwritten.words());
            (Tone::Dim, line)
        }));
        let excluded = RecordedTime::excluded(&self.recordings).words();
        lines.extend(excluded.map(|line| (Tone::Dim, line)));
        let ending = match self.completeness {
            Ended::Complete => None,
            Ended::Unfinished => {
                Some("the file has no end mark: its writer was stopped; all events before are here")
            }
            Ended::Cut => Some("the file was cut within a record; all events before are here"),
        };
        let clock = (!self.calibrated && self.events > 0)
            .then_some("the rate of the counter is not known: times are in ticks, not nanoseconds");
        let faults = self.clock_faults.iter();
        let faults = faults.map(|fault| (fault.from_ns, fault.kind == "suspended"));
        lines.extend(
            clock_lines(faults)
                .into_iter()
                .map(|line| (Tone::Bad, line)),
        );
        let others = ending.into_iter().chain(clock);
        lines.extend(others.map(|line| (Tone::Warning, line.to_owned())));
        lines
    }
}
