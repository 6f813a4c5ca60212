//! `xrayctl trigger`: the processes in which it is armed, its firings, and the results of its
//! actions.

use std::io;

use nix::sys::signal::Signal;
use serde::Serialize;
use xrayd_proto::v1::{
    ToggleReport, TriggerArmed, TriggerEnded, TriggerFired, TriggerMissed, TriggerOver,
    trigger_ended::Cause, trigger_fired::Value, trigger_over::Why,
};

use super::{Look, Tone, moment, text, units};
use crate::condition::Awaited;

/// One report. In JSON, it is a line with an object.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum TriggerReport<'a> {
    Armed {
        processes: u32,
        functions: u32,
        conditions: &'a [Awaited],
        #[serde(flatten)]
        without: WithoutRunTimes,
        /// What ends the trigger, in words.
        #[serde(skip)]
        until: &'a str,
    },
    Fired(Fired),
    Switched {
        number: u32,
        /// The action that was asked for.
        action: &'a str,
        pid: u32,
        matched: u32,
        changed: u32,
        /// The reason why nothing was done.
        refusal: Option<String>,
    },
    NoSnapshot {
        number: u32,
        why: String,
    },
    Command {
        number: u32,
        command: &'a str,
        /// Its exit status.
        ended: String,
    },
    Ended {
        pid: u32,
        signal: Option<i32>,
        code: Option<i32>,
    },
    Unjudged {
        /// Calls since the report before that could not be judged.
        unjudged: u64,
        #[serde(flatten)]
        without: WithoutRunTimes,
    },
    Over {
        why: &'static str,
        fired: u32,
        skipped: u64,
        unjudged: u64,
    },
}

/// Threads whose times on the processor cannot be measured.
#[derive(Debug, Serialize)]
pub(crate) struct WithoutRunTimes {
    threads_without_run_times: u32,
    /// The reason of one of them.
    without_run_times_because: Option<String>,
}

/// A firing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fired {
    pub(crate) number: u32,
    /// `None` for a firing on demand.
    pub(crate) condition: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) thread: Option<String>,
    pub(crate) function: Option<String>,
    pub(crate) monotonic_ns: u64,
    pub(crate) wall_ns: u64,
    pub(crate) noticed_after_ns: u64,
    pub(crate) duration_ns: Option<u64>,
    pub(crate) on_cpu_ns: Option<u64>,
    pub(crate) off_cpu_ns: Option<u64>,
    pub(crate) calls: Option<u64>,
    pub(crate) event_type: Option<u32>,
    pub(crate) skipped: u64,
    /// Calls since the report before that could not be judged.
    pub(crate) unjudged: u64,
}

// === impl TriggerReport ===

impl<'a> TriggerReport<'a> {
    pub(crate) fn armed(
        TriggerArmed {
            processes,
            functions,
            threads_without_runs,
            without_runs_because,
        }: TriggerArmed,
        conditions: &'a [Awaited],
        until: &'a str,
    ) -> Self {
        Self::Armed {
            processes,
            functions,
            conditions,
            without: WithoutRunTimes::new(threads_without_runs, without_runs_because),
            until,
        }
    }

    pub(crate) fn switched(number: u32, action: &'a str, report: ToggleReport) -> Self {
        Self::Switched {
            number,
            action,
            pid: report.pid,
            matched: report.matched,
            changed: report.changed,
            refusal: report.refusal.map(|refusal| refusal.message),
        }
    }

    pub(crate) fn ended(TriggerEnded { pid, cause }: TriggerEnded) -> Self {
        let (signal, code) = match cause {
            Some(Cause::Signal(signal)) => (Some(signal), None),
            Some(Cause::Code(code)) => (None, Some(code)),
            Some(Cause::Unknown(_)) | None => (None, None),
        };
        Self::Ended { pid, signal, code }
    }

    pub(crate) fn unjudged(missed: TriggerMissed) -> Self {
        let TriggerMissed {
            skipped: _,
            unjudged,
            threads_without_runs,
            without_runs_because,
        } = missed;
        Self::Unjudged {
            unjudged,
            without: WithoutRunTimes::new(threads_without_runs, without_runs_because),
        }
    }

