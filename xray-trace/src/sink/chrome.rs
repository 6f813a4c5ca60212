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

struct Output<'a> {
    trace: &'a Trace,
    text: Text<'a>,
    /// What stands before the next event: nothing, or a comma.
    separator: &'static str,
    /// Names as they stand in the file.
    names: PerFunction<Vec<u8>>,
    /// What every event of the current thread has.
    place: String,
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
            let mut name = Vec::new();
            text::json(&mut name, &function.name);
            name
        });
        let mut output = Output {
            trace,
            text: Text::new(output),
            separator: "",
            names,
            place: String::new(),
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
        text.put(self.separator);
        self.separator = ",\n";
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
        self.place = format!("\",\"pid\":{pid},\"tid\":{tid},\"ts\":");
    }

    fn begin(&mut self, open: &Open) {
        self.event("B", open.start_ns);
        self.text.put(",\"name\":");
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
        self.event("E", call.end_ns);
        self.text.put(match call.how {
            Ending::Normal => "}",
            Ending::TailExit => ",\"args\":{\"end\":\"tail exit\"}}",
            Ending::Closed => ",\"args\":{\"end\":\"no exit seen\"}}",
        });
    }

    fn said(&mut self, said: &Said, data: &[u8]) {
        self.event("i", said.ns);
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
        self.event("i", time_ns);
        self.text
            .put(",\"name\":\"events lost\",\"s\":\"t\",\"args\":{\"events\":\"");
        self.text.number(events);
        self.text.put("\"}}");
    }

    /// Begins an event; the caller ends it.
    fn event(&mut self, phase: &str, time_ns: u64) {
        self.text.put(self.separator);
        self.separator = ",\n";
        self.text.put("{\"ph\":\"");
        self.text.put(phase);
        self.text.put(&self.place);
        self.text.decimal::<3>(time_ns);
    }

    fn name(&mut self, function: FunctionId) {
        match self.names.get(function) {
            Some(name) => self.text.bytes(name),
            None => self.text.json(&self.trace.function_name(function)),
        }
    }
}
