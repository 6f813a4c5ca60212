//! The JSON that `chrome://tracing`, Perfetto and Speedscope read (trace_event): a begin and an end for each call.
//!
//! Times are `CLOCK_MONOTONIC` in microseconds, with the nanoseconds as three decimals; they are written digit by digit,
//! so none is lost to floating point. Within a thread the events stand in order, which is what nests calls of no length.

use std::io::{self, Write};

use super::{Report, Sink};
use crate::analysis::{Call, Ending, Open, Said, Step, Steps};
use crate::model::{Calibration, DataKind, ThreadId, Trace};

/// Chrome's trace_event JSON.
#[derive(Debug, Clone, Copy)]
pub struct Chrome;

struct Output<'a> {
    to: &'a mut dyn Write,
    /// What stands before the next event: nothing, or a comma.
    separator: &'static str,
}

/// How a thread is named in the file.
#[derive(Clone, Copy)]
struct Place {
    pid: u32,
    tid: u32,
}

// === impl Chrome ===

impl Sink for Chrome {
    fn name(&self) -> &'static str {
        "chrome"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["json"]
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let mut report = Report::default();
        writeln!(output, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut output = Output {
            to: output,
            separator: "",
        };
        output.names(trace)?;
        let mut exits_without_entry = 0;
        for mut steps in Steps::of_threads(trace) {
            let place = Place::of(trace, steps.thread());
            while let Some(step) = steps.next() {
                match step {
                    Step::Enter(open) => {
                        report.calls += 1;
                        output.begin(trace, place, &open)?;
                    }
                    Step::Leave(call) => output.end(place, &call)?,
                    Step::Data(said) => output.said(place, &said, steps.data(&said))?,
                    Step::Lost { ticks, events } => {
                        let time = trace.clock().monotonic_ns(ticks);
                        output.event(place, "i", time)?;
                        let lost = "\"name\":\"events lost\",\"s\":\"t\"";
                        write!(output.to, ",{lost},\"args\":{{\"events\":\"{events}\"}}}}")?;
                    }
                }
            }
            exits_without_entry += steps.notes().exits_without_entry;
        }
        let calibration = match trace.clock().calibration() {
            Calibration::None => "none: a tick is shown as a nanosecond",
            Calibration::SingleAnchor => "one anchor: a tick is shown as a nanosecond",
            Calibration::Measured => "measured",
        };
        write!(
            output.to,
            "\n],\"otherData\":{{\"clock\":\"CLOCK_MONOTONIC\","
        )?;
        writeln!(output.to, "\"calibration\":\"{calibration}\"}}}}")?;
        report.leave_out(
            "exits of calls that began before the trace or in a gap",
            exits_without_entry,
        );
        let unplaced = trace
            .losses()
            .iter()
            .fold(0, |sum: u64, loss| sum.saturating_add(loss.1));
        report.leave_out("lost events whose place is not known", unplaced);
        Ok(report)
    }
}

// === impl Output ===

impl Output<'_> {
    fn names(&mut self, trace: &Trace) -> io::Result<()> {
        for process in trace.processes() {
            let place = Place {
                pid: process.pid,
                tid: process.pid,
            };
            self.name(place, "process_name", &process.command)?;
        }
        for thread in trace.threads() {
            let place = Place::of(trace, thread.id);
            self.name(place, "thread_name", &thread.name)?;
        }
        Ok(())
    }

    fn name(&mut self, place: Place, what: &str, name: &str) -> io::Result<()> {
        let Place { pid, tid } = place;
        write!(
            self.to,
            "{}{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid}",
            self.separator
        )?;
        self.separator = ",\n";
        write!(self.to, ",\"name\":\"{what}\",\"args\":{{\"name\":")?;
        self.text(name)?;
        write!(self.to, "}}}}")
    }

    fn begin(&mut self, trace: &Trace, place: Place, open: &Open) -> io::Result<()> {
        self.event(place, "B", open.start_ns)?;
        write!(self.to, ",\"name\":")?;
        self.text(&trace.function_name(open.function))?;
        match open.arg {
            None => write!(self.to, "}}"),
            // As text, since readers take numbers for floating point.
            Some(arg) => write!(self.to, ",\"args\":{{\"arg\":\"{arg:#x}\"}}}}"),
        }
    }

    fn end(&mut self, place: Place, call: &Call) -> io::Result<()> {
        self.event(place, "E", call.end_ns)?;
        match call.how {
            Ending::Normal => write!(self.to, "}}"),
            Ending::TailExit => write!(self.to, ",\"args\":{{\"end\":\"tail exit\"}}}}"),
            Ending::Closed => write!(self.to, ",\"args\":{{\"end\":\"no exit seen\"}}}}"),
        }
    }

    /// As text, with what is not UTF-8 escaped.
    fn said(&mut self, place: Place, said: &Said, data: &[u8]) -> io::Result<()> {
        self.event(place, "i", said.ns)?;
        match said.kind {
            DataKind::Custom => write!(self.to, ",\"name\":\"custom event\"")?,
            DataKind::Typed(event_type) => {
                write!(self.to, ",\"name\":\"typed event {event_type}\"")?;
            }
        }
        write!(self.to, ",\"s\":\"t\",\"args\":{{\"data\":")?;
        match std::str::from_utf8(data) {
            Ok(text) => self.text(text)?,
            Err(_) => self.text(&data.escape_ascii().to_string())?,
        }
        write!(self.to, "}}}}")
    }

    /// Begins an event; the caller ends it.
    fn event(&mut self, place: Place, phase: &str, time_ns: u64) -> io::Result<()> {
        let Place { pid, tid } = place;
        let (us, ns) = (time_ns / 1000, time_ns % 1000);
        write!(
            self.to,
            "{}{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid}",
            self.separator
        )?;
        self.separator = ",\n";
        write!(self.to, ",\"ts\":{us}.{ns:03}")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        serde_json::to_writer(&mut *self.to, text).map_err(io::Error::from)
    }
}

// === impl Place ===

impl Place {
    /// By the kernel's numbers; a thread that the table does not have stands by its own id, in process 0.
    fn of(trace: &Trace, thread: ThreadId) -> Self {
        let known = trace.thread(thread);
        let process = known.and_then(|known| trace.process(known.process));
        Self {
            pid: process.map_or(0, |process| process.pid),
            tid: known.map_or(thread.0, |known| known.tid),
        }
    }
}