    pub(crate) fn over(over: &TriggerOver) -> Self {
        let why = match over.why() {
            Why::Limit => "limit",
            Why::Expired => "expired",
            Why::Ended => "ended",
            Why::Unspecified => "unknown",
        };
        Self::Over {
            why,
            fired: over.fired,
            skipped: over.skipped,
            unjudged: over.unjudged,
        }
    }

    /// Writes a line of text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        match self {
            Self::Armed {
                processes,
                functions,
                conditions,
                without,
                until,
            } => {
                let processes = match processes {
                    1 => "1 process".to_owned(),
                    many => format!("{many} processes"),
                };
                let functions = match functions {
                    0 => String::new(),
                    many => format!(", watching {}", units::counted((*many).into(), "function")),
                };
                writeln!(out, "trigger armed in {processes}{functions}")?;
                for Awaited { condition, meaning } in *conditions {
                    let condition = look.paint(Tone::Name, &text::printable(condition));
                    let meaning = text::printable(meaning);
                    writeln!(out, "  waits for {condition}: {meaning}")?;
                }
                if let Some(without) = without.line() {
                    writeln!(out, "  {}", look.paint(Tone::Bad, &without))?;
                }
                writeln!(out, "  ends {until}")
            }
            Self::Fired(fired) => fired.render(out, look),
            Self::Switched {
                number,
                action,
                pid,
                matched,
                changed,
                refusal,
            } => match refusal {
                None => writeln!(
                    out,
                    "{number}: {}: {} of {} in process {pid}",
                    text::printable(action),
                    units::counted((*changed).into(), "function"),
                    units::count((*matched).into()),
                ),
                Some(why) => {
                    let why = look.paint(Tone::Bad, &text::printable(why));
                    writeln!(out, "{number}: {}: {why}", text::printable(action))
                }
            },
            Self::NoSnapshot { number, why } => {
                let why = look.paint(Tone::Bad, &text::printable(why));
                writeln!(out, "{number}: no snapshot: {why}")
            }
            Self::Command {
                number,
                command,
                ended,
            } => writeln!(out, "{number}: {}: {ended}", text::printable(command)),
            Self::Ended { pid, signal, code } => {
                let how = match (signal, code) {
                    (Some(signal), _) => format!("was ended by {}", name_of(*signal)),
                    (None, Some(code)) => format!("has ended with code {code}"),
                    (None, None) => "has ended in an unknown way".to_owned(),
                };
                writeln!(out, "process {pid} {how}")
            }
            Self::Unjudged { unjudged, without } => {
                let calls = unjudged_of(*unjudged);
                for line in calls.into_iter().chain(without.line()) {
                    writeln!(out, "{}", look.paint(Tone::Bad, &line))?;
                }
                Ok(())
            }
            Self::Over {
                why,
                fired,
                skipped,
                unjudged,
            } => {
                let times = match fired {
                    0 => "has not fired".to_owned(),
                    1 => "has fired once".to_owned(),
                    many => format!("has fired {many} times"),
                };
                let why = match *why {
                    "limit" => ", which is its limit",
                    "expired" => ": --expire is over",
                    "ended" => ": no process is left",
                    _ => "",
                };
                let missed = missed_of(*skipped, *unjudged);
                writeln!(out, "over: the trigger {times}{why}{missed}")
            }
        }
    }
}

// === impl WithoutRunTimes ===

impl WithoutRunTimes {
    fn new(threads: u32, because: String) -> Self {
        Self {
            threads_without_run_times: threads,
            without_run_times_because: (threads > 0).then_some(because),
        }
    }

    fn line(&self) -> Option<String> {
        let why = text::printable(self.without_run_times_because.as_ref()?);
        let threads = units::counted(self.threads_without_run_times.into(), "thread");
        Some(format!("the calls of {threads} cannot be judged: {why}"))
    }
}

// === impl Fired ===

