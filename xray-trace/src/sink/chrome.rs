//! The JSON that `chrome://tracing`, Perfetto and Speedscope read (trace_event): a begin and an end for each call.
//!
//! Times are `CLOCK_MONOTONIC` in microseconds, with the nanoseconds as three decimals; they are written digit by digit,
//! so none is lost to floating point. Within a thread the events stand in order, which is what nests calls of no length.

use std::io::{self, Write};

use super::per_function::PerFunction;
use super::text::{self, Text};
use super::{Place, Report, Sink};
use crate::analysis::{Call, Ending, Open, Said, Step, Steps};
use crate::model::{DataKind, FunctionId, ThreadId, Trace};

/// Chrome's trace_event JSON.
#[derive(Debug, Clone, Copy)]
pub struct Chrome;

/// Between two events.
const SEPARATOR: &str = ",\n";

struct Output<'a> {
    trace: &'a Trace,
    text: Text<'a>,
    /// Whether the next event is the first one, which no comma stands before.
    first: bool,
    /// What the beginning of a call has after its time.
    names: PerFunction<Vec<u8>>,
    /// What every event of the current thread begins with.
    heads: Heads,
}

/// The text of an event up to its time, by its phase, with a comma before.
#[derive(Default)]
struct Heads {
    begin: String,
    end: String,
    instant: String,
}

// === impl Chrome ===

impl Sink for Chrome {
    fn name(&self) -> &'static str {
        "chrome"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["json"]
    }

    fn about(&self) -> &'static str {
        "trace events, for ui.perfetto.dev and chrome://tracing"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let mut report = Report::default();
        let names = PerFunction::new(trace, |function| {
            let mut name = b",\"name\":".to_vec();
            text::json(&mut name, &function.name);
            name
        });
        let mut output = Output {
            trace,
            text: Text::new(output),
            first: true,
            names,
            heads: Heads::default(),
        };
        output
            .text
            .put("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
        output.tables()?;
        for mut steps in Steps::of_threads(trace) {
            output.thread(steps.thread());
            while let Some(step) = steps.next() {
                match step {
                    Step::Enter(open) => {
                        report.calls += 1;
                        output.begin(&open);
                    }
                    Step::Leave(call) => output.end(&call),
                    Step::Data(said) => output.said(&said, steps.data(&said)),
                    Step::Lost { ticks, events } => {
                        output.lost(trace.clock().monotonic_ns(ticks), events);
                    }
                }
                output.text.pass()?;
            }
            report.leave_out_of_steps(&steps);
        }
        let Output { mut text, .. } = output;
        text.put("\n],\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"calibration\":\"");
        text.put(super::calibration(trace));
        text.put("\"}}\n");
        text.finish()?;
        report.leave_out_unplaced(trace);
        Ok(report)
    }
}

// === impl Output ===

impl Output<'_> {
    /// Names of processes and threads.
    fn tables(&mut self) -> io::Result<()> {
        let trace = self.trace;
        for process in trace.processes() {
            let place = Place {
                pid: process.pid,
                tid: process.pid,
            };
            self.table(place, "process_name", &process.command)?;
        }
        for thread in trace.threads() {
            let place = Place::of(trace, thread.id);
            self.table(place, "thread_name", &thread.name)?;
        }
        Ok(())
    }

    fn table(&mut self, place: Place, what: &str, name: &str) -> io::Result<()> {
        let Place { pid, tid } = place;
        let text = &mut self.text;
        text.put(if std::mem::take(&mut self.first) {
            ""
        } else {
            SEPARATOR
        });
        text.put("{\"ph\":\"M\",\"pid\":");
        text.number(pid);
        text.put(",\"tid\":");
        text.number(tid);
        text.put(",\"name\":\"");
        text.put(what);
        text.put("\",\"args\":{\"name\":");
        text.json(name);
        text.put("}}");
        text.pass()
    }

    /// The events that follow are this thread's.
    fn thread(&mut self, thread: ThreadId) {
        let Place { pid, tid } = Place::of(self.trace, thread);
        let head =
            |phase| format!("{SEPARATOR}{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"ts\":");
        self.heads = Heads {
            begin: head("B"),
            end: head("E"),
            instant: head("i"),
        };
    }

    fn begin(&mut self, open: &Open) {
        self.event(|heads| &heads.begin, open.start_ns);
        self.name(open.function);
        match open.arg {
            None => self.text.put("}"),
            // As text, since readers take numbers for floating point.
            Some(arg) => self
                .text
                .put(&format!(",\"args\":{{\"arg\":\"{arg:#x}\"}}}}")),
        }
    }

    fn end(&mut self, call: &Call) {
        self.event(|heads| &heads.end, call.end_ns);
        self.text.put(match call.how {
            Ending::Normal => "}",
            Ending::TailExit => ",\"args\":{\"end\":\"tail exit\"}}",
            Ending::Closed => ",\"args\":{\"end\":\"no exit seen\"}}",
        });
    }

    fn said(&mut self, said: &Said, data: &[u8]) {
        self.event(|heads| &heads.instant, said.ns);
        match said.kind {
            DataKind::Custom => self.text.put(",\"name\":\"custom event"),
            DataKind::Typed(event_type) => {
                self.text.put(",\"name\":\"typed event ");
                self.text.number(event_type);
            }
        }
        self.text.put("\",\"s\":\"t\",\"args\":{\"data\":");
        self.text.json_bytes(data);
        self.text.put("}}");
    }

    fn lost(&mut self, time_ns: u64, events: u64) {
        self.event(|heads| &heads.instant, time_ns);
        self.text
            .put(",\"name\":\"events lost\",\"s\":\"t\",\"args\":{\"events\":\"");
        self.text.number(events);
        self.text.put("\"}}");
    }

    /// Begins an event; the caller ends it.
    fn event(&mut self, head: fn(&Heads) -> &str, time_ns: u64) {
        let head = head(&self.heads);
        let first = std::mem::take(&mut self.first);
        let skip = if first { SEPARATOR.len() } else { 0 };
        self.text.put(head.get(skip..).unwrap_or_default());
        self.text.decimal::<3>(time_ns);
    }

    fn name(&mut self, function: FunctionId) {
        match self.names.get(function) {
            Some(name) => self.text.bytes(name),
            None => {
                self.text.put(",\"name\":");
                self.text.json(&self.trace.function_name(function));
            }
        }
    }
}