impl Fired {
    /// `conditions` are the conditions of the request, in order.
    pub(crate) fn new(fired: TriggerFired, conditions: &[String]) -> Self {
        let TriggerFired {
            number,
            condition,
            pid,
            tid,
            thread,
            function,
            monotonic_ns,
            wall_ns,
            noticed_after_ns,
            value,
            skipped,
            unjudged,
        } = fired;
        let known = |text: String| (!text.is_empty()).then_some(text);
        let mut this = Self {
            number,
            condition: condition.and_then(|index| conditions.get(index as usize).cloned()),
            pid: (pid > 0).then_some(pid),
            tid: (tid > 0).then_some(tid),
            thread: known(thread),
            function: known(function),
            monotonic_ns,
            wall_ns,
            noticed_after_ns,
            duration_ns: None,
            on_cpu_ns: None,
            off_cpu_ns: None,
            calls: None,
            event_type: None,
            skipped,
            unjudged,
        };
        match value {
            None => {}
            Some(Value::DurationNs(ns)) => this.duration_ns = Some(ns),
            Some(Value::OnCpuNs(ns)) => this.on_cpu_ns = Some(ns),
            Some(Value::OffCpuNs(ns)) => this.off_cpu_ns = Some(ns),
            Some(Value::Calls(calls)) => this.calls = Some(calls),
            Some(Value::Type(number)) => this.event_type = Some(number),
        }
        this
    }

    /// The measured value as a number; empty without one.
    pub(crate) fn value(&self) -> String {
        let times = [self.duration_ns, self.on_cpu_ns, self.off_cpu_ns];
        let value = times.into_iter().flatten().next().or(self.calls);
        let value = value.or(self.event_type.map(u64::from));
        value.map_or_else(String::new, |value| value.to_string())
    }

    fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let number = look.paint(Tone::Heading, &format!("{}:", self.number));
        let at = moment::shown(self.wall_ns);
        let what = match &self.condition {
            None => "fired on demand".to_owned(),
            Some(condition) => text::printable(condition),
        };
        let function = self.function.as_deref();
        let function = function.map(|name| text::printable(&look.names.show(name)));
        let function = function.map(|name| look.paint(Tone::Name, &name));
        let measured = [
            ("took", self.duration_ns),
            ("was on the CPU for", self.on_cpu_ns),
            ("was off the CPU for", self.off_cpu_ns),
        ];
        let measured = measured
            .into_iter()
            .find_map(|(verb, ns)| Some(format!("{verb} {}", units::time(ns?))));
        let met = match (function, measured, self.calls, self.event_type) {
            (Some(function), Some(measured), _, _) => format!(": {function} {measured}"),
            (Some(function), _, Some(calls), _) => {
                format!(
                    ": {} within a second, {function}",
                    units::counted(calls, "call")
                )
            }
            (Some(function), _, _, Some(number)) => format!(": type {number} in {function}"),
            (Some(function), ..) => format!(": {function}"),
            (None, ..) => String::new(),
        };
        let place = match (self.pid, self.tid) {
            (Some(pid), Some(tid)) => {
                let name = self.thread.as_deref().map(text::printable);
                let name = name.map_or_else(String::new, |name| format!(" \"{name}\""));
                format!(", thread {tid}{name} of process {pid}")
            }
            (Some(pid), None) => format!(", process {pid}"),
            (None, _) => String::new(),
        };
        let missed = missed_of(self.skipped, self.unjudged);
        writeln!(out, "{number} {what}{met}{place}, {at} UTC{missed}")
    }
}

/// Matches beyond the limit, and calls that could not be judged, in parentheses.
fn missed_of(skipped: u64, unjudged: u64) -> String {
    let skipped = match skipped {
        0 => None,
        1 => Some("1 more match beyond the limit".to_owned()),
        many => Some(format!(
            "{} more matches beyond the limit",
            units::count(many)
        )),
    };
    let missed: Vec<_> = skipped.into_iter().chain(unjudged_of(unjudged)).collect();
    match missed.as_slice() {
        [] => String::new(),
        missed => format!(" ({})", missed.join(", ")),
    }
}

fn unjudged_of(calls: u64) -> Option<String> {
    let counted = units::counted(calls, "call");
    (calls > 0).then(|| format!("{counted} could not be judged"))
}

fn name_of(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(
        |_| format!("signal {signal}"),
        |signal| signal.as_str().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Refusal;

    use super::*;
    use crate::output::golden;

    fn fired(number: u32, value: Option<Value>) -> TriggerFired {
        TriggerFired {
            number,
            condition: Some(0),
            pid: 70,
            tid: 71,
            thread: "work\u{1b}er".to_owned(),
            function: "ns::slow(int)".to_owned(),
            monotonic_ns: 5,
            wall_ns: 1_795_403_655_123_000_000,
            noticed_after_ns: 700_000,
            value,
            skipped: 0,
            unjudged: 0,
        }
    }

    fn awaited() -> [Awaited; 2] {
        let awaited = |condition: &str, meaning: &str| Awaited {
            condition: condition.to_owned(),
            meaning: meaning.to_owned(),
        };
        [
            awaited(
                "duration(ns::*) > 10 ms",
                "a call of ns::* ends that took longer than 10 ms",
            ),
            awaited("call(f\u{1b})", "a call of f\u{1b} begins"),
        ]
    }

    fn all(awaited: &[Awaited]) -> Vec<TriggerReport<'_>> {
        let conditions = ["duration(ns::*) > 10ms".to_owned()];
        let mut demanded = fired(5, None);
        demanded.condition = None;
        (demanded.pid, demanded.tid) = (0, 0);
        (demanded.thread, demanded.function) = (String::new(), String::new());
        let mut died = fired(6, None);
        died.tid = 0;
        (died.thread, died.function) = (String::new(), String::new());
        let mut often = fired(4, Some(Value::Calls(1001)));
        often.skipped = 12_345;
        let mut unknown = fired(8, Some(Value::OffCpuNs(5_000_000)));
        (unknown.skipped, unknown.unjudged) = (1, 17);
        let firings = [
            fired(1, Some(Value::DurationNs(12_300_000))),
            fired(2, None),
            fired(3, Some(Value::Type(9))),
            often,
            demanded,
            died,
            fired(7, Some(Value::OnCpuNs(1_500_000))),
            unknown,
        ];
        let report = |refusal: Option<&str>| ToggleReport {
            pid: 70,
            matched: 1200,
            changed: 1,
            refusal: refusal.map(|message| Refusal {
                reason: "no-memory".to_owned(),
                message: message.to_owned(),
            }),
            ..ToggleReport::default()
        };
        let ended = |cause| TriggerReport::ended(TriggerEnded { pid: 70, cause });
        let over = |why: Why, fired, skipped| {
            TriggerReport::over(&TriggerOver {
                why: why.into(),
                fired,
                skipped,
                unjudged: u64::from(fired == 3),
            })
        };
        let mut reported = vec![
            TriggerReport::armed(
                TriggerArmed {
                    processes: 1,
                    functions: 0,
                    threads_without_runs: 2,
                    without_runs_because: "Permission denied (os error 13)".to_owned(),
                },
                &[],
                "on Ctrl-C",
            ),
            TriggerReport::armed(
                TriggerArmed {
                    processes: 2,
                    functions: 1234,
                    ..TriggerArmed::default()
                },
                awaited,
                "when it has fired, or on Ctrl-C",
            ),
        ];
        reported.extend(firings.map(|fired| TriggerReport::Fired(Fired::new(fired, &conditions))));
        reported.extend([
            TriggerReport::switched(1, "enable ns::*", report(None)),
            TriggerReport::switched(1, "enable ns::*", report(Some("no room"))),
            TriggerReport::NoSnapshot {
                number: 1,
                why: "no process is attached".to_owned(),
            },
            TriggerReport::Command {
                number: 1,
                command: "./page 'me'",
                ended: "exit status: 3".to_owned(),
            },
            ended(Some(Cause::Signal(11))),
            ended(Some(Cause::Signal(40))),
            ended(Some(Cause::Code(3))),
            ended(Some(Cause::Unknown(true))),
            TriggerReport::unjudged(TriggerMissed {
                unjudged: 1,
                ..TriggerMissed::default()
            }),
            TriggerReport::unjudged(TriggerMissed {
                unjudged: 1234,
                threads_without_runs: 3,
                without_runs_because: "Too many open files".to_owned(),
                skipped: 0,
            }),
            over(Why::Limit, 1, 0),
            over(Why::Expired, 0, 0),
            over(Why::Ended, 3, 1),
        ]);
        reported
    }

    #[test]
    fn reports_read_well() {
        golden::check("triggered.txt", |out| {
            all(&awaited())
                .iter()
                .try_for_each(|reported| reported.render(out, Look::PLAIN))
        });
    }

    #[test]
    fn the_fields_of_the_json_are_documented() {
        golden::check("triggered.jsonl", |out| {
            all(&awaited()).iter().try_for_each(|reported| {
                serde_json::to_writer(&mut *out, reported)?;
                writeln!(out)
            })
        });
    }
}
